//! How many items one request examines when there are very many. The tests count items (see `work`)
//! instead of time, so that they give the same result on every machine.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use std::sync::Arc;

use futures_util::future::join_all;
use logcabin::{
    clock::Clock,
    decide::{
        account::Register,
        account_data::SetAccountData,
        create_room::{CreateRoom, Preset},
        ephemeral::SetReceipt,
        membership::{Change, ChangeMembership},
        send::SendEvent,
    },
    engine::{Engine, Options},
    events::{EventForm, EventRef, Viewer},
    limits,
    log::{Batch, Log as _, memory::MemoryLog},
    notifications::Unread,
    record::{
        Command, NewRecord, Offset, Origin, Stream,
        command::{Receipt, RoomReceipt, RoomTyping},
    },
    state::Room,
    sync::{
        Effort, KnownMembers, ephemeral,
        v3::{Memory, Request, SyncFilter, respond},
    },
    view::{
        View,
        filter::Filter,
        relations::{PageRange, RelationQuery, ThreadQuery, ThreadsWalk},
    },
    work,
};
use ruma::{
    CanonicalJsonObject, DeviceId, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId,
    OwnedUserId, RoomVersionId, UInt, events::TimelineEventType,
};
use serde_json::{Value, json};

fn user_id(name: &str) -> OwnedUserId {
    format!("@{name}:test").try_into().unwrap()
}

fn canonical(content: Value) -> CanonicalJsonObject {
    serde_json::from_value(content).unwrap()
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::from(1_700_000_000_u32))
}

fn related(to: &OwnedEventId, rel_type: &str) -> Value {
    json!({ "body": "x", "m.new_content": {}, "m.relates_to": { "rel_type": rel_type, "event_id": to } })
}

/// A server with one room, in which are ann, bob and cas.
struct World {
    engine: Arc<Engine>,
    log: Arc<MemoryLog>,
    room_id: OwnedRoomId,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::manual(1_700_000_000_000);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let options = Options { event_cache_bytes: 1 << 24, ..Options::small(clock) };
        let engine = Arc::new(Engine::open(Arc::clone(&log) as _, options).await.unwrap());
        for user in ["ann", "bob", "cas"] {
            let register = Register::user(user_id(user));
            engine.propose(Origin::server(), register).await.unwrap().into_inner();
        }
        let create = CreateRoom {
            power_levels: canonical(json!({ "redact": 0 })),
            ..CreateRoom::new(
                "!room:test".try_into().unwrap(),
                user_id("ann"),
                RoomVersionId::V10,
                Preset::PublicChat,
                ts(),
            )
        };
        let room_id = engine.propose(Origin::server(), create).await.unwrap().into_inner();
        for user in ["bob", "cas"] {
            let join = ChangeMembership::new(
                room_id.clone(),
                user_id(user),
                user_id(user),
                Change::Join,
                ts(),
            );
            drop(engine.propose(Origin::server(), join).await.unwrap().into_inner());
        }
        Self { engine, log, room_id }
    }

    fn room(&self) -> Arc<Room> {
        self.engine.state().rooms.get(&self.room_id).unwrap()
    }

    async fn send(&self, user: &str, content: Value) -> OwnedEventId {
        let proposal = SendEvent {
            room_id: self.room_id.clone(),
            sender: user_id(user),
            event_type: TimelineEventType::RoomMessage,
            state_key: None,
            content: canonical(content).into(),
            redacts: None,
            transaction: None,
            ts: ts(),
        };
        self.engine.propose(Origin::server(), proposal).await.unwrap().into_inner()
    }

    async fn send_all(
        &self,
        user: &str,
        contents: impl Iterator<Item = Value>,
    ) -> Vec<OwnedEventId> {
        join_all(contents.map(|content| self.send(user, content))).await
    }

    async fn ignores(&self, user: &str, ignored: &str) {
        let set = SetAccountData {
            user_id: user_id(user),
            room_id: None,
            event_type: "m.ignored_user_list".to_owned(),
            content: serde_json::value::to_raw_value(
                &json!({ "ignored_users": { user_id(ignored): {} } }),
            )
            .unwrap(),
        };
        self.engine.propose(Origin::server(), set).await.unwrap().into_inner();
    }

    /// The result of `look` with this user's view, and the number of items that it examined.
    fn count<T>(&self, user: &str, look: impl FnOnce(&View<'_>, &Room) -> T) -> (T, u64) {
        let (user_id, device_id) = (user_id(user), <&DeviceId>::from("D"));
        let at = self.engine.head().offset();
        let viewer = Viewer { user_id: &user_id, device_id, session: Offset::ZERO, at, now_ms: 0 };
        let view =
            View { state: self.engine.state().share(), events: self.engine.events(), viewer };
        let room = self.room();
        work::counted(|| look(&view, &room))
    }

    fn event(&self, event_id: &OwnedEventId) -> EventRef {
        self.engine.events().find(&self.engine.state(), event_id).unwrap().unwrap()
    }

    /// What is bundled with an event, and the number of items examined for it.
    fn bundled(&self, user: &str, event_id: &OwnedEventId) -> (Value, u64) {
        let event = [self.event(event_id)];
        let (shown, looks) = self.count(user, |view, room| {
            view.client_events(room, &event, &EventForm::FULL).unwrap().remove(0)
        });
        let shown: Value = serde_json::from_str(shown.get()).unwrap();
        (shown["unsigned"]["m.relations"].clone(), looks)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_with_many_relations_costs_no_more_than_one_with_some() {
    let world = World::new().await;
    let mut looks = Vec::new();
    for many in [150, 1200] {
        let root = world.send("ann", json!({ "body": "root" })).await;
        // Invalid edits, by another sender, and replies of a user who is ignored.
        for (user, rel_type) in [
            ("cas", "m.thread"),
            ("bob", "m.thread"),
            ("bob", "m.replace"),
            ("bob", "m.annotation"),
        ] {
            world
                .send_all(
                    user,
                    (0..many).map(|n| {
                        let mut content = related(&root, rel_type);
                        content["m.relates_to"]["key"] = n.to_string().into();
                        content
                    }),
                )
                .await;
        }
        world.ignores("cas", "bob").await;
        let (of_ann, first) = world.bundled("ann", &root);
        let (of_cas, second) = world.bundled("cas", &root);
        assert_eq!(of_ann["m.thread"]["count"], 2 * many);
        assert_eq!(of_cas["m.thread"]["count"], many);
        assert_eq!(of_cas["m.thread"]["latest_event"]["sender"], "@cas:test");
        assert_eq!(of_cas["m.thread"]["current_user_participated"], true);
        assert!(of_ann.get("m.replace").is_none());
        looks.push((first, second));
    }
    let [(few, few_ignoring), (many, many_ignoring)] = looks[..] else { unreachable!() };
    assert!(many <= few + 2, "{few} looks with some, {many} with many");
    assert!(few < 50, "{few}");
    let most = limits::SCANNED_CHILDREN as u64 + few_ignoring + 50;
    assert!(many_ignoring <= most, "{few_ignoring} looks with some, {many_ignoring} with many");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cost_of_a_page_of_relations_is_proportional_to_the_page() {
    let world = World::new().await;
    let root = world.send("ann", json!({ "body": "root" })).await;
    let replies = world.send_all("bob", (0..2000).map(|_| related(&root, "m.thread"))).await;
    let parent = world.event(&root).offset;
    let whole = PageRange::Backward { from: Offset::MAX, after: Offset::ZERO };
    for rel_type in [None, Some("m.thread")] {
        let wanted = RelationQuery { rel_type, event_type: Some("m.room.message"), depth: 1 };
        let (page, looks) = world
            .count("ann", |view, room| view.relations(room, parent, wanted, whole, 10).unwrap());
        let newest: Vec<_> = page.events.iter().map(|event| event.event_id.clone()).collect();
        assert!(newest.iter().eq(replies.iter().rev().take(10)));
        assert!(looks < 60, "{looks}");
    }
}

/// All pages of `participated` threads, each from where the one before ended or, without `walks`,
/// from its token alone.
fn pages(world: &World, user: &str, limit: usize, walks: bool) -> (Vec<OwnedEventId>, Vec<u64>) {
    let as_of = world.engine.head().offset();
    let (mut found, mut looks) = (Vec::new(), Vec::new());
    let (mut before, mut walk) = (Offset::MAX, None::<ThreadsWalk>);
    loop {
        let wanted = ThreadQuery { as_of, before, participated: true };
        let (threads, count) = world
            .count(user, |view, room| view.threads(room, wanted, limit, walk.as_ref()).unwrap());
        looks.push(count);
        found.extend(threads.roots.iter().map(|root| root.event_id.clone()));
        let Some(next) = threads.next else { return (found, looks) };
        assert!(next < before, "a page that goes on moves on");
        (before, walk) = (next, walks.then_some(threads.walk));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_examines_a_limited_number_of_threads_and_the_next_continues_there() {
    let world = World::new().await;
    let many = limits::THREADS_LOOKED_AT + 500;
    let roots = world.send_all("ann", (0..many).map(|_| json!({ "body": "root" }))).await;
    world.send_all("ann", roots.iter().map(|root| related(root, "m.thread"))).await;
    // Bob takes part in few of them, the oldest among them.
    let own: Vec<_> = roots.iter().step_by(400).collect();
    for root in &own {
        world.send("bob", related(root, "m.thread")).await;
        world.send("ann", related(root, "m.thread")).await;
    }
    // And cas in none, but for one at the end.
    let expected: Vec<_> = own.iter().rev().map(|root| (*root).clone()).collect();
    for walks in [true, false] {
        let (found, looks) = pages(&world, "bob", 2, walks);
        assert_eq!(found, expected);
        assert!(looks.len() <= expected.len() / 2 + 3, "{looks:?}");
        let most = if walks { many } else { many * 2 } * 8;
        assert!(looks.iter().all(|count| *count < most as u64), "{looks:?}");
        let whole: u64 = looks.iter().sum();
        // From where the page before ended, all pages together cost as much as one look at
        // everything.
        assert!(!walks || whole < many as u64 * 8, "{whole}: {looks:?}");
    }
    let (found, looks) = pages(&world, "cas", 20, true);
    assert_eq!((found.len(), looks.len()), (0, 2), "a page without anything, and one that ends it");
}

impl World {
    /// Moves a receipt of each of these users to the event, as servers of a room do that hear of
    /// many at once.
    async fn read_by(&self, users: impl Iterator<Item = usize>, event_id: &OwnedEventId) {
        let receipts: Vec<_> = users
            .map(|user| Receipt {
                user_id: user_id(&format!("member-{user}")),
                receipt_type: "m.read".to_owned(),
                event_id: event_id.clone(),
                thread_id: None,
                ts: 1_700_000_000_000,
            })
            .collect();
        let records = receipts.chunks(200).map(|receipts| {
            let body = RoomReceipt { room_id: self.room_id.clone(), receipts: receipts.to_owned() };
            let stream = Stream::ephemeral(&self.room_id);
            NewRecord::new(stream, Origin::server(), &Command::from(body))
        });
        let batch = Batch { expect: Vec::new(), records: records.collect() };
        let appended = self.log.append(batch).await.unwrap();
        let mut head = self.engine.head().follow();
        head.wait_for(|head| *head >= appended.last).await.unwrap();
    }

    /// The receipts that a sync of this user has from `since`, by event and user, and their size.
    fn receipts(&self, user: &str, since: Option<Offset>) -> (Value, usize) {
        let request = Request {
            since,
            came_from: None,
            full_state: false,
            use_state_after: false,
            filter: SyncFilter::new(Filter::default(), 10, 1000).into(),
            epoch: Default::default(),
        };
        let (members, unread) = (KnownMembers::new(1 << 20), Unread::default());
        let memory = Memory { members: &members, unread: &unread, effort: Effort::Any };
        let (answer, _) = self.count(user, |view, _| respond(view, &request, memory).unwrap());
        let answer = serde_json::to_value(answer).unwrap();
        let events = &answer["rooms"]["join"][self.room_id.as_str()]["ephemeral"]["events"];
        let events = events.as_array().cloned().unwrap_or_default();
        let receipts = events.into_iter().find(|event| event["type"] == "m.receipt");
        let receipts = receipts.map_or(Value::Null, |event| event["content"].clone());
        let bytes = receipts.to_string().len();
        (receipts, bytes)
    }
}

fn readers<'a>(receipts: &'a Value, event_id: &OwnedEventId) -> Vec<&'a String> {
    let of_event = receipts[event_id.as_str()]["m.read"].as_object();
    of_event.map_or_else(Vec::new, |readers| readers.keys().collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_room_that_ten_thousand_have_read_begins_with_the_newest_receipts_and_ones_own() {
    const READERS: usize = 10_000;
    let most = limits::RECEIPTS_OF_OTHERS;
    let world = World::new().await;
    let first = world.send("ann", json!({ "body": "first" })).await;
    let before = world.engine.head().offset();
    let own = |event_id: &OwnedEventId, kind: &str, thread_id: Option<&OwnedEventId>| SetReceipt {
        room_id: world.room_id.clone(),
        user_id: user_id("ann"),
        receipt_type: kind.to_owned(),
        event_id: event_id.clone(),
        thread_id: thread_id.map(ToString::to_string),
        ts: 1,
    };
    for receipt in [own(&first, "m.read.private", None), own(&first, "m.read", Some(&first))] {
        world.engine.propose(Origin::server(), receipt).await.unwrap().into_inner();
    }
    world.read_by(0..READERS, &first).await;
    let second = world.send("ann", json!({ "body": "second" })).await;
    world.read_by(0..30, &second).await;
    let newest = world.engine.head().offset();

    let check_own = |receipts: &Value| {
        let of_first = &receipts[first.as_str()];
        assert!(of_first["m.read.private"]["@ann:test"].is_object(), "{receipts}");
        assert_eq!(of_first["m.read"]["@ann:test"]["thread_id"], first.as_str(), "{receipts}");
    };
    // Ann's own is among those of the first event.
    let (receipts, bytes) = world.receipts("ann", None);
    println!("{bytes} bytes of receipts in an initial sync");
    check_own(&receipts);
    assert_eq!(readers(&receipts, &second).len(), 30, "the newest");
    assert_eq!(readers(&receipts, &first).len(), most - 30 + 1);
    assert!(bytes < 20_000, "{bytes} bytes");

    // A client that missed nothing of the timeline gets all that moved.
    let (receipts, bytes) = world.receipts("ann", Some(before));
    println!("{bytes} bytes of receipts in a sync without a gap");
    check_own(&receipts);
    assert_eq!(readers(&receipts, &second).len(), 30);
    assert_eq!(readers(&receipts, &first).len(), READERS - 30 + 1);

    // One that missed some is treated like one that begins.
    world.send_all("ann", (0..20).map(|n| json!({ "body": n.to_string() }))).await;
    let (receipts, bytes) = world.receipts("ann", Some(before));
    println!("{bytes} bytes of receipts in a sync with a gap");
    check_own(&receipts);
    assert_eq!(readers(&receipts, &second).len(), 30);
    assert_eq!(readers(&receipts, &first).len(), most - 30 + 1);
    assert_eq!(world.receipts("ann", Some(newest)).0, Value::Null, "nothing moved since");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_thousand_who_type_those_who_began_first_are_listed() {
    let world = World::new().await;
    let typing = |user: usize, until_ms| {
        let user_id = user_id(&format!("member-{user}"));
        let body = RoomTyping { room_id: world.room_id.clone(), user_id, until_ms, since: None };
        NewRecord::new(Stream::ephemeral(&world.room_id), Origin::server(), &Command::from(body))
    };
    let record = async |records: Vec<NewRecord>| {
        let appended = world.log.append(Batch { expect: Vec::new(), records }).await.unwrap();
        let mut head = world.engine.head().follow();
        head.wait_for(|head| *head >= appended.last).await.unwrap();
    };
    let listed = |since| {
        let (event, _) = world.count("ann", |view, room| ephemeral::typing(view, room, since));
        let event = event.unwrap().map(|event| event.get().to_owned()).unwrap_or_default();
        println!("{} bytes for those who type", event.len());
        assert!(event.len() < 1000, "{event}");
        let event: Value = serde_json::from_str(&event).unwrap();
        let users = event["content"]["user_ids"].as_array().cloned().unwrap_or_default();
        users.iter().map(|user| user.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The last by name begin first.
    record((0..2000).rev().map(|user| typing(user, 1000)).collect()).await;
    let at = world.engine.head().offset();
    let first = listed(None);
    assert_eq!(first.len(), limits::TYPISTS);
    assert!(first.iter().all(|user| user.starts_with("@member-19")), "{first:?}");
    // Whoever else begins, the list stays.
    record(vec![typing(2000, 1000)]).await;
    assert_eq!(listed(Some(at)), first);
    // The next one takes the place of one who stopped.
    record(vec![typing(1999, 0)]).await;
    let next = listed(Some(at));
    assert_eq!(next.len(), limits::TYPISTS);
    assert!(!next.contains(&"@member-1999:test".to_owned()), "{next:?}");
    assert!(next.contains(&"@member-1979:test".to_owned()), "{next:?}");
}
