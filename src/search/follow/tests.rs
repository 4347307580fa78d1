#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use std::collections::HashSet;

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId,
    UInt, events::TimelineEventType,
};
use tempfile::TempDir;

use super::*;
use crate::{Key, Order, Query};
use logcabin_base::{clock::Clock, text};
use logcabin_decide::{
    account::Register,
    create_room::{CreateRoom, Preset, ROOM_VERSIONS},
    send::SendEvent,
};
use logcabin_engine::Options;
use logcabin_log::{Log, memory::MemoryLog};
use logcabin_record::Origin;

/// A room of one user.
struct World {
    engine: Arc<Engine>,
    ann: OwnedUserId,
    room_id: OwnedRoomId,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::manual(1_700_000_000_000);
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Arc::new(Engine::open(log, Options::small(clock)).await.unwrap());
        let ann: OwnedUserId = "@ann:test".try_into().unwrap();
        let register = Register::user(ann.clone());
        let _ = engine.propose(Origin::server(), register).await.unwrap();
        let create = CreateRoom::new(
            "!room:test".try_into().unwrap(),
            ann.clone(),
            ROOM_VERSIONS[ROOM_VERSIONS.len() - 2].clone(),
            Preset::PublicChat,
            MilliSecondsSinceUnixEpoch(UInt::from(1_u32)),
        );
        let room_id = engine.propose(Origin::server(), create).await.unwrap().into_inner();
        Self { engine, ann, room_id }
    }

    async fn send(&self, body: &str, redacts: Option<OwnedEventId>) -> OwnedEventId {
        let event_type = match redacts {
            Some(_) => TimelineEventType::RoomRedaction,
            None => TimelineEventType::RoomMessage,
        };
        let body = CanonicalJsonValue::String(body.to_owned());
        let send = SendEvent {
            room_id: self.room_id.clone(),
            sender: self.ann.clone(),
            event_type,
            state_key: None,
            content: CanonicalJsonObject::from([("body".to_owned(), body)]).into(),
            redacts,
            transaction: None,
            ts: MilliSecondsSinceUnixEpoch(UInt::from(1_u32)),
        };
        self.engine.propose(Origin::server(), send).await.unwrap().into_inner()
    }

    /// How many texts contain these words, once everything sent is indexed.
    async fn count(&self, search: &Search, words: &str) -> usize {
        self.count_within(search, words, usize::MAX).await
    }

    async fn count_within(&self, search: &Search, words: &str, looks: usize) -> usize {
        let head = self.engine.head().offset();
        let reached = search.reach(head).await;
        assert!(reached >= head, "the index is at {reached}, the log at {head}");
        let words = text::words(words).into_iter();
        let terms: Vec<_> = words.flat_map(|word| text::sought(&word.folded)).collect();
        let room = self.engine.state().rooms.get(&self.room_id).unwrap();
        let query = Query {
            terms: &terms,
            keys: &[Key::Body],
            rooms: &HashSet::from([room.created]),
            order: Order::Recent,
            after: None,
            until: Offset::MAX,
            most: 100,
            looks,
        };
        search.look(|snapshot| snapshot.hits(&query)).unwrap().len()
    }
}

fn files(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir.join("search")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn redacted_texts_are_not_found_and_leave_the_files() {
    let world = World::new().await;
    let dir = TempDir::new().unwrap();
    let search = Search::start(dir.path(), Arc::clone(&world.engine)).unwrap();
    let secret = world.send("the password is abracadabra", None).await;
    world.send("the weather is fine", None).await;
    assert_eq!(world.count(&search, "abracadabra").await, 1);
    assert!(search.look(|snapshot| Ok(snapshot.holds("abracadabra"))).unwrap());

    world.send("", Some(secret)).await;
    assert_eq!(world.count(&search, "abracadabra").await, 0);
    // The files are rewritten soon: when the index has nothing else to do.
    loop {
        let (holds, segments) = search
            .look(|snapshot| Ok((snapshot.holds("abracadabra"), snapshot.segments())))
            .unwrap();
        let stale = files(dir.path()).into_iter().any(|name| {
            let of_segment = name.len() > 32 && !name.starts_with('.');
            of_segment && !segments.iter().any(|segment| name.starts_with(segment))
        });
        if !holds && !stale {
            break;
        }
        search.mailbox.send(Message::Stop).unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(world.count(&search, "weather").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_continues_where_it_was_and_is_rebuilt_if_damaged_or_of_another_log() {
    let world = World::new().await;
    let dir = TempDir::new().unwrap();
    let start = || Search::start(dir.path(), Arc::clone(&world.engine)).unwrap();
    world.send("one fish", None).await;
    let search = start();
    assert_eq!(world.count(&search, "fish").await, 1);
    search.stop();

    // It continues: indexed texts are found before the log is read.
    world.send("two fish", None).await;
    let (writer, mark) = Writer::open(&dir.path().join("search")).unwrap().unwrap();
    assert_eq!(mark.offset, world.engine.head().offset().prev());
    drop(writer);
    let search = start();
    assert_eq!(world.count(&search, "fish").await, 2);
    search.stop();

    // Each file in turn is damaged, truncated or removed.
    let intact = files(dir.path());
    assert!(intact.len() > 5, "{intact:?}");
    for name in intact.iter().filter(|name| !name.starts_with('.')) {
        for damage in ["flip", "cut", "remove"] {
            let Some(name) = files(dir.path()).into_iter().find(|now| {
                // The corresponding file of the present index.
                now == name || now.len() > 32 && now.get(32..) == name.get(32..)
            }) else {
                continue;
            };
            let path = dir.path().join("search").join(&name);
            let mut bytes = std::fs::read(&path).unwrap();
            match damage {
                "flip" => {
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 0x55;
                    std::fs::write(&path, bytes).unwrap();
                }
                "cut" => std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap(),
                _ => std::fs::remove_file(&path).unwrap(),
            }
            let search = start();
            assert_eq!(world.count(&search, "fish").await, 2, "{damage} {name}");
            search.stop();
        }
    }

    // Another log, shorter and longer, in the same directory.
    let other = World::new().await;
    let search = Search::start(dir.path(), Arc::clone(&other.engine)).unwrap();
    assert_eq!(other.count(&search, "fish").await, 0);
    search.stop();
    for _ in 0..9 {
        world.send("red fish", None).await;
    }
    let search = start();
    assert_eq!(world.count(&search, "fish").await, 11);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_meets_damage_has_the_index_rebuilt() {
    let world = World::new().await;
    let dir = TempDir::new().unwrap();
    let search = Search::start(dir.path(), Arc::clone(&world.engine)).unwrap();
    world.send("one fish", None).await;
    assert_eq!(world.count(&search, "fish").await, 1);
    search.look::<()>(|_| panic!("as tantivy does over damaged files")).unwrap_err();
    world.send("two fish", None).await;
    // A search that waited meanwhile was turned away; the next one finds it.
    while search.reach(world.engine.head().offset()).await < world.engine.head().offset() {}
    assert_eq!(world.count(&search, "fish").await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_examines_a_limited_number_of_texts() {
    let world = World::new().await;
    let dir = TempDir::new().unwrap();
    let search = Search::start(dir.path(), Arc::clone(&world.engine)).unwrap();
    for _ in 0..10 {
        world.send("one fish", None).await;
    }
    for (looks, found) in [(0, 0), (3, 3), (10, 10), (99, 10)] {
        assert_eq!(world.count_within(&search, "fish", looks).await, found);
    }
}
