//! What happens between a sweep's scan and its commit.

use std::{
    sync::{Arc, OnceLock, atomic::AtomicBool, atomic::Ordering::SeqCst},
    time::Duration,
};

use ruma::{MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, RoomVersionId};
use serde_json::json;

use super::*;
use logcabin_base::clock::Clock;
use logcabin_decide::{
    Proposal,
    account::{MetRequirements, Register},
    create_room::{CreateRoom, InitialState, Preset},
    history_purge::BeginHistoryPurge,
    media::AddMedia,
    retention::Retention,
    send::SendEvent,
};
use logcabin_engine::{Engine, Options};
use logcabin_log::{Batch, Log, ReadError, memory::MemoryLog};
use logcabin_record::{
    Command, NewRecord, Offset, Origin, Record, Stream,
    command::{AccountKind, FileHash, ImportBegin, ImportSource, ProfileSet, RoomPurgeHistory},
};
use logcabin_state::media::Item;

/// A log to which another writer adds a record at the moment when a certain record is read.
#[derive(Debug)]
struct Interrupted {
    log: MemoryLog,
    at: OnceLock<Offset>,
    record: NewRecord,
    done: AtomicBool,
}

impl Interrupted {
    fn interrupt(&self) {
        if !self.done.swap(true, SeqCst) {
            // It is appended before the future is polled.
            let batch = Batch { expect: Vec::new(), records: vec![self.record.clone()] };
            drop(self.log.append(batch));
        }
    }
}

impl logcabin_log::samples::Wrapper for Interrupted {
    fn inner(&self) -> &dyn Log {
        &self.log
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        if self.at.get() == Some(&offset) {
            self.interrupt();
        }
        self.log.get(offset)
    }

    fn read(&self, from: Offset, limit: usize) -> Result<Vec<Record>, ReadError> {
        // A scan of the log ends.
        if self.at.get().is_some_and(|at| from <= *at && from.get() + limit as u64 > at.get()) {
            let records = self.log.read(from, limit);
            self.interrupt();
            return records;
        }
        self.log.read(from, limit)
    }
}

struct World {
    log: Arc<Interrupted>,
    clock: Clock,
    engine: Engine,
}

fn ann() -> OwnedUserId {
    "@ann:test".try_into().unwrap()
}

fn room_id(name: &str) -> OwnedRoomId {
    format!("!{name}:test").try_into().unwrap()
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(1_u32.into())
}

impl World {
    /// Ann's server, to whose log `record` is added when reading is interrupted.
    async fn new(stream: Stream, record: impl Into<Command>) -> Self {
        let clock = Clock::manual(1);
        let record = NewRecord::new(stream, Origin::server(), &record.into());
        let log = MemoryLog::new(clock.clone());
        let (at, done) = (OnceLock::new(), AtomicBool::new(false));
        let log = Arc::new(Interrupted { log, at, record, done });
        let options = Options::small(clock.clone());
        let engine = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options).await.unwrap();
        let world = Self { log, clock, engine };
        let (password, display_name, login) = (None, None, None);
        let (user_id, kind, met) = (ann(), AccountKind::User, MetRequirements::default());
        world.propose(Register { user_id, kind, password, display_name, login, met }).await;
        world
    }

    async fn propose<P: Proposal>(&self, proposal: P) -> P::Outcome {
        match self.engine.propose(Origin::server(), proposal).await {
            Ok(done) => done.into_inner(),
            Err(error) => panic!("refused: {error}"),
        }
    }

    /// The same log, with only the projections in memory.
    async fn restart(self) -> Self {
        let Self { log, clock, engine } = self;
        drop(engine);
        let options = Options::small(clock.clone());
        let engine = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options).await.unwrap();
        Self { log, clock, engine }
    }

    async fn room(&self, name: &str, initial_state: Vec<InitialState>) {
        let create = CreateRoom {
            initial_state,
            ..CreateRoom::new(room_id(name), ann(), RoomVersionId::V10, Preset::PrivateChat, ts())
        };
        drop(self.propose(create).await);
    }

    async fn file(&self, media_id: &str) {
        let add = AddMedia {
            media_id: media_id.to_owned(),
            given_out: false,
            user_id: Some(ann()),
            hash: FileHash(*blake3::hash(media_id.as_bytes()).as_bytes()),
            size: 5,
            content_type: None,
            name: None,
            now_ms: 1,
            quota: 100,
        };
        self.propose(add).await;
    }

    async fn say(&self, content: serde_json::Value) {
        let send = SendEvent {
            room_id: room_id("a"),
            sender: ann(),
            event_type: "m.room.message".into(),
            state_key: None,
            content: serde_json::from_value(content).unwrap(),
            redacts: None,
            transaction: None,
            ts: ts(),
        };
        drop(self.propose(send).await);
    }

    fn has_file(&self, media_id: &str) -> bool {
        matches!(self.engine.state().media.get(media_id), Some(Item::Stored(_)))
    }
}

fn portrait() -> ProfileSet {
    let value = Some("mxc://test/portrait".into());
    ProfileSet { user_id: ann(), field: "avatar_url".to_owned(), value }
}

#[tokio::test]
async fn a_file_that_becomes_a_picture_between_the_look_and_the_commit_stays() {
    let world = World::new(Stream::user(&ann()), portrait()).await;
    let avatar = InitialState {
        event_type: "m.room.avatar".into(),
        state_key: String::new(),
        content: serde_json::from_value(json!({"url": "mxc://test/view"})).unwrap(),
    };
    world.room("a", vec![avatar]).await;
    for media_id in ["portrait", "view", "old"] {
        world.file(media_id).await;
    }
    let world = world.restart().await;
    // The scan comes to the rooms after the users.
    let room = world.engine.state().rooms.get(&room_id("a")).unwrap();
    let avatar = room.state_event(&"m.room.avatar".into(), "", Offset::MAX).unwrap();
    world.log.at.set(avatar).unwrap();
    world.clock.advance(10_000);

    let policy =
        SweepPolicy { media_after: Some(Duration::from_secs(1)), ..SweepPolicy::at_once() };
    let swept = sweep(&world.engine, &policy, Offset::MAX).await.unwrap();
    assert!(world.log.done.load(SeqCst), "nobody came in between");
    assert!(world.has_file("portrait"), "the picture of a user is gone");
    assert!(world.has_file("view"), "the picture of a room is gone");
    assert_eq!((swept.files, world.has_file("old")), (1, false));
}

#[tokio::test]
async fn a_file_that_is_named_elsewhere_while_a_purge_looks_stays() {
    let world = World::new(Stream::user(&ann()), portrait()).await;
    world.room("a", Vec::new()).await;
    for media_id in ["portrait", "old"] {
        world.file(media_id).await;
        world.say(json!({"body": "here", "url": format!("mxc://test/{media_id}")})).await;
    }
    let leave = logcabin_decide::membership::ChangeMembership::new(
        room_id("a"),
        ann(),
        ann(),
        logcabin_decide::membership::Change::Leave,
        ts(),
    );
    drop(world.propose(leave).await);
    // The last record that the purge reads.
    world.file("other").await;
    world.log.at.set(world.engine.state().applied()).unwrap();

    purge::purge(&world.engine, Origin::server(), &room_id("a"), None).await.unwrap();
    assert!(world.log.done.load(SeqCst), "nobody came in between");
    assert!(world.has_file("portrait"), "the picture of a user is gone");
    assert!(world.has_file("other"), "it has nothing to do with the room");
    assert!(!world.has_file("old"), "nothing else names this file");
}

/// The records of a server are imported to another one on the thousandth day: what came first is
/// 200 days old by then, and the rest 50 days.
#[tokio::test]
async fn what_was_imported_expires_by_its_original_time() {
    const DAY: u64 = 86_400_000;
    let world = World::new(Stream::user(&ann()), portrait()).await;
    world.room("a", Vec::new()).await;
    for name in ["old", "new"] {
        world.file(name).await;
        world.say(json!({ "body": name })).await;
    }
    let clock = Clock::manual(1000 * DAY);
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
    let mut happened_ms = 800 * DAY;
    for record in world.log.log.read(Offset::new(1), usize::MAX).unwrap() {
        let command = record.command().unwrap().unwrap();
        if matches!(&command, Command::MediaUpload(body) if body.media_id == "new") {
            happened_ms = 950 * DAY;
        }
        let (stream, source) = (record.header.stream.clone(), ImportSource::Synapse);
        let records = match &command {
            Command::ServerIdentity(_) => {
                let begin = ImportBegin {
                    source,
                    version: "1.157.0".to_owned(),
                    schema: 94,
                    database: "sqlite".to_owned(),
                    tool: "0.1.0".to_owned(),
                    begun_ms: 1000 * DAY,
                };
                let own =
                    |command: &Command| NewRecord::new(stream.clone(), Origin::server(), command);
                vec![own(&command), own(&begin.into())]
            }
            _ => vec![NewRecord::imported(stream, source, "rows", Some(happened_ms), &command)],
        };
        log.append(Batch { expect: Vec::new(), records }).await.unwrap();
    }
    let engine = Engine::open(log, Options::small(clock.clone())).await.unwrap();
    let (lifetime_ms, media_after) = (100 * DAY, Duration::from_millis(100 * DAY));
    let retention = Retention { default_ms: Some(lifetime_ms), ..Retention::default() };
    let policy = SweepPolicy {
        retention: Arc::new(retention),
        media_after: Some(media_after),
        ..SweepPolicy::at_once()
    };
    for left in [&["new"][..], &[]] {
        let swept = sweep(&engine, &policy, Offset::MAX).await.unwrap();
        assert_eq!((swept.expired, swept.files), (1, 1), "{left:?} should be left");
        let files = engine.state().media.all();
        assert!(files.iter().map(|(media_id, _)| &**media_id).eq(left.iter().copied()));
        // Nothing more is due, until the rest is old enough.
        let swept = sweep(&engine, &policy, Offset::MAX).await.unwrap();
        assert_eq!((swept.expired, swept.files), (0, 0));
        clock.advance(60 * DAY);
    }
}

#[tokio::test]
async fn a_purge_of_history_that_was_interrupted_goes_on_and_ends() {
    let world = World::new(Stream::server(), portrait()).await;
    world.room("a", Vec::new()).await;
    world.say(json!({ "body": "first" })).await;
    world.say(json!({ "body": "second" })).await;
    let before = world.engine.head().offset();
    let order = |id: &str, keep_local| RoomPurgeHistory {
        id: id.to_owned(),
        room_id: room_id("a"),
        before,
        keep_local,
    };
    world.propose(BeginHistoryPurge(order("kept", true))).await;
    let again = world.engine.propose(Origin::server(), BeginHistoryPurge(order("again", false)));
    assert!(again.await.is_err(), "one is in progress");
    let world = world.restart().await;
    let engine = Arc::new(world.engine);
    for (id, keep_local, removed) in [("kept", true, 0), ("gone", false, 1)] {
        if id != "kept" {
            let begin = BeginHistoryPurge(order(id, keep_local));
            engine.propose(Origin::server(), begin).await.unwrap().into_inner();
        }
        let mut head = engine.head().follow();
        history::resume(&engine);
        while !engine.state().history_purges.under_way().is_empty() {
            head.changed().await.unwrap();
        }
        assert_eq!(engine.state().history_purges.get(id).unwrap().removed, removed, "{id}");
    }
    // The second message is the record that stays.
    let room = engine.state().rooms.get(&room_id("a")).unwrap();
    assert_eq!(room.messages_between(Offset::ZERO, Offset::MAX, 10), [before]);
    assert_eq!((room.count_messages(before), room.count_messages(Offset::MAX)), (0, 1));
    assert!(room.create_event().is_some(), "state stays");
}
