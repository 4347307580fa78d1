use std::{collections::BTreeMap, sync::Arc};

use ruma::{MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, RoomVersionId, UInt};
use serde_json::value::RawValue;

use logcabin_base::{clock::Clock, limits};
use logcabin_decide::{
    Proposal, Refusal,
    account::{DeviceSet, Login, Register, RemoveDevices},
    account_data::{CreateFilter, SetAccountData, SetTag},
    create_room::{CreateRoom, DEFAULT_ROOM_VERSION, InitialState, Preset},
    directory::{RemoveAlias, SetAlias},
    federation::RemoteMembership,
    key_backup::{DeleteBackup, PutKeys, RemoveKeys, SetBackup},
    keys::SignKeys,
    membership::{Change, ChangeMembership},
    notice::OpenNoticeRoom,
    quota::{Exempt, InviteOverflow, Quotas},
    report::{RemoveReport, Report, Subject},
    to_device::{Acknowledge, ReceiveToDevice, SendToDevice},
    upgrade::UpgradeRoom,
};
use logcabin_engine::{Durable, Engine, Options, ProposeError};
use logcabin_log::{Log, memory::MemoryLog};
use logcabin_record::{
    Offset, Origin,
    command::{BackedUpKey, TokenHash, Tokens, Transaction},
};
use logcabin_state::{State, sections};

struct World {
    engine: Engine,
    log: Arc<dyn Log>,
    clock: Clock,
}

fn raw(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).unwrap()
}

fn user(name: &str) -> OwnedUserId {
    format!("@{name}:test").try_into().unwrap()
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::from(1_u32))
}

impl World {
    /// A server with these quotas and users.
    async fn new(quotas: Quotas, names: &[&str]) -> Self {
        let clock = Clock::manual(1);
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
        let options = Options { quotas: Arc::new(quotas), ..Options::small(clock.clone()) };
        let engine = Engine::open(Arc::clone(&log), options).await.unwrap();
        let world = Self { engine, log, clock };
        for name in names {
            let register =
                Register { login: Some(login(name, "FIRST")), ..Register::user(user(name)) };
            world.done(register).await;
        }
        world
    }

    /// The same log with other quotas.
    async fn again(self, quotas: Quotas) -> Self {
        let Self { engine, log, clock } = self;
        drop(engine);
        let options = Options { quotas: Arc::new(quotas), ..Options::small(clock.clone()) };
        let engine = Engine::open(Arc::clone(&log), options).await.unwrap();
        Self { engine, log, clock }
    }

    async fn done<P: Proposal>(&self, proposal: P) -> P::Outcome {
        match self.engine.propose(Origin::server(), proposal).await {
            Ok(done) => done.into_inner(),
            Err(error) => panic!("refused: {error}"),
        }
    }

    /// Whether a proposal is refused because of a quota. Panics if it is refused for another
    /// reason.
    async fn is_over<P: Proposal>(&self, proposal: P) -> bool {
        match self.engine.propose(Origin::server(), proposal).await {
            Ok(done) => {
                drop(done.into_inner());
                false
            }
            Err(ProposeError::Refused(Refusal::OverQuota(_))) => true,
            Err(error) => panic!("refused for another reason: {error}"),
        }
    }

    async fn room(&self, creator: &str) -> OwnedRoomId {
        self.done(room(creator, &[])).await
    }

    fn state(&self) -> Arc<State> {
        self.engine.state().share()
    }
}

fn login(name: &str, device: &str) -> Login {
    let access = TokenHash::of(&format!("{name} {device}"));
    Login {
        user_id: user(name),
        device_id: device.into(),
        display_name: None,
        tokens: Tokens { access, expires_ms: None, refresh: None },
        verified: None,
    }
}

fn data(name: &str, room_id: Option<&OwnedRoomId>, kind: &str, content: &str) -> SetAccountData {
    SetAccountData {
        user_id: user(name),
        room_id: room_id.cloned(),
        event_type: kind.to_owned(),
        content: raw(content),
    }
}

fn room(creator: &str, invite: &[&str]) -> CreateRoom {
    let random = logcabin_base::clock::random_letters(16);
    CreateRoom {
        invite: invite.iter().map(|name| user(name)).collect(),
        ..CreateRoom::new(
            format!("!{random}:test").try_into().unwrap(),
            user(creator),
            DEFAULT_ROOM_VERSION,
            Preset::PublicChat,
            ts(),
        )
    }
}

fn change(room_id: &OwnedRoomId, sender: &str, target: &str, change: Change) -> ChangeMembership {
    ChangeMembership::new(room_id.clone(), user(sender), user(target), change, ts())
}

#[tokio::test]
async fn account_data_has_a_quota_of_entries_and_of_bytes() {
    let quotas = Quotas { account_data_types: 3, account_data_bytes: 1000, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob"]).await;
    let room_id = world.room("bob").await;
    let long = format!("{{\"a\":{:?}}}", "x".repeat(500));
    let longer = format!("{{\"a\":{:?}}}", "x".repeat(800));
    for (room_id, kind, content, is_over) in [
        (None, "a", "{}", false),
        (None, "b", "{}", false),
        (Some(&room_id), "a", "{}", false),
        // The quota is used up. Existing entries can still be set.
        (None, "c", "{}", true),
        (Some(&room_id), "b", "{}", true),
        (None, "a", "{}", false),
        (None, "a", r#"{"b":1}"#, false),
        (None, "a", &long, false),
        (None, "a", &long, false),
        // Each is small enough, but together they are too large.
        (None, "b", &long, true),
        (None, "a", &longer, true),
        (None, "a", r#"{"b":1}"#, false),
        (None, "b", &long, false),
        // Deleting makes room.
        (None, "b", "null", false),
        (None, "c", &long, false),
        (None, "c", "null", false),
        (None, "c", "null", false),
        (None, "d", "{}", false),
        // Types that only the server writes do not count.
        (Some(&room_id), "m.fully_read", "{}", false),
    ] {
        let found = world.is_over(data("ann", room_id, kind, content)).await;
        assert_eq!(found, is_over, "{kind} of {room_id:?}: {content}");
    }
    assert!(!world.is_over(data("bob", None, "x", &long)).await);
}

#[tokio::test]
async fn the_tags_of_a_room_are_limited() {
    let world = World::new(Quotas::default(), &["ann"]).await;
    let room_id = world.room("ann").await;
    let tag = |number: usize, order: Option<f64>| SetTag {
        user_id: user("ann"),
        room_id: room_id.clone(),
        tag: format!("u.{number}"),
        info: order.map(|order| serde_json::Map::from_iter([("order".to_owned(), order.into())])),
    };
    for number in 0..limits::TAGS {
        assert!(!world.is_over(tag(number, Some(0.5))).await, "{number}");
    }
    assert!(world.is_over(tag(limits::TAGS, Some(0.5))).await);
    assert!(!world.is_over(tag(0, Some(0.1))).await);
    assert!(!world.is_over(tag(1, None)).await);
    assert!(!world.is_over(tag(limits::TAGS, Some(0.5))).await);
}

#[tokio::test]
async fn filters_have_a_quota_of_number_and_of_bytes() {
    let quotas = Quotas { filters: 2, filter_bytes: 100, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob"]).await;
    let filter = |name: &str, json: &str| CreateFilter { user_id: user(name), filter: raw(json) };
    let long = format!("{{\"x\":{:?}}}", "x".repeat(100));
    for (json, is_over) in [
        (&*long, true),
        ("{}", false),
        // Uploading the same filter again adds nothing.
        ("{}", false),
        (r#"{"room":{}}"#, false),
        (r#"{"presence":{}}"#, true),
        ("{}", false),
    ] {
        assert_eq!(world.is_over(filter("ann", json)).await, is_over, "{json}");
    }
    assert!(!world.is_over(filter("bob", "{}")).await);
}

#[tokio::test]
async fn an_existing_device_can_log_in_when_the_quota_is_used_up() {
    let quotas = Quotas { devices: 2, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob"]).await;
    assert!(!world.is_over(login("ann", "SECOND")).await);
    assert!(world.is_over(login("ann", "THIRD")).await);
    assert!(!world.is_over(login("ann", "FIRST")).await);
    assert!(!world.is_over(login("bob", "THIRD")).await);
    let which = DeviceSet::These(vec!["SECOND".into()]);
    world.done(RemoveDevices { user_id: user("ann"), which }).await;
    assert!(!world.is_over(login("ann", "THIRD")).await);
    assert!(world.is_over(login("ann", "SECOND")).await);
}

#[tokio::test]
async fn aliases_are_limited_by_creator_and_by_room() {
    let quotas = Quotas {
        aliases: 2,
        exempt: Exempt::who(|user_id| user_id.localpart() == "bridge"),
        ..Quotas::default()
    };
    let world = World::new(quotas, &["ann", "bridge"]).await;
    let room_id = world.room("ann").await;
    let of_bridge = world.room("bridge").await;
    let alias = |name: &str, room_id: &OwnedRoomId, alias: &str| SetAlias {
        alias: format!("#{alias}:test").try_into().unwrap(),
        room_id: room_id.clone(),
        sender: user(name),
        of_service: false,
    };
    assert!(!world.is_over(alias("ann", &room_id, "a")).await);
    let made = world
        .done(CreateRoom { alias: Some("#b:test".try_into().unwrap()), ..room("ann", &[]) })
        .await;
    assert!(world.is_over(alias("ann", &room_id, "c")).await);
    let with_alias = CreateRoom { alias: Some("#c:test".try_into().unwrap()), ..room("ann", &[]) };
    assert!(world.is_over(with_alias).await);
    let remove = RemoveAlias {
        alias: "#b:test".try_into().unwrap(),
        room_id: made,
        sender: user("ann"),
        of_service: false,
        ts: ts(),
    };
    world.done(remove).await;
    assert!(!world.is_over(alias("ann", &room_id, "c")).await);
    for number in 0..limits::ROOM_ALIASES {
        assert!(!world.is_over(alias("bridge", &of_bridge, &number.to_string())).await);
    }
    assert!(world.is_over(alias("bridge", &of_bridge, "more")).await);
}

#[tokio::test]
async fn the_number_of_rooms_that_a_user_is_in_is_limited() {
    let quotas = Quotas { rooms: 2, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob"]).await;
    let of_bob = world.room("bob").await;
    let of_ann = world.room("ann").await;
    assert!(!world.is_over(change(&of_bob, "ann", "ann", Change::Join)).await);
    // Joining again changes nothing, so it works.
    assert!(!world.is_over(change(&of_bob, "ann", "ann", Change::Join)).await);
    assert!(world.is_over(room("ann", &[])).await);
    let another = world.room("bob").await;
    assert!(world.is_over(change(&another, "ann", "ann", Change::Join)).await);
    let upgrade = UpgradeRoom {
        room_id: of_ann.clone(),
        sender: user("ann"),
        version: DEFAULT_ROOM_VERSION,
        replacement: "!replacement:test".try_into().unwrap(),
        additional_creators: Vec::new(),
        ts: ts(),
    };
    assert!(world.is_over(upgrade).await);
    // A pending invite does not count.
    world.done(change(&another, "bob", "ann", Change::Invite)).await;
    assert!(world.is_over(change(&another, "ann", "ann", Change::Join)).await);
    world.done(change(&of_ann, "ann", "ann", Change::Leave)).await;
    assert!(!world.is_over(change(&another, "ann", "ann", Change::Join)).await);
}

#[tokio::test]
async fn pending_invites_are_limited_in_total_and_by_sender() {
    let quotas = Quotas { invites: 3, invites_by_one: 2, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob", "cat"]).await;
    let first = world.done(room("bob", &["ann"])).await;
    let second = world.room("bob").await;
    assert!(!world.is_over(change(&second, "bob", "ann", Change::Invite)).await);
    let third = world.room("bob").await;
    assert!(world.is_over(change(&third, "bob", "ann", Change::Invite)).await);
    assert!(world.is_over(room("bob", &["ann"])).await);
    let member = [("membership".to_owned(), ruma::CanonicalJsonValue::String("invite".into()))];
    let initial_state = vec![InitialState {
        event_type: "m.room.member".into(),
        state_key: "@ann:test".to_owned(),
        content: member.into(),
    }];
    assert!(world.is_over(CreateRoom { initial_state, ..room("bob", &[]) }).await);
    // Inviting to the same room again adds nothing.
    assert!(!world.is_over(change(&second, "bob", "ann", Change::Invite)).await);
    // Another sender can use the rest of the quota.
    assert!(!world.is_over(room("cat", &["ann"])).await);
    assert!(world.is_over(room("cat", &["ann"])).await);
    world.done(change(&first, "ann", "ann", Change::Leave)).await;
    assert!(!world.is_over(change(&third, "bob", "ann", Change::Invite)).await);
}

fn send(sender: &str, number: u64, to: &[(&str, &str)]) -> SendToDevice {
    let mut messages: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, device) in to {
        let device = (*device != "*").then(|| (*device).into());
        messages.entry(user(name)).or_default().push((device, raw("{}")));
    }
    let (session, id) = (Offset::new(1), format!("{sender} {number}"));
    SendToDevice {
        sender: user(sender),
        event_type: "m.test".to_owned(),
        messages,
        outside: None,
        transaction: Transaction { session, id, scope: "s".to_owned() },
    }
}

/// As [`MAX_BATCH_BYTES`](logcabin_log::MAX_BATCH_BYTES).
const COMMIT_BYTES: usize = 4 << 20;

#[tokio::test]
async fn a_message_to_all_devices_reaches_each_of_them_or_none() {
    let world = World::new(Quotas::default(), &["ann", "bob"]).await;
    let devices: Vec<_> = (0..70).map(|number| format!("D{number}")).collect();
    for device in &devices {
        world.done(login("ann", device)).await;
    }
    let got = |device: &str| {
        let to_device = &world.state().to_device;
        to_device.waiting(&user("ann"), device.into(), Offset::ZERO, Offset::MAX, 100).len()
    };
    let to_all = |bytes: usize| {
        let content = raw(&format!("{{\"x\":\"{}\"}}", "x".repeat(bytes)));
        BTreeMap::from([(user("ann"), vec![(None, content)])])
    };
    let received = |bytes: usize| ReceiveToDevice {
        sender: "@pia:peer".try_into().unwrap(),
        message_id: format!("m{bytes}"),
        event_type: "m.test".to_owned(),
        messages: to_all(bytes),
    };
    let sent = |bytes| SendToDevice { messages: to_all(bytes), ..send("bob", bytes as u64, &[]) };
    let is_too_large = |result: Result<(), ProposeError>| match result {
        Ok(()) => false,
        Err(ProposeError::Refused(Refusal::TooLarge(_))) => true,
        Err(error) => panic!("refused for another reason: {error}"),
    };
    let largest = limits::EVENT_BYTES - 100;
    let each = COMMIT_BYTES / devices.len();
    let (mut refused, mut reached) = (0, 0);
    for bytes in [largest, each, each - 100, each - 4000, each - 9000, 10] {
        let before = world.engine.head().offset();
        let one = world.engine.propose(Origin::server(), received(bytes)).await;
        let other = world.engine.propose(Origin::server(), sent(bytes)).await;
        let one = one.map(|one| assert_eq!(one.into_inner(), 0, "nothing was dropped"));
        for result in [one, other.map(Durable::into_inner)] {
            if is_too_large(result) {
                refused += 1;
            } else {
                reached += 1;
            }
        }
        for device in devices.iter().map(String::as_str).chain(["FIRST"]) {
            assert_eq!(got(device), reached, "{device}, {bytes} bytes");
        }
        // What was refused is not remembered as received.
        if bytes == largest {
            assert_eq!((refused, world.engine.head().offset()), (2, before));
        }
    }
    assert!(reached >= 4, "{reached}");
}

#[tokio::test]
async fn strangers_at_other_homeservers_leave_space_in_the_inbox_of_a_device() {
    let quotas = Quotas { to_device: 5, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob"]).await;
    let letter = |number: usize| ReceiveToDevice {
        sender: format!("@pia:peer{number}").try_into().unwrap(),
        message_id: number.to_string(),
        event_type: "m.test".to_owned(),
        messages: BTreeMap::from([(user("ann"), vec![(None, raw("{}"))])]),
    };
    let mut dropped = Vec::new();
    for number in 0..5 {
        let done = world.engine.propose(Origin::server(), letter(number)).await;
        dropped.push(done.unwrap().into_inner());
    }
    assert_eq!(dropped, [0, 0, 0, 1, 1]);
    world.done(send("bob", 1, &[("ann", "FIRST")])).await;
}

#[tokio::test]
async fn invites_by_strangers_at_other_homeservers_count_apart_from_local_ones() {
    let quotas = Quotas { invites: 4, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob"]).await;
    let invite = |number: usize| RemoteMembership {
        room_id: format!("!r{number}:peer").try_into().unwrap(),
        version: RoomVersionId::V10,
        from: format!("peer{number}").try_into().unwrap(),
        event_id: format!("$invite{number}").try_into().unwrap(),
        pdu: raw(&format!(
            r#"{{"type":"m.room.member","room_id":"!r{number}:peer","sender":"@pia:peer{number}",
            "state_key":"@ann:test","content":{{"membership":"invite"}},"origin_server_ts":1,
            "prev_events":[],"auth_events":[],"depth":1}}"#
        )),
        stripped: Vec::new(),
    };
    for (number, is_over) in [(1, false), (2, false), (3, true)] {
        assert_eq!(world.is_over(invite(number)).await, is_over, "{number}");
    }
    let crowd = |inviter: &str| {
        let (state, inviter) = (world.state(), inviter.try_into().unwrap());
        let env = world.engine.env();
        env.quotas.crowd(&state, "test".try_into().unwrap(), &user("ann"), inviter)
    };
    assert_eq!(crowd("@pia:peer9"), Some(InviteOverflow::OfAll));
    for _ in 0..4 {
        assert!(!world.is_over(room("bob", &["ann"])).await);
    }
    assert!(world.is_over(room("bob", &["ann"])).await);
}

#[tokio::test]
async fn one_sender_cannot_fill_the_inbox_of_a_device() {
    let quotas = Quotas { to_device: 3, to_device_by_one: 2, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob", "cat"]).await;
    let device = "FIRST";
    world.done(login("ann", "SECOND")).await;
    let waiting = |device: &str| {
        let to_device = &world.state().to_device;
        to_device.waiting(&user("ann"), device.into(), Offset::ZERO, Offset::MAX, 100)
    };
    for number in 0..2 {
        assert!(!world.is_over(send("bob", number, &[("ann", device)])).await);
    }
    let before = waiting(device);
    assert!(world.is_over(send("bob", 2, &[("ann", device)])).await);
    // A message to all devices reaches the ones with room.
    assert!(!world.is_over(send("bob", 3, &[("ann", "*")])).await);
    assert_eq!((waiting(device), waiting("SECOND").len()), (before.clone(), 1));
    // Other senders can use the rest of the inbox.
    assert!(!world.is_over(send("cat", 0, &[("ann", device)])).await);
    assert!(world.is_over(send("cat", 1, &[("ann", device)])).await);
    // A device that does not exist is skipped without an error.
    assert!(!world.is_over(send("cat", 2, &[("ann", "NOWHERE")])).await);
    let up_to = before[1];
    world.done(Acknowledge { user_id: user("ann"), device_id: device.into(), up_to }).await;
    assert!(!world.is_over(send("bob", 4, &[("ann", device)])).await);
    assert_eq!(waiting(device).len(), 2);
}

fn key(bytes: usize, first_message_index: u64) -> BackedUpKey {
    let session_data = raw(&format!("{{\"k\":{:?}}}", "x".repeat(bytes - 8)));
    BackedUpKey { first_message_index, forwarded_count: 0, is_verified: false, session_data }
}

fn put(version: u64, session: &str, key: BackedUpKey) -> PutKeys {
    let sessions = BTreeMap::from([(session.to_owned(), key)]);
    let rooms = BTreeMap::from([("!r:test".try_into().unwrap(), sessions)]);
    PutKeys { user_id: user("ann"), version, rooms }
}

#[tokio::test]
async fn key_backups_have_quotas_of_number_of_keys_and_of_bytes() {
    let quotas = Quotas { key_backups: 2, room_keys: 3, room_key_bytes: 1000, ..Quotas::default() };
    let world = World::new(quotas, &["ann"]).await;
    let begin = || SetBackup {
        user_id: user("ann"),
        version: None,
        algorithm: "a".to_owned(),
        auth_data: raw("{}"),
    };
    assert!(!world.is_over(begin()).await);
    assert!(!world.is_over(put(1, "one", key(300, 9))).await);
    assert!(!world.is_over(begin()).await);
    assert!(world.is_over(begin()).await);
    // Updating an existing backup still works.
    assert!(!world.is_over(SetBackup { version: Some(2), ..begin() }).await);
    for (session, key, is_over) in [
        ("one", key(300, 9), false),
        // The quota applies to both backups together.
        ("two", key(401, 9), true),
        ("two", key(400, 9), false),
        // This key is no better than the stored one, so nothing is written.
        ("two", key(900, 9), false),
        ("two", key(401, 8), true),
        ("two", key(300, 8), false),
        // One key too many.
        ("three", key(10, 9), true),
    ] {
        let size = key.session_data.get().len();
        assert_eq!(world.is_over(put(2, session, key)).await, is_over, "{session}: {size} bytes");
    }
    let (user_id, room_id) = (user("ann"), Some("!r:test".try_into().unwrap()));
    let session_id = Some("two".to_owned());
    world.done(RemoveKeys { user_id, version: 2, room_id, session_id }).await;
    assert!(!world.is_over(put(2, "three", key(10, 9))).await);
    world.done(DeleteBackup { user_id: user("ann"), version: 1 }).await;
    assert!(!world.is_over(begin()).await);
}

#[tokio::test]
async fn open_reports_are_limited() {
    let quotas = Quotas { reports: 2, ..Quotas::default() };
    let world = World::new(quotas, &["ann", "bob"]).await;
    let report = |name: &str| Report {
        reporter: user(name),
        subject: Subject::User(user("bob")),
        reason: None,
        score: None,
    };
    assert!(!world.is_over(report("ann")).await);
    assert!(!world.is_over(report("ann")).await);
    assert!(world.is_over(report("ann")).await);
    assert!(!world.is_over(report("bob")).await);
    let first = world.state().reports.all()[0].0;
    world.done(RemoveReport { report: first }).await;
    assert!(!world.is_over(report("ann")).await);
    assert!(world.is_over(report("ann")).await);
}

#[tokio::test]
async fn signatures_by_one_user_on_one_key_are_limited() {
    let world = World::new(Quotas::default(), &["ann", "bob"]).await;
    let sign = |by: &str, number: usize| SignKeys {
        user_id: user("ann"),
        by: user(by),
        signatures: BTreeMap::from([(
            "key".to_owned(),
            BTreeMap::from([(format!("ed25519:{number}"), "signature".to_owned())]),
        )]),
    };
    for number in 0..limits::SIGNATURES {
        assert!(!world.is_over(sign("bob", number)).await);
    }
    assert!(world.is_over(sign("bob", limits::SIGNATURES)).await);
    assert!(!world.is_over(sign("ann", 0)).await);
}

#[tokio::test]
async fn quotas_do_not_apply_to_exempt_users() {
    let quotas = Quotas {
        account_data_types: 0,
        filters: 0,
        devices: 1,
        rooms: 0,
        key_backups: 0,
        reports: 0,
        exempt: Exempt::who(|user_id| user_id.localpart() == "bridge"),
        ..Quotas::default()
    };
    let world = World::new(quotas, &["ann", "bridge"]).await;
    for (name, is_over) in [("ann", true), ("bridge", false)] {
        let user_id = user(name);
        let filter = CreateFilter { user_id: user_id.clone(), filter: raw("{}") };
        let (version, algorithm) = (None, "a".to_owned());
        let backup =
            SetBackup { user_id: user_id.clone(), version, algorithm, auth_data: raw("{}") };
        let subject = Subject::User(user("ann"));
        let report = Report { reporter: user_id, subject, reason: None, score: None };
        let found = [
            world.is_over(data(name, None, "a", "{}")).await,
            world.is_over(filter).await,
            world.is_over(login(name, "SECOND")).await,
            world.is_over(room(name, &[])).await,
            world.is_over(backup).await,
            world.is_over(report).await,
        ];
        assert_eq!(found, [is_over; 6], "{name}");
    }
}

#[tokio::test]
async fn a_server_notice_reaches_a_user_whose_quotas_are_used_up() {
    let quotas = Quotas {
        account_data_types: 0,
        invites: 0,
        rooms: 0,
        exempt: Exempt::who(|user_id| user_id.localpart() == "notices"),
        ..Quotas::default()
    };
    let world = World::new(quotas, &["ann", "notices"]).await;
    let open = OpenNoticeRoom {
        user_id: user("ann"),
        sender: user("notices"),
        room_id: "!notices:test".try_into().unwrap(),
        name: "Notices".to_owned(),
        ts: ts(),
    };
    let room_id = world.done(open).await;
    assert_eq!(world.state().usage.invites(&user("ann")), 1);
    let (state, room) = (world.state(), Some(&*room_id));
    let tags = world.engine.events().account_data(&state, &user("ann"), room, "m.tag", Offset::MAX);
    assert_eq!(tags.unwrap().unwrap().get(), r#"{"tags":{"m.server_notice":{}}}"#);
}

#[tokio::test]
async fn data_above_a_new_quota_stays_and_can_be_shrunk_and_deleted() {
    let world = World::new(Quotas::default(), &["ann"]).await;
    let long = format!("{{\"a\":{:?}}}", "x".repeat(500));
    for kind in ["a", "b", "c"] {
        world.done(data("ann", None, kind, &long)).await;
        world.done(login("ann", kind)).await;
    }
    let quotas =
        Quotas { account_data_types: 1, account_data_bytes: 100, devices: 1, ..Quotas::default() };
    let world = world.again(quotas).await;
    let state = world.state();
    assert_eq!(state.usage.account_data(&user("ann")).count, 3);
    assert_eq!(state.accounts.get(&user("ann")).unwrap().read().device_count(), 4);
    let kept = world.engine.events().account_data(&state, &user("ann"), None, "a", Offset::MAX);
    assert_eq!(kept.unwrap().unwrap().get(), long);
    for (kind, content, is_over) in [
        ("a", &*long, false),
        ("a", &*long.replace('x', "yy"), true),
        ("a", "{}", false),
        ("b", "null", false),
        ("d", "{}", true),
    ] {
        assert_eq!(world.is_over(data("ann", None, kind, content)).await, is_over, "{kind}");
    }
    assert!(world.is_over(login("ann", "d")).await);
    assert!(!world.is_over(login("ann", "a")).await);
}

#[tokio::test]
async fn counts_survive_a_replay_and_a_snapshot() {
    let world = World::new(Quotas::default(), &["ann", "bob"]).await;
    let room_id = world.done(room("bob", &["ann"])).await;
    world.done(data("ann", Some(&room_id), "a", "{}")).await;
    world.done(CreateFilter { user_id: user("ann"), filter: raw("{}") }).await;
    world.done(login("ann", "SECOND")).await;
    let alias = SetAlias {
        alias: "#a:test".try_into().unwrap(),
        room_id,
        sender: user("bob"),
        of_service: false,
    };
    world.done(alias).await;
    world.done(send("bob", 0, &[("ann", "FIRST")])).await;
    let subject = Subject::User(user("ann"));
    world.done(Report { reporter: user("bob"), subject, reason: None, score: None }).await;
    let counts = |state: &State| {
        let (ann, bob) = (user("ann"), user("bob"));
        let usage = &state.usage;
        (
            (usage.account_data(&ann), usage.filter_bytes(&ann)),
            (usage.invites(&ann), usage.invites_by(&ann, &bob)),
            state.accounts.get(&ann).unwrap().read().device_count(),
            (state.aliases.count_by(&bob), state.memberships.count_present(&bob)),
            state.to_device.count(&ann, "FIRST".into(), bob.as_str()),
            state.reports.count_by(&bob),
        )
    };
    let live = counts(&world.state());
    assert_eq!(live.1, (1, 1));
    assert_eq!((live.2, live.3, live.4, live.5), (2, (1, 1), (1, 1), 1));
    assert_eq!(counts(&sections::copy(&world.state()).unwrap()), live);
    let world = world.again(Quotas::default()).await;
    assert_eq!(counts(&world.state()), live);
}
