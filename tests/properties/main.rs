//! Properties of the log and its projections, on random histories.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]
mod federation;
mod restore;
mod sliding;
mod sync;

use std::{collections::BTreeMap, sync::Arc};

use logcabin::{
    clock::Clock,
    decide::{
        Refusal,
        account::{
            DeviceSet, Login, Register, RemoveDevices, RenameDevice, SetPassword, SetProfile,
        },
        account_data::{CreateFilter, SetAccountData, SetTag},
        create_room::{CreateRoom, Preset, ROOM_VERSIONS},
        delayed::{GiveUp, Restart, Schedule, SendDelayed},
        directory::{RemoveAlias, SetAlias, SetVisibility},
        ephemeral::{SetReceipt, SetTyping},
        keys::UploadKeys,
        membership::{Change, ChangeMembership, ForgetRoom},
        presence::SetPresence,
        retention::{Retention, SweepPolicy},
        send::SendEvent,
        status::Deactivate,
        upgrade::UpgradeRoom,
    },
    engine::{Engine, Options, ProposeError},
    erasure::{self, Swept},
    events::Viewer,
    log::{Log, memory::MemoryLog},
    record::{
        Command, Offset, Origin, Record,
        command::{DelayedOutcome, PresenceState, Secret, TokenHash, Tokens},
    },
    state::{Membership, State, sections},
    view::{View, filter::EventFilter, relations::ThreadQuery},
};
use proptest::prelude::*;
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedEventId,
    OwnedRoomAliasId, OwnedRoomId, OwnedUserId, UInt, events::TimelineEventType,
};

const USERS: u8 = 4;

/// One thing that someone tries to do. Much of it is refused, as it should be.
#[derive(Clone, Debug)]
enum Op {
    Register(u8),
    Login(u8, u8),
    Logout(u8, u8),
    LogoutOthers(u8, u8),
    RenameDevice(u8, u8, u8),
    Password(u8, u8),
    Profile(u8, bool, Option<u8>),
    AccountData(u8, Option<u8>, u8, u8),
    Filter(u8, u8),
    CreateRoom(u8, u8, u8),
    Member(u8, u8, u8, u8),
    Forget(u8, u8),
    Message(u8, u8, u8),
    State(u8, u8, u8, u8, u8),
    Redact(u8, u8, u8),
    /// By whom, in which room, to which event, how, with what else in the content.
    Relate(u8, u8, u8, u8, bool),
    Alias(u8, u8, u8, bool),
    Visibility(u8, u8, bool),
    Upgrade(u8, u8, u8),
    Receipt(u8, u8, u8),
    Typing(u8, u8, u8),
    Tag(u8, u8, u8, bool),
    Presence(u8, u8, Option<u8>),
    Schedule(u8, u8, u8),
    Delayed(u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let user = || 0..USERS;
    let room = || 0..3_u8;
    prop_oneof![
        1 => user().prop_map(Op::Register),
        1 => (user(), 0..3_u8).prop_map(|(u, d)| Op::Login(u, d)),
        1 => (user(), 0..3_u8).prop_map(|(u, d)| Op::Logout(u, d)),
        1 => (user(), 0..3_u8).prop_map(|(u, d)| Op::LogoutOthers(u, d)),
        1 => (user(), 0..3_u8, any::<u8>()).prop_map(|(u, d, n)| Op::RenameDevice(u, d, n)),
        1 => (user(), any::<u8>()).prop_map(|(u, p)| Op::Password(u, p)),
        2 => (user(), any::<bool>(), any::<Option<u8>>()).prop_map(|(u, f, v)| Op::Profile(u, f, v)),
        2 => (user(), proptest::option::of(room()), 0..3_u8, any::<u8>())
            .prop_map(|(u, r, t, v)| Op::AccountData(u, r, t, v)),
        1 => (user(), 0..3_u8).prop_map(|(u, f)| Op::Filter(u, f)),
        2 => (user(), 0..3_u8, any::<u8>()).prop_map(|(u, p, v)| Op::CreateRoom(u, p, v)),
        8 => (user(), user(), room(), 0..8_u8).prop_map(|(u, t, r, c)| Op::Member(u, t, r, c)),
        1 => (user(), room()).prop_map(|(u, r)| Op::Forget(u, r)),
        6 => (user(), room(), 0..6_u8).prop_map(|(u, r, t)| Op::Message(u, r, t)),
        4 => (user(), room(), 0..3_u8, 0..2_u8, any::<u8>())
            .prop_map(|(u, r, t, k, v)| Op::State(u, r, t, k, v)),
        2 => (user(), room(), any::<u8>()).prop_map(|(u, r, n)| Op::Redact(u, r, n)),
        5 => (user(), room(), any::<u8>(), 0..8_u8, any::<bool>())
            .prop_map(|(u, r, e, k, x)| Op::Relate(u, r, e, k, x)),
        2 => (user(), room(), 0..2_u8, any::<bool>()).prop_map(|(u, r, a, s)| Op::Alias(u, r, a, s)),
        1 => (user(), room(), any::<bool>()).prop_map(|(u, r, p)| Op::Visibility(u, r, p)),
        1 => (user(), room(), any::<u8>()).prop_map(|(u, r, v)| Op::Upgrade(u, r, v)),
        1 => (user(), room(), 0..3_u8, any::<bool>()).prop_map(|(u, r, t, s)| Op::Tag(u, r, t, s)),
        1 => (user(), 0..3_u8, proptest::option::of(0..2_u8))
            .prop_map(|(u, p, s)| Op::Presence(u, p, s)),
        2 => (user(), room(), 0..4_u8).prop_map(|(u, r, t)| Op::Schedule(u, r, t)),
        3 => (any::<u8>(), 0..5_u8).prop_map(|(n, a)| Op::Delayed(n, a)),
        4 => (user(), room(), any::<u8>()).prop_map(|(u, r, n)| Op::Receipt(u, r, n)),
        3 => (user(), room(), 0..3_u8).prop_map(|(u, r, t)| Op::Typing(u, r, t)),
    ]
}

fn user_id(number: u8) -> OwnedUserId {
    format!("@user{number}:test").try_into().unwrap()
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::from(1_700_000_000_u32))
}

fn content(pairs: &[(&str, &str)]) -> CanonicalJsonObject {
    let value = |value: &str| CanonicalJsonValue::String(value.to_owned());
    pairs.iter().map(|(key, text)| ((*key).to_owned(), value(text))).collect()
}

fn tokens(user: u8, device: u8, salt: usize) -> Tokens {
    let access = TokenHash::of(&format!("{user} {device} {salt}"));
    Tokens { access, expires_ms: None, refresh: None }
}

/// A server's engine over a log in memory, with what the operations refer to by number.
struct World {
    engine: Engine,
    log: Arc<MemoryLog>,
    rooms: Vec<OwnedRoomId>,
    events: Vec<OwnedEventId>,
    step: usize,
}

impl World {
    async fn open(records: Vec<Arc<Record>>) -> Self {
        // A restart does not set the clock back: what is due would not be due any more.
        let last = records.last().map_or(0, |record| record.header.time_ms);
        let clock = Clock::manual(last.max(1_700_000_000_000));
        let log = Arc::new(MemoryLog::with_records(clock.clone(), records));
        let options = Options::small(clock);
        let engine = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options).await.unwrap();
        Self { engine, log, rooms: Vec::new(), events: Vec::new(), step: 0 }
    }

    fn records(&self) -> Vec<Arc<Record>> {
        self.log.read(Offset::new(1), usize::MAX).unwrap().into_iter().map(Arc::new).collect()
    }

    /// The same server after a restart.
    async fn restart(self) -> Self {
        let opened = Self::open(self.records()).await;
        Self { rooms: self.rooms, events: self.events, step: self.step, ..opened }
    }

    fn room(&self, number: u8) -> Option<OwnedRoomId> {
        self.rooms.get(usize::from(number) % self.rooms.len().max(1)).cloned()
    }

    fn event(&self, number: u8) -> Option<OwnedEventId> {
        self.events.get(usize::from(number) % self.events.len().max(1)).cloned()
    }

    /// Tries one operation.
    async fn run(&mut self, op: &Op) {
        self.step += 1;
        if let Err(ProposeError::Log(error)) = self.try_run(op).await {
            panic!("the log refused {op:?}: {error}");
        }
    }

    /// Takes the first room out of the server, and one user with all that they sent.
    async fn purge_and_erase(&self) {
        let (state, origin) = (self.engine.state(), Origin::server);
        let ts = MilliSecondsSinceUnixEpoch(UInt::from(1_u32));
        if let Some(room) = self.rooms.first().and_then(|room_id| state.rooms.get(room_id)) {
            for (user_id, _) in room.members(Membership::Join, Offset::MAX) {
                let leave = ChangeMembership::new(
                    room.id.clone(),
                    user_id.clone(),
                    user_id,
                    Change::Leave,
                    ts,
                );
                drop(self.engine.propose(origin(), leave).await.unwrap());
            }
            erasure::purge::purge(&self.engine, origin(), &room.id, None).await.unwrap();
            assert!(state.rooms.get(&room.id).is_none());
        }
        let closing = Deactivate {
            user_id: user_id(1),
            erase: true,
            messages: true,
            media: true,
            reason: None,
            ts: 1,
        };
        match self.engine.propose(origin(), closing).await {
            Ok(_) | Err(ProposeError::Refused(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each operation")]
    async fn try_run(&mut self, op: &Op) -> Result<(), ProposeError> {
        let engine = &self.engine;
        let origin = Origin::server();
        let device = |number: u8| format!("D{number}").into();
        match op.clone() {
            Op::Register(user) => {
                let login = Login {
                    user_id: user_id(user),
                    device_id: device(0),
                    display_name: None,
                    tokens: tokens(user, 0, self.step),
                    verified: None,
                };
                let proposal = Register {
                    password: Some("hash".into()),
                    display_name: Some(format!("user {user}")),
                    login: Some(login),
                    ..Register::user(user_id(user))
                };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Login(user, d) => {
                let proposal = Login {
                    user_id: user_id(user),
                    device_id: device(d),
                    display_name: Some(format!("device {d}")),
                    tokens: tokens(user, d, self.step),
                    verified: None,
                };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Logout(user, d) => {
                let which = DeviceSet::These(vec![device(d)]);
                let proposal = RemoveDevices { user_id: user_id(user), which };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::LogoutOthers(user, d) => {
                let proposal =
                    RemoveDevices { user_id: user_id(user), which: DeviceSet::AllBut(device(d)) };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::RenameDevice(user, d, name) => {
                let proposal = RenameDevice {
                    user_id: user_id(user),
                    device_id: device(d),
                    display_name: Some(format!("name {name}")),
                };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Password(user, password) => {
                let proposal = SetPassword {
                    user_id: user_id(user),
                    password: format!("hash {password}").into(),
                    log_out: (password % 2 == 0).then_some(DeviceSet::All),
                };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Profile(user, name, value) => {
                let field = if name { "displayname" } else { "m.tz" }.to_owned();
                let value = value.map(|value| format!("value {value}").into());
                let proposal = SetProfile { user_id: user_id(user), field, value };
                let _: bool = engine.propose(origin, proposal).await?.into_inner();
            }
            Op::AccountData(user, room, event_type, value) => {
                let json = format!("{{\"value\":{value}}}");
                let proposal = SetAccountData {
                    user_id: user_id(user),
                    room_id: room.and_then(|room| self.room(room)),
                    event_type: format!("type{event_type}"),
                    content: serde_json::value::RawValue::from_string(json).unwrap(),
                };
                if self.engine.state().accounts.contains(&proposal.user_id) {
                    engine.propose(origin, proposal).await?.into_inner();
                }
            }
            Op::Filter(user, filter) => {
                let json = format!("{{\"room\":{{\"timeline\":{{\"limit\":{filter}}}}}}}");
                let filter = serde_json::value::RawValue::from_string(json).unwrap();
                let proposal = CreateFilter { user_id: user_id(user), filter };
                let _: String = engine.propose(origin, proposal).await?.into_inner();
            }
            Op::CreateRoom(user, preset, version) => {
                let version = &ROOM_VERSIONS[usize::from(version) % ROOM_VERSIONS.len()];
                let invite = user_id((user + 1) % USERS);
                let proposal = CreateRoom {
                    name: Some(format!("room {}", self.step)),
                    alias: (preset == 2)
                        .then(|| format!("#room{}:test", self.step).try_into().unwrap()),
                    invite: vec![invite],
                    public: preset == 2,
                    ..CreateRoom::new(
                        format!("!room{}:test", self.step).try_into().unwrap(),
                        user_id(user),
                        version.clone(),
                        [Preset::PrivateChat, Preset::TrustedPrivateChat, Preset::PublicChat]
                            [usize::from(preset)],
                        ts(),
                    )
                };
                let room_id = engine.propose(origin, proposal).await?.into_inner();
                self.rooms.push(room_id);
            }
            Op::Member(sender, target, room, change) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let change = [
                    Change::Join,
                    Change::Leave,
                    Change::Knock,
                    Change::Invite,
                    Change::Kick,
                    Change::Ban,
                    Change::Unban,
                    Change::Profile,
                ][usize::from(change)];
                let own = matches!(
                    change,
                    Change::Join | Change::Leave | Change::Knock | Change::Profile
                );
                let proposal = ChangeMembership::new(
                    room_id,
                    user_id(sender),
                    user_id(if own { sender } else { target }),
                    change,
                    ts(),
                );
                drop(engine.propose(origin, proposal).await?.into_inner());
            }
            Op::Forget(user, room) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let proposal = ForgetRoom { user_id: user_id(user), room_id };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Message(user, room, text) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let proposal = SendEvent {
                    room_id,
                    sender: user_id(user),
                    event_type: TimelineEventType::RoomMessage,
                    state_key: None,
                    content: content(&[("msgtype", "m.text"), ("body", &text.to_string())]).into(),
                    redacts: None,
                    transaction: None,
                    ts: ts(),
                };
                let event_id = engine.propose(origin, proposal).await?.into_inner();
                self.events.push(event_id);
            }
            Op::State(user, room, event_type, key, value) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let proposal = SendEvent {
                    room_id,
                    sender: user_id(user),
                    event_type: ["m.room.topic", "m.room.join_rules", "org.test.state"]
                        [usize::from(event_type)]
                    .into(),
                    state_key: Some(["", "key"][usize::from(key)].to_owned()),
                    content: match event_type {
                        0 => content(&[("topic", &value.to_string())]).into(),
                        1 if value % 2 == 0 => content(&[("join_rule", "public")]).into(),
                        1 => content(&[("join_rule", "invite")]).into(),
                        _ => content(&[("value", &value.to_string())]).into(),
                    },
                    redacts: None,
                    transaction: None,
                    ts: ts(),
                };
                let event_id = engine.propose(origin, proposal).await?.into_inner();
                self.events.push(event_id);
            }
            Op::Redact(user, room, event) => {
                let (Some(room_id), Some(event)) = (self.room(room), self.event(event)) else {
                    return Ok(());
                };
                let proposal = SendEvent {
                    room_id,
                    sender: user_id(user),
                    event_type: TimelineEventType::RoomRedaction,
                    state_key: None,
                    content: CanonicalJsonObject::new().into(),
                    redacts: Some(event),
                    transaction: None,
                    ts: ts(),
                };
                drop(engine.propose(origin, proposal).await?.into_inner());
            }
            Op::Relate(user, room, event, how, url) => {
                let (Some(room_id), Some(event)) = (self.room(room), self.event(event)) else {
                    return Ok(());
                };
                let relates_to = match how {
                    0..=2 => content(&[("rel_type", "m.thread"), ("event_id", event.as_str())]),
                    3 => content(&[("rel_type", "m.replace"), ("event_id", event.as_str())]),
                    4 => content(&[("rel_type", "m.annotation"), ("event_id", event.as_str())]),
                    5 => content(&[("rel_type", "m.reference"), ("event_id", event.as_str())]),
                    6 => content(&[("rel_type", "m.thread"), ("event_id", "$nothing")]),
                    _ => content(&[("rel_type", "m.thread")]),
                };
                let mut body = content(&[("body", "related")]);
                body.insert("m.relates_to".to_owned(), CanonicalJsonValue::Object(relates_to));
                if url {
                    body.insert("url".to_owned(), CanonicalJsonValue::String("mxc://x".to_owned()));
                }
                let proposal = SendEvent {
                    room_id,
                    sender: user_id(user),
                    event_type: ["m.room.message", "m.reaction"][usize::from(how % 2)].into(),
                    state_key: None,
                    content: body.into(),
                    redacts: None,
                    transaction: None,
                    ts: ts(),
                };
                let event_id = engine.propose(origin, proposal).await?.into_inner();
                self.events.push(event_id);
            }
            Op::Alias(user, room, alias, set) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let alias: OwnedRoomAliasId = format!("#alias{alias}:test").try_into().unwrap();
                let sender = user_id(user);
                if set {
                    let set = SetAlias { alias, room_id, sender, of_service: false };
                    engine.propose(origin, set).await?.into_inner();
                } else {
                    let target = engine.state().aliases.get(&alias, Offset::MAX);
                    let room_id = target.map_or(room_id, |target| target.room_id);
                    let remove =
                        RemoveAlias { alias, room_id, sender, of_service: false, ts: ts() };
                    engine.propose(origin, remove).await?.into_inner();
                }
            }
            Op::Upgrade(user, room, version) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let proposal = UpgradeRoom {
                    room_id,
                    replacement: format!("!room{}:test", self.step).try_into().unwrap(),
                    version: ROOM_VERSIONS[usize::from(version) % ROOM_VERSIONS.len()].clone(),
                    additional_creators: vec![user_id((user + 1) % USERS)],
                    sender: user_id(user),
                    ts: ts(),
                };
                let room_id = engine.propose(origin, proposal).await?.into_inner();
                self.rooms.push(room_id);
            }
            Op::Visibility(user, room, public) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let proposal = SetVisibility { room_id, sender: user_id(user), public };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Receipt(user, room, event) => {
                let (Some(room_id), Some(event_id)) = (self.room(room), self.event(event)) else {
                    return Ok(());
                };
                let proposal = SetReceipt {
                    room_id,
                    user_id: user_id(user),
                    receipt_type: ["m.read", "m.read.private"][usize::from(event % 2)].to_owned(),
                    event_id,
                    thread_id: (event % 3 == 0).then(|| "main".to_owned()),
                    ts: 1,
                };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Typing(user, room, until) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let proposal = SetTyping {
                    room_id,
                    user_id: user_id(user),
                    until_ms: u64::from(until) * 1000,
                    only_if_until: None,
                };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Tag(user, room, tag, set) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let info = set.then(serde_json::Map::new);
                let proposal =
                    SetTag { user_id: user_id(user), room_id, tag: format!("u.{tag}"), info };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Presence(user, presence, status) => {
                let states =
                    [PresenceState::Offline, PresenceState::Unavailable, PresenceState::Online];
                let proposal = SetPresence {
                    user_id: user_id(user),
                    presence: states[usize::from(presence)],
                    currently_active: presence == 2,
                    last_active_ms: self.step as u64,
                    status_msg: status.map(|status| (status == 1).then(|| "status".to_owned())),
                };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Schedule(user, room, kind) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let proposal = Schedule {
                    delay_id: format!("delay {}", self.step),
                    user_id: user_id(user),
                    room_id,
                    // The same states that others set, too.
                    event_type: "org.test.state".to_owned(),
                    state_key: (kind > 0).then(String::new),
                    content: serde_json::value::RawValue::from_string("{}".to_owned()).unwrap(),
                    delay_ms: u64::from(kind) * 10,
                    since_ms: self.step as u64,
                    transaction: None,
                    most: 5,
                };
                let _: String = engine.propose(origin, proposal).await?.into_inner();
            }
            Op::Delayed(number, action) => {
                let users = (0..USERS).map(user_id);
                let all: Vec<_> =
                    users.flat_map(|user_id| engine.state().delayed.of(&user_id)).collect();
                let Some(event) = all.get(usize::from(number) % all.len().max(1)) else {
                    return Ok(());
                };
                let (delay_id, user_id) = (event.delay_id.clone(), event.user_id.clone());
                let ts = self.step as u64;
                let before = match action {
                    0 => {
                        let proposal = Restart { delay_id, user_id, since_ms: ts };
                        engine.propose(origin, proposal).await?.into_inner()
                    }
                    1 => {
                        let outcome = DelayedOutcome::Cancel;
                        let proposal = GiveUp { delay_id, user_id, outcome, ts };
                        engine.propose(origin, proposal).await?.into_inner()
                    }
                    _ => {
                        let send = SendEvent {
                            room_id: event.room_id.clone(),
                            sender: event.user_id.clone(),
                            event_type: event.event_type.as_str().into(),
                            state_key: event.state_key.clone(),
                            content: CanonicalJsonObject::new().into(),
                            redacts: None,
                            transaction: None,
                            ts: self::ts(),
                        };
                        let by_action = action > 3;
                        let proposal =
                            SendDelayed { delay_id, user_id, event: send, by_action, ts };
                        engine.propose(origin, proposal).await?.into_inner()
                    }
                };
                // What is finished stays what it became.
                let finished = event.finished.as_ref().map(|finished| &finished.outcome);
                assert_eq!(before.as_ref(), finished, "{op:?} on {event:?}");
            }
        }
        Ok(())
    }
}

fn replayed(records: &[Arc<Record>]) -> State {
    let state = State::default();
    for record in records {
        let _ = state.apply(record).unwrap();
    }
    state
}

/// What a reader may ask of the state as of an offset, written down by copying everything.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    rooms: BTreeMap<OwnedRoomId, ModelRoom>,
    aliases: BTreeMap<OwnedRoomAliasId, OwnedRoomId>,
    accounts: BTreeMap<OwnedUserId, ModelAccount>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct ModelRoom {
    timeline: Vec<Offset>,
    state: BTreeMap<(String, String), Offset>,
    members: BTreeMap<OwnedUserId, Membership>,
    redacted: BTreeMap<Offset, Offset>,
    /// By parent and child: the way they are related, the child's type and sender.
    children: BTreeMap<(Offset, Offset), [String; 3]>,
}

/// Where each event is.
type Places = BTreeMap<String, (OwnedRoomId, Offset)>;

#[derive(Clone, Debug, Default, PartialEq)]
struct ModelAccount {
    /// When each field changed last.
    profile: BTreeMap<String, Offset>,
    account_data: BTreeMap<(Option<OwnedRoomId>, String), Offset>,
    devices: BTreeMap<String, Option<String>>,
    password: Option<Secret>,
    forgotten: BTreeMap<OwnedRoomId, bool>,
}

impl Model {
    fn apply(&mut self, record: &Record, places: &mut Places) {
        let offset = record.offset();
        match record.command().unwrap().unwrap() {
            Command::UserRegister(body) => {
                self.accounts.entry(body.user_id).or_default().password = body.password;
            }
            Command::UserPassword(body) => {
                self.account(body.user_id).password = Some(body.password);
            }
            Command::DeviceLogin(body) => {
                let name = body.display_name;
                let devices = &mut self.account(body.user_id).devices;
                devices.entry(body.device_id.to_string()).or_insert(name);
            }
            Command::DeviceRemove(body) => {
                for device in body.devices {
                    self.account(body.user_id.clone()).devices.remove(device.as_str());
                }
            }
            Command::DeviceRename(body) => {
                let devices = &mut self.account(body.user_id).devices;
                devices.insert(body.device_id.to_string(), body.display_name);
            }
            Command::ProfileSet(body) => {
                self.account(body.user_id).profile.insert(body.field, offset);
            }
            Command::AccountDataSet(body) => {
                let data = &mut self.account(body.user_id).account_data;
                data.insert((body.room_id, body.event_type), offset);
            }
            Command::RoomForget(body) => {
                self.account(body.user_id).forgotten.insert(body.room_id, true);
            }
            Command::RoomEvent(body) => {
                let pdu: serde_json::Value = serde_json::from_str(body.pdu.get()).unwrap();
                let room = self.rooms.entry(body.room_id.clone()).or_default();
                room.timeline.push(offset);
                if let Some(target) = body.redacts {
                    room.redacted.entry(target).or_insert(offset);
                    room.children.retain(|(_, child), _| *child != target);
                }
                let event_type = pdu["type"].as_str().unwrap();
                let relates_to = &pdu["content"]["m.relates_to"];
                if let Some(rel_type) = relates_to["rel_type"].as_str()
                    && let Some(parent) = relates_to["event_id"].as_str()
                    && let Some((parent_room, parent)) = places.get(parent)
                    && *parent_room == body.room_id
                {
                    let facts = [rel_type, event_type, pdu["sender"].as_str().unwrap()];
                    room.children.insert((*parent, offset), facts.map(str::to_owned));
                }
                places.insert(body.event_id.to_string(), (body.room_id.clone(), offset));
                if let Some(key) = pdu["state_key"].as_str() {
                    room.state.insert((event_type.to_owned(), key.to_owned()), offset);
                    if event_type == "m.room.member" {
                        let membership = pdu["content"]["membership"].clone();
                        let membership = serde_json::from_value(membership).unwrap();
                        let user: OwnedUserId = key.try_into().unwrap();
                        room.members.insert(user.clone(), membership);
                        if matches!(
                            membership,
                            Membership::Join | Membership::Invite | Membership::Knock
                        ) && let Some(account) = self.accounts.get_mut(&user)
                        {
                            account.forgotten.remove(&body.room_id);
                        }
                    }
                }
            }
            Command::AliasSet(body) => {
                self.aliases.insert(body.alias, body.room_id);
            }
            Command::AliasRemove(body) => {
                self.aliases.remove(&body.alias);
            }
            _ => {}
        }
    }

    fn account(&mut self, user_id: OwnedUserId) -> &mut ModelAccount {
        self.accounts.get_mut(&user_id).unwrap()
    }

    /// What `state` answers as of `at`, in the same form.
    fn of(state: &State, at: Offset) -> Self {
        let mut model = Self::default();
        for room in state.rooms.all() {
            let timeline = room.events_forward(Offset::ZERO, at, usize::MAX);
            if timeline.is_empty() {
                continue;
            }
            let mut seen = ModelRoom { timeline, ..ModelRoom::default() };
            for (_, event_type, state_key) in room.state_changes(Offset::MAX) {
                if let Some(offset) = room.state_event(&event_type, &state_key, at) {
                    seen.state.insert((event_type.to_string(), state_key), offset);
                }
            }
            for membership in [
                Membership::Join,
                Membership::Invite,
                Membership::Knock,
                Membership::Leave,
                Membership::Ban,
            ] {
                for (user, _) in room.members(membership, at) {
                    seen.members.insert(user, membership);
                }
            }
            let mut full: Vec<_> = seen.state.values().copied().collect();
            full.sort_unstable();
            assert_eq!(room.full_state(at), full);
            let of =
                |membership| seen.members.values().filter(|m| **m == membership).count() as u64;
            let counts = room.counts(at);
            assert_eq!(
                (counts.joined, counts.invited),
                (of(Membership::Join), of(Membership::Invite))
            );
            for event in &seen.timeline {
                if let Some(redaction) = room.redaction_of(*event, at) {
                    seen.redacted.insert(*event, redaction);
                }
                for child in room.children(*event, at, usize::MAX) {
                    let facts = [child.rel_type, child.event_type, child.sender];
                    let facts = facts.map(|text| text.to_string());
                    seen.children.insert((*event, child.offset), facts);
                }
            }
            model.rooms.insert(room.id.clone(), seen);
        }
        for alias in (0..2)
            .map(|n| format!("#alias{n}:test"))
            .chain((1..=200).map(|n| format!("#room{n}:test")))
        {
            let alias: OwnedRoomAliasId = alias.try_into().unwrap();
            if let Some(target) = state.aliases.get(&alias, at) {
                model.aliases.insert(alias, target.room_id);
            }
        }
        for user_id in state.accounts.user_ids() {
            let account = state.accounts.get(&user_id).unwrap();
            let account = account.read();
            if account.registered > at {
                continue;
            }
            let mut seen = ModelAccount {
                password: account.password.at(at).and_then(|(_, password)| password.clone()),
                ..ModelAccount::default()
            };
            for (device_id, history) in &account.devices {
                if let Some((_, Some(device))) = history.at(at) {
                    seen.devices.insert(device_id.to_string(), device.display_name.clone());
                }
            }
            for (name, field) in &account.profile {
                if let Some((offset, ())) = field.changes.at(at) {
                    seen.profile.insert(name.clone(), offset);
                }
            }
            for (key, history) in &account.account_data {
                if let Some((offset, ())) = history.at(at) {
                    seen.account_data.insert(key.clone(), offset);
                }
            }
            for part in state.memberships.of(&user_id, at) {
                if part.forgotten {
                    seen.forgotten.insert(part.room_id, true);
                }
            }
            model.accounts.insert(user_id, seen);
        }
        model
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Others would encrypt for it forever.
#[test]
fn a_device_that_was_logged_out_meanwhile_has_no_keys() {
    runtime().block_on(async {
        let mut world = World::open(Vec::new()).await;
        for op in [Op::Register(0), Op::Login(0, 1)] {
            world.run(&op).await;
        }
        let account = world.engine.state().accounts.get(&user_id(0)).unwrap();
        let device_id = account.read().active_devices().last().unwrap().0.clone();
        let upload = || UploadKeys {
            user_id: user_id(0),
            device_id: device_id.clone(),
            device_keys: Some(serde_json::value::to_raw_value(&serde_json::json!({})).unwrap()),
            one_time_keys: BTreeMap::new(),
            fallback_keys: BTreeMap::new(),
        };
        drop(world.engine.propose(Origin::server(), upload()).await.unwrap().into_inner());
        let has_keys = || world.engine.state().keys.of_device(&user_id(0), &device_id, |_| ());
        assert!(has_keys().is_some());
        let remove =
            RemoveDevices { user_id: user_id(0), which: DeviceSet::These(vec![device_id.clone()]) };
        world.engine.propose(Origin::server(), remove).await.unwrap().into_inner();
        // The request was let in before the logout, and is decided after it.
        let refused = world.engine.propose(Origin::server(), upload()).await.map(|_| ());
        assert!(
            matches!(refused, Err(ProposeError::Refused(Refusal::UnknownToken))),
            "{refused:?}"
        );
        assert!(has_keys().is_none());
    });
}

/// A room of every version that is offered can be made; the histories above would not notice.
#[test]
fn rooms_of_every_version_can_be_created() {
    runtime().block_on(async {
        let mut world = World::open(Vec::new()).await;
        world.run(&Op::Register(0)).await;
        for version in 0..u8::try_from(ROOM_VERSIONS.len()).unwrap() {
            for preset in 0..3 {
                let made = world.try_run(&Op::CreateRoom(0, preset, version)).await;
                assert!(made.is_ok(), "{:?}: {made:?}", ROOM_VERSIONS[usize::from(version)]);
                world.step += 1;
            }
        }
    });
}

/// A filter, before it is known which rooms there are.
#[derive(Clone, Debug)]
struct Plan {
    types: Option<Vec<&'static str>>,
    not_types: Option<Vec<&'static str>>,
    senders: Option<Vec<u8>>,
    not_senders: Option<Vec<u8>>,
    rooms: Option<Vec<u8>>,
    not_rooms: Option<Vec<u8>>,
    contains_url: Option<bool>,
    related_by_senders: Option<Vec<u8>>,
    related_by_rel_types: Option<Vec<&'static str>>,
}

fn plan() -> impl Strategy<Value = Plan> {
    use proptest::{collection::vec, option::weighted};
    let types = || {
        let one = prop::sample::select(vec![
            "m.room.message",
            "m.reaction",
            "m.room.*",
            "*",
            "**",
            "m.*.me*e",
            "*.state",
            "m.room.member",
            "org.*",
            "m.room.messag",
            "",
        ]);
        vec(one, 0..4)
    };
    let rel_types = prop::sample::select(vec!["m.thread", "m.replace", "m.annotation", "m.other"]);
    let users = || vec(0..USERS, 0..4);
    let rooms = || vec(0..3_u8, 0..3);
    let filter = (
        weighted(0.5, types()),
        weighted(0.3, types()),
        weighted(0.3, users()),
        weighted(0.3, users()),
        weighted(0.2, rooms()),
        weighted(0.2, rooms()),
        weighted(0.3, any::<bool>()),
        weighted(0.2, users()),
        weighted(0.2, vec(rel_types, 0..3)),
    );
    filter.prop_map(|parts| Plan {
        types: parts.0,
        not_types: parts.1,
        senders: parts.2,
        not_senders: parts.3,
        rooms: parts.4,
        not_rooms: parts.5,
        contains_url: parts.6,
        related_by_senders: parts.7,
        related_by_rel_types: parts.8,
    })
}

impl Plan {
    fn json(&self, rooms: &[OwnedRoomId]) -> serde_json::Value {
        let users = |of: &Option<Vec<u8>>| {
            of.as_ref().map(|of| of.iter().map(|user| user_id(*user)).collect::<Vec<_>>())
        };
        let room = |number: &u8| rooms[usize::from(*number) % rooms.len()].clone();
        let rooms =
            |of: &Option<Vec<u8>>| of.as_ref().map(|of| of.iter().map(room).collect::<Vec<_>>());
        let mut json = serde_json::json!({
            "types": self.types, "not_types": self.not_types,
            "senders": users(&self.senders), "not_senders": users(&self.not_senders),
            "rooms": rooms(&self.rooms), "not_rooms": rooms(&self.not_rooms),
            "contains_url": self.contains_url,
            "related_by_senders": users(&self.related_by_senders),
            "related_by_rel_types": self.related_by_rel_types,
        });
        json.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        json
    }
}

/// Whether a filter wants an event, by the sentences of the client-server API, "Filtering".
fn wanted_by_the_text(
    filter: &serde_json::Value,
    room_id: &str,
    pdu: &serde_json::Value,
    redacted: bool,
    children: &[(String, String)],
) -> bool {
    let list = |name: &str| -> Option<Vec<&str>> {
        let list = filter.get(name)?.as_array().unwrap();
        Some(list.iter().map(|one| one.as_str().unwrap()).collect())
    };
    let event_type = pdu["type"].as_str().unwrap().as_bytes();
    let sender = pdu["sender"].as_str().unwrap();
    // "A list of event types to include. If this list is absent then all event types are included.
    // A '*' can be used as a wildcard to match any sequence of characters."
    let mut wanted = list("types").is_none_or(|l| l.iter().any(|p| glob(p.as_bytes(), event_type)));
    // "A matching type will be excluded even if it is listed in the 'types' filter."
    wanted &= !list("not_types").is_some_and(|l| l.iter().any(|p| glob(p.as_bytes(), event_type)));
    wanted &= list("senders").is_none_or(|l| l.contains(&sender));
    wanted &= !list("not_senders").is_some_and(|l| l.contains(&sender));
    wanted &= list("rooms").is_none_or(|l| l.contains(&room_id));
    wanted &= !list("not_rooms").is_some_and(|l| l.contains(&room_id));
    // "If true, includes only events with a url key in their content. If false, excludes those
    // events. If omitted, url key is not considered for filtering."
    let has_url = !redacted && pdu["content"].get("url").is_some();
    wanted &= match filter.get("contains_url") {
        None => true,
        Some(value) => value.as_bool().unwrap() == has_url,
    };
    let (senders, rel_types) = (list("related_by_senders"), list("related_by_rel_types"));
    if senders.is_some() || rel_types.is_some() {
        wanted &= children.iter().any(|(sender, rel_type)| {
            senders.as_ref().is_none_or(|l| l.contains(&&**sender))
                && rel_types.as_ref().is_none_or(|l| l.contains(&&**rel_type))
        });
    }
    wanted
}

/// The plainest reading of `*`.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| glob(rest, &text[skip..])),
        Some((first, rest)) => text.split_first().is_some_and(|(c, t)| c == first && glob(rest, t)),
    }
}

/// Histories begin with users and a room, so that most operations find something to work on.
fn history() -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(), 20..120).prop_map(|random| {
        let mut ops: Vec<_> = (0..USERS).map(Op::Register).collect();
        ops.extend([Op::CreateRoom(0, 2, 7), Op::CreateRoom(1, 0, 9)]);
        ops.extend((1..USERS).map(|user| Op::Member(user, user, 0, 0)));
        ops.extend(random);
        ops
    })
}

/// Histories in which much is said, most of it about what was said before, and much of it redacted.
fn talk() -> impl Strategy<Value = Vec<Op>> {
    let user = || 0..USERS;
    let op = prop_oneof![
        4 => user().prop_map(|u| Op::Message(u, 0, 0)),
        3 => (user(), any::<u8>(), 0..8_u8, any::<bool>())
            .prop_map(|(u, e, how, x)| Op::Relate(u, 0, e, how, x)),
        5 => (user(), any::<u8>()).prop_map(|(u, e)| Op::Relate(u, 0, e, 0, false)),
        2 => any::<u8>().prop_map(|e| Op::Redact(0, 0, e)),
        1 => (user(), user(), 0..8_u8).prop_map(|(u, t, c)| Op::Member(u, t, 0, c)),
    ];
    proptest::collection::vec(op, 40..150).prop_map(|random| {
        let mut ops: Vec<_> = (0..USERS).map(Op::Register).collect();
        ops.push(Op::CreateRoom(0, 2, 7));
        ops.extend((1..USERS).map(|user| Op::Member(user, user, 0, 0)));
        ops.extend(random);
        ops
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Applied as they were written, after restarts in the middle, and by a replay from the first
    /// record: the same records give the same state.
    #[test]
    fn replay_and_restart_give_the_same_digest(ops in history(), restarts in proptest::collection::vec(any::<prop::sample::Index>(), 0..3)) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            let stops: Vec<_> = restarts.iter().map(|index| index.index(ops.len())).collect();
            for (number, op) in ops.iter().enumerate() {
                if stops.contains(&number) {
                    world = world.restart().await;
                }
                world.run(op).await;
            }
            let live = world.engine.state().digest();
            let records = world.records();
            assert_eq!(replayed(&records).digest(), live);
            // A digest that could not differ would prove nothing.
            assert_ne!(replayed(&records[..records.len() - 1]).digest(), live);
            logcabin::log::verify(&*world.log, |_| {}).unwrap();
        });
    }

    /// A snapshot taken anywhere, read back, and the records after it are what all records add up
    /// to: in everything that is kept, not in the digest alone.
    #[test]
    fn a_snapshot_and_the_records_after_it_give_the_whole_state(ops in prop_oneof![history(), talk()], cut in any::<prop::sample::Index>()) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            for op in &ops {
                world.run(op).await;
            }
            let records = world.records();
            let (before, after) = records.split_at(cut.index(records.len()) + 1);
            let bytes = sections::bytes;
            let taken = replayed(before);
            let state = sections::copy(&taken).unwrap();
            assert!(bytes(&state) == bytes(&taken), "what was read is not what was written");
            assert_eq!(state.digest(), replayed(before).digest());
            for record in after {
                let _ = state.apply(record).unwrap();
            }
            let whole = replayed(&records);
            assert!(bytes(&state) == bytes(&whole), "the state goes on in another way");
            assert_eq!(state.digest(), whole.digest());
        });
    }

    /// A log that has lost what is redacted or superseded adds up to the same state as one that
    /// still has it, and its history goes on in the same way.
    #[test]
    fn erasing_changes_no_state(ops in history(), sweeps in proptest::collection::vec(any::<prop::sample::Index>(), 1..4)) {
        runtime().block_on(async {
            // Messages expire at once, but only every third sweep looks for them.
            let rules = vec!["* m.room.message 0".parse().unwrap(), "* m.reaction 0".parse().unwrap()];
            let retention = Retention { rules, ..Retention::default() };
            let plain = SweepPolicy::at_once();
            let passing = SweepPolicy { retention: Arc::new(retention), ..plain.clone() };
            let stops: Vec<_> = sweeps.iter().map(|index| index.index(ops.len())).collect();
            // `whole` is what the log was before anything was erased from it.
            let (mut world, mut whole, mut erased) = (World::open(Vec::new()).await, Vec::new(), 0);
            for number in 0..=ops.len() {
                if stops.contains(&number) || number == ops.len() {
                    let policy = if number % 3 == 0 { &passing } else { &plain };
                    if number == ops.len() {
                        world.purge_and_erase().await;
                    }
                    whole.extend(world.records().split_off(whole.len()));
                    let swept = erasure::sweep(&world.engine, policy, Offset::MAX).await.unwrap();
                    erased += swept.erased + swept.superseded;
                    whole.extend(world.records().split_off(whole.len()));
                    assert_eq!(erasure::sweep(&world.engine, policy, Offset::MAX).await.unwrap(), Swept::default());
                    let live = world.engine.state().digest();
                    assert_eq!(replayed(&whole).digest(), live, "with everything");
                    assert_eq!(replayed(&world.records()).digest(), live, "without what was erased");
                    if number % 2 == 0 {
                        world = world.restart().await;
                    }
                }
                if let Some(op) = ops.get(number) {
                    world.run(op).await;
                }
            }
            let verified = logcabin::log::verify(&*world.log, |_| {}).unwrap();
            // What was redacted, and then gone with its room, was erased twice.
            assert!(verified.erased <= erased && (verified.erased > 0) == (erased > 0));
            assert!(!world.engine.state().erasures.is_urgent());
            for room in world.engine.state().rooms.all() {
                for offset in room.events_forward(Offset::ZERO, Offset::MAX, usize::MAX) {
                    let event = world.engine.events().get(offset).unwrap().unwrap();
                    let text = event.content.get();
                    let is_redacted = room.redaction_of(offset, Offset::MAX).is_some();
                    assert!(!(is_redacted && text.contains("msgtype")), "record {offset}: {text}");
                }
            }
        });
    }

    /// The state as of every offset is what a copy of the whole state made at that offset says.
    #[test]
    fn state_as_of_every_offset_is_the_one_that_was_there(ops in prop_oneof![history(), talk()]) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            for op in &ops {
                world.run(op).await;
            }
            let state = world.engine.state();
            let (mut model, mut places) = (Model::default(), Places::new());
            for record in world.records() {
                model.apply(&record, &mut places);
                assert_eq!(Model::of(&state, record.offset()), model, "as of {}", record.offset());
            }
        });
    }

    /// A filter wants what the specification's sentences say, read one by one.
    #[test]
    fn a_filter_matches_as_specified(ops in talk(), plans in proptest::collection::vec(plan(), 12)) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            for op in &ops {
                world.run(op).await;
            }
            let (state, at) = (world.engine.state(), world.engine.head().offset());
            for plan in &plans {
                let json = plan.json(&world.rooms);
                let filter = EventFilter::parse(&json.to_string()).unwrap();
                for room in state.rooms.all() {
                    let offsets = room.events_forward(Offset::ZERO, at, usize::MAX);
                    let events = world.engine.events().get_all(&offsets).unwrap();
                    for event in &events {
                        let pdu = serde_json::from_str(event.pdu.get()).unwrap();
                        let redacted = room.redaction_of(event.offset, at).is_some();
                        let children = room.children(event.offset, at, usize::MAX).into_iter();
                        let children: Vec<_> = children
                            .map(|child| (child.sender.to_string(), child.rel_type.to_string()))
                            .collect();
                        assert_eq!(
                            filter.matches(&room, event, at),
                            wanted_by_the_text(&json, room.id.as_str(), &pdu, redacted, &children),
                            "{json} on {pdu}, redacted: {redacted}, {children:?}"
                        );
                    }
                }
            }
        });
    }

    /// The list of threads, in pages of any size and as of any offset, holds each thread that its
    /// reader sees once, in the order of the newest replies.
    #[test]
    fn threads_are_listed_by_their_newest_replies(ops in talk(), cut in any::<prop::sample::Index>(), limit in 1..5_usize, reader in 0..USERS) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            for op in &ops {
                world.run(op).await;
            }
            let state = world.engine.state().share();
            let reader = user_id(reader);
            let view = View {
                state: Arc::clone(&state),
                events: world.engine.events(),
                viewer: Viewer {
                    user_id: &reader,
                    device_id: "D".into(),
                    session: Offset::ZERO,
                    at: world.engine.head().offset(),
                    now_ms: 0,
                },
            };
            let end = usize::try_from(state.applied().get()).unwrap();
            let as_of = Offset::new(cut.index(end + 1) as u64);
            for room in state.rooms.all() {
                for participated in [false, true] {
                    let mut listed = Vec::new();
                    let mut before = Offset::MAX;
                    // A page goes on from where the one before ended, or from what its token says.
                    let mut walk = None;
                    loop {
                        let wanted = ThreadQuery { as_of, before, participated };
                        let page = view.threads(&room, wanted, limit, walk.as_ref()).unwrap();
                        assert!(page.roots.len() <= limit);
                        listed.extend(page.roots.iter().map(|root| root.offset));
                        let Some(next) = page.next else { break };
                        assert_eq!(page.roots.len(), limit);
                        before = next;
                        walk = (listed.len() % 2 == 0).then_some(page.walk);
                    }
                    let mut expected = Vec::new();
                    for offset in room.events_forward(Offset::ZERO, as_of, usize::MAX) {
                        let sees = |offset| {
                            let event = view.events.get(offset).unwrap().unwrap();
                            view.may_see(&room, &event).unwrap().then_some(event)
                        };
                        let Some(root) = sees(offset) else { continue };
                        let replies: Vec<_> = room
                            .children(offset, view.at(), usize::MAX)
                            .into_iter()
                            .rev()
                            .filter(|child| &*child.rel_type == "m.thread" && child.offset <= as_of)
                            .filter_map(|child| sees(child.offset))
                            .collect();
                        let takes_part = root.sender == reader
                            || replies.iter().any(|reply| reply.sender == reader);
                        let is_child = root.pdu.get().contains("\"rel_type\"")
                            && root.pdu.get().contains("\"event_id\"");
                        if let Some(newest) = replies.last()
                            && !is_child
                            && (takes_part || !participated)
                        {
                            expected.push((newest.offset, offset));
                        }
                    }
                    expected.sort_unstable();
                    let expected: Vec<_> = expected.into_iter().rev().map(|(_, root)| root).collect();
                    assert_eq!(listed, expected);
                }
            }
        });
    }

    /// The change of state between two offsets is the difference of the states.
    #[test]
    fn a_delta_is_the_difference_of_two_states(ops in history(), cuts in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 8)) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            for op in &ops {
                world.run(op).await;
            }
            let state = world.engine.state();
            let end = usize::try_from(state.applied().get()).unwrap();
            for (a, b) in &cuts {
                let (a, b) = (a.index(end + 1), b.index(end + 1));
                let since = Offset::new(a.min(b) as u64);
                let to = Offset::new(a.max(b) as u64);
                for room in state.rooms.all() {
                    let before = room.full_state(since);
                    let mut expected = room.full_state(to);
                    expected.retain(|offset| !before.contains(offset));
                    assert_eq!(room.state_delta(since, to), expected);
                }
            }
        });
    }

    /// Proposals that are made at once, and so share turns and batches, add up to a state that a
    /// replay confirms, and every acknowledged message is there once.
    #[test]
    fn concurrent_proposals_share_turns_without_loss(users in proptest::collection::vec(0..USERS, 1..60)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let mut world = World::open(Vec::new()).await;
            for op in (0..USERS).map(Op::Register).chain([Op::CreateRoom(0, 2, 7)]) {
                world.run(&op).await;
            }
            for user in 1..USERS {
                world.run(&Op::Member(user, user, 0, 0)).await;
            }
            let engine = Arc::new(world.engine);
            let room_id = world.rooms[0].clone();
            let sends: Vec<_> = users.iter().enumerate().map(|(number, user)| {
                let engine = Arc::clone(&engine);
                let proposal = SendEvent {
                    room_id: room_id.clone(),
                    sender: user_id(*user),
                    event_type: TimelineEventType::RoomMessage,
                    state_key: None,
                    content: content(&[("body", &number.to_string())]).into(),
                    redacts: None,
                    transaction: None,
                    ts: ts(),
                };
                tokio::spawn(async move {
                    engine.propose(Origin::server(), proposal).await.unwrap().into_inner()
                })
            }).collect();
            let mut ids = Vec::new();
            for send in sends {
                ids.push(send.await.unwrap());
            }
            let room = engine.state().rooms.get(&room_id).unwrap();
            let offsets = room.events_forward(Offset::ZERO, Offset::MAX, usize::MAX);
            let events = engine.events().get_all(&offsets).unwrap();
            for id in &ids {
                assert_eq!(events.iter().filter(|event| event.event_id == *id).count(), 1);
            }
            // One chain: each event stands on the one before it.
            for pair in events.windows(2) {
                assert_eq!(pair[1].prev_events, [pair[0].event_id.clone()]);
                assert_eq!(pair[1].depth, pair[0].depth + 1);
            }
            let records = engine.log().read(Offset::new(1), usize::MAX).unwrap();
            let records: Vec<_> = records.into_iter().map(Arc::new).collect();
            assert_eq!(replayed(&records).digest(), engine.state().digest());
        });
    }
}

/// A delayed event is sent on the room's stream and called off on its owner's: whichever is
/// first, it ends once, and was sent if that is how it ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_one_of_many_concurrent_changes_of_a_delayed_event_counts() {
    let mut world = World::open(Vec::new()).await;
    for op in [Op::Register(0), Op::Register(1), Op::CreateRoom(0, 1, 7), Op::Member(1, 1, 0, 0)] {
        world.run(&op).await;
    }
    let engine = Arc::new(world.engine);
    let room_id = world.rooms[0].clone();
    let mut outcomes = std::collections::BTreeSet::new();
    for round in 0..200 {
        let delay_id = format!("delay {round}");
        let state = |sender| SendEvent {
            room_id: room_id.clone(),
            sender: user_id(sender),
            event_type: "org.test.state".into(),
            state_key: Some(String::new()),
            content: content(&[("round", &round.to_string())]).into(),
            redacts: None,
            transaction: None,
            ts: ts(),
        };
        let schedule = Schedule {
            delay_id: delay_id.clone(),
            user_id: user_id(0),
            room_id: room_id.clone(),
            event_type: "org.test.state".to_owned(),
            state_key: Some(String::new()),
            content: serde_json::value::RawValue::from_string("{}".to_owned()).unwrap(),
            delay_ms: 1,
            since_ms: 0,
            transaction: None,
            most: 5,
        };
        let _: String = engine.propose(Origin::server(), schedule).await.unwrap().into_inner();
        let mut all = tokio::task::JoinSet::new();
        macro_rules! at_once {
            ($proposal:expr) => {
                let (engine, proposal) = (Arc::clone(&engine), $proposal);
                all.spawn(async move {
                    drop(engine.propose(Origin::server(), proposal).await.unwrap().into_inner());
                });
            };
        }
        // Another one first each time.
        for turn in 0..4 {
            let (delay_id, user_id) = (delay_id.clone(), user_id(0));
            match (turn + round) % 4 {
                0 => {
                    let event = state(0);
                    let by_action = false;
                    at_once!(SendDelayed { delay_id, user_id, event, by_action, ts: 9 });
                }
                1 => {
                    let outcome = DelayedOutcome::Cancel;
                    at_once!(GiveUp { delay_id, user_id, outcome, ts: 9 });
                }
                2 => {
                    at_once!(Restart { delay_id, user_id, since_ms: 1 });
                }
                _ => {
                    at_once!(state(1));
                }
            }
        }
        all.join_all().await;
        let event = engine.state().delayed.get(&delay_id).unwrap();
        outcomes.insert(match &event.finished.as_ref().unwrap().outcome {
            DelayedOutcome::Send { .. } => "sent",
            DelayedOutcome::Cancel => "cancelled",
            DelayedOutcome::Error { .. } => "overtaken",
        });
    }
    assert!(outcomes.len() > 1, "only ever {outcomes:?}");
    let records = engine.log().read(Offset::new(1), usize::MAX).unwrap();
    let mut ended: BTreeMap<String, Vec<DelayedOutcome>> = BTreeMap::new();
    let mut sent = BTreeMap::new();
    for record in &records {
        match record.command().unwrap().unwrap() {
            Command::DelayedFinish(body) => {
                ended.entry(body.delay_id).or_default().push(body.outcome);
            }
            Command::RoomEvent(body) => {
                if let Some(delay_id) = body.delay_id {
                    assert!(record.header.batch_remaining > 0, "with the end of its delay");
                    assert_eq!(sent.insert(delay_id, body.event_id), None);
                }
            }
            _ => {}
        }
    }
    assert_eq!(ended.len(), 200);
    for (delay_id, outcomes) in ended {
        let expected = sent.get(&delay_id).map(|event_id| {
            let event_id = event_id.clone();
            DelayedOutcome::Send { event_id }
        });
        let of_sending = matches!(outcomes[0], DelayedOutcome::Send { .. });
        assert_eq!(outcomes.len(), 1, "{delay_id}: {outcomes:?}");
        assert_eq!(expected, of_sending.then(|| outcomes[0].clone()), "{delay_id}");
    }
    let records: Vec<_> = records.into_iter().map(Arc::new).collect();
    assert_eq!(replayed(&records).digest(), engine.state().digest());
}
