//! Fills a data directory as a server would, and runs every history command on it, from each kind
//! of source.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{
    io::{Read as _, Write as _},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use logcabin::{
    admin::serve_until,
    clock::Clock,
    decide::{
        account::{DeviceSet, Login, Register, RemoveDevices, SetProfile},
        create_room::{CreateRoom, Preset},
        membership::{Change, ChangeMembership},
        send::SendEvent,
    },
    engine::{Engine, Options},
    erasure::{self, SweepPolicy},
    history::{
        HistoryError, Layout, Moment, Output, Question, Source, Target, audit::AuditOptions,
        check::check_all, diff::Scope, query::History, run,
    },
    log::{
        Log,
        archive::{ArchiveOptions, Archiver, archive_dir},
        memory::MemoryLog,
        store::{SledLog, SledOptions},
    },
    record::{
        Offset, Origin, Record, codec,
        command::{TokenHash, Tokens},
    },
    shutdown_digest::ShutdownDigest,
    snapshot,
    socket::socket_path,
    state::{State, sections},
};
use ruma::{
    MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId, OwnedUserId, RoomVersionId, UInt,
    events::TimelineEventType,
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
            ..Options::small(clock.clone())
        };
        let engine = Engine::open(Arc::clone(&log), options).await.unwrap();
        Self { engine, log, archiver, clock }
    }

    /// Returns the digest of the state.
    fn close(self) -> String {
        let Self { engine, log, archiver, .. } = self;
        log.close();
        archiver.stop();
        ShutdownDigest::of(&engine.state()).digest
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
            password: Some(PASSWORD.into()),
            display_name: Some(name.to_owned()),
            login: Some(Login {
                user_id: user.clone(),
                device_id,
                display_name: Some("Phone".to_owned()),
                tokens,
                verified: None,
            }),
            ..Register::user(user.clone())
        };
        self.engine.propose(by(user), register).await.unwrap().into_inner();
    }

    async fn create(&self, creator: &OwnedUserId, alias: &str, name: &str) -> OwnedRoomId {
        let create = CreateRoom {
            name: Some(name.to_owned()),
            topic: Some("Wood, mostly".to_owned()),
            alias: Some(format!("#{alias}:cabin.example").try_into().unwrap()),
            public: true,
            ..CreateRoom::new(
                OwnedRoomId::try_from(format!("!{alias}Room:cabin.example")).unwrap(),
                creator.clone(),
                RoomVersionId::V10,
                Preset::PublicChat,
                self.ts(),
            )
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
        let change =
            ChangeMembership::new(room.clone(), who.clone(), target.clone(), change, self.ts());
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

/// The answer for programs: one value for each line.
fn ask(source: &Source, question: &Question) -> Result<Vec<Value>, HistoryError> {
    let mut text = Vec::new();
    tokio::task::block_in_place(|| run(source, question, &mut Output::for_programs(&mut text)))?;
    let text = String::from_utf8(text).unwrap();
    Ok(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

/// The answer for people.
fn read(source: &Source, question: &Question, look: Layout) -> String {
    let mut text = Vec::new();
    tokio::task::block_in_place(|| run(source, question, &mut Output::for_people(&mut text, look)))
        .unwrap();
    String::from_utf8(text).unwrap()
}

fn place(path: &Path) -> Source {
    tokio::task::block_in_place(|| Source::open(path.to_str().unwrap())).unwrap()
}

fn at(text: &str) -> Moment {
    text.parse().unwrap()
}

fn now(what: Target) -> Question {
    Question::AsOf { what, at: None }
}

fn diff(of: Scope, from: &str, to: Offset) -> Question {
    Question::Diff { of, from: at(from), to: Moment::At(to) }
}

/// A question of each kind.
fn questions(filled: &Filled) -> Vec<Question> {
    let room = || "porchR".to_owned();
    vec![
        Question::Tail { last: None, follow: false, only: Box::default() },
        Question::Tail { last: Some(3), follow: false, only: Box::default() },
        Question::Show(Offset::new(1)),
        Question::Show(filled.end),
        now(Target::Rooms),
        now(Target::Room { room: filled.room.to_string(), last: None }),
        now(Target::Room { room: "#porch:cabin.example".to_owned(), last: Some(2) }),
        now(Target::State { room: room() }),
        Question::AsOf {
            what: Target::State { room: room() },
            at: Some(Moment::At(filled.before_rename)),
        },
        now(Target::Members { room: room() }),
        now(Target::User { user: "ann".to_owned() }),
        now(Target::Devices { user: None }),
        now(Target::Aliases { room: Some(room()) }),
        now(Target::Pushers { user: None }),
        now(Target::RegistrationTokens),
        diff(Scope::Room(room()), "20", filled.end),
        diff(Scope::User("bob".to_owned()), "20", filled.end),
        diff(Scope::Server, "0", filled.end),
        Question::Why { subject: "room porchR name".parse().unwrap(), at: None },
        now(Target::Users),
        now(Target::Stats),
        Question::AuditSync(Box::new(AuditOptions {
            user: "bob".to_owned(),
            steps: 10,
            ..AuditOptions::default()
        })),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn why_lists_the_records_that_set_a_value() {
    let directory = tempfile::tempdir().unwrap();
    let cabin = Cabin::open(directory.path()).await;
    let filled = fill(&cabin).await;
    cabin.close();
    let source = place(directory.path());
    let why = |words: &str, at| {
        let steps = ask(&source, &Question::Why { subject: words.parse().unwrap(), at }).unwrap();
        let told = |step: &Value| {
            assert!(step["offset"].is_u64() && step["time"].is_string(), "{step}");
            (step["who"].clone(), step["before"].clone(), step["after"].clone())
        };
        steps.iter().map(told).collect::<Vec<_>>()
    };
    let [ann, bob, eve] = ["ann", "bob", "eve"].map(|name| json!(format!("@{name}:cabin.example")));
    let (porch, verandah) = (json!({ "name": "The Porch" }), json!({ "name": "The Verandah" }));
    let named = (ann.clone(), Value::Null, porch.clone());
    let renamed = (ann.clone(), porch, verandah);
    assert_eq!(why("room porchR name", None), [named.clone(), renamed]);
    let before = Some(Moment::At(filled.before_rename));
    assert_eq!(why("room porchR name", before), [named]);

    let memberships = |words: &str| -> Vec<_> {
        let steps = why(words, None).into_iter();
        steps.map(|(who, _, after)| (who, after["membership"].clone())).collect()
    };
    let steps = [
        (ann.clone(), json!("invite")),
        (bob.clone(), json!("join")),
        (bob.clone(), json!("join")),
    ];
    assert_eq!(memberships("room porchR member bob")[..2], steps[..2]);
    let steps = [(eve, json!("join")), (ann.clone(), json!("leave"))];
    assert_eq!(memberships("room porchR member eve"), steps);

    assert_eq!(why("room porchR power ann", None), [(ann.clone(), Value::Null, json!(100))]);
    assert_eq!(why("room porchR power bob", None), [(ann.clone(), Value::Null, json!(0))]);
    assert_eq!(why("room porchR directory", None), [(ann.clone(), Value::Null, json!(true))]);
    let alias = why("alias #porch:cabin.example", None);
    assert_eq!(alias, [(ann.clone(), Value::Null, json!(filled.room))]);

    // What ann was notified of: bob's messages since she wrote, each by the rule that says so.
    let unread = Question::Why { subject: "room porchR unread ann".parse().unwrap(), at: None };
    let unread = ask(&source, &unread).unwrap();
    let (wrote, last) = (&unread[0], &unread[unread.len() - 1]);
    assert!(last["text"].as_str().unwrap().contains("by the rule `.m.rule."), "{last}");
    let said = (&wrote["who"], &wrote["after"], &last["who"], &last["after"]);
    assert_eq!(said, (&ann, &Value::Null, &bob, &json!(unread.len() - 1)), "{unread:?}");
    let names: Vec<_> =
        why("user bob profile displayname", None).into_iter().map(|(.., after)| after).collect();
    assert_eq!(names, ["Bob", "Bob the Builder"]);
    let device = why("user bob device PHONE", None);
    assert_eq!(device, [(bob.clone(), Value::Null, json!({ "display_name": "Phone" }))]);
    // A hash that could be used to guess the password is cut short.
    let password = why("user bob password", None);
    assert_eq!(password, [(bob, Value::Null, json!("$pbkdf2-sha512$i=210000$…"))]);
    assert!(why("user bob data m.direct", None).is_empty());

    let question = |words: &str| Question::Why { subject: words.parse().unwrap(), at: None };
    let said = read(&source, &question("room porchR name"), Layout::default());
    for part in ["@ann:cabin.example", "from PHONE", "request r1", "before", "The Verandah"] {
        assert!(said.contains(part), "{part} is not in {said}");
    }
    let said = read(&source, &question("user bob data m.direct"), Layout::default());
    assert!(said.contains("No record has ever set this"), "{said}");
    assert!(matches!(
        ask(&source, &question("user nobody password")),
        Err(HistoryError::NoUser(_))
    ));
    assert!(matches!(ask(&source, &question("room nowhere name")), Err(HistoryError::NoRoom(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_source_gives_the_same_answers() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let cabin = Cabin::open(data_dir).await;
    let filled = fill(&cabin).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let socket = socket_path(data_dir);
    let served =
        serve_until(&socket, Arc::clone(&cabin.log), async { drop(stopped.await) }).unwrap();

    // The log is in use, so that the directory is read through the socket.
    let running = place(data_dir);
    assert!(running.place().contains("admin.sock"), "{running:?}");
    let named = Source::open(&format!("unix:{}", socket.display())).unwrap();
    let questions = questions(&filled);
    let answers: Vec<_> =
        questions.iter().map(|question| ask(&running, question).unwrap()).collect();
    for (question, answer) in questions.iter().zip(&answers) {
        let none = [Target::Pushers { user: None }, Target::RegistrationTokens];
        let none = none.map(|what| format!("{:?}", now(what)));
        let may_be_empty = none.contains(&format!("{question:?}"));
        assert!(may_be_empty || !answer.is_empty(), "{question:?}");
        assert_eq!(&ask(&named, question).unwrap(), answer, "{question:?}");
    }
    drop((running, named, stop));
    served.await.unwrap();
    assert!(!socket.exists());
    cabin.close();

    for path in [data_dir.to_owned(), archive_dir(data_dir)] {
        let source = place(&path);
        for (question, answer) in questions.iter().zip(&answers) {
            assert_eq!(&ask(&source, question).unwrap(), answer, "{question:?} of {source:?}");
        }
        let report = &ask(&source, &Question::Verify).unwrap()[0];
        assert_eq!(report["intact"], true, "{report}");
        assert_eq!(report["records"], filled.end.get());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answers_say_what_happened() {
    let directory = tempfile::tempdir().unwrap();
    let cabin = Cabin::open(directory.path()).await;
    let filled = fill(&cabin).await;
    cabin.close();
    let source = place(directory.path());
    let room = "porchR".to_owned();

    let events = ask(&source, &now(Target::Room { room: room.clone(), last: None })).unwrap();
    let texts: Vec<_> = events.iter().map(|event| event["text"].as_str().unwrap()).collect();
    assert!(texts.contains(&"Who brought the firewood?"), "{texts:#?}");
    assert!(texts.contains(&"accepted the invitation"), "{texts:#?}");
    assert!(texts.contains(&"kicked @eve:cabin.example"), "{texts:#?}");
    assert!(texts.contains(&"redacted record 36 (reason: be kind)"), "{texts:#?}");
    assert!(texts.contains(&"reacted 👎 to record 36"), "{texts:#?}");
    assert!(!texts.contains(&"something rude"), "{texts:#?}");

    let name = |at: Option<Moment>| {
        let what = Target::State { room: room.clone() };
        let state = ask(&source, &Question::AsOf { what, at }).unwrap();
        let name = state.iter().find(|event| event["type"] == "m.room.name").unwrap();
        name["content"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(name(None), "The Verandah");
    assert_eq!(name(Some(Moment::At(filled.before_rename))), "The Porch");
    assert_eq!(name(Some(Moment::Time(filled.before_rename_ms))), "The Porch");
    assert_eq!(name(Some(at("2026-03-01 12:01"))), "The Verandah");
    let what = Target::State { room: room.clone() };
    let none = Question::AsOf { what, at: Some(at("2026-03-01 11:59:59")) };
    let not_yet = ask(&source, &none).unwrap_err();
    assert!(matches!(not_yet, HistoryError::NotYet { .. }), "{not_yet}");

    let users = ask(&source, &now(Target::Users)).unwrap();
    assert_eq!(users.len(), 3);
    assert_eq!(users[1]["display_name"], "Bob the Builder");
    assert_eq!(users[1]["rooms"], 2);
    let stats = &ask(&source, &now(Target::Stats)).unwrap()[0];
    assert_eq!(stats["records"], filled.end.get());
    assert_eq!(stats["busiest"][0]["room_id"], filled.room.as_str());

    let named = now(Target::Room { room: "the verandah".to_owned(), last: None });
    let by_id = now(Target::Room { room: filled.room.to_string(), last: None });
    assert_eq!(ask(&source, &named).unwrap(), ask(&source, &by_id).unwrap());
    let many = ask(&source, &now(Target::Room { room: "porc".into(), last: None })).unwrap_err();
    assert!(matches!(many, HistoryError::ManyRooms { .. }), "{many}");
    let none =
        ask(&source, &now(Target::Room { room: "cellar".to_owned(), last: None })).unwrap_err();
    assert!(matches!(none, HistoryError::NoRoom(_)), "{none}");
    let none = ask(&source, &Question::Show(Offset::new(999))).unwrap_err();
    assert!(matches!(none, HistoryError::NoRecord { .. }), "{none}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_as_of_a_moment_is_answered_as_from_a_log_that_ends_there() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let cabin = Cabin::open(data_dir).await;
    let filled = fill(&cabin).await;
    let records = cabin.log.read(Offset::new(1), usize::MAX).unwrap();
    // A snapshot in the middle, from which later moments are answered.
    let middle = filled.end.get() / 2;
    let state = State::default();
    for record in &records[..usize::try_from(middle).unwrap()] {
        let _ = state.apply(record).unwrap();
    }
    snapshot::write(&snapshot::directory(data_dir), &*cabin.log, &state).unwrap();
    cabin.close();
    let source = place(data_dir);
    let room = || "porchR".to_owned();
    let all = [
        Target::Rooms,
        Target::Room { room: room(), last: None },
        Target::State { room: room() },
        Target::Members { room: room() },
        Target::Users,
        Target::User { user: "bob".to_owned() },
        Target::Devices { user: None },
        Target::Aliases { room: None },
        Target::Pushers { user: None },
        Target::Media { user: None },
        Target::RegistrationTokens,
        Target::Reports,
        Target::Stats,
    ];
    let said = |answer: Result<Vec<Value>, HistoryError>| match answer {
        Ok(values) => values,
        // The text differs if the future is not known.
        Err(_) => vec![json!("none")],
    };
    for length in [1, 2, 5, 9, 20, middle - 1, middle, middle + 1, filled.end.get() - 2] {
        let prefix = records[..usize::try_from(length).unwrap()].iter().cloned().map(Arc::new);
        let log = MemoryLog::with_records(Clock::manual(START), prefix.collect());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let socket = data_dir.join("prefix.sock");
        let served = serve_until(&socket, Arc::new(log), async { drop(stopped.await) }).unwrap();
        let at = Some(Moment::At(Offset::new(length)));
        for what in &all {
            let then = said(ask(&place(&socket), &now(what.clone())));
            let as_of = said(ask(&source, &Question::AsOf { what: what.clone(), at }));
            assert_eq!(as_of, then, "{what:?} as of {length}");
        }
        let history = tokio::task::block_in_place(|| History::open(&source, at)).unwrap();
        let from_snapshot = history.way().contains("after the snapshot");
        assert_eq!(from_snapshot, length >= middle, "{}", history.way());
        drop(stop);
        served.await.unwrap();
    }
    let late = Question::AsOf { what: Target::Users, at: Some(Moment::At(filled.end)) };
    let text = read(&source, &late, Layout::default());
    assert!(text.contains("as of record") && text.contains("snapshot at"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_usage_adds_up() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let cabin = Cabin::open(data_dir).await;
    let filled = fill(&cabin).await;
    let records = cabin.log.read(Offset::new(1), usize::MAX).unwrap();
    let state = sections::bytes(&cabin.engine.state());
    cabin.close();
    let all = Question::Usage { directories: None };
    let usage = &ask(&place(data_dir), &all).unwrap()[0];
    let frames: usize = records.iter().map(|r| codec::encode_frame(r).unwrap().len()).sum();
    assert_eq!(usage["log"]["bytes"], frames);
    let sum = |list: &str, of: &str| -> u64 {
        usage[list].as_array().unwrap().iter().map(|share| share[of].as_u64().unwrap()).sum()
    };
    for list in ["kinds", "days"] {
        assert_eq!((sum(list, "records"), sum(list, "bytes")), (filled.end.get(), frames as u64));
    }
    assert!(sum("projections", "bytes") <= state.len() as u64 && sum("projections", "bytes") > 0);
    let room = &usage["rooms"][0];
    assert_eq!(room["name"], filled.room.as_str());
    let events = records.iter().filter(|r| r.header.stream.room_id() == Some(&*filled.room));
    assert_eq!(room["records"], events.count());
    let on_disk = |name: &str| {
        let disk = usage["disk"].as_array().unwrap();
        disk.iter().find(|part| part["name"] == name).unwrap()["bytes"].as_u64().unwrap()
    };
    assert!(on_disk("log") > 0 && on_disk("archive") > 0 && on_disk("snapshots") == 0);
    let text = read(&place(data_dir), &all, Layout::default());
    assert!(text.contains("ON DISK") && text.contains("2026-03-01"), "{text}");
    let (code, usage, said) = logcabin(&["du", "--data-dir", data_dir.to_str().unwrap()]);
    assert_eq!((code, &usage["log"]["records"]), (Some(0), &json!(filled.end)), "{said}");
    let config = directory.path().join("logcabin.toml");
    std::fs::write(&config, "log.archive_dir = \"off\"").unwrap();
    let [data_dir, config] = [data_dir, &*config].map(|path| path.to_str().unwrap());
    let (_, usage, _) = logcabin(&["du", "--data-dir", data_dir, "--config", config]);
    assert_eq!(usage["disk"][1], json!({ "name": "archive", "bytes": 0 }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_diff_summarizes_what_changed() {
    let directory = tempfile::tempdir().unwrap();
    let cabin = Cabin::open(directory.path()).await;
    let filled = fill(&cabin).await;
    let [ann, bob] =
        ["ann", "bob"].map(|name| OwnedUserId::try_from(format!("@{name}:cabin.example")).unwrap());
    let levels =
        json!({ "users": { "@ann:cabin.example": 100, "@bob:cabin.example": 50 }, "ban": 60 });
    cabin.send(&filled.room, &ann, ("m.room.power_levels", Some("")), levels, None).await;
    let which = DeviceSet::These(vec!["PHONE".into()]);
    let gone = RemoveDevices { user_id: bob.clone(), which };
    cabin.engine.propose(by(&bob), gone).await.unwrap().into_inner();
    cabin.member(&filled.room, &bob, &bob, Change::Leave).await;
    let end = cabin.end();
    cabin.close();
    let source = place(directory.path());
    let summed = |of: Scope, from: Offset, to: Offset| {
        let question = Question::Diff { of, from: Moment::At(from), to: Moment::At(to) };
        ask(&source, &question).unwrap().remove(0)
    };
    let change = |diff: &Value, what: &str| {
        let changes = diff["changes"].as_array().unwrap().iter();
        let found = changes.clone().find(|change| change["what"] == what);
        let found = found.unwrap_or_else(|| panic!("{what} is not in {diff}"));
        (found["before"].clone(), found["after"].clone())
    };
    let room = || Scope::Room("porchR".to_owned());
    // In either order.
    for (from, to) in [(filled.before_rename, end), (end, filled.before_rename)] {
        let diff = summed(room(), from, to);
        let (porch, verandah) = (json!({ "name": "The Porch" }), json!({ "name": "The Verandah" }));
        assert_eq!(change(&diff, "name"), (porch, verandah));
        assert_eq!(change(&diff, "member @bob:cabin.example"), (json!("join"), json!("leave")));
        assert_eq!(change(&diff, "joined members"), (json!(2), json!(1)));
        assert_eq!(change(&diff, "power of @bob:cabin.example"), (Value::Null, json!(50)));
        assert_eq!(change(&diff, "power ban").1, 60);
        let kinds = diff["kinds"].as_array().unwrap();
        let messages = kinds.iter().find(|kind| kind["kind"] == "m.room.message").unwrap();
        assert_eq!(messages["records"], 1);
        let counted: u64 = kinds.iter().map(|kind| kind["records"].as_u64().unwrap()).sum();
        assert_eq!(diff["records"], counted);
    }
    let diff = summed(Scope::User("bob".to_owned()), filled.before_rename, end);
    assert_eq!(change(&diff, "profile displayname"), (json!("Bob"), json!("Bob the Builder")));
    let (before, after) = change(&diff, "device PHONE");
    assert_eq!((&before["display_name"], after), (&json!("Phone"), Value::Null));
    assert_eq!(change(&diff, &format!("room {}", filled.room)), (json!("join"), json!("leave")));
    let diff = summed(Scope::Server, Offset::new(1), end);
    assert_eq!(diff["records"], end.get() - 1);
    assert_eq!(change(&diff, "user @bob:cabin.example").1["devices"], 0);
    assert_eq!(change(&diff, "alias #porch:cabin.example"), (Value::Null, json!(filled.room)));
    let same = summed(Scope::Server, end, end);
    assert_eq!((&same["records"], &same["changes"]), (&json!(0), &json!([])));
    let question = Question::Diff { of: room(), from: at("10"), to: Moment::At(end) };
    let text = read(&source, &question, Layout::default());
    assert!(text.contains("+ name") && text.contains("The Verandah"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn state_as_of_an_offset_equals_the_state_of_a_log_that_ends_there() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let cabin = Cabin::open(data_dir).await;
    let filled = fill(&cabin).await;
    let records = cabin.log.read(Offset::new(1), usize::MAX).unwrap();
    cabin.close();
    let source = place(data_dir);
    let room = filled.room.to_string();
    let created = records.iter().position(|record| &*record.header.kind == "room.event").unwrap();
    for length in created + 1..=records.len() {
        let prefix = records[..length].iter().cloned().map(Arc::new).collect();
        let log: Arc<dyn Log> = Arc::new(MemoryLog::with_records(Clock::manual(START), prefix));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let socket = data_dir.join("prefix.sock");
        let served = serve_until(&socket, log, async { drop(stopped.await) }).unwrap();
        let end = Moment::At(Offset::new(length as u64));
        let what = Target::State { room: room.clone() };
        let then = ask(&place(&socket), &now(what.clone())).unwrap();
        let as_of = Question::AsOf { what, at: Some(end) };
        assert_eq!(ask(&source, &as_of).unwrap(), then, "as of {length}");
        drop(stop);
        served.await.unwrap();
    }
}

/// An operator compares a response that a client complains about with the log.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_that_contradicts_the_log_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let cabin = Cabin::open(directory.path()).await;
    let filled = fill(&cabin).await;
    let _ = cabin.close();
    let source = place(directory.path());
    let steps = |steps| AuditOptions { user: "bob".to_owned(), steps, ..AuditOptions::default() };
    let audit = |options: AuditOptions| {
        let question = Question::AuditSync(Box::new(options));
        let mut text = Vec::new();
        let mut out = Output::for_people(&mut text, Layout::default());
        let right = tokio::task::block_in_place(|| run(&source, &question, &mut out)).unwrap();
        (right, String::from_utf8(text).unwrap())
    };
    for number in [1, 7, 1000] {
        let (right, text) = audit(steps(number));
        assert!(right && text.contains("all match the log"), "{text}");
    }
    let empty = json!({ "next_batch": format!("s0_{}", filled.end) });
    let (right, text) = audit(AuditOptions { answer: Some(empty), ..steps(1) });
    assert!(!right && text.contains("the room is missing"), "{text}");
    assert!(text.contains(filled.room.as_str()), "{text}");
    let lost = AuditOptions { answer: Some(json!({})), ..steps(1) };
    let question = Question::AuditSync(Box::new(lost));
    let error = ask(&source, &question).unwrap_err().to_string();
    assert!(error.contains("next_batch"), "{error}");
    let nobody = AuditOptions { user: "nobody".to_owned(), ..steps(1) };
    let error = ask(&source, &Question::AuditSync(Box::new(nobody))).unwrap_err().to_string();
    assert!(error.contains("`nobody`"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_contains_a_secret() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let cabin = Cabin::open(data_dir).await;
    let filled = fill(&cabin).await;
    let private_key = cabin.engine.state().server().unwrap().private_key.clone();
    let token = format!("{:?}", TokenHash::of("access of @ann:cabin.example"));
    let refresh = format!("{:?}", TokenHash::of("refresh of @ann:cabin.example"));
    let records = cabin.log.read(Offset::new(1), usize::MAX).unwrap();
    cabin.close();
    let secrets = ["UExBTlRFRFNBTFQ", "UExBTlRFREhBU0g", private_key.expose(), &token, &refresh];
    // They are in the log, or the test shows nothing.
    let all: Vec<u8> = records.iter().flat_map(|r| r.payload.bytes().unwrap().to_vec()).collect();
    let all = String::from_utf8(all).unwrap();
    assert!(secrets.iter().all(|secret| all.contains(secret)));

    let mut questions = questions(&filled);
    questions.extend((1..=filled.end.get()).map(|offset| Question::Show(Offset::new(offset))));
    questions.push(Question::Verify);
    for path in [data_dir.to_owned(), archive_dir(data_dir)] {
        let source = place(&path);
        for question in &questions {
            let programs = format!("{:?}", ask(&source, question).unwrap());
            let people = read(&source, question, Layout::default());
            for secret in secrets {
                assert!(!programs.contains(secret), "{question:?} tells {secret}");
                assert!(!people.contains(secret), "{question:?} tells {secret}");
            }
            assert!(
                !people.contains('\u{1b}'),
                "{question:?} sends what a user wrote to the terminal"
            );
            for line in read(&source, question, Layout { colour: true, width: Some(60) }).lines() {
                assert!(!line.contains("\u{1b}[31mDry"), "{line:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_erased_record_shows_who_erased_it_and_when() {
    let directory = tempfile::tempdir().unwrap();
    let cabin = Cabin::open(directory.path()).await;
    let filled = fill(&cabin).await;
    let find = |text: &str| {
        let records = cabin.log.read(Offset::new(1), usize::MAX).unwrap();
        let holds = |record: &Record| {
            let bytes = record.payload.bytes().unwrap();
            String::from_utf8_lossy(bytes).contains(text)
        };
        records.iter().find(|record| holds(record)).map(Record::offset)
    };
    let (rude, redaction) = (find("something rude").unwrap(), find("be kind").unwrap());
    let swept = erasure::sweep(&cabin.engine, &SweepPolicy::at_once(), Offset::MAX).await.unwrap();
    assert_eq!((swept.erased, find("something rude")), (1, None));
    cabin.close();

    let source = place(directory.path());
    let shown = ask(&source, &Question::Show(rude)).unwrap().remove(0);
    assert_eq!(shown["payload_is"], "reduced");
    assert_eq!(shown["erasure"]["who"], "@ann:cabin.example");
    assert_eq!(shown["erasure"]["because"], redaction.get());
    let erased = filled.end.next();
    assert_eq!(shown["erasure"]["record"], erased.get());
    let words = read(&source, &Question::Show(rude), Layout::default());
    let said = format!("@ann:cabin.example redacted it in record {redaction}");
    assert!(words.contains(&said) && words.contains("its content was erased"), "{words}");
    let fact = ask(&source, &Question::Show(erased)).unwrap().remove(0);
    let said = format!("erased the content of record {rude}, redacted by record {redaction}");
    assert_eq!((fact["text"].as_str(), fact["payload_is"].as_str()), (Some(&*said), Some("whole")));
    let report = check_all(&source, None).unwrap();
    assert!(report.intact, "{report:?}");
    assert_eq!(report.erased, 1);
}

/// Sends each line that is written.
struct Lines {
    told: std::sync::mpsc::Sender<String>,
    begun: Vec<u8>,
}

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.begun.extend_from_slice(bytes);
        while let Some(end) = self.begun.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.begun.drain(..=end).collect();
            self.told.send(String::from_utf8(line).unwrap()).map_err(std::io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_follows_a_running_server_until_it_stops() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path().to_owned();
    let cabin = Cabin::open(&data_dir).await;
    let filled = fill(&cabin).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let socket = socket_path(&data_dir);
    // What a crash leaves behind.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let served =
        serve_until(&socket, Arc::clone(&cabin.log), async { drop(stopped.await) }).unwrap();
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let source = place(&data_dir);
    let (told, lines) = std::sync::mpsc::channel();
    let tail = std::thread::spawn(move || {
        let question = Question::Tail { last: Some(1), follow: true, only: Box::default() };
        let mut writer = Lines { told, begun: Vec::new() };
        run(&source, &question, &mut Output::for_programs(&mut writer)).unwrap();
    });
    let next = || {
        let line = lines.recv_timeout(Duration::from_secs(60)).expect("the tail tells a line");
        serde_json::from_str::<Value>(&line).unwrap()["text"].clone()
    };
    // It follows by now: what it begins with is there.
    assert_eq!(next(), "Verandah it is.");
    let ann = OwnedUserId::try_from("@ann:cabin.example").unwrap();
    for body in ["one", "two", "three"] {
        cabin.say(&filled.room, &ann, body).await;
        assert_eq!(next(), body);
    }
    drop(stop);
    served.await.unwrap();
    tokio::task::spawn_blocking(|| tail.join().unwrap()).await.unwrap();
    assert_eq!(lines.try_iter().collect::<Vec<_>>(), [""; 0]);
    cabin.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_socket_the_archive_is_read_with_a_notice() {
    let directory = tempfile::tempdir().unwrap();
    let cabin = Cabin::open(directory.path()).await;
    fill(&cabin).await;
    let mut archived = cabin.archiver.archived();
    let end = cabin.end();
    archived.wait_for(|archived| *archived == end).await.unwrap();
    let source = place(directory.path());
    assert!(source.note().unwrap().contains("archive"), "{source:?}");
    assert_eq!(ask(&source, &now(Target::Users)).unwrap().len(), 3);
    cabin.close();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_answers_invalid_requests() {
    let directory = tempfile::tempdir().unwrap();
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(START)));
    let socket = socket_path(directory.path());
    let served = serve_until(&socket, log, std::future::pending()).unwrap();
    let answer = |request: Vec<u8>| {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        // A request that is refused before it is read whole finds the connection closed; the answer
        // is there all the same.
        let _ = stream.write_all(&request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    tokio::task::block_in_place(|| {
        assert_eq!(answer(b"records 9 9 9\n".to_vec())[0], b'E');
        assert_eq!(answer(b"records 2\n".to_vec())[0], b'E');
        assert_eq!(answer(b"records 0\n".to_vec())[0], b'E');
        assert_eq!(answer(vec![b'x'; 128 * 1024])[0], b'E');
        let mut open: Vec<_> =
            (0..16).map(|_| std::os::unix::net::UnixStream::connect(&socket).unwrap()).collect();
        // All sixteen are served before the next one comes.
        for stream in &mut open {
            stream.write_all(b"end\n").unwrap();
            stream.read_exact(&mut [0; 9]).unwrap();
        }
        let refused = answer(b"end\n".to_vec());
        assert!(String::from_utf8_lossy(&refused).contains("too many"), "{refused:?}");
    });
    served.abort();
}

/// Runs `logcabin` and returns its exit code and the JSON that it wrote.
fn logcabin(arguments: &[&str]) -> (Option<i32>, Value, String) {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_logcabin"))
        .args(arguments)
        .arg("--json")
        .output()
        .unwrap();
    let answer = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), answer, String::from_utf8(output.stderr).unwrap())
}

fn failed<'a>(report: &'a Value, name: &str) -> &'a str {
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == name).unwrap();
    assert_eq!(check["outcome"], "failed", "{report}");
    check["detail"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_replay_verify_and_restore() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let dir = data_dir.to_str().unwrap();
    let cabin = Cabin::open(data_dir).await;
    let filled = fill(&cabin).await;

    let (code, _, said) = logcabin(&["verify", "--data-dir", dir]);
    assert_eq!(code, Some(2));
    assert!(said.contains("stop it first"), "{said}");
    let (code, _, said) = logcabin(&["replay", "--data-dir", dir]);
    assert_eq!(code, Some(1));
    assert!(said.contains("stop it first"), "{said}");
    ShutdownDigest::write(data_dir, &cabin.engine.state()).unwrap();
    let digest = cabin.close();

    let (code, report, said) = logcabin(&["verify", "--data-dir", dir]);
    assert_eq!((code, &report["intact"]), (Some(0), &json!(true)), "{report} {said}");
    let passed = report["checks"].as_array().unwrap().iter();
    let passed: Vec<_> = passed.filter(|c| c["outcome"] == "passed").map(|c| &c["name"]).collect();
    assert_eq!(passed, ["chain", "payloads", "commands", "replay", "checkpoint", "archive"]);
    let (code, replayed, _) = logcabin(&["replay", "--data-dir", dir]);
    assert_eq!((code, &replayed["digest"]), (Some(0), &json!(digest)));
    assert_eq!(replayed["records"], filled.end.get());
    assert_eq!(replayed["users"], 3);

    // A checkpoint that contradicts the log, and one from after its end.
    let checkpoint = data_dir.join("checkpoint.json");
    let kept = std::fs::read_to_string(&checkpoint).unwrap();
    std::fs::write(&checkpoint, kept.replace(&digest, &"0".repeat(64))).unwrap();
    let (code, report, _) = logcabin(&["verify", "--data-dir", dir]);
    assert_eq!((code, &report["fault"]), (Some(1), &json!(filled.end)));
    assert!(failed(&report, "checkpoint").contains("state digest"));
    let longer = format!("\"offset\":{}", filled.end.get() + 5);
    std::fs::write(&checkpoint, kept.replace(&format!("\"offset\":{}", filled.end), &longer))
        .unwrap();
    let (code, report, _) = logcabin(&["verify", "--data-dir", dir]);
    assert_eq!(code, Some(1));
    assert!(failed(&report, "checkpoint").contains("records were lost"));

    // From the archive alone, in place of the log.
    let archive = archive_dir(data_dir);
    let (code, _, said) =
        logcabin(&["restore", "--from-archive", archive.to_str().unwrap(), "--data-dir", dir]);
    assert_eq!(code, Some(1));
    assert!(said.contains("not empty"), "{said}");
    std::fs::remove_dir_all(data_dir.join("log")).unwrap();
    let (_, _, said) = logcabin(&["verify", "--data-dir", dir]);
    assert!(said.contains("there is no log"), "{said}");
    assert!(!data_dir.join("log").exists());
    let (code, restored, _) =
        logcabin(&["restore", "--from-archive", archive.to_str().unwrap(), "--data-dir", dir]);
    assert_eq!((code, &restored["records"]), (Some(0), &json!(filled.end)));
    // All records, the record of the restore, and one that drops one-time keys, because an archive
    // may end too early.
    let (code, report, _) = logcabin(&["verify", "--data-dir", dir]);
    assert_eq!((code, &report["records"]), (Some(0), &json!(filled.end.get() + 2)), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_reports_the_record_of_a_flipped_byte() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = directory.path();
    let cabin = Cabin::open(data_dir).await;
    fill(&cabin).await;
    cabin.close();
    let archive = archive_dir(data_dir);
    let segment = archive.join("00000000000000000001.lcseg");
    let whole = std::fs::read(&segment).unwrap();
    // The display name in record 6.
    let name = b"\"value\":\"Bob\"";
    let place = whole.windows(name.len()).position(|window| window == name).unwrap();
    let mut damaged = whole.clone();
    damaged[place + 10] ^= 1;
    std::fs::write(&segment, damaged).unwrap();

    let (code, report, _) = logcabin(&["verify", "--archive", archive.to_str().unwrap()]);
    assert_eq!((code, &report["fault"]), (Some(1), &json!(6)), "{report}");
    let both = ["verify", "--data-dir", data_dir.to_str().unwrap()];
    let (code, report, _) = logcabin(&both);
    assert_eq!((code, &report["fault"]), (Some(1), &json!(6)), "{report}");
    assert!(failed(&report, "archive").contains("record 6"));

    // An archive that goes on where the log ends.
    std::fs::write(&segment, whole).unwrap();
    let shorter = tempfile::tempdir().unwrap();
    let cabin = Cabin::open(shorter.path()).await;
    cabin.close();
    let (code, report, _) = logcabin(&[
        "verify",
        "--data-dir",
        shorter.path().to_str().unwrap(),
        "--archive",
        archive.to_str().unwrap(),
    ]);
    assert_eq!((code, &report["intact"]), (Some(1), &json!(false)), "{report}");
    assert!(failed(&report, "archive").contains("not an archive of this log"));
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
        tokio::time::sleep(Duration::from_secs(1)).await;
        let ann = OwnedUserId::try_from("@ann:cabin.example").unwrap();
        cabin.say(&filled.room, &ann, &format!("Tick {second}")).await;
    }
    drop(stop);
    served.await.unwrap();
    ShutdownDigest::write(data_dir, &cabin.engine.state()).unwrap();
    cabin.close();
}
