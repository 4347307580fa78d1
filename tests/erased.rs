//! Nothing personal is left of an erased user or a purged room: in no record, projection, or file
//! of the log or its archive. The remaining records give the same state.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod contents;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use logcabin::{
    clock::Clock,
    decide::{
        account::{
            DeviceSet, Login, MetRequirements, Register, RemoveDevices, RenameDevice, SetPassword,
            SetProfile, Wait,
        },
        account_data::{CreateFilter, SetAccountData},
        create_room::{CreateRoom, Preset, ROOM_VERSIONS},
        delayed::{GiveUp, Schedule},
        device::{Dehydrate, NoteSeen},
        directory::{RemoveAlias, SetAlias},
        federation::{DeviceListUpdate, NoteDevices},
        key_backup::{PutKeys, SetBackup},
        keys::{SetCrossSigning, SignKeys, UploadKeys},
        media::{AddMedia, QuarantineMedia},
        membership::{Change, ChangeMembership},
        moderation::{BlockRoom, WithReason},
        presence::SetPresence,
        pusher::{RemovePusher, SetPusher},
        report::{RemoveReport, Report, Subject},
        retention::SweepPolicy,
        send::SendEvent,
        sso::LinkSso,
        status::{Approve, Deactivate, SetStatus},
        threepid::{AddThreepid, CompleteValidation, NoteBound, RequestValidation, Validated},
        to_device::{Acknowledge, SendToDevice},
    },
    engine::{self, Engine, Options},
    erasure,
    log::{
        Log,
        archive::{ArchiveOptions, ArchiveReader, Archiver, archive_dir, verify_archive},
        store::{SledLog, SledOptions},
        verify,
    },
    record::{
        Holds, Offset, Origin, Payload, Record, Remains,
        command::{
            AccountKind, BackedUpKey, DelayedOutcome, DeviceList, FileHash, PresenceState,
            Requirements, Sighting, TokenHash, Tokens, Transaction,
        },
        pusher::{PusherEnd, PusherIds, PusherKind, PusherSet},
        remains,
        threepid::{Medium, Purpose, Threepid},
    },
    state::validations::token_hash,
    state::{SECTIONS, Section, State, sections},
};
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedRoomAliasId,
    OwnedRoomId, OwnedUserId, UInt, events::TimelineEventType,
};
use serde_json::value::RawValue;

/// Everything to be erased begins with this, and nothing may contain it afterwards.
const HERS: &str = "eagle-";
/// Everything to be kept begins with this.
const STAYS: &str = "wren-";

const NOW_MS: u64 = 1_770_000_000_000;

struct World {
    dir: tempfile::TempDir,
    log: Arc<SledLog>,
    archiver: Archiver,
    engine: Engine,
    clock: Clock,
    ann: OwnedUserId,
    bob: OwnedUserId,
    left: u64,
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::try_from(NOW_MS).unwrap())
}

impl World {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::manual(NOW_MS);
        let options = SledOptions { clock: clock.clone(), ..SledOptions::new(dir.path()) };
        let log = Arc::new(SledLog::open(options).unwrap());
        let options = ArchiveOptions::new(archive_dir(dir.path()));
        let archiver = Archiver::start(options, Arc::clone(&log) as Arc<dyn Log>).unwrap();
        let options = Options::small(clock.clone());
        let engine = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options).await.unwrap();
        let (ann, bob) = ("@ann:test".try_into().unwrap(), "@bob:test".try_into().unwrap());
        Self { dir, log, archiver, engine, clock, ann, bob, left: 0 }
    }

    async fn propose<P: logcabin::decide::Proposal>(&self, proposal: P) -> P::Outcome {
        let origin =
            Origin { user: self.ann.as_str().into(), device: "PHONE".into(), request: "r".into() };
        self.engine.propose(origin, proposal).await.unwrap().into_inner()
    }

    /// Registers a user with everything that a user can have. All of it begins with `hers`.
    async fn register(&self, user_id: &OwnedUserId, hers: &str) {
        let tokens =
            Tokens { access: TokenHash::of(user_id.as_str()), expires_ms: None, refresh: None };
        self.propose(Register {
            user_id: user_id.clone(),
            kind: AccountKind::User,
            password: Some(format!("{hers}password").into()),
            display_name: Some(format!("{hers}name")),
            login: None,
            met: MetRequirements {
                wait: Some(Wait {
                    answer: Some(format!("{hers}answer")),
                    address: Some([203, 0, 113, 7].into()),
                }),
                requirements: Requirements {
                    registration_token: None,
                    terms: BTreeMap::from([("privacy".to_owned(), format!("{hers}terms"))]),
                },
                ..MetRequirements::default()
            },
        })
        .await;
        self.propose(Approve { user_id: user_id.clone(), reason: Some(format!("{hers}reason")) })
            .await;
        self.propose(Login {
            user_id: user_id.clone(),
            device_id: "PHONE".into(),
            display_name: Some(format!("{hers}device")),
            tokens,
            verified: None,
        })
        .await;
    }

    async fn room(&self, name: &str, alias: Option<&str>) -> OwnedRoomId {
        self.propose(CreateRoom {
            name: Some(format!("{STAYS}room")),
            alias: alias.map(|alias| alias.try_into().unwrap()),
            ..CreateRoom::new(
                format!("!{name}:test").try_into().unwrap(),
                self.bob.clone(),
                ROOM_VERSIONS[0].clone(),
                Preset::PublicChat,
                ts(),
            )
        })
        .await
    }

    async fn change(&self, room_id: &OwnedRoomId, of: &OwnedUserId, change: Change, reason: &str) {
        drop(
            self.propose(ChangeMembership {
                reason: Some(reason.to_owned()),
                ..ChangeMembership::new(room_id.clone(), of.clone(), of.clone(), change, ts())
            })
            .await,
        );
    }

    async fn say(&self, room_id: &OwnedRoomId, sender: &OwnedUserId, text: &str) {
        let body = CanonicalJsonValue::String(text.to_owned());
        drop(
            self.propose(SendEvent {
                room_id: room_id.clone(),
                sender: sender.clone(),
                event_type: TimelineEventType::RoomMessage,
                state_key: None,
                content: CanonicalJsonObject::from([("body".to_owned(), body)]).into(),
                redacts: None,
                transaction: None,
                ts: ts(),
            })
            .await,
        );
    }

    async fn validate(&self, user_id: &OwnedUserId, address: &str, add: bool) {
        let threepid = Threepid { medium: Medium::Email, address: address.to_owned() };
        let requested = self
            .propose(RequestValidation {
                sid: format!("sid of {}", TokenHash::of(address).start()),
                purpose: Purpose::Add,
                threepid: threepid.clone(),
                client_secret: TokenHash::of("secret"),
                token: Some(token_hash("secret", "token")),
                send_attempt: 1,
                expires_ms: NOW_MS + 3_600_000,
                now_ms: NOW_MS,
                most_messages: 10,
            })
            .await;
        if !add {
            return;
        }
        let sid = requested.sid;
        let shown = CompleteValidation {
            threepid: threepid.clone(),
            sid: sid.clone(),
            client_secret: TokenHash::of("secret"),
            token: token_hash("secret", "token"),
            now_ms: NOW_MS,
        };
        assert!(self.propose(shown).await);
        let validated = Validated {
            sid,
            purpose: Purpose::Add,
            threepid: threepid.clone(),
            now_ms: NOW_MS + 1,
        };
        self.propose(AddThreepid { user_id: user_id.clone(), validated }).await;
        let id_server = "id.test".to_owned();
        self.propose(NoteBound { user_id: user_id.clone(), threepid, id_server }).await;
    }

    /// Writes every kind of command that holds something of a user.
    async fn live(
        &self,
        user_id: &OwnedUserId,
        other: &OwnedUserId,
        hers: &str,
        room: &OwnedRoomId,
    ) {
        let user = || user_id.clone();
        let name = |of: &str| format!("{hers}{of}");
        self.propose(LinkSso {
            user_id: user(),
            provider: "example".to_owned(),
            subject: name("subject"),
        })
        .await;
        let set =
            SetPassword { user_id: user(), password: name("new-password").into(), log_out: None };
        self.propose(WithReason { of: set, reason: Some(name("reason")) }).await;
        self.propose(SetStatus {
            user_id: user(),
            admin: Some(true),
            locked: None,
            suspended: None,
            shadow_banned: None,
            reason: Some(name("status-reason")),
        })
        .await;
        self.propose(RenameDevice {
            user_id: user(),
            device_id: "PHONE".into(),
            display_name: Some(name("new-device")),
        })
        .await;
        let agent = Some(name("agent"));
        for seen_ms in [NOW_MS, NOW_MS + 1] {
            let sighting =
                Sighting { seen_ms, address: [192, 0, 2, 1].into(), agent: agent.clone() };
            self.propose(NoteSeen(vec![(user(), "PHONE".into(), sighting)])).await;
        }
        let key = |of: &str| raw(&format!(r#"{{"key":"{}"}}"#, name(of)));
        let keys = |alg: &str| BTreeMap::from([(format!("{alg}:A"), key(alg))]);
        self.propose(UploadKeys {
            user_id: user(),
            device_id: "PHONE".into(),
            device_keys: Some(key("device-key")),
            one_time_keys: keys("once"),
            fallback_keys: keys("fallback"),
        })
        .await;
        // The name of a device with keys: others are told of the change.
        self.propose(RenameDevice {
            user_id: user(),
            device_id: "PHONE".into(),
            display_name: Some(name("newest-device")),
        })
        .await;
        self.propose(Dehydrate {
            user_id: user(),
            device_id: "DRY".into(),
            display_name: Some(name("dry")),
            device_data: key("dry-data"),
            device_keys: key("dry-key"),
            one_time_keys: BTreeMap::new(),
            fallback_keys: BTreeMap::new(),
        })
        .await;
        self.propose(SetCrossSigning {
            user_id: user(),
            master_key: Some(key("master")),
            self_signing_key: Some(key("self")),
            user_signing_key: Some(key("users")),
            replaces: None,
        })
        .await;
        let signature = BTreeMap::from([("ed25519:KEY".to_owned(), name("signature"))]);
        let signatures = BTreeMap::from([("PHONE".to_owned(), signature)]);
        for of in [user_id, other] {
            let (of, by) = (of.clone(), user());
            let signed = SignKeys { user_id: of, by, signatures: signatures.clone() };
            self.propose(signed).await;
        }
        let version = self
            .propose(SetBackup {
                user_id: user(),
                version: None,
                algorithm: name("algorithm"),
                auth_data: key("backup"),
            })
            .await;
        let backed_up = BackedUpKey {
            first_message_index: 0,
            forwarded_count: 0,
            is_verified: true,
            session_data: key("session"),
        };
        let rooms = BTreeMap::from([(room.clone(), [(name("session-id"), backed_up)].into())]);
        self.propose(PutKeys { user_id: user(), version, rooms }).await;
        let value = Some(name("zone").into());
        assert!(self.propose(SetProfile { user_id: user(), field: name("field"), value }).await);
        for room_id in [None, Some(room.clone())] {
            self.propose(SetAccountData {
                user_id: user(),
                room_id,
                event_type: name("type"),
                content: key("data"),
            })
            .await;
        }
        self.propose(SetPresence {
            user_id: user(),
            presence: PresenceState::Online,
            currently_active: true,
            last_active_ms: NOW_MS,
            status_msg: Some(Some(name("status"))),
        })
        .await;
        self.propose(CreateFilter { user_id: user(), filter: key("filter") }).await;
        for (reporter, of) in [(user(), other.clone()), (other.clone(), user())] {
            let (subject, reason) = (Subject::User(of), Some(name("report")));
            self.propose(Report { reporter, subject, reason, score: None }).await;
        }
        self.validate(user_id, &format!("{hers}had@test"), true).await;
        self.validate(user_id, &format!("{hers}has@test"), true).await;
        // An address that is still being validated again.
        let threepid = Threepid { medium: Medium::Email, address: format!("{hers}has@test") };
        self.propose(RequestValidation {
            sid: format!("again {hers}").replace(hers, user_id.localpart()),
            purpose: Purpose::Account,
            threepid,
            client_secret: TokenHash::of("another"),
            token: None,
            send_attempt: 1,
            expires_ms: NOW_MS + 3_600_000_000,
            now_ms: NOW_MS,
            most_messages: 10,
        })
        .await;
        self.propose(AddMedia {
            media_id: format!("of{}", user_id.localpart()),
            given_out: false,
            user_id: Some(user()),
            hash: FileHash(*blake3::hash(hers.as_bytes()).as_bytes()),
            size: 4,
            content_type: Some(format!("text/{hers}type")),
            name: Some(name("file")),
            now_ms: NOW_MS,
            quota: 40,
        })
        .await;
        self.propose(QuarantineMedia {
            media_ids: vec![format!("of{}", user_id.localpart())],
            quarantined: true,
            reason: Some(name("quarantine")),
        })
        .await;
        for (number, stays) in [true, false].into_iter().enumerate() {
            let ids = PusherIds { app_id: name("app"), pushkey: format!("{hers}key{number}") };
            let url = serde_json::json!("https://push.test/_matrix/push/v1/notify");
            let pusher = PusherSet {
                user_id: user(),
                device_id: None,
                ids: ids.clone(),
                kind: PusherKind::Http,
                app_display_name: name("app-name"),
                device_display_name: name("phone"),
                profile_tag: Some(name("tag")),
                lang: "en".to_owned(),
                data: [("url".to_owned(), url)].into_iter().collect(),
                disabled: false,
            };
            self.propose(SetPusher { pusher, append: true, keep_device: false }).await;
            if !stays {
                let (user_id, because) = (user(), PusherEnd::Asked);
                assert!(self.propose(RemovePusher { user_id, ids, because }).await);
            }
        }
        self.change(room, user_id, Change::Join, &name("joined")).await;
        self.say(room, user_id, &name("message")).await;
        let delay_id = format!("delay of {}", user_id.localpart());
        self.propose(Schedule {
            delay_id: delay_id.clone(),
            user_id: user(),
            room_id: room.clone(),
            event_type: "m.room.message".to_owned(),
            state_key: None,
            content: key("later"),
            delay_ms: 1000,
            since_ms: NOW_MS,
            transaction: None,
            most: 100,
        })
        .await;
        let (outcome, ts) = (DelayedOutcome::Cancel, NOW_MS);
        self.propose(GiveUp { delay_id, user_id: user(), outcome, ts }).await;
        // One that arrived, and one for a device of hers that never will.
        for number in 0..2 {
            self.propose(SendToDevice {
                sender: other.clone(),
                event_type: "m.test".to_owned(),
                messages: BTreeMap::from([(
                    user(),
                    vec![(Some("PHONE".into()), key(&format!("letter{number}")))],
                )]),
                outside: None,
                transaction: Transaction {
                    session: Offset::new(5),
                    id: format!("{number}{}", user_id.localpart()),
                    scope: "s".into(),
                },
            })
            .await;
            if number == 0 {
                let up_to = self.engine.head().offset();
                self.propose(Acknowledge { user_id: user(), device_id: "PHONE".into(), up_to })
                    .await;
            }
        }
    }

    async fn sweep(&mut self) {
        let end = self.engine.head().offset();
        self.archiver.archived().wait_for(|archived| *archived >= end).await.unwrap();
        while erasure::sweep_is_due(&self.engine, &SweepPolicy::at_once()).unwrap() {
            let swept =
                erasure::sweep(&self.engine, &SweepPolicy::at_once(), Offset::MAX).await.unwrap();
            self.left += swept.erased + swept.superseded;
            if swept == erasure::Swept::default() {
                break;
            }
        }
        let end = self.engine.head().offset();
        self.archiver.erased().wait_for(|erased| *erased >= end).await.unwrap();
        let log = Arc::clone(&self.log);
        tokio::task::spawn_blocking(move || log.compact(|| true)).await.unwrap().unwrap();
    }

    fn records(&self) -> Vec<Record> {
        self.log.read(Offset::new(1), usize::MAX >> 1).unwrap()
    }

    /// Descriptions of the records that hold `text`.
    fn with(&self, text: &str) -> Vec<String> {
        let records = self.records();
        let holding = records.iter().filter(|record| {
            let payload = record.payload.bytes().map(|bytes| String::from_utf8_lossy(bytes));
            payload.is_some_and(|payload| payload.contains(text))
                || format!("{:?}", record.header).contains(text)
        });
        holding.map(|record| format!("{} {}", record.offset(), record.header.kind)).collect()
    }

    /// Checks that `text` is nowhere, and that the remaining records give the engine's state.
    fn assert_gone(&self, text: &str) {
        assert_eq!(self.with(text), Vec::<String>::new());
        let state = sections::bytes(&self.engine.state());
        assert!(!has(&state, text), "the projections hold {text}");
        assert_eq!(contents::files_with(self.dir.path(), text), Vec::<PathBuf>::new());
        self.assert_sound();
    }

    fn assert_sound(&self) {
        verify(&*self.log, |_| {}).unwrap();
        verify_archive(&archive_dir(self.dir.path()), |_| {}).unwrap();
        let (replayed, _) = engine::replay(&*self.log, |_, _| {}).unwrap();
        let (now, then) = (self.engine.state(), replayed);
        assert_eq!(now.digest(), then.digest(), "{:?}", parts_that_differ(&now, &then));
        assert!(sections::bytes(&now) == sections::bytes(&then));
    }
}

fn parts_that_differ(a: &State, b: &State) -> Vec<&'static str> {
    let differs = |section: &&Section| section.digest(a) != section.digest(b);
    SECTIONS.iter().filter(differs).map(|section| section.name).collect()
}

fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}

#[tokio::test]
async fn nothing_is_left_of_an_erased_user() {
    let mut world = World::new().await;
    let (ann, bob) = (world.ann.clone(), world.bob.clone());
    world.register(&ann, HERS).await;
    world.register(&bob, STAYS).await;
    let room = world.room("room", None).await;
    world.live(&bob, &ann, STAYS, &room).await;
    world.live(&ann, &bob, HERS, &room).await;
    let kinds: BTreeSet<String> = world
        .with(HERS)
        .into_iter()
        .filter_map(|of| of.split_once(' ').map(|(_, kind)| kind.to_owned()))
        .collect();
    for kind in [
        "account_data.set",
        "admin.reason",
        "delayed.schedule",
        "device.dehydrate",
        "device.login",
        "device.rename",
        "device.seen",
        "filter.create",
        "key_backup.put",
        "key_backup.set",
        "keys.cross_sign",
        "keys.sign",
        "keys.upload",
        "media.quarantine",
        "media.upload",
        "presence.set",
        "profile.set",
        "pusher.remove",
        "pusher.set",
        "report.create",
        "room.event",
        "sso.link",
        "threepid.add",
        "threepid.bind",
        "to_device.send",
        "user.password",
        "user.register",
        "user.status",
        "validation.request",
    ] {
        assert!(kinds.contains(kind), "there is no {kind} that holds anything of hers: {kinds:?}");
    }
    // Something of it was superseded and erased before, which the archive may still have.
    world.sweep().await;
    let (which, why) = (DeviceSet::All, Some(format!("{HERS}logged-out")));
    world
        .propose(WithReason { of: RemoveDevices { user_id: ann.clone(), which }, reason: why })
        .await;
    world
        .propose(Deactivate {
            user_id: ann.clone(),
            erase: true,
            messages: true,
            media: true,
            reason: Some("she asked for it".to_owned()),
            ts: NOW_MS,
        })
        .await;
    world.change(&room, &ann, Change::Leave, "gone").await;
    world.sweep().await;
    world.assert_gone(HERS);
    // Everything of the other user is there.
    let whole = world.records();
    let kept = whole.iter().filter(|record| matches!(record.payload, Payload::Present(_)));
    let kept: BTreeSet<_> = kept.map(|record| record.header.kind.to_string()).collect();
    // What either reported about the other is gone.
    let gone = ["admin.reason", "media.upload", "report.create"];
    for kind in kinds.iter().filter(|kind| !gone.contains(&kind.as_str())) {
        assert!(kept.contains(kind), "no {kind} of another is left");
    }
    assert!(world.with(STAYS).len() > 30, "{:?}", world.with(STAYS));
    let has = Threepid { medium: Medium::Email, address: format!("{STAYS}has@test") };
    let state = world.engine.state();
    assert_eq!(state.threepids.owner(&has), Some(bob.clone()));
    let found =
        state.validations.find(&has, Purpose::Account, &TokenHash::of("another"), NOW_MS + 1);
    assert!(found.is_some(), "what another is about to prove is there");
}

#[tokio::test]
async fn a_requested_address_leaves_the_log_once_its_validation_is_over() {
    let mut world = World::new().await;
    world.register(&world.ann.clone(), STAYS).await;
    world.validate(&world.ann.clone(), &format!("{HERS}tried@test"), false).await;
    world.sweep().await;
    assert_eq!(world.with(HERS).len(), 1);
    world.clock.advance(3_600_001);
    world.sweep().await;
    assert_eq!(world.with(HERS), Vec::<String>::new());
    world.assert_sound();
}

/// Otherwise a client that was away meanwhile would encrypt for devices that are gone.
#[tokio::test]
async fn a_change_of_devices_elsewhere_outlives_the_record_that_told_of_it() {
    let mut world = World::new().await;
    let pia: OwnedUserId = "@pia:peer.test".try_into().unwrap();
    let since = world.engine.head().offset();
    let mut told = Offset::ZERO;
    for (changed, list) in [(true, None), (false, Some(DeviceList::default()))] {
        let as_of = world.engine.head().offset();
        let said = DeviceListUpdate { user_id: pia.clone(), changed, list, as_of };
        let noted = NoteDevices { server: pia.server_name().to_owned(), users: vec![said] };
        assert!(world.propose(noted).await);
        if changed {
            told = world.engine.head().offset();
        }
    }
    world.sweep().await;
    assert_eq!(world.log.get(told).unwrap().unwrap().payload, Payload::Erased);
    world.assert_sound();
    let (replayed, _) = engine::replay(&*world.log, |_, _| {}).unwrap();
    let changed = |since| replayed.device_lists.changed_between(since, told.next());
    assert_eq!((changed(since), changed(told)), ([pia].into(), BTreeSet::new()));
}

#[tokio::test]
async fn nothing_is_left_of_a_purged_room() {
    let mut world = World::new().await;
    let (ann, bob) = (world.ann.clone(), world.bob.clone());
    world.register(&ann, STAYS).await;
    world.register(&bob, STAYS).await;
    let stays = world.room("stays", Some("#wren-stays:test")).await;
    let room = world.room("goes", Some("#eagle-alias:test")).await;
    world.say(&room, &bob, &format!("{HERS}message")).await;
    let second: OwnedRoomAliasId = "#eagle-second:test".try_into().unwrap();
    let (sender, of_service) = (bob.clone(), false);
    let (alias, room_id) = (second.clone(), room.clone());
    world.propose(SetAlias { alias, room_id, sender, of_service }).await;
    let (alias, room_id) = (second, room.clone());
    world.propose(RemoveAlias { alias, room_id, sender: bob.clone(), of_service, ts: ts() }).await;
    // Data of a user who was never in it.
    for event_type in ["m.tag", "m.fully_read", "test"] {
        world
            .propose(SetAccountData {
                user_id: ann.clone(),
                room_id: Some(room.clone()),
                event_type: event_type.to_owned(),
                content: raw(r#"{"of":"eagle-data"}"#),
            })
            .await;
    }
    for number in 0..2 {
        let (subject, reason) = (Subject::Room(room.clone()), Some(format!("{HERS}{number}")));
        world.propose(Report { reporter: ann.clone(), subject, reason, score: None }).await;
        if number == 0 {
            let report = world.engine.state().reports.all()[0].0;
            world.propose(RemoveReport { report }).await;
        }
    }
    let (blocked, reason) = (true, Some(format!("{HERS}block")));
    world.propose(BlockRoom { room_id: room.clone(), blocked, reason }).await;
    world.change(&room, &bob, Change::Leave, &format!("{HERS}leaves")).await;
    assert!(world.with(HERS).len() >= 10, "{:?}", world.with(HERS));
    erasure::purge::purge(&world.engine, Origin::server(), &room, Some("asked for".to_owned()))
        .await
        .unwrap();
    world.sweep().await;
    world.assert_gone(HERS);
    let state = world.engine.state();
    assert_eq!(state.aliases.of_room(&stays, Offset::MAX), ["#wren-stays:test"]);
    assert!(state.closures.blocked(&room).is_some() && state.reports.all().len() == 1);
}

#[test]
fn every_command_with_personal_data_can_be_erased() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/0.1.0");
    let mut held = BTreeSet::new();
    for record in ArchiveReader::open(&golden).unwrap().records(Offset::new(1)) {
        let record = record.unwrap();
        let Some(command) = record.command().unwrap() else { continue };
        let kind = command.kind().name;
        if !matches!(command.holds(), Holds::Nothing) {
            assert_ne!(remains(kind), Remains::Everything, "{kind}");
            held.insert(kind);
        }
    }
    assert!(held.len() > 25 && held.contains("user.register"), "{held:?}");
}
