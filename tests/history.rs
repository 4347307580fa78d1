//! Fills a data directory as a server would, and asks everything that can be asked of it, from each
//! kind of source.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{path::Path, sync::Arc};

use logcabin::{
    admin::{serve_until, socket_path},
    clock::Clock,
    decide::{
        account::{Login, Register, SetProfile},
        create_room::{CreateRoom, Preset},
        membership::{Change, ChangeMembership},
        send::SendEvent,
    },
    engine::{Engine, Options},
    history::{HistoryError, Look, Output, Question, Source, run},
    log::{
        Log,
        archive::{ArchiveOptions, Archiver, archive_dir},
        sled::{SledLog, SledOptions},
    },
    record::{
        Offset, Origin,
        command::{AccountKind, TokenHash, Tokens},
    },
};
use ruma::{
    CanonicalJsonObject, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId, OwnedUserId,
    RoomVersionId, UInt, events::TimelineEventType,
};
use serde_json::{Value, json};

/// 2026-03-01T12:00:00Z
const START: u64 = 1_772_366_400_000;
const PASSWORD: &str = "$pbkdf2-sha512$i=210000$UExBTlRFRFNBTFQ$UExBTlRFREhBU0g";

/// A server without its edge.
struct Cabin {
    engine: Engine,
    log: Arc<dyn Log>,
    archiver: Archiver,
    clock: Clock,
}

impl Cabin {
    async fn open(data_dir: &Path) -> Self {
        let clock = Clock::manual(START);
        let options = SledOptions { clock: clock.clone(), ..SledOptions::new(data_dir) };
        let log: Arc<dyn Log> = Arc::new(SledLog::open(options).unwrap());
        let options = ArchiveOptions {
            segment_bytes: 16 * 1024,
            ..ArchiveOptions::new(archive_dir(data_dir))
        };
        let archiver = Archiver::start(options, Arc::clone(&log)).unwrap();
        let options = Options {
            server_name: "cabin.example".try_into().unwrap(),
            event_cache_bytes: 1 << 20,
            clock: clock.clone(),
        };
        let engine = Engine::open(Arc::clone(&log), options).await.unwrap();
        Self { engine, log, archiver, clock }
    }

    fn close(self) -> logcabin::checkpoint::Checkpoint {
        let Self { engine, log, archiver, .. } = self;
        log.close();
        archiver.stop();
        logcabin::checkpoint::Checkpoint::of(engine.state())
    }

    fn ts(&self) -> MilliSecondsSinceUnixEpoch {
        MilliSecondsSinceUnixEpoch(UInt::try_from(self.clock.now_ms()).unwrap())
    }

    fn end(&self) -> Offset {
        *self.log.durable().borrow()
    }

    async fn register(&self, user: &OwnedUserId, name: &str) {
        let device_id: ruma::OwnedDeviceId = "PHONE".into();
        let tokens = Tokens {
            access: TokenHash::of(&format!("access of {user}")),
            expires_ms: None,
            refresh: Some(TokenHash::of(&format!("refresh of {user}"))),
        };
        let register = Register {
            user_id: user.clone(),
            kind: AccountKind::User,
            password: Some(PASSWORD.to_owned()),
            display_name: Some(name.to_owned()),
            login: Some(Login {
                user_id: user.clone(),
                device_id,
                display_name: Some("Phone".to_owned()),
                tokens,
            }),
        };
        self.engine.propose(by(user), register).await.unwrap().into_inner();
    }

    async fn create(&self, creator: &OwnedUserId, alias: &str, name: &str) -> OwnedRoomId {
        let create = CreateRoom {
            room_id: OwnedRoomId::try_from(format!("!{alias}Room:cabin.example")).unwrap(),
            creator: creator.clone(),
            version: RoomVersionId::V10,
            preset: Preset::PublicChat,
            creation_content: CanonicalJsonObject::new(),
            power_levels: CanonicalJsonObject::new(),
            initial_state: Vec::new(),
            name: Some(name.to_owned()),
            topic: Some("Wood, mostly".to_owned()),
            alias: Some(format!("#{alias}:cabin.example").try_into().unwrap()),
            invite: Vec::new(),
            is_direct: false,
            public: true,
            ts: self.ts(),
        };
        self.engine.propose(by(creator), create).await.unwrap().into_inner()
    }

    async fn member(
        &self,
        room: &OwnedRoomId,
        who: &OwnedUserId,
        target: &OwnedUserId,
        change: Change,
    ) {
        let change = ChangeMembership {
            room_id: room.clone(),
            sender: who.clone(),
            target: target.clone(),
            change,
            reason: None,
            is_direct: false,
            third_party_signed: None,
            ts: self.ts(),
        };
        self.engine.propose(by(who), change).await.unwrap().into_inner();
    }

    async fn send(
        &self,
        room: &OwnedRoomId,
        sender: &OwnedUserId,
        (event_type, state_key): (&str, Option<&str>),
        content: Value,
        redacts: Option<OwnedEventId>,
    ) -> OwnedEventId {
        let content = serde_json::from_value(content).unwrap();
        let send = SendEvent {
            room_id: room.clone(),
            sender: sender.clone(),
            event_type: TimelineEventType::from(event_type),
            state_key: state_key.map(str::to_owned),
            content,
            redacts,
            transaction: None,
            ts: self.ts(),
        };
        self.engine.propose(by(sender), send).await.unwrap().into_inner()
    }

    async fn say(&self, room: &OwnedRoomId, sender: &OwnedUserId, body: &str) -> OwnedEventId {
        let content = json!({ "msgtype": "m.text", "body": body });
        self.send(room, sender, ("m.room.message", None), content, None).await
    }
}

fn by(user: &OwnedUserId) -> Origin {
    Origin { user: user.as_str().into(), device: "PHONE".into(), request: "r1".into() }
}

/// What the tests look for in a filled log.
struct Filled {
    room: OwnedRoomId,
    /// Right before the room was renamed.
    before_rename: Offset,
    /// The time of that record.
    before_rename_ms: u64,
    end: Offset,
}

async fn fill(cabin: &Cabin) -> Filled {
    let [ann, bob, eve] = ["ann", "bob", "eve"]
        .map(|name| OwnedUserId::try_from(format!("@{name}:cabin.example")).unwrap());
    cabin.register(&ann, "Ann of the Woods").await;
    cabin.register(&bob, "Bob").await;
    cabin.register(&eve, "Eve").await;
    let room = cabin.create(&ann, "porch", "The Porch").await;
    let other = cabin.create(&bob, "porcupines", "Porcupines").await;
    cabin.member(&room, &ann, &bob, Change::Invite).await;
    cabin.member(&room, &bob, &bob, Change::Join).await;
    cabin.member(&room, &eve, &eve, Change::Join).await;
    cabin.say(&room, &ann, "Who brought the firewood?").await;
    cabin.say(&room, &bob, "I did. \u{1b}[31mDry\u{1b}[0m as a bone 🪵").await;
    let rude = cabin.say(&room, &eve, "something rude").await;
    cabin.say(&other, &bob, "Anybody here?").await;
    let reaction =
        json!({ "m.relates_to": { "rel_type": "m.annotation", "event_id": rude, "key": "👎" } });
    cabin.send(&room, &bob, ("m.reaction", None), reaction, None).await;
    let reason = json!({ "reason": "be kind" });
    cabin.send(&room, &ann, ("m.room.redaction", None), reason, Some(rude)).await;
    cabin.member(&room, &ann, &eve, Change::Kick).await;
    let before_rename = cabin.end();
    let before_rename_ms = cabin.log.get(before_rename).unwrap().unwrap().header.time_ms;
    let name = json!({ "name": "The Verandah" });
    cabin.send(&room, &ann, ("m.room.name", Some("")), name, None).await;
    let profile = SetProfile {
        user_id: bob.clone(),
        field: "displayname".to_owned(),
        value: Some(json!("Bob the Builder")),
    };
    cabin.engine.propose(by(&bob), profile).await.unwrap().into_inner();
    cabin.say(&room, &bob, "Verandah it is.").await;
    Filled { room, before_rename, before_rename_ms, end: cabin.end() }
}

/// By hand: fills the directory in `LOGCABIN_FILL_DIRECTORY` with something to look at, and keeps a
/// server on it for `LOGCABIN_FILL_SECONDS`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "for looking at, by hand"]
async fn something_to_look_at() {
    let Ok(directory) = std::env::var("LOGCABIN_FILL_DIRECTORY") else { return };
    let seconds = std::env::var("LOGCABIN_FILL_SECONDS").ok().and_then(|n| n.parse().ok());
    let data_dir = Path::new(&directory);
    let cabin = Cabin::open(data_dir).await;
    let filled = fill(&cabin).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let socket = socket_path(data_dir);
    let served =
        serve_until(&socket, Arc::clone(&cabin.log), async { drop(stopped.await) }).unwrap();
    for second in 0..seconds.unwrap_or(0) {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        let ann = OwnedUserId::try_from("@ann:cabin.example").unwrap();
        cabin.say(&filled.room, &ann, &format!("Tick {second}")).await;
    }
    drop(stop);
    served.await.unwrap();
    let state = logcabin::engine::replay(&*cabin.log, |_, _| ()).unwrap().0;
    cabin.close();
    logcabin::checkpoint::Checkpoint::write(data_dir, &state).unwrap();
}
