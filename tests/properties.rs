//! Laws of the log and its projections, on random histories.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which clippy does not know to be such")]

use std::{collections::BTreeMap, sync::Arc};

use logcabin::{
    clock::Clock,
    decide::{
        account::{
            CreateFilter, Login, Register, RemoveDevices, RenameDevice, SetAccountData,
            SetPassword, SetProfile, Which,
        },
        create_room::{CreateRoom, Preset, ROOM_VERSIONS},
        directory::{RemoveAlias, SetAlias, SetVisibility},
        ephemeral::{SetReceipt, SetTyping},
        membership::{Change, ChangeMembership, ForgetRoom},
        send::SendEvent,
    },
    engine::{Engine, Options, Rejected},
    log::{Log, memory::MemoryLog},
    record::{
        Command, Offset, Origin, Record,
        command::{AccountKind, Secret, TokenHash, Tokens},
    },
    state::{Membership, State},
};
use proptest::prelude::*;
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedEventId,
    OwnedRoomAliasId, OwnedRoomId, OwnedUserId, UInt, events::TimelineEventType,
};

#[path = "properties/sliding.rs"]
mod sliding;

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
    Alias(u8, u8, u8, bool),
    Visibility(u8, u8, bool),
    Receipt(u8, u8, u8),
    Typing(u8, u8, u8),
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
        2 => (user(), room(), 0..2_u8, any::<bool>()).prop_map(|(u, r, a, s)| Op::Alias(u, r, a, s)),
        1 => (user(), room(), any::<bool>()).prop_map(|(u, r, p)| Op::Visibility(u, r, p)),
        2 => (user(), room(), any::<u8>()).prop_map(|(u, r, n)| Op::Receipt(u, r, n)),
        1 => (user(), room(), 0..3_u8).prop_map(|(u, r, t)| Op::Typing(u, r, t)),
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
        let clock = Clock::manual(1_700_000_000_000);
        let log = Arc::new(MemoryLog::with_records(clock.clone(), records));
        let options =
            Options { server_name: "test".try_into().unwrap(), event_cache_bytes: 1 << 20, clock };
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
        if let Err(Rejected::Log(error)) = self.try_run(op).await {
            panic!("the log refused {op:?}: {error}");
        }
    }

    #[allow(clippy::too_many_lines, reason = "one arm for each operation")]
    async fn try_run(&mut self, op: &Op) -> Result<(), Rejected> {
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
                    user_id: user_id(user),
                    kind: AccountKind::User,
                    password: Some("hash".into()),
                    display_name: Some(format!("user {user}")),
                    login: Some(login),
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
                let which = Which::These(vec![device(d)]);
                let proposal = RemoveDevices { user_id: user_id(user), which };
                engine.propose(origin, proposal).await?.into_inner();
            }
            Op::LogoutOthers(user, d) => {
                let proposal =
                    RemoveDevices { user_id: user_id(user), which: Which::AllBut(device(d)) };
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
                    log_out: (password % 2 == 0).then_some(Which::All),
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
                    room_id: format!("!room{}:test", self.step).try_into().unwrap(),
                    creator: user_id(user),
                    version: version.clone(),
                    preset: [Preset::PrivateChat, Preset::TrustedPrivateChat, Preset::PublicChat]
                        [usize::from(preset)],
                    creation_content: CanonicalJsonObject::new(),
                    power_levels: CanonicalJsonObject::new(),
                    initial_state: Vec::new(),
                    name: Some(format!("room {}", self.step)),
                    topic: None,
                    alias: (preset == 2)
                        .then(|| format!("#room{}:test", self.step).try_into().unwrap()),
                    invite: vec![invite],
                    is_direct: false,
                    public: preset == 2,
                    ts: ts(),
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
                let proposal = ChangeMembership {
                    room_id,
                    sender: user_id(sender),
                    target: user_id(if own { sender } else { target }),
                    change,
                    reason: None,
                    is_direct: false,
                    third_party_signed: None,
                    ts: ts(),
                };
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
                    content: content(&[("msgtype", "m.text"), ("body", &text.to_string())]),
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
                        0 => content(&[("topic", &value.to_string())]),
                        1 => {
                            content(&[("join_rule", ["public", "invite"][usize::from(value % 2)])])
                        }
                        _ => content(&[("value", &value.to_string())]),
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
                    content: CanonicalJsonObject::new(),
                    redacts: Some(event),
                    transaction: None,
                    ts: ts(),
                };
                drop(engine.propose(origin, proposal).await?.into_inner());
            }
            Op::Alias(user, room, alias, set) => {
                let Some(room_id) = self.room(room) else { return Ok(()) };
                let alias: OwnedRoomAliasId = format!("#alias{alias}:test").try_into().unwrap();
                let sender = user_id(user);
                if set {
                    engine.propose(origin, SetAlias { alias, room_id, sender }).await?.into_inner();
                } else {
                    engine.propose(origin, RemoveAlias { alias, sender }).await?.into_inner();
                }
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
                    receipt_type: "m.read".to_owned(),
                    event_id,
                    thread_id: None,
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
}

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
    fn apply(&mut self, record: &Record) {
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
                }
                let event_type = pdu["type"].as_str().unwrap();
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

/// A room of every version that is offered can be made; the histories above would not notice.
#[test]
fn rooms_of_every_version_can_be_made() {
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

    /// The state as of every offset is what a copy of the whole state made at that offset says.
    #[test]
    fn state_as_of_every_offset_is_what_it_was(ops in history()) {
        runtime().block_on(async {
            let mut world = World::open(Vec::new()).await;
            for op in &ops {
                world.run(op).await;
            }
            let state = world.engine.state();
            let mut model = Model::default();
            for record in world.records() {
                model.apply(&record);
                assert_eq!(Model::of(state, record.offset()), model, "as of {}", record.offset());
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
                    content: content(&[("body", &number.to_string())]),
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
