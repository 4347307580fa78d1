//! A client that follows `next_batch` misses nothing and gets nothing twice, whatever responses are
//! lost.

use std::collections::{BTreeMap, BTreeSet};

use logcabin::{
    events::{EventStore, Viewer},
    history::audit::{Ledger, SyncParameters},
    log::ReadError,
    notifications::Unread,
    record::Epoch,
    sync::{
        Effort, KnownMembers, UndonePosition,
        v3::{Memory, Request, SyncFilter, respond},
    },
    view::{View, filter::Filter, token::Token},
};
use ruma::{DeviceId, OwnedDeviceId, UserId};
use serde_json::{Value, json};

use super::*;

/// A client with its settings.
#[derive(Clone, Debug)]
struct Client {
    user: u8,
    limit: u8,
    lazy: bool,
    state_after: bool,
    include_leave: bool,
    since: Option<Offset>,
    /// Of each room, what the client holds: the ids of its state events, by key.
    rooms: BTreeMap<String, BTreeMap<(String, String), String>>,
    /// The timeline of each room that it was ever told of, as far as it is without a gap. A client
    /// keeps it when its user leaves, so that they can read on.
    timelines: BTreeMap<String, Vec<String>>,
}

/// When someone syncs, and what becomes of the answer.
#[derive(Clone, Debug)]
struct Sync {
    client: prop::sample::Index,
    full_state: bool,
    /// The answer is lost: the client asks the same again the next time.
    lost: bool,
    /// The client lost all it had.
    fresh: bool,
}

#[derive(Clone, Debug)]
enum Step {
    Op(Op),
    Sync(Sync),
    /// One user ignores another from now on, or nobody.
    Ignore(u8, Option<u8>),
    Restart,
}

fn client() -> impl Strategy<Value = Client> {
    (0..USERS, 1..6_u8, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(user, limit, lazy, state_after, include_leave)| Client {
            user,
            limit,
            lazy,
            state_after,
            include_leave,
            since: None,
            rooms: BTreeMap::new(),
            timelines: BTreeMap::new(),
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let sync = (any::<prop::sample::Index>(), 0..10_u8, 0..5_u8, 0..20_u8).prop_map(
        |(client, full_state, lost, fresh)| Sync {
            client,
            full_state: full_state == 0,
            lost: lost == 0,
            fresh: fresh == 0,
        },
    );
    prop_oneof![30 => op().prop_map(Step::Op), 10 => sync.prop_map(Step::Sync),
        1 => (0..USERS, proptest::option::of(0..USERS)).prop_map(|(u, o)| Step::Ignore(u, o)),
        1 => Just(Step::Restart),
    ]
}

fn beginning() -> Vec<Op> {
    let mut ops: Vec<_> = (0..USERS).map(Op::Register).collect();
    ops.extend([Op::CreateRoom(0, 2, 7), Op::CreateRoom(1, 0, 9)]);
    ops.extend((1..USERS).map(|user| Op::Member(user, user, 0, 0)));
    ops
}

impl Client {
    fn user_id(&self) -> OwnedUserId {
        user_id(self.user)
    }

    /// Each client is a device, and the server knows it by its session.
    fn session(&self, number: usize) -> Offset {
        Offset::new(1_000_000 + number as u64)
    }

    fn request(&self, sync: &Sync) -> Request {
        let definition = json!({ "room": {
            "include_leave": self.include_leave,
            // One of the limits is larger than any timeline.
            "timeline": { "limit": if self.limit == 4 { 1000 } else { u32::from(self.limit) } },
            "state": { "lazy_load_members": self.lazy },
        } });
        let filter: Filter = serde_json::from_value(definition).unwrap();
        Request {
            full_state: sync.full_state,
            use_state_after: self.state_after,
            filter: SyncFilter::new(filter, 10, 1000).into(),
            ..plain(self.since)
        }
    }

    /// Takes in an answer that arrived, as a client would that keeps what it is told.
    fn take(&mut self, answer: &Value, world: &World) {
        for section in ["join", "leave"] {
            for (room_id, part) in answer["rooms"][section].as_object().into_iter().flatten() {
                self.take_timeline(room_id, &part["timeline"]);
            }
        }
        let rooms = answer["rooms"]["join"].as_object().into_iter().flatten();
        for (room_id, part) in rooms {
            let limited = part["timeline"]["limited"] == true;
            let room = self.rooms.entry(room_id.clone()).or_default();
            let name = if self.state_after { "state_after" } else { "state" };
            let events = |part: &Value| part["events"].as_array().cloned().unwrap_or_default();
            let mut told = events(&part[name]);
            if !self.state_after {
                told.extend(events(&part["timeline"]));
            }
            for event in told.iter().filter(|event| event["state_key"].is_string()) {
                let text = |name: &str| event[name].as_str().unwrap().to_owned();
                room.insert((text("type"), text("state_key")), text("event_id"));
            }
            for event in events(&part["timeline"]) {
                let id = event["event_id"].as_str().unwrap();
                let member =
                    ("m.room.member".to_owned(), event["sender"].as_str().unwrap().to_owned());
                let truth = member_event(world, room_id, &member.1);
                assert!(
                    !self.lazy || truth.is_none() || room.get(&member) == truth.as_ref(),
                    "of {}, who wrote {id} in {room_id}, the client has {:?}, not {truth:?}; limited: {limited}",
                    member.1,
                    room.get(&member),
                );
            }
        }
        for section in ["leave", "invite", "knock"] {
            for (room_id, _) in answer["rooms"][section].as_object().into_iter().flatten() {
                // Its state is history; if the user joins again, the client gets all of it again.
                self.rooms.remove(room_id);
            }
        }
        let parts = world.engine.state().memberships.of(&self.user_id(), Offset::MAX).into_iter();
        let joined = parts.filter(|part| part.membership == Membership::Join);
        let joined: BTreeSet<_> = joined.map(|part| part.room_id.to_string()).collect();
        let known: BTreeSet<_> = self.rooms.keys().cloned().collect();
        assert_eq!(known, joined, "the client takes the user to be in other rooms than they are");
    }

    /// The client appends what follows without a gap, and starts over after a gap. If the user came
    /// back to a room, only `limited` tells the client to do so.
    fn take_timeline(&mut self, room_id: &str, timeline: &Value) {
        let has = self.timelines.entry(room_id.to_owned()).or_default();
        if timeline["limited"] == true {
            has.clear();
        }
        for event in timeline["events"].as_array().into_iter().flatten() {
            let id = event["event_id"].as_str().unwrap().to_owned();
            assert!(!has.contains(&id), "{id} came twice in {room_id}, after {has:?}: {timeline}");
            has.push(id);
        }
    }
}

fn member_event(world: &World, room_id: &str, user_id: &str) -> Option<String> {
    let room_id: OwnedRoomId = room_id.try_into().unwrap();
    let room = world.engine.state().rooms.get(&room_id)?;
    let member = room.state_event(&"m.room.member".into(), user_id, Offset::MAX)?;
    Some(world.engine.events().get(member).unwrap()?.event_id.to_string())
}

/// A plain request.
fn plain(since: Option<Offset>) -> Request {
    Request {
        since,
        came_from: None,
        full_state: false,
        use_state_after: false,
        filter: SyncFilter::new(Filter::default(), 10, 1000).into(),
        epoch: Default::default(),
    }
}

fn answer(
    world: &World,
    session: Offset,
    user_id: &UserId,
    request: &Request,
    known: &KnownMembers,
) -> Value {
    let at = world.engine.head().offset();
    let of = (world.engine.state().share(), world.engine.events());
    answer_as_of(at, of, session, user_id, request, known)
}

fn answer_as_of(
    at: Offset,
    (state, events): (Arc<State>, &EventStore),
    session: Offset,
    user_id: &UserId,
    request: &Request,
    known: &KnownMembers,
) -> Value {
    let device_id: OwnedDeviceId = <&DeviceId>::from("D0").to_owned();
    let now_ms = 1_700_000_000_000;
    let viewer = Viewer { user_id, device_id: &device_id, session, at, now_ms };
    let view = View { state, events, viewer };
    let memory = Memory { members: known, unread: &Unread::default(), effort: Effort::Any };
    serde_json::to_value(respond(&view, request, memory).unwrap()).unwrap()
}

async fn ignore(world: &World, user: u8, other: Option<u8>) {
    let ignored: BTreeMap<_, _> =
        other.map(|other| (user_id(other), json!({}))).into_iter().collect();
    let content = json!({ "ignored_users": ignored }).to_string();
    let proposal = SetAccountData {
        user_id: user_id(user),
        room_id: None,
        event_type: "m.ignored_user_list".to_owned(),
        content: serde_json::value::RawValue::from_string(content).unwrap(),
    };
    world.engine.propose(Origin::server(), proposal).await.unwrap().into_inner();
}

fn ledger(world: &World, user_id: &UserId) -> Ledger {
    let mut ledger = Ledger::new(user_id);
    for record in world.records() {
        ledger.take(&record).unwrap();
    }
    ledger.settle();
    ledger
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn every_sync_response_matches_the_log(
        clients in proptest::collection::vec(client(), 3),
        steps in proptest::collection::vec(step(), 30..150),
    ) {
        let mut clients = clients;
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            let mut known = KnownMembers::new(1 << 20);
            for op in beginning() {
                world.run(&op).await;
            }
            for step in steps {
                match step {
                    Step::Op(op) => world.run(&op).await,
                    Step::Ignore(user, other) => ignore(&world, user, other).await,
                    Step::Restart => {
                        world = world.restart().await;
                        known = KnownMembers::new(1 << 20);
                    }
                    Step::Sync(sync) => {
                        let number = sync.client.index(clients.len());
                        let client = &mut clients[number];
                        if sync.fresh {
                            client.since = None;
                            client.rooms.clear();
                            client.timelines.clear();
                        }
                        let request = client.request(&sync);
                        let user_id = client.user_id();
                        let answer =
                            answer(&world, client.session(number), &user_id, &request, &known);
                        let to = world.engine.head().offset();
                        let asked = SyncParameters {
                            since: client.since,
                            to,
                            full_state: sync.full_state,
                            use_state_after: client.state_after,
                            lazy_load_members: client.lazy,
                            include_leave: client.include_leave,
                        };
                        let findings = ledger(&world, &user_id).check(&asked, &answer);
                        assert!(findings.is_empty(), "{asked:?}: {findings:#?}\n{answer:#}");
                        if !sync.lost {
                            client.take(&answer, &world);
                            client.since = Some(to);
                        }
                    }
                }
            }
        });
    }
}

/// A log that is read only while nobody holds the account of a user.
#[derive(Debug)]
struct Unlocked {
    log: Arc<MemoryLog>,
    state: Arc<State>,
    user_id: OwnedUserId,
}

impl Unlocked {
    fn check(&self) {
        let account = self.state.accounts.get(&self.user_id).unwrap();
        assert!(account.try_write().is_some(), "the log is read while the account is locked");
    }
}

impl logcabin::log::samples::Wrapper for Unlocked {
    fn inner(&self) -> &dyn Log {
        &*self.log
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        self.check();
        self.log.get(offset)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        self.check();
        self.log.read(from, limit)
    }
}

/// Otherwise writes to the account wait for the disk. And if the sync locks the account again while
/// a write waits, both wait forever, and the whole server with them.
#[test]
fn a_sync_locks_no_account_while_it_reads_the_log() {
    runtime().block_on(async {
        let mut world = World::open(Vec::new()).await;
        for op in beginning() {
            world.run(&op).await;
        }
        world.run(&Op::AccountData(0, None, 1, 7)).await;
        world.run(&Op::AccountData(0, Some(0), 1, 7)).await;
        world.run(&Op::Message(1, 0, 0)).await;
        let state = Arc::new(State::default());
        for record in world.records() {
            drop(state.apply(&record).unwrap());
        }
        let user_id = user_id(0);
        for since in [None, Some(Offset::new(1)), Some(state.applied().prev())] {
            let (log, of) = (Arc::clone(&world.log), user_id.clone());
            let log = Unlocked { log, state: Arc::clone(&state), user_id: of };
            let events = EventStore::new(Arc::new(log) as Arc<dyn Log>, 1 << 20);
            let (session, known) = (Offset::new(1), KnownMembers::new(1 << 20));
            let at = state.applied();
            let answer = answer_as_of(
                at,
                (Arc::clone(&state), &events),
                session,
                &user_id,
                &plain(since),
                &known,
            );
            assert!(!answer["rooms"]["join"].as_object().unwrap().is_empty(), "{answer}");
        }
    });
}

/// Whom the user ignores and what they deleted is as the auditor has it.
#[test]
fn the_auditor_respects_ignored_users_and_deletions() {
    runtime().block_on(async {
        let mut world = World::open(Vec::new()).await;
        for op in beginning() {
            world.run(&op).await;
        }
        let ann = user_id(0);
        let before = world.engine.head().offset();
        world.run(&Op::AccountData(0, None, 1, 7)).await;
        let middle = world.engine.head().offset();
        let set = |event_type: &str, content: Value| SetAccountData {
            user_id: user_id(0),
            room_id: None,
            event_type: event_type.to_owned(),
            content: serde_json::value::to_raw_value(&content).unwrap(),
        };
        let ignored = json!({ "ignored_users": { user_id(1): {} } });
        for proposal in [set("m.ignored_user_list", ignored), set("type1", Value::Null)] {
            world.engine.propose(Origin::server(), proposal).await.unwrap().into_inner();
        }
        // The first of these is not reported, nor is the invite.
        world.run(&Op::Message(1, 0, 0)).await;
        world.run(&Op::Message(2, 0, 0)).await;
        world.run(&Op::CreateRoom(1, 0, 9)).await;
        world.run(&Op::Member(1, 0, 2, 3)).await;
        let to = world.engine.head().offset();
        let invite = world.engine.state().memberships.in_room(&ann, &world.rooms[2], to);
        assert_eq!(invite.map(|invite| invite.membership), Some(Membership::Invite));
        let ledger = ledger(&world, &ann);
        let known = KnownMembers::new(1 << 20);
        for since in [None, Some(before), Some(middle)] {
            let asked = SyncParameters { since, to, ..SyncParameters::default() };
            let answer = answer(&world, Offset::new(1), &ann, &plain(since), &known);
            assert_eq!(ledger.check(&asked, &answer), [], "since {since:?}: {answer:#}");
        }
    });
}

/// To a client that was told of the user's absence, the room begins again; whatever it had of the
/// timeline, it must not have twice.
#[test]
fn a_timeline_that_begins_again_is_limited() {
    runtime().block_on(async {
        let mut world = World::open(Vec::new()).await;
        for op in beginning() {
            world.run(&op).await;
        }
        let (bob, known) = (user_id(1), KnownMembers::new(1 << 20));
        let room_id = world.rooms[0].to_string();
        let timeline_since = |world: &World, since| {
            let mut request = plain(since);
            request.filter = SyncFilter::new(Filter::default(), 1000, 1000).into();
            let mut answer = answer(world, Offset::new(1), &bob, &request, &known);
            answer["rooms"]["join"][&room_id]["timeline"].take()
        };
        let first = timeline_since(&world, None);
        assert_eq!(first["limited"], false, "{first}");
        let (join, leave, kick) =
            (Op::Member(1, 1, 0, 0), Op::Member(1, 1, 0, 1), Op::Member(0, 1, 0, 4));
        let (invite, ban, unban) =
            (Op::Member(0, 1, 0, 3), Op::Member(0, 1, 0, 5), Op::Member(0, 1, 0, 6));
        for away in
            [vec![leave.clone()], vec![leave, invite.clone()], vec![kick, invite], vec![ban, unban]]
        {
            let before = world.engine.head().offset();
            for op in &away {
                world.run(op).await;
            }
            let absent = world.engine.head().offset();
            world.run(&join).await;
            let again = timeline_since(&world, Some(absent));
            let newest = |timeline: &Value| timeline["events"].as_array().unwrap().len();
            assert!(newest(&again) > newest(&first), "{away:?}: not from the beginning: {again}");
            assert_eq!(again["limited"], true, "{away:?}: {again}");
            assert!(again["prev_batch"].is_string(), "{away:?}: {again}");
            // A client that was told neither of the leave nor of the join goes on.
            let on = timeline_since(&world, Some(before));
            assert_eq!(
                (newest(&on), &on["limited"]),
                (away.len() + 1, &json!(false)),
                "{away:?}: {on}"
            );
        }
        // One that starts over because of a restore does not know that it does.
        let mut request = plain(None);
        request.filter = SyncFilter::new(Filter::default(), 1000, 1000).into();
        let token = Token { epoch: Epoch(1), offset: Offset::new(1) };
        request.came_from = Some(UndonePosition { token, after: Offset::new(1) });
        let over = answer(&world, Offset::new(1), &bob, &request, &known);
        assert_eq!(over["rooms"]["join"][&room_id]["timeline"]["limited"], true, "{over:#}");
    });
}

/// Otherwise a client would show the room as joined forever.
#[test]
fn a_removal_is_reported_although_a_hidden_invite_follows_it() {
    runtime().block_on(async {
        let mut world = World::open(Vec::new()).await;
        for op in beginning() {
            world.run(&op).await;
        }
        let bob = user_id(1);
        ignore(&world, 1, Some(0)).await;
        let before = world.engine.head().offset();
        world.run(&Op::Member(0, 1, 0, 4)).await;
        let kick = world.engine.head().offset();
        world.run(&Op::Member(0, 1, 0, 3)).await;
        let to = world.engine.head().offset();
        let known = KnownMembers::new(1 << 20);
        for (since, expected) in [(before, true), (kick, false)] {
            let since = Some(since);
            let answer = answer(&world, Offset::new(1), &bob, &plain(since), &known);
            let asked = SyncParameters { since, to, ..SyncParameters::default() };
            assert_eq!(ledger(&world, &bob).check(&asked, &answer), [], "{answer:#}");
            let left = &answer["rooms"]["leave"][world.rooms[0].as_str()];
            assert_eq!(!left.is_null(), expected, "{answer:#}");
            assert_eq!(answer["rooms"]["invite"], json!({}));
        }
    });
}

/// The property above would mean nothing if the auditor found nothing.
#[test]
fn omissions_and_inventions_are_found() {
    runtime().block_on(async {
        let mut world = World::open(Vec::new()).await;
        for op in beginning() {
            world.run(&op).await;
        }
        let before = world.engine.head().offset();
        for op in [
            Op::Message(1, 0, 0),
            Op::Message(2, 0, 0),
            Op::AccountData(0, None, 1, 7),
            Op::AccountData(0, Some(0), 1, 7),
            Op::State(0, 0, 0, 0, 3),
            Op::Receipt(1, 0, 0),
        ] {
            world.run(&op).await;
        }
        let ann = user_id(0);
        let known = KnownMembers::new(1 << 20);
        let asked = SyncParameters {
            since: Some(before),
            to: world.engine.head().offset(),
            ..SyncParameters::default()
        };
        let request = plain(Some(before));
        let right = answer(&world, Offset::new(1), &ann, &request, &known);
        let ledger = ledger(&world, &ann);
        assert_eq!(ledger.check(&asked, &right), []);
        let room_id = world.rooms[0].to_string();
        let room = format!("/rooms/join/{}", room_id.replace('/', "~1"));
        let mut broken: Vec<(&str, Value)> = Vec::new();
        let mut break_at = |what, pointer: String, change: &dyn Fn(&mut Value)| {
            let mut wrong = right.clone();
            change(
                wrong.pointer_mut(&pointer).unwrap_or_else(|| panic!("no {pointer}: {right:#}")),
            );
            broken.push((what, wrong));
        };
        break_at("a room is left out", "/rooms/join".to_owned(), &|join| *join = json!({}));
        break_at("the newest event is left out", format!("{room}/timeline/events"), &|events| {
            drop(events.as_array_mut().unwrap().pop());
        });
        break_at("the oldest event is left out", format!("{room}/timeline/events"), &|events| {
            drop(events.as_array_mut().unwrap().remove(0));
        });
        break_at("two events are swapped", format!("{room}/timeline/events"), &|events| {
            events.as_array_mut().unwrap().swap(0, 1);
        });
        break_at("an event is made up", format!("{room}/timeline/events/0/event_id"), &|id| {
            *id = json!("$made-up");
        });
        break_at("state is made up", format!("{room}/state/events"), &|events| {
            let event =
                json!({ "type": "a", "state_key": "", "event_id": "$made-up", "content": {} });
            events.as_array_mut().unwrap().push(event);
        });
        break_at("a receipt is left out", format!("{room}/ephemeral/events"), &|events| {
            *events = json!([]);
        });
        break_at(
            "account data is wrong",
            "/account_data/events/0/content".to_owned(),
            &|content| {
                *content = json!({ "value": 8 });
            },
        );
        break_at(
            "a room's account data is left out",
            format!("{room}/account_data/events"),
            &|e| {
                *e = json!([]);
            },
        );
        for (what, wrong) in broken {
            assert!(!ledger.check(&asked, &wrong).is_empty(), "{what}: not found");
        }
    });
}
