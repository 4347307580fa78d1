//! Several homeservers in one room that hear of each other's events late and in any order come to
//! the same state.

mod branches;
mod explained;
mod large_states;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use logcabin::{
    clock::Clock,
    decide::{
        account::Register,
        create_room::{CreateRoom, Preset},
        federation::{
            BeginRoom, EnterRoom, ReceiveOutcome, ReceivePdu, RemoteMembership, invitation,
            template,
        },
        send::SendEvent,
    },
    engine::{Engine, Options, ProposeError, replay},
    log::{Log, memory::MemoryLog},
    record::{Command, Offset, Origin, command::RoomEvent},
};
use proptest::prelude::*;
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId,
    OwnedServerName, OwnedUserId, RoomVersionId, UInt,
    events::{TimelineEventType, room::member::MembershipState},
    signatures::{content_hash, reference_hash},
};
use serde_json::{json, value::RawValue};

/// What one of the homeservers does, or hears.
#[derive(Clone, Debug)]
enum Step {
    Say(usize),
    Name(usize, u8),
    Topic(usize, u8),
    /// One sets another's membership.
    Member(usize, usize, u8),
    /// One sets another's level.
    Level(usize, usize, i64),
    /// One hears of some event that it has not heard of.
    Hear(usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let server = 0..3_usize;
    let step = prop_oneof![
        1 => server.clone().prop_map(Step::Say),
        2 => (server.clone(), 0..4_u8).prop_map(|(by, name)| Step::Name(by, name)),
        1 => (server.clone(), 0..4_u8).prop_map(|(by, topic)| Step::Topic(by, topic)),
        2 => (server.clone(), server.clone(), 0..4_u8)
            .prop_map(|(by, of, is)| Step::Member(by, of, is)),
        2 => (server.clone(), server.clone(), prop_oneof![Just(0), Just(50), Just(100)])
            .prop_map(|(by, of, level)| Step::Level(by, of, level)),
        5 => (server, 0..64_usize).prop_map(|(by, which)| Step::Hear(by, which)),
    ];
    proptest::collection::vec(step, 1..40)
}

type Sent = (OwnedEventId, Box<RawValue>);

struct Homeserver {
    name: OwnedServerName,
    user: OwnedUserId,
    log: Arc<dyn Log>,
    engine: Engine,
    /// The offset up to which its log was searched for news.
    told: Offset,
    /// What it has not heard of.
    unheard: Vec<Sent>,
}

impl Homeserver {
    async fn new(name: &str) -> Self {
        let clock = Clock::manual(1_770_000_000_000);
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
        let options = Options { server_name: name.try_into().unwrap(), ..Options::small(clock) };
        let engine = Engine::open(Arc::clone(&log), options).await.unwrap();
        let user: OwnedUserId = format!("@user:{name}").try_into().unwrap();
        let register = Register::user(user.clone());
        engine.propose(Origin::server(), register).await.unwrap().into_inner();
        let name = name.try_into().unwrap();
        Self { name, user, log, engine, told: Offset::ZERO, unheard: Vec::new() }
    }

    /// Its own events since the last call.
    fn news(&mut self) -> Vec<Sent> {
        let records = self.log.read(self.told.next(), usize::MAX).unwrap();
        self.told = records.last().map_or(self.told, |record| record.offset());
        let own = records.iter().filter_map(|record| match record.command() {
            Ok(Some(Command::RoomEvent(RoomEvent { event_id, pdu, received: None, .. }))) => {
                Some((event_id, pdu))
            }
            _ => None,
        });
        own.collect()
    }

    async fn send(
        &self,
        room_id: &OwnedRoomId,
        event_type: &str,
        state_key: Option<&str>,
        content: serde_json::Value,
    ) -> bool {
        self.send_at(ts(), room_id, event_type, state_key, content).await
    }

    async fn send_at(
        &self,
        ts: MilliSecondsSinceUnixEpoch,
        room_id: &OwnedRoomId,
        event_type: &str,
        state_key: Option<&str>,
        content: serde_json::Value,
    ) -> bool {
        let event = SendEvent {
            room_id: room_id.clone(),
            sender: self.user.clone(),
            event_type: TimelineEventType::from(event_type),
            state_key: state_key.map(ToOwned::to_owned),
            content: object(content).into(),
            redacts: None,
            transaction: None,
            ts,
        };
        self.engine.propose(Origin::server(), event).await.is_ok()
    }

    async fn hear(&self, room_id: &OwnedRoomId, sent: Sent) -> ReceiveOutcome {
        let receive = received(room_id, sent);
        loop {
            let taken = self.engine.propose(Origin::server(), receive.clone()).await;
            match taken.unwrap().into_inner() {
                ReceiveOutcome::Unprepared => receive.prepare(&self.engine.env(), &|| true),
                taken => return taken,
            }
        }
    }

    /// The events of the room, in the order in which they came.
    fn timeline(&self, room_id: &OwnedRoomId) -> Vec<Offset> {
        let room = self.engine.state().rooms.get(room_id).unwrap();
        room.events_forward(Offset::ZERO, Offset::MAX, usize::MAX)
    }

    /// The state of the room, by the ids of events.
    fn state(&self, room_id: &OwnedRoomId) -> BTreeMap<(String, String), OwnedEventId> {
        let room = self.engine.state().rooms.get(room_id).unwrap();
        let state = room.state_map(Offset::MAX).into_iter();
        let named = state.map(|(event_type, state_key, offset)| {
            let event = self.engine.events().get(offset).unwrap().unwrap();
            ((event_type.to_string(), state_key.to_string()), event.event_id.clone())
        });
        named.collect()
    }

    fn extremities(&self, room_id: &OwnedRoomId) -> BTreeSet<OwnedEventId> {
        let room = self.engine.state().rooms.get(room_id).unwrap();
        room.extremities().into_iter().map(|tip| tip.event_id).collect()
    }
}

/// An event of another homeserver.
fn received(room_id: &OwnedRoomId, (event_id, pdu): Sent) -> ReceivePdu {
    ReceivePdu {
        room_id: room_id.clone(),
        event_id,
        from: "elsewhere.test".try_into().unwrap(),
        pdu,
        as_outlier: false,
        is_placed: false,
        relayed: false,
        not_recommended: None,
    }
}

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::from(1_770_000_000_u32))
}

fn object(value: serde_json::Value) -> CanonicalJsonObject {
    serde_json::from_value(value).unwrap()
}

/// Turns a template into an event.
fn sealed(mut event: CanonicalJsonObject, version: &RoomVersionId) -> Sent {
    let text = |text: String| CanonicalJsonValue::String(text);
    let rules = version.rules().unwrap();
    if rules.event_format.require_event_id {
        let hash = reference_hash(&event, &rules).unwrap().replace('/', "_");
        event.insert("event_id".to_owned(), text(format!("${hash}:elsewhere.test")));
    }
    let hash = content_hash(&event).unwrap().encode();
    let hashes = CanonicalJsonObject::from([("sha256".to_owned(), text(hash))]);
    event.insert("hashes".to_owned(), CanonicalJsonValue::Object(hashes));
    let event_id = match event.get("event_id") {
        Some(chosen) => chosen.as_str().unwrap().to_owned(),
        None => format!("${}", reference_hash(&event, &rules).unwrap()),
    };
    let event_id = event_id.try_into().unwrap();
    (event_id, serde_json::value::to_raw_value(&event).unwrap())
}

/// Tells a homeserver of an invite to a room that it is not in.
async fn tell_of(
    server: &Homeserver,
    room_id: &OwnedRoomId,
    (event_id, pdu): &Sent,
    version: &RoomVersionId,
) -> Result<(), ProposeError> {
    let outside = RemoteMembership {
        room_id: room_id.clone(),
        version: version.clone(),
        from: "elsewhere.test".try_into().unwrap(),
        event_id: event_id.clone(),
        pdu: pdu.clone(),
        stripped: Vec::new(),
    };
    server.engine.propose(Origin::server(), outside).await.map(drop)
}

async fn begin(version: &RoomVersionId) -> (Vec<Homeserver>, OwnedRoomId) {
    let mut servers = Vec::new();
    for name in ["a.test", "b.test", "c.test"] {
        servers.push(Homeserver::new(name).await);
    }
    let others = servers[1..].iter().map(|server| (server.user.to_string(), json!(100)));
    let mut users: serde_json::Map<_, _> = others.collect();
    if *version != RoomVersionId::V12 {
        users.insert(servers[0].user.to_string(), json!(100));
    }
    let create = CreateRoom {
        power_levels: object(json!({ "users": users })),
        ..CreateRoom::new(
            "!room:a.test".try_into().unwrap(),
            servers[0].user.clone(),
            version.clone(),
            Preset::PublicChat,
            ts(),
        )
    };
    let created = servers[0].engine.propose(Origin::server(), create).await.unwrap();
    let room_id = created.into_inner();
    let (mut all, mut told) = (servers[0].news(), None);
    for number in 1..3 {
        if number == 2 {
            // It is invited by somebody who did not create the room, and whose homeserver claims
            // another version.
            let (env, by, of) = (servers[1].engine.env(), &servers[1].user, &servers[2].user);
            let content = object(json!({ "membership": "invite" }));
            let (_, invite) = invitation(&env, &room_id, by, of, content, ts()).unwrap();
            let invite = sealed(invite, version);
            for server in &servers[..2] {
                assert_eq!(server.hear(&room_id, invite.clone()).await, ReceiveOutcome::Accepted);
            }
            let is_other = *version != RoomVersionId::V6;
            let other = if is_other { RoomVersionId::V6 } else { RoomVersionId::V10 };
            for told in [&other, version, &other, version] {
                tell_of(&servers[2], &room_id, &invite, told).await.unwrap();
            }
            told = Some((invite.clone(), other));
            all.push(invite);
        }
        let join = {
            let (server, env) = (&servers[number], servers[0].engine.env());
            let is = MembershipState::Join;
            let (_, join) = template(&env, &room_id, &server.user, is, None, ts()).unwrap();
            sealed(join, version)
        };
        assert_eq!(servers[0].hear(&room_id, join.clone()).await, ReceiveOutcome::Accepted);
        let server = &servers[number];
        let from = servers[0].name.clone();
        let begin = BeginRoom {
            room_id: room_id.clone(),
            version: version.clone(),
            event_id: all[0].0.clone(),
            from: from.clone(),
            pdu: all[0].1.clone(),
        };
        server.engine.propose(Origin::server(), begin).await.unwrap().into_inner();
        if let Some((invite, other)) = &told {
            // The first event has settled it.
            tell_of(server, &room_id, invite, other).await.unwrap_err();
        }
        for (event_id, pdu) in &all[1..] {
            let outlier = ReceivePdu {
                room_id: room_id.clone(),
                event_id: event_id.clone(),
                from: from.clone(),
                pdu: pdu.clone(),
                as_outlier: true,
                is_placed: false,
                relayed: false,
                not_recommended: None,
            };
            let taken = server.engine.propose(Origin::server(), outlier).await.unwrap();
            let taken = taken.into_inner();
            assert!(matches!(taken, ReceiveOutcome::Outlier | ReceiveOutcome::Known), "{taken:?}");
        }
        let enter = EnterRoom {
            unverified: BTreeMap::new(),
            room_id: room_id.clone(),
            event_id: join.0.clone(),
            from,
            pdu: join.1.clone(),
            state: all.iter().map(|(event_id, _)| event_id.clone()).collect(),
        };
        server.engine.propose(Origin::server(), enter).await.unwrap().into_inner();
        for earlier in &servers[1..number] {
            assert_eq!(earlier.hear(&room_id, join.clone()).await, ReceiveOutcome::Accepted);
        }
        all.push(join);
    }
    for server in &mut servers {
        drop(server.news());
    }
    (servers, room_id)
}

/// Sends everybody what a homeserver did; they hear of it later.
fn tell(servers: &mut [Homeserver], by: usize) {
    let news = servers[by].news();
    for (number, server) in servers.iter_mut().enumerate() {
        if number != by {
            server.unheard.extend(news.iter().cloned());
        }
    }
}

/// Everybody hears of everything.
async fn hear_all(servers: &mut [Homeserver], room_id: &OwnedRoomId) {
    for server in servers {
        while !server.unheard.is_empty() {
            let before = server.unheard.len();
            for sent in std::mem::take(&mut server.unheard) {
                if let ReceiveOutcome::Missing { .. } = server.hear(room_id, sent.clone()).await {
                    server.unheard.push(sent);
                }
            }
            assert!(server.unheard.len() < before, "nothing new comes of hearing it again");
        }
    }
}

async fn run(version: RoomVersionId, steps: Vec<Step>) {
    let (mut servers, room_id) = begin(&version).await;
    let users: Vec<_> = servers.iter().map(|server| server.user.clone()).collect();
    for step in steps {
        let by = match step {
            Step::Say(by) => {
                servers[by].send(&room_id, "m.room.message", None, json!({ "body": "x" })).await;
                by
            }
            Step::Name(by, name) => {
                let content = json!({ "name": name.to_string() });
                servers[by].send(&room_id, "m.room.name", Some(""), content).await;
                by
            }
            Step::Topic(by, topic) => {
                let content = json!({ "topic": topic.to_string() });
                servers[by].send(&room_id, "m.room.topic", Some(""), content).await;
                by
            }
            Step::Member(by, of, is) => {
                let is = ["leave", "ban", "join", "leave"][usize::from(is)];
                let content = json!({ "membership": is });
                let of = users[of].as_str();
                servers[by].send(&room_id, "m.room.member", Some(of), content).await;
                by
            }
            Step::Level(by, of, level) => {
                let room = servers[by].engine.state().rooms.get(&room_id).unwrap();
                let levels = room.state_event(
                    &ruma::events::StateEventType::RoomPowerLevels,
                    "",
                    Offset::MAX,
                );
                let levels = servers[by].engine.events().get(levels.unwrap()).unwrap().unwrap();
                let mut levels: serde_json::Value = levels.content_as().unwrap();
                levels["users"][users[of].as_str()] = json!(level);
                servers[by].send(&room_id, "m.room.power_levels", Some(""), levels).await;
                by
            }
            Step::Hear(by, which) => {
                let server = &mut servers[by];
                if !server.unheard.is_empty() {
                    let sent = server.unheard.swap_remove(which % server.unheard.len());
                    if let ReceiveOutcome::Missing { .. } =
                        server.hear(&room_id, sent.clone()).await
                    {
                        server.unheard.push(sent);
                    }
                }
                continue;
            }
        };
        tell(&mut servers, by);
    }
    hear_all(&mut servers, &room_id).await;
    // An event that one of them soft-failed is a forward extremity only for the others. It is
    // included once they send something after it.
    let mut spoke = 0;
    for _ in 0..2 {
        for by in 0..servers.len() {
            let last = json!({ "body": "last" });
            spoke += usize::from(servers[by].send(&room_id, "m.room.message", None, last).await);
            tell(&mut servers, by);
            hear_all(&mut servers, &room_id).await;
        }
    }
    let (first, others) = servers.split_first().unwrap();
    for other in others {
        let same = first.extremities(&room_id) == other.extremities(&room_id);
        // A user who is no longer in the room cannot merge its forward extremities.
        assert!(same || spoke < 2 * servers.len(), "{spoke}");
        if same {
            assert_eq!(first.state(&room_id), other.state(&room_id));
        }
    }
    for server in &servers {
        explained::all(server, &room_id);
        branches::every_state_equals_the_reference(server, &room_id);
        let (replayed, _) = replay(&*server.log, |_, _| {}).unwrap();
        assert_eq!(replayed.digest(), server.engine.state().digest());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn servers_that_hear_of_the_same_events_in_any_order_agree_on_the_state(
        version in prop_oneof![
            Just(RoomVersionId::V1), Just(RoomVersionId::V2), Just(RoomVersionId::V6),
            Just(RoomVersionId::V10), Just(RoomVersionId::V12),
        ],
        steps in steps(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(version, steps));
    }
}
