//! Compares unread counts with a naive implementation of the specification: at random moments of
//! random histories, in any order, from one `Unread` with its cache.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use logcabin::{
    clock::Clock,
    decide::{
        account::{Register, SetProfile},
        account_data::SetAccountData,
        create_room::{CreateRoom, Preset},
        ephemeral::SetReceipt,
        membership::{Change, ChangeMembership},
        push::{ChangePushRules, RuleChange},
        send::SendEvent,
    },
    engine::{Engine, Options, ProposeError},
    limits,
    log::{Log, memory::MemoryLog},
    notifications::{Count, Counts, Judge, Unread},
    record::{Command, Offset, Origin, Record},
    state::Room,
};
use proptest::prelude::*;
use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId, OwnedUserId,
    RoomVersionId, UInt,
    events::TimelineEventType,
    push::{NewPushRule, NewSimplePushRule, RuleKind},
};
use serde_json::{Value, json};

const USERS: u8 = 3;

#[derive(Clone, Debug)]
enum Op {
    /// A message: its sender, whom it mentions, and what it is related to.
    Say(u8, Mentions, Relates),
    Redact(u8, u8),
    /// A receipt: of whom, private or not, for which event, in which thread.
    Read(u8, bool, u8, ReadThread),
    /// Leave, or come back.
    LeaveOrJoin(u8),
    Rename(u8),
    Mute(u8, bool),
    Ignore(u8, Option<u8>),
    /// Ask for the counts of someone as of this many records ago.
    Look(u8, u8),
    /// Write what was counted to disk, and go on with what is read from there.
    Restart,
}

#[derive(Clone, Debug)]
enum Mentions {
    Nobody,
    User(u8),
    /// A notice, which does not notify.
    Notice,
}

#[derive(Clone, Debug)]
enum Relates {
    Alone,
    Thread(u8),
    Other(u8),
}

#[derive(Clone, Debug)]
enum ReadThread {
    None,
    Main,
    Root(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let user = || 0..USERS;
    let event = || any::<u8>();
    let mentions = prop_oneof![
        3 => Just(Mentions::Nobody),
        2 => user().prop_map(Mentions::User),
        1 => Just(Mentions::Notice),
    ];
    let relates = prop_oneof![
        3 => Just(Relates::Alone),
        3 => event().prop_map(Relates::Thread),
        2 => event().prop_map(Relates::Other),
    ];
    let thread = prop_oneof![
        Just(ReadThread::None),
        Just(ReadThread::Main),
        event().prop_map(ReadThread::Root),
    ];
    prop_oneof![
        10 => (user(), mentions, relates).prop_map(|(u, m, r)| Op::Say(u, m, r)),
        2 => (user(), event()).prop_map(|(u, e)| Op::Redact(u, e)),
        5 => (user(), any::<bool>(), event(), thread).prop_map(|(u, p, e, t)| Op::Read(u, p, e, t)),
        3 => user().prop_map(Op::LeaveOrJoin),
        2 => user().prop_map(Op::Rename),
        1 => (user(), any::<bool>()).prop_map(|(u, m)| Op::Mute(u, m)),
        1 => (user(), proptest::option::of(user())).prop_map(|(u, i)| Op::Ignore(u, i)),
        12 => (user(), 0..12_u8).prop_map(|(u, b)| Op::Look(u, b)),
        1 => Just(Op::Restart),
    ]
}

fn user_id(number: u8) -> OwnedUserId {
    format!("@user{number}:test").try_into().unwrap()
}

fn canonical(content: Value) -> CanonicalJsonObject {
    serde_json::from_value(content).unwrap()
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::from(1_700_000_000_u32))
}

/// A server with one room that all users are in.
struct World {
    engine: Arc<Engine>,
    log: Arc<MemoryLog>,
    room_id: OwnedRoomId,
    events: Vec<OwnedEventId>,
    unread: Unread,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::manual(1_700_000_000_000);
        let log = Arc::new(MemoryLog::with_records(clock.clone(), Vec::new()));
        let options = Options::small(clock);
        let engine = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options).await.unwrap();
        let mut world = Self {
            engine: Arc::new(engine),
            log,
            room_id: "!room:test".try_into().unwrap(),
            events: Vec::new(),
            unread: Unread::default(),
        };
        for user in 0..USERS {
            let register = Register::user(user_id(user));
            world.engine.propose(Origin::server(), register).await.unwrap().into_inner();
        }
        let create = CreateRoom {
            power_levels: canonical(json!({ "redact": 0 })),
            ..CreateRoom::new(
                world.room_id.clone(),
                user_id(0),
                RoomVersionId::V10,
                Preset::PublicChat,
                ts(),
            )
        };
        world.room_id = world.engine.propose(Origin::server(), create).await.unwrap().into_inner();
        for user in 1..USERS {
            world.change(user, Change::Join).await.unwrap();
        }
        world
    }

    fn room(&self) -> Arc<Room> {
        self.engine.state().rooms.get(&self.room_id).unwrap()
    }

    fn event(&self, number: u8) -> Option<OwnedEventId> {
        self.events.get(usize::from(number) % self.events.len().max(1)).cloned()
    }

    async fn change(&self, user: u8, change: Change) -> Result<(), ProposeError> {
        let proposal =
            ChangeMembership::new(self.room_id.clone(), user_id(user), user_id(user), change, ts());
        drop(self.engine.propose(Origin::server(), proposal).await?.into_inner());
        Ok(())
    }

    async fn send(
        &self,
        user: u8,
        content: Value,
        redacts: Option<OwnedEventId>,
    ) -> Result<OwnedEventId, ProposeError> {
        let event_type = match redacts {
            Some(_) => TimelineEventType::RoomRedaction,
            None => TimelineEventType::RoomMessage,
        };
        let proposal = SendEvent {
            room_id: self.room_id.clone(),
            sender: user_id(user),
            event_type,
            state_key: None,
            content: canonical(content).into(),
            redacts,
            transaction: None,
            ts: ts(),
        };
        Ok(self.engine.propose(Origin::server(), proposal).await?.into_inner())
    }

    /// Tries one operation. Much of it is refused, as it should be.
    async fn run(&mut self, op: &Op) -> Result<(), ProposeError> {
        match op {
            Op::Say(user, mentions, relates) => {
                let mut content = json!({ "msgtype": "m.text", "body": "x", "m.mentions": {} });
                match mentions {
                    Mentions::Nobody => {}
                    Mentions::User(of) => content["m.mentions"]["user_ids"] = json!([user_id(*of)]),
                    Mentions::Notice => content["msgtype"] = json!("m.notice"),
                }
                let (rel_type, event) = match relates {
                    Relates::Alone => ("", None),
                    Relates::Thread(event) => ("m.thread", self.event(*event)),
                    Relates::Other(event) => ("m.reference", self.event(*event)),
                };
                if let Some(event) = event {
                    content["m.relates_to"] = json!({ "rel_type": rel_type, "event_id": event });
                }
                let event_id = self.send(*user, content, None).await?;
                self.events.push(event_id);
            }
            Op::Redact(user, event) => {
                let Some(event) = self.event(*event) else { return Ok(()) };
                self.send(*user, json!({}), Some(event)).await?;
            }
            Op::Read(user, private, event, thread) => {
                let Some(event_id) = self.event(*event) else { return Ok(()) };
                let receipt = SetReceipt {
                    room_id: self.room_id.clone(),
                    user_id: user_id(*user),
                    receipt_type: if *private { "m.read.private" } else { "m.read" }.to_owned(),
                    event_id,
                    thread_id: match thread {
                        ReadThread::None => None,
                        ReadThread::Main => Some("main".to_owned()),
                        ReadThread::Root(event) => self.event(*event).map(|id| id.to_string()),
                    },
                    ts: 1,
                };
                self.engine.propose(Origin::server(), receipt).await?.into_inner();
            }
            Op::LeaveOrJoin(user) => {
                let joined = self.room().is_joined(&user_id(*user), Offset::MAX);
                self.change(*user, if joined { Change::Leave } else { Change::Join }).await?;
            }
            Op::Rename(user) => {
                let name = format!("name {}", self.engine.state().applied());
                let proposal = SetProfile {
                    user_id: user_id(*user),
                    field: "displayname".to_owned(),
                    value: Some(name.into()),
                };
                let _: bool = self.engine.propose(Origin::server(), proposal).await?.into_inner();
                self.change(*user, Change::Profile).await?;
            }
            Op::Mute(user, muted) => {
                let rule = NewSimplePushRule::new(self.room_id.clone(), Vec::new());
                let change = if *muted {
                    RuleChange::Put { rule: NewPushRule::Room(rule), before: None, after: None }
                } else {
                    RuleChange::Remove(RuleKind::Room, self.room_id.to_string())
                };
                let proposal = ChangePushRules { user_id: user_id(*user), change };
                self.engine.propose(Origin::server(), proposal).await?.into_inner();
            }
            Op::Ignore(user, whom) => {
                let users: BTreeMap<_, _> =
                    whom.iter().map(|whom| (user_id(*whom), json!({}))).collect();
                let content = json!({ "ignored_users": users }).to_string();
                let proposal = SetAccountData {
                    user_id: user_id(*user),
                    room_id: None,
                    event_type: "m.ignored_user_list".to_owned(),
                    content: serde_json::value::RawValue::from_string(content).unwrap(),
                };
                self.engine.propose(Origin::server(), proposal).await?.into_inner();
            }
            Op::Look(user, back) => {
                let head = self.engine.state().applied();
                let at = Offset::new(head.get().saturating_sub(u64::from(*back)));
                self.compare(&self.unread, *user, at);
                self.compare_change(*user, at, head);
            }
            Op::Restart => {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("snapshots/counts");
                let (log, state) = (&*self.log as &dyn Log, self.engine.state());
                self.unread.write(&path, log, &state).unwrap();
                self.unread = Unread::default();
                self.unread.read(&path, log, state.generation()).unwrap();
            }
        }
        Ok(())
    }

    /// If the counts differ, `changed` says so.
    fn compare_change(&self, user: u8, since: Offset, at: Offset) {
        let (state, events) = (self.engine.state(), self.engine.events());
        let (user_id, room) = (user_id(user), self.room());
        let was_joined = room.joined_since(&user_id, since);
        if was_joined.is_some() && was_joined == room.joined_since(&user_id, at) {
            let judge = Judge { state: &state, events, user_id: &user_id, room: &room };
            let changed = self.unread.changed(judge, since, at).unwrap();
            let differ = self.naive(user, since) != self.naive(user, at);
            assert!(changed || !differ, "user {user} after {since} up to {at}");
        }
    }

    fn compare(&self, unread: &Unread, user: u8, at: Offset) {
        let (state, events) = (self.engine.state(), self.engine.events());
        let counts = unread.counts(&state, events, &user_id(user), &self.room(), at).unwrap();
        assert_eq!(counts, self.naive(user, at), "user {user} at {at}");
        // There are as many events as are counted, from any start.
        let (user_id, room) = (user_id(user), self.room());
        let judge = Judge { state: &state, events, user_id: &user_id, room: &room };
        let after = |after| unread.events(judge, after, at).unwrap();
        let all = after(Offset::ZERO);
        let highlights = all.iter().filter(|event| event.highlight).count() as u64;
        let number = Count { notifications: all.len() as u64, highlights };
        assert_eq!(number, counts.total(), "user {user} at {at}");
        assert!(all.is_sorted_by(|one, next| one.offset < next.offset), "{all:?}");
        let middle = all.get(all.len() / 2).map_or(at, |event| event.offset);
        let later = all.iter().filter(|event| event.offset > middle).copied().collect::<Vec<_>>();
        assert_eq!(after(middle), later);
        assert_eq!(after(at), []);
    }

    /// The counts by the sentences of the specification, from the records alone.
    fn naive(&self, user: u8, at: Offset) -> Counts {
        let user = user_id(user);
        let records: Vec<Record> = self.log.read(Offset::new(1), usize::MAX).unwrap();
        let mut seen = Seen::default();
        for record in records.iter().take_while(|record| record.offset() <= at) {
            match record.command().unwrap().unwrap() {
                Command::RoomEvent(body) => {
                    let pdu: Value = serde_json::from_str(body.pdu.get()).unwrap();
                    seen.offsets.insert(body.event_id.to_string(), record.offset());
                    if let Some(target) = body.redacts {
                        seen.redacted.insert(target);
                    }
                    let (sender, content) = (pdu["sender"].as_str().unwrap(), &pdu["content"]);
                    if pdu["type"] == "m.room.member" && pdu["state_key"] == user.as_str() {
                        match content["membership"] == "join" {
                            false => seen.joined = None,
                            true => seen.joined = seen.joined.or_else(|| Some(record.offset())),
                        }
                    }
                    let ids = content["m.mentions"]["user_ids"].as_array();
                    let mentioned = ids.is_some_and(|ids| ids.contains(&json!(user)));
                    let notifies = pdu["type"] == "m.room.message"
                        && content["msgtype"] != "m.notice"
                        && (mentioned || !seen.muted)
                        && !seen.ignored.contains(sender);
                    seen.events.push(Event {
                        offset: record.offset(),
                        own: sender == user,
                        is_state: pdu.get("state_key").is_some(),
                        relation: content.get("m.relates_to").cloned(),
                        notifies: notifies && sender != user,
                        highlight: mentioned,
                    });
                }
                Command::RoomReceipt(body) => {
                    for receipt in body.receipts.into_iter().filter(|r| r.user_id == user) {
                        let up_to = seen.offsets[receipt.event_id.as_str()];
                        let thread = receipt.thread_id.map(|id| match &*id {
                            "main" => None,
                            root => Some(seen.offsets[root]),
                        });
                        seen.receipts.push((thread, up_to));
                    }
                }
                Command::AccountDataSet(body) if body.user_id == user => {
                    let content: Value = serde_json::from_str(body.content.get()).unwrap();
                    if body.event_type == "m.push_rules" {
                        let room = content["global"]["room"].as_array();
                        seen.muted = room.is_some_and(|rules| !rules.is_empty());
                    } else {
                        let users = content["ignored_users"].as_object().unwrap();
                        seen.ignored = users.keys().filter(|u| **u != user).cloned().collect();
                    }
                }
                _ => {}
            }
        }
        seen.counts()
    }
}

struct Event {
    offset: Offset,
    own: bool,
    is_state: bool,
    relation: Option<Value>,
    notifies: bool,
    highlight: bool,
}

#[derive(Default)]
struct Seen {
    offsets: BTreeMap<String, Offset>,
    events: Vec<Event>,
    redacted: BTreeSet<Offset>,
    joined: Option<Offset>,
    /// What each receipt covers (all; outside of threads; a thread), and how far.
    receipts: Vec<(Option<Option<Offset>>, Offset)>,
    muted: bool,
    ignored: BTreeSet<String>,
}

impl Seen {
    fn thread(&self, event: &Event, hops: usize) -> Option<Offset> {
        let relation = event.relation.as_ref()?;
        let target = *self.offsets.get(relation["event_id"].as_str()?)?;
        if relation["rel_type"] == "m.thread" {
            return Some(target);
        }
        let parent = self.events.iter().find(|event| event.offset == target)?;
        if hops == 0 { None } else { self.thread(parent, hops - 1) }
    }

    fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        let Some(joined) = self.joined else { return counts };
        for event in &self.events {
            let thread = self.thread(event, 3);
            let is_read = self
                .receipts
                .iter()
                .any(|(of, up_to)| of.is_none_or(|of| of == thread) && event.offset <= *up_to);
            let is_answered = self.events.iter().any(|later| {
                later.own
                    && !later.is_state
                    && later.offset > event.offset
                    && self.thread(later, 3) == thread
            });
            if event.notifies
                && event.offset > joined
                && !self.redacted.contains(&event.offset)
                && !is_read
                && !is_answered
            {
                let count = Count { notifications: 1, highlights: event.highlight.into() };
                match thread {
                    None => counts.main += count,
                    Some(root) => *counts.threads.entry(root).or_default() += count,
                }
            }
        }
        counts
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn counts_are_a_function_of_user_room_and_offset(ops in prop::collection::vec(op(), 1..70)) {
        runtime().block_on(async {
            let mut world = World::new().await;
            for op in &ops {
                if let Err(ProposeError::Log(error)) = world.run(op).await {
                    panic!("the log refused {op:?}: {error}");
                }
            }
            // Each moment again: with the cache that the earlier looks left, and from scratch.
            let fresh = Unread::default();
            for at in 1..=world.engine.state().applied().get() {
                for user in 0..USERS {
                    world.compare(&world.unread, user, Offset::new(at));
                    world.compare(&fresh, user, Offset::new(at));
                }
            }
        });
    }
}

#[test]
fn only_the_newest_events_of_a_room_are_counted() {
    runtime().block_on(async {
        let world = World::new().await;
        let most = limits::UNREAD_EVENTS as u64;
        let begun = world.engine.state().applied().get();
        for _ in 0..most + 100 {
            let content = json!({ "msgtype": "m.text", "body": "user2" });
            world.send(1, content, None).await.unwrap();
        }
        let total = |unread: &Unread, at: u64| {
            let (state, events) = (world.engine.state(), world.engine.events());
            let at = Offset::new(at);
            let began = Instant::now();
            let counts = unread.counts(&state, events, &user_id(2), &world.room(), at).unwrap();
            println!("counted as of {at} in {:?}", began.elapsed());
            let Count { notifications, highlights } = counts.total();
            assert_eq!(notifications, highlights);
            notifications
        };
        // With the cache, and without.
        for sent in [10, most - 1, most, most + 1, most + 100] {
            let expected = sent.min(most);
            assert_eq!(total(&world.unread, begun + sent), expected);
            assert_eq!(total(&Unread::default(), begun + sent), expected);
        }
        // Also after a leap over more events than that.
        let unread = Unread::default();
        for (sent, expected) in [(0, 0), (most + 100, most), (most - 1, most - 1)] {
            assert_eq!(total(&unread, begun + sent), expected);
        }
    });
}

/// The counts of `user2`, and how many events were examined for them.
fn counted(world: &World, unread: &Unread) -> (usize, Counts) {
    let (state, at) = (world.engine.state(), world.engine.head().offset());
    let distance = unread.distance(&state, &user_id(2), &world.room(), at, 0);
    let counts = unread.counts(&state, world.engine.events(), &user_id(2), &world.room(), at);
    (distance, counts.unwrap())
}

#[test]
fn after_a_restart_only_what_is_new_is_counted() {
    runtime().block_on(async {
        let world = World::new().await;
        let say = async || {
            let content = json!({ "msgtype": "m.text", "body": "hello" });
            world.send(1, content, None).await.unwrap();
        };
        for _ in 0..20 {
            say().await;
        }
        let (distance, before) = counted(&world, &world.unread);
        assert!(distance >= 20 && before.total().notifications == 20, "{distance} {before:?}");
        assert_eq!(counted(&world, &world.unread), (0, before.clone()));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counts");
        let (log, state) = (&*world.log as &dyn Log, world.engine.state());
        world.unread.write(&path, log, &state).unwrap();
        let again = Unread::default();
        assert_eq!(again.read(&path, log, state.generation()).unwrap(), 1);
        assert_eq!(counted(&world, &again), (0, before));
        say().await;
        let (distance, after) = counted(&world, &again);
        assert_eq!((distance, after.total().notifications), (1, 21));

        // A file of another log, or one that is damaged, is not used.
        let other = World::new().await;
        let unread = Unread::default();
        let refused = unread.read(&path, &*other.log, 0).unwrap_err();
        assert!(refused.to_string().ends_with("is of another log"), "{refused}");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let refused = unread.read(&path, log, 0).unwrap_err();
        assert!(refused.to_string().ends_with("is damaged"), "{refused}");
        assert!(counted(&world, &unread).0 > 20);
    });
}

#[test]
fn reading_one_of_many_messages_recounts_none_of_the_others() {
    runtime().block_on(async {
        let mut world = World::new().await;
        for _ in 0..50 {
            world.run(&Op::Say(1, Mentions::Nobody, Relates::Alone)).await.unwrap();
        }
        let since = world.engine.head().offset();
        assert!(counted(&world, &world.unread).0 >= 50);
        for read in 0..10 {
            world.run(&Op::Read(2, true, read, ReadThread::None)).await.unwrap();
            // What a sync asks of a room in which nothing else is new.
            let (state, at) = (world.engine.state(), world.engine.head().offset());
            let (user_id, room) = (user_id(2), world.room());
            let judge = Judge {
                state: &state,
                events: world.engine.events(),
                user_id: &user_id,
                room: &room,
            };
            assert!(world.unread.changed(judge, since, at).unwrap());
            assert_eq!(world.unread.distance(&state, &user_id, &room, at, 0), 0);
            let (_, counts) = counted(&world, &world.unread);
            assert_eq!(counts.total().notifications, 49 - u64::from(read));
            assert!(!world.unread.changed(judge, at, at).unwrap());
        }
    });
}
