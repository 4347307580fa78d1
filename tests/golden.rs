//! Logs of earlier versions stay readable: every log under `tests/golden/` still verifies and
//! replays.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

#[path = "contents/elsewhere.rs"]
mod elsewhere;

#[path = "contents/import.rs"]
mod import;

#[path = "contents/moderation.rs"]
mod moderation;

#[path = "contents/oauth.rs"]
mod oauth;

#[path = "contents/sections.rs"]
mod known;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use known::{KNOWN, log_with};
use logcabin::{
    clock::Clock,
    decide::{
        account::{
            ConfirmTokens, DeviceSet, Login, LoginByToken, MetRequirements, Refresh, Register,
            RemoveDevices, RenameDevice, RenewPassword, SetPassword, SetProfile, UpgradeGuest,
        },
        account_data::{CreateFilter, SetAccountData},
        create_room::{CreateRoom, Preset, ROOM_VERSIONS},
        delayed::{GiveUp, Restart, Schedule, SendDelayed},
        delivery::Advance,
        device::{Dehydrate, NoteSeen},
        directory::{RemoveAlias, SetAlias, SetNetwork, SetVisibility},
        ephemeral::{SetReceipt, SetTyping},
        federation::{LearnKeys, RotateKey},
        key_backup::{DeleteBackup, PutKeys, RemoveKeys, SetBackup},
        keys::{ClaimKeys, SetCrossSigning, SignKeys, UploadKeys},
        maintenance::NoteBackup,
        media::{AddMedia, CreateMedia, ProtectMedia, QuarantineMedia, QuarantineRemote},
        membership::{Change, ChangeMembership, ForgetRoom},
        moderation::{BeginShutdown, FinishShutdown, WithReason},
        notice::OpenNoticeRoom,
        presence::SetPresence,
        purge::PurgeRoom,
        pusher::{NoteMailed, NoteTold, RemovePusher, SetPusher},
        registration_token::{CreateRegistrationToken, RemoveRegistrationToken},
        report::{RemoveReport, Report, Subject},
        retention::{Retention, SweepPolicy},
        send::SendEvent,
        sso::LinkSso,
        status::{Deactivate, SetStatus},
        threepid::{
            AddThreepid, CompleteValidation, NoteBound, NoteSent, NoteUnbound, RemoveThreepid,
            RequestValidation, Validated,
        },
        to_device::{Acknowledge, SendToDevice},
    },
    engine::{Engine, Options},
    erasure,
    log::{
        Batch, Log,
        archive::{ArchiveOptions, ArchiveReader, Archiver, verify_archive},
        memory::MemoryLog,
    },
    record::{
        Class, Command, Epoch, NewRecord, Offset, Origin, Stream,
        codec::Tip,
        command::{
            AccountKind, BackedUpKey, BackupMade, BackupMoment, DelayedOutcome, FileHash, KINDS,
            KeysDrop, OldKey, PeerKeys, PresenceState, Requirements, RoomUndo, ServerKey,
            ServerRestore, Sighting, TokenHash, Tokens, Transaction, UnderWay, UndoneRoom,
        },
        lax_object::LaxObject,
        pusher::{PusherAdvance, PusherEnd, PusherIds, PusherKind, PusherMail, PusherSet},
        room_version::is_old,
        server_keys::ServerKeys,
        threepid::{Medium, Purpose, Threepid},
    },
    state::{SECTIONS, State, deliveries::Position, sections, validations::token_hash},
};
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedUserId,
    RoomId, UInt, events::TimelineEventType, signatures::Ed25519KeyPair,
};
use serde_json::value::RawValue;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn logs() -> Vec<PathBuf> {
    let mut logs: Vec<_> =
        std::fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path()).collect();
    logs.sort();
    logs
}

#[test]
fn every_golden_log_verifies_and_replays() {
    assert!(!logs().is_empty());
    for log in logs() {
        let verified = verify_archive(&log, |_| {}).unwrap();
        assert!(verified.torn.is_none(), "{}", log.display());
        let state = State::default();
        for record in ArchiveReader::open(&log).unwrap().records(Offset::new(1)) {
            let _ = state.apply(&record.unwrap()).unwrap();
        }
        assert_eq!(state.applied(), verified.last, "{}", log.display());
        assert_eq!(state.accounts.len(), 2);
        // One of each version from 3 on (newer logs: from 1 on), one for notices, and one whose
        // events have a lifetime.
        let elsewhere = RoomId::parse("!elsewhere:peer.example").unwrap();
        let others = usize::from(state.rooms.get(&elsewhere).is_some());
        let old = state.rooms.all().iter().filter(|room| is_old(&room.version)).count();
        assert_eq!(state.rooms.len(), 10 + 2 + others + old);
    }
}

/// Earlier versions stored events with a signature, this one signs them when they leave. The
/// signatures are the same, also of events that were redacted since.
#[test]
fn earlier_versions_signed_events_as_this_one_does() {
    let mut signed = 0;
    for log in logs() {
        let (state, mut keys) = (State::default(), None);
        for record in ArchiveReader::open(&log).unwrap().records(Offset::new(1)) {
            let record = record.unwrap();
            let _ = state.apply(&record).unwrap();
            match record.command().unwrap() {
                Some(Command::ServerIdentity(identity)) => {
                    let key = STANDARD_NO_PAD.decode(identity.private_key.expose()).unwrap();
                    let version = identity.key_id.strip_prefix("ed25519:").unwrap().to_owned();
                    let key_pair = Ed25519KeyPair::from_der(&key, version).unwrap();
                    let name = identity.server_name.try_into().unwrap();
                    keys = Some(ServerKeys::new(name, key_pair));
                }
                Some(Command::RoomEvent(body)) => {
                    let stored: CanonicalJsonObject = serde_json::from_str(body.pdu.get()).unwrap();
                    let mut now = LaxObject::from(stored.clone());
                    now.remove("signatures");
                    let rules = state.rooms.get(&body.room_id).unwrap().rules.redaction.clone();
                    keys.as_ref().unwrap().sign_event(&mut now, &rules).unwrap();
                    if record.header.version == 1 {
                        assert_eq!(now["signatures"], stored["signatures"], "{}", record.offset());
                        signed += 1;
                    }
                }
                _ => {}
            }
        }
    }
    assert!(signed > 100, "only {signed} events were signed when they were written");
}

/// The snapshot is taken after each record of a log that holds every kind of command, read back,
/// and followed by the remaining records.
#[test]
fn a_snapshot_keeps_the_effects_of_every_kind_of_command() {
    for log in logs() {
        let records: Vec<_> = ArchiveReader::open(&log)
            .unwrap()
            .records(Offset::new(1))
            .map(Result::unwrap)
            .collect();
        let mut state = State::default();
        for record in &records {
            let _ = state.apply(record).unwrap();
            let (bytes, digest) = (sections::bytes(&state), state.digest());
            state = sections::copy(&state).unwrap();
            let offset = record.offset();
            assert_eq!(state.digest(), digest, "after record {offset}");
            assert!(sections::bytes(&state) == bytes, "after record {offset}");
        }
    }
}

/// The content of projections is part of every snapshot. When this fails although the golden log is
/// the same, earlier versions wrote something else: raise the version of the section in
/// `src/state/sections.rs`, say there how the earlier one is read, and update [`KNOWN`].
#[test]
fn the_content_of_snapshots_does_not_change_unnoticed() {
    let state_of = |log: &str| {
        let state = State::default();
        for record in ArchiveReader::open(&golden().join(log)).unwrap().records(Offset::new(1)) {
            let _ = state.apply(&record.unwrap()).unwrap();
        }
        state
    };
    let base = state_of("0.1.0");
    let found = SECTIONS.iter().map(|section| {
        let mut bytes = Vec::new();
        let other = log_with(section.name).map(state_of);
        section.write(other.as_ref().unwrap_or(&base), &mut bytes).unwrap();
        (section.name, section.version, blake3::hash(&bytes).to_hex()[..16].to_owned())
    });
    let known = KNOWN.iter().map(|(name, version, hash)| (*name, *version, (*hash).to_owned()));
    assert_eq!(found.collect::<Vec<_>>(), known.collect::<Vec<_>>());
}

/// A kind of command that no golden log holds could change its form unnoticed.
#[test]
fn the_golden_logs_contain_every_kind_of_command() {
    let mut found = BTreeSet::new();
    for log in logs() {
        for record in ArchiveReader::open(&log).unwrap().records(Offset::new(1)) {
            found.insert(record.unwrap().header.kind.to_string());
        }
    }
    let missing: Vec<_> = KINDS.iter().filter(|kind| !found.contains(kind.name)).collect();
    assert!(missing.is_empty(), "make a new golden log with {missing:?}");
}

/// What a newer version wrote is not skipped, guessed at or half applied: the server says so and
/// stops.
#[tokio::test]
async fn a_command_of_a_newer_version_stops_the_replay() {
    for (kind, version, said) in [
        ("room.dream", 1, "`room.dream` is not known to this version"),
        ("room.event", 7, "has version 7, this version of logcabin reads up to 6"),
    ] {
        let clock = Clock::manual(1_770_000_000_000);
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
        let options = options(clock.clone());
        drop(Engine::open(Arc::clone(&log), options.clone()).await.unwrap());
        let record = NewRecord {
            stream: Stream::server(),
            kind,
            version,
            class: Class::Rewindable,
            ephemeral: false,
            origin: Origin::server(),
            payload: "{}".into(),
        };
        let records = log.read(Offset::new(1), usize::MAX).unwrap();
        let mut tip = Tip::after(&records[0]);
        let (newer, _) = tip.extend(record, 0, 1_770_000_000_000).unwrap();
        let records = records.into_iter().chain([newer]).map(Arc::new).collect();
        let log: Arc<dyn Log> = Arc::new(MemoryLog::with_records(clock, records));
        let error = Engine::open(log, options).await.unwrap_err().to_string();
        assert!(error.contains("record 2") && error.contains(said), "{error}");
    }
}

fn options(clock: Clock) -> Options {
    Options { server_name: "golden.example".try_into().unwrap(), ..Options::small(clock) }
}

/// Makes a golden log of this version: to be run when a kind of command or a version of its payload
/// is added. `LOGCABIN_GOLDEN=name cargo test --test golden make -- --ignored`
#[tokio::test]
#[ignore = "writes into the source tree"]
async fn make_a_golden_log() {
    let dir = golden().join(std::env::var("LOGCABIN_GOLDEN").unwrap());
    let clock = Clock::manual(1_770_000_000_000);
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
    let archiver = Archiver::start(ArchiveOptions::new(&dir), Arc::clone(&log)).unwrap();
    let engine = Engine::open(Arc::clone(&log), options(clock)).await.unwrap();
    fill(&engine).await;
    elsewhere::branch(&engine).await;
    // Only events that nothing else here depends on.
    let rules = vec!["* m.passing 0".parse().unwrap()];
    let retention = Arc::new(Retention { rules, ..Retention::default() });
    let all = SweepPolicy { retention, ..SweepPolicy::at_once() };
    let swept = erasure::sweep(&engine, &all, Offset::MAX).await.unwrap();
    assert!(swept.erased > 0 && swept.superseded > 0 && swept.expired > 0, "{swept:?}");
    logcabin::proof::checkpoint(&engine, Origin::server()).await.unwrap();
    let last = engine.head().offset();
    let restore = ServerRestore { source: "archive".to_owned(), last, undone: Some(last.next()) };
    let room = |id: &str| UndoneRoom {
        room_id: id.try_into().unwrap(),
        epoch: Epoch(0),
        offset: last.next(),
    };
    let undone = RoomUndo {
        user_id: "@ann:golden.example".try_into().unwrap(),
        begun: Epoch(1),
        rooms: vec![room("!undone:golden.example")],
    };
    for command in [Command::from(restore), undone.into(), Command::from(KeysDrop {})] {
        let record = NewRecord::new(Stream::server(), Origin::server(), &command);
        log.append(Batch { expect: Vec::new(), records: vec![record] }).await.unwrap();
    }
    for record in import::records().into_iter().chain(moderation::records()) {
        log.append(Batch { expect: Vec::new(), records: vec![record] }).await.unwrap();
    }
    log.close();
    archiver.stop();
}

async fn fill(engine: &Engine) {
    let ann: OwnedUserId = "@ann:golden.example".try_into().unwrap();
    let bob: OwnedUserId = "@bob:golden.example".try_into().unwrap();
    let ts = MilliSecondsSinceUnixEpoch(UInt::from(1_770_000_000_u32));
    let origin =
        || Origin { user: ann.as_str().into(), device: "DEVICE".into(), request: "request".into() };
    let raw = |json: &str| RawValue::from_string(json.to_owned()).unwrap();
    macro_rules! propose {
        ($proposal:expr) => {
            engine.propose(origin(), $proposal).await.unwrap().into_inner()
        };
    }
    let tokens = |name: &str| Tokens {
        access: TokenHash::of(&format!("access {name}")),
        expires_ms: Some(1_770_003_600_000),
        refresh: Some(TokenHash::of(&format!("refresh {name}"))),
    };
    for user_id in [&ann, &bob] {
        propose!(Register {
            user_id: user_id.clone(),
            kind: if *user_id == bob { AccountKind::Guest } else { AccountKind::User },
            password: Some("$pbkdf2-sha512$i=1000$c2FsdA$aGFzaA".into()),
            display_name: Some(user_id.localpart().to_owned()),
            login: Some(Login {
                user_id: user_id.clone(),
                device_id: "DEVICE".into(),
                display_name: Some("phone".to_owned()),
                tokens: tokens(user_id.as_str()),
                verified: None,
            }),
            met: MetRequirements::default()
        });
    }
    propose!(LoginByToken {
        login: Login {
            user_id: ann.clone(),
            device_id: "TABLET".into(),
            display_name: None,
            tokens: tokens("tablet"),
            verified: None,
        },
        nonce: "nonce".to_owned(),
        expires_ms: 1_770_000_300_000,
    });
    propose!(LinkSso {
        user_id: ann.clone(),
        provider: "example".to_owned(),
        subject: "ann at example".to_owned(),
    });
    let moment = |offset| BackupMoment { epoch: Epoch::default(), offset: Offset::new(offset) };
    propose!(NoteBackup {
        made: BackupMade {
            destination: "/backup".to_owned(),
            moment: moment(7),
            chain: FileHash([7; 32]),
            manifest: FileHash([8; 32]),
            removed: vec![moment(3)],
        },
    });
    let token = TokenHash::of("golden-token");
    propose!(CreateRegistrationToken {
        token,
        label: Some("gold".to_owned()),
        uses_allowed: Some(3),
        expires_ms: Some(1_770_003_600_000),
    });
    propose!(UpgradeGuest {
        user_id: bob.clone(),
        password: Some("$pbkdf2-sha512$i=1000$c2FsdA$aGFzaA".into()),
        login: None,
        met: MetRequirements {
            requirements: Requirements {
                registration_token: Some(token),
                terms: BTreeMap::from([("privacy".to_owned(), "1.0".to_owned())]),
            },
            now_ms: 1_770_000_000_000,
            ..MetRequirements::default()
        },
    });
    propose!(RemoveRegistrationToken { token });
    propose!(Refresh {
        good_enough_ms: None,
        user_id: ann.clone(),
        device_id: "DEVICE".into(),
        presented: TokenHash::of("refresh @ann:golden.example"),
        tokens: tokens("second"),
    });
    propose!(ConfirmTokens {
        user_id: ann.clone(),
        device_id: "DEVICE".into(),
        used: TokenHash::of("access second"),
    });
    propose!(RenewPassword {
        user_id: ann.clone(),
        weaker: "$pbkdf2-sha512$i=1000$c2FsdA$aGFzaA".into(),
        stronger: "$pbkdf2-sha512$i=2000$c2FsdA$aGFzaA".into(),
    });
    propose!(RenameDevice {
        user_id: ann.clone(),
        device_id: "DEVICE".into(),
        display_name: Some("telephone".to_owned()),
    });
    let keys = |names: &[&str]| {
        names.iter().map(|name| ((*name).to_owned(), raw(r#"{"key":"AAAA"}"#))).collect()
    };
    propose!(UploadKeys {
        user_id: ann.clone(),
        device_id: "DEVICE".into(),
        device_keys: Some(raw(r#"{"user_id":"@ann:golden.example","device_id":"DEVICE"}"#)),
        one_time_keys: keys(&["signed_curve25519:A", "signed_curve25519:B"]),
        fallback_keys: keys(&["signed_curve25519:F"]),
    });
    let wanted = vec![("DEVICE".into(), "signed_curve25519".to_owned())];
    propose!(ClaimKeys { user_id: ann.clone(), wanted });
    propose!(Dehydrate {
        user_id: ann.clone(),
        device_id: "DEHYDRATED".into(),
        display_name: Some("while nobody is there".to_owned()),
        device_data: raw(r#"{"algorithm":"org.example","device_pickle":"AAAA"}"#),
        device_keys: raw(r#"{"user_id":"@ann:golden.example","device_id":"DEHYDRATED"}"#),
        one_time_keys: keys(&["signed_curve25519:C"]),
        fallback_keys: keys(&["signed_curve25519:G"]),
    });
    for seen_ms in [1_770_000_000_000, 1_770_003_600_000] {
        let agent = Some("client".to_owned());
        let sighting = Sighting { seen_ms, address: [192, 0, 2, 1].into(), agent };
        propose!(NoteSeen(vec![(ann.clone(), "DEVICE".into(), sighting)]));
    }
    oauth::grant(engine, &ann).await;
    propose!(SetCrossSigning {
        user_id: ann.clone(),
        master_key: Some(raw(r#"{"usage":["master"]}"#)),
        self_signing_key: None,
        user_signing_key: None,
        replaces: None,
    });
    let signature = BTreeMap::from([("ed25519:KEY".to_owned(), "AAAA".to_owned())]);
    propose!(SignKeys {
        user_id: ann.clone(),
        by: bob.clone(),
        signatures: BTreeMap::from([("DEVICE".to_owned(), signature)]),
    });
    let set = |version, algorithm: &str| SetBackup {
        user_id: ann.clone(),
        version,
        algorithm: algorithm.to_owned(),
        auth_data: raw(r#"{"public_key":"AAAA"}"#),
    };
    let first = propose!(set(None, "org.example.first"));
    propose!(DeleteBackup { user_id: ann.clone(), version: first });
    let version = propose!(set(None, "org.example.backup"));
    let room_id = ruma::owned_room_id!("!backed:golden.example");
    let key = |session: &str| {
        let session_data = raw(r#"{"ciphertext":"AAAA"}"#);
        let (first_message_index, forwarded_count, is_verified) = (1, 0, true);
        let key = BackedUpKey { first_message_index, forwarded_count, is_verified, session_data };
        (session.to_owned(), key)
    };
    let rooms = BTreeMap::from([(room_id.clone(), [key("A"), key("B")].into())]);
    propose!(PutKeys { user_id: ann.clone(), version, rooms });
    let session_id = Some("A".to_owned());
    propose!(RemoveKeys { user_id: ann.clone(), version, room_id: Some(room_id), session_id });
    propose!(SendToDevice {
        sender: bob.clone(),
        event_type: "m.room.encrypted".to_owned(),
        messages: BTreeMap::from([(ann.clone(), vec![(None, raw("{}"))])]),
        outside: None,
        transaction: Transaction { session: Offset::new(5), id: "t".into(), scope: "s".into() },
    });
    let up_to = engine.head().offset();
    propose!(Acknowledge { user_id: ann.clone(), device_id: "DEVICE".into(), up_to });
    propose!(SetPassword {
        user_id: bob.clone(),
        password: "$pbkdf2-sha512$i=1000$c2FsdA$bmV3".into(),
        log_out: Some(DeviceSet::All),
    });
    propose!(RemoveDevices { user_id: bob.clone(), which: DeviceSet::All });
    propose!(SetStatus {
        user_id: bob.clone(),
        admin: Some(true),
        locked: None,
        suspended: Some(true),
        shadow_banned: None,
        reason: Some("a reason".to_owned()),
    });
    let field = "m.tz".to_owned();
    let value = Some("Europe/Berlin".into());
    assert!(propose!(SetProfile { user_id: ann.clone(), field, value }));
    propose!(SetAccountData {
        user_id: ann.clone(),
        room_id: None,
        event_type: "org.example".to_owned(),
        content: raw(r#"{"a":1}"#),
    });
    propose!(SetPresence {
        user_id: ann.clone(),
        presence: PresenceState::Online,
        currently_active: true,
        last_active_ms: 1_770_000_000_000,
        status_msg: Some(Some("golden".to_owned())),
    });
    propose!(CreateFilter { user_id: ann.clone(), filter: raw(r#"{"room":{}}"#) });
    propose!(Report {
        reporter: ann.clone(),
        subject: Subject::User(bob.clone()),
        reason: Some("gold".to_owned()),
        score: Some(-100),
    });
    let threepid = Threepid { medium: Medium::Email, address: "ann@golden.example".to_owned() };
    let now_ms = 1_770_000_000_000;
    let requested = propose!(RequestValidation {
        sid: "GOLDEN".to_owned(),
        purpose: Purpose::Add,
        threepid: threepid.clone(),
        client_secret: TokenHash::of("secret"),
        token: Some(token_hash("secret", "token")),
        send_attempt: 1,
        expires_ms: now_ms + 3_600_000,
        now_ms,
        most_messages: 10,
    });
    let sid = requested.sid;
    propose!(NoteSent { threepid: threepid.clone(), sid: sid.clone(), send_attempt: 1 });
    for (token, right) in [("wrong", false), ("token", true)] {
        let shown = CompleteValidation {
            threepid: threepid.clone(),
            sid: sid.clone(),
            client_secret: TokenHash::of("secret"),
            token: token_hash("secret", token),
            now_ms,
        };
        assert_eq!(propose!(shown), right);
    }
    let validated =
        Validated { sid, purpose: Purpose::Add, threepid: threepid.clone(), now_ms: now_ms + 1 };
    propose!(AddThreepid { user_id: ann.clone(), validated });
    let id_server = "id.golden.example".to_owned();
    let (user_id, on) = (ann.clone(), id_server.clone());
    propose!(NoteBound { user_id, threepid: threepid.clone(), id_server: on });
    propose!(NoteUnbound { user_id: ann.clone(), threepid: threepid.clone(), id_server });
    assert!(propose!(RemoveThreepid { user_id: ann.clone(), threepid }));
    for under_way in [Some(UnderWay { id: "0-9".to_owned(), up_to: Offset::new(9) }), None] {
        let position = Position { done: Offset::new(7), under_way, ..Position::default() };
        propose!(Advance { to: "appservice/irc".to_owned(), position });
    }
    for number in 0..2 {
        propose!(RotateKey(ServerKey {
            key_id: format!("ed25519:new{number}"),
            private_key: "private".into(),
            public_key: format!("public{number}"),
        }));
    }
    for key in ["ed25519:a", "ed25519:b"] {
        propose!(LearnKeys(PeerKeys {
            server_name: "peer.example".try_into().unwrap(),
            keys: [(key.to_owned(), "key".to_owned())].into(),
            old: [("ed25519:0".to_owned(), OldKey { key: "old".to_owned(), expired_ms: 1 })].into(),
            valid_until_ms: 1_770_000_900_000,
            document: raw(r#"{"server_name":"peer.example"}"#),
        }));
    }
    elsewhere::enter(engine, &ann).await;
    for media_id in ["one", "two"] {
        propose!(CreateMedia {
            user_id: ann.clone(),
            media_id: media_id.to_owned(),
            expires_ms: 1_770_000_900_000,
            now_ms: 1_770_000_000_000,
            most: 2,
        });
    }
    propose!(AddMedia {
        media_id: "one".to_owned(),
        given_out: true,
        user_id: Some(ann.clone()),
        hash: FileHash(*blake3::hash(b"gold").as_bytes()),
        size: 4,
        content_type: Some("text/plain".to_owned()),
        name: Some("gold.txt".to_owned()),
        now_ms: 1_770_000_000_000,
        quota: 4,
    });
    let ids = PusherIds { app_id: "app.golden".to_owned(), pushkey: "key".to_owned() };
    let url = serde_json::json!("https://push.golden.example/_matrix/push/v1/notify");
    let pusher = PusherSet {
        user_id: ann.clone(),
        device_id: None,
        ids: ids.clone(),
        kind: PusherKind::Http,
        app_display_name: "Gold".to_owned(),
        device_display_name: "a phone".to_owned(),
        profile_tag: Some("tag".to_owned()),
        lang: "en".to_owned(),
        data: [("url".to_owned(), url)].into_iter().collect(),
        disabled: false,
    };
    propose!(SetPusher { pusher, append: false, keep_device: false });
    let first = engine.state().pushers.of_user(&ann)[0].since;
    let mail = PusherMail { user_id: ann.clone(), pusher: first, up_to: first, in_a_row: 1 };
    assert!(propose!(NoteMailed(mail)));
    let behind = vec![(Offset::new(8), Offset::new(3))];
    propose!(NoteTold(PusherAdvance { done: Offset::new(9), behind }));
    assert!(propose!(RemovePusher { user_id: ann.clone(), ids, because: PusherEnd::Rejected }));
    for (number, version) in ROOM_VERSIONS.iter().enumerate() {
        let room_id = propose!(CreateRoom {
            name: Some("golden".to_owned()),
            topic: Some("gold".to_owned()),
            alias: Some(format!("#room{number}:golden.example").try_into().unwrap()),
            invite: vec![bob.clone()],
            public: true,
            ..CreateRoom::new(
                format!("!room{number}:golden.example").try_into().unwrap(),
                ann.clone(),
                version.clone(),
                Preset::PublicChat,
                ts
            )
        });
        let body = CanonicalJsonValue::String("hello".to_owned());
        let send = |redacts: Option<OwnedEventId>| SendEvent {
            room_id: room_id.clone(),
            sender: ann.clone(),
            event_type: if redacts.is_none() {
                TimelineEventType::RoomMessage
            } else {
                TimelineEventType::RoomRedaction
            },
            state_key: None,
            content: CanonicalJsonObject::from([("body".to_owned(), body.clone())]).into(),
            redacts,
            transaction: Some(Transaction {
                session: Offset::new(3),
                id: format!("txn {number}"),
                scope: "send".to_owned(),
            }),
            ts,
        };
        let event_id = propose!(send(None));
        let redaction = SendEvent { transaction: None, ..send(Some(event_id.clone())) };
        drop(propose!(redaction));
        propose!(SetReceipt {
            room_id: room_id.clone(),
            user_id: ann.clone(),
            receipt_type: "m.read".to_owned(),
            event_id,
            thread_id: Some("main".to_owned()),
            ts: 1,
        });
        for until_ms in [1_770_000_001_000, 1_770_000_002_000] {
            propose!(SetTyping {
                room_id: room_id.clone(),
                user_id: ann.clone(),
                until_ms,
                only_if_until: None,
            });
        }
        let visibility =
            SetVisibility { room_id: room_id.clone(), sender: ann.clone(), public: false };
        propose!(visibility);
        let leave = |change| ChangeMembership {
            reason: Some("gold".to_owned()),
            ..ChangeMembership::new(room_id.clone(), bob.clone(), bob.clone(), change, ts)
        };
        drop(propose!(leave(Change::Join)));
        let (room, by, of) = (room_id.clone(), ann.clone(), bob.clone());
        drop(propose!(ChangeMembership {
            redact_events: true,
            ..ChangeMembership::new(room, by, of, Change::Kick, ts)
        }));
        drop(propose!(leave(Change::Join)));
        drop(propose!(leave(Change::Leave)));
        propose!(ForgetRoom { user_id: bob.clone(), room_id: room_id.clone() });
        let schedule = |number: u8| Schedule {
            delay_id: format!("delay {number} of {room_id}"),
            user_id: ann.clone(),
            room_id: room_id.clone(),
            event_type: "m.room.message".to_owned(),
            state_key: None,
            content: raw(r#"{"body":"later"}"#),
            delay_ms: 1000,
            since_ms: 1_770_000_000_000,
            transaction: None,
            most: 100,
        };
        let ids: Vec<String> =
            vec![propose!(schedule(0)), propose!(schedule(1)), propose!(schedule(2))];
        let (user_id, since_ms) = (ann.clone(), 1_770_000_000_500);
        let restart = Restart { delay_id: ids[0].clone(), user_id: user_id.clone(), since_ms };
        assert_eq!(propose!(restart), None);
        assert_eq!(
            propose!(SendDelayed {
                delay_id: ids[0].clone(),
                user_id: user_id.clone(),
                event: SendEvent { transaction: None, ..send(None) },
                by_action: false,
                ts: 1_770_000_001_500,
            }),
            None
        );
        let error = DelayedOutcome::Error { errcode: "M_FORBIDDEN".into(), error: "No.".into() };
        for (delay_id, outcome) in ids[1..].iter().zip([DelayedOutcome::Cancel, error]) {
            let (delay_id, ts) = (delay_id.clone(), 1_770_000_001_000);
            let given_up = GiveUp { delay_id, user_id: user_id.clone(), outcome, ts };
            assert_eq!(propose!(given_up), None);
        }
        propose!(SetNetwork {
            room_id: room_id.clone(),
            service: "irc".to_owned(),
            network_id: "libera".to_owned(),
            listed: true,
        });
        let alias: ruma::OwnedRoomAliasId = "#second:golden.example".try_into().unwrap();
        let to = room_id.clone();
        propose!(SetAlias {
            alias: alias.clone(),
            room_id: to,
            sender: ann.clone(),
            of_service: false,
        });
        propose!(RemoveAlias { alias, room_id, sender: ann.clone(), of_service: false, ts });
    }
    let reason = Some("left for good".to_owned());
    let report = engine.state().reports.all()[0].0;
    let (of, why) = (RemoveReport { report }, Some("it was dealt with".to_owned()));
    propose!(WithReason { of, reason: why });
    let media_id = engine.state().media.all()[0].0.to_string();
    let (media_ids, why) = (vec![media_id.clone()], Some("gold".to_owned()));
    propose!(QuarantineMedia { media_ids, quarantined: true, reason: why.clone() });
    let hash = FileHash(*blake3::hash(b"gold of others").as_bytes());
    let remote = ["one", "two"].map(|id| format!("mxc://peer.example/{id}").into());
    let files = remote.into_iter().zip([Some(hash), None]).collect();
    propose!(QuarantineRemote { files, quarantined: true, reason: why.clone() });
    assert!(propose!(ProtectMedia { media_id, protected: true }));
    let room_id = ruma::owned_room_id!("!notices:golden.example");
    let (user_id, sender, name) = (ann.clone(), bob.clone(), "Notices".to_owned());
    let room_id = propose!(OpenNoticeRoom { user_id, sender, room_id, name, ts });
    let (id, block) = ("golden".to_owned(), true);
    let begin = BeginShutdown {
        id,
        room_id: room_id.clone(),
        block,
        replacement: None,
        purge: false,
        reason: why,
    };
    propose!(begin);
    let (failed, left) = (vec![ann.clone()], Vec::new());
    propose!(FinishShutdown { room_id, id: "golden".to_owned(), failed, left });
    propose!(AddMedia {
        media_id: "of bob".to_owned(),
        given_out: false,
        user_id: Some(bob.clone()),
        hash: FileHash(*blake3::hash(b"silver").as_bytes()),
        size: 6,
        content_type: None,
        name: Some("silver.txt".to_owned()),
        now_ms: 1_770_000_000_000,
        quota: 6,
    });
    let room = |name: &str| {
        CreateRoom::new(
            format!("!{name}:golden.example").try_into().unwrap(),
            ann.clone(),
            ROOM_VERSIONS[2].clone(),
            Preset::PublicChat,
            ts,
        )
    };
    drop(propose!(SendEvent {
        room_id: propose!(room("passing")),
        sender: ann.clone(),
        event_type: "m.passing".into(),
        state_key: None,
        content: CanonicalJsonObject::new().into(),
        redacts: None,
        transaction: None,
        ts,
    }));
    let emptied = propose!(room("emptied"));
    drop(propose!(ChangeMembership::new(
        emptied.clone(),
        ann.clone(),
        ann.clone(),
        Change::Leave,
        ts
    )));
    let (ts_ms, media_ids) = (1_770_000_002_000, Vec::new());
    let (erase, messages, media) = (true, true, true);
    let closing = Deactivate { user_id: bob.clone(), erase, messages, media, reason, ts: ts_ms };
    assert!(propose!(closing));
    let (reason, looked) = (Some("nobody is in it".to_owned()), engine.state().applied());
    propose!(PurgeRoom { room_id: emptied, media_ids, said: Vec::new(), looked, reason });
}
