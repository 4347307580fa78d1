//! The records that decisions about rooms write.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use std::sync::Arc;

use logcabin::{
    clock::Clock,
    decide::{
        Proposal, Refusal,
        create_room::{CreateRoom, InitialState, Preset, ROOM_VERSIONS},
        membership::{Change, ChangeMembership},
        send::SendEvent,
        upgrade::UpgradeRoom,
    },
    engine::{Engine, Options, ProposeError},
    log::{Log, memory::MemoryLog},
    record::{Command, Offset, Origin, Record, command::RoomEvent, lax_object::LaxObject},
    state::State,
};
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId,
    RoomVersionId, UInt, events::StateEventType,
};

/// When everything here happens, in milliseconds.
const NOW_MS: u64 = 1_700_000_000_000;

fn ts() -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::try_from(NOW_MS).unwrap())
}

struct World {
    engine: Engine,
    log: Arc<MemoryLog>,
    ann: OwnedUserId,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::manual(NOW_MS);
        let log = Arc::new(MemoryLog::with_records(clock.clone(), Vec::new()));
        let options = Options::small(clock);
        let engine = Engine::open(Arc::clone(&log) as Arc<dyn Log>, options).await.unwrap();
        Self { engine, log, ann: "@ann:test".try_into().unwrap() }
    }

    async fn propose<P: Proposal>(&self, proposal: P) -> Result<P::Outcome, ProposeError> {
        Ok(self.engine.propose(Origin::server(), proposal).await?.into_inner())
    }

    async fn room(&self, version: &RoomVersionId, initial_state: Vec<InitialState>) -> OwnedRoomId {
        let name = version.as_str();
        let create = CreateRoom {
            initial_state,
            name: Some("room".to_owned()),
            alias: Some(format!("#room{name}:test").try_into().unwrap()),
            public: true,
            ..CreateRoom::new(
                format!("!room{name}:test").try_into().unwrap(),
                self.ann.clone(),
                version.clone(),
                Preset::PublicChat,
                ts(),
            )
        };
        self.propose(create).await.unwrap()
    }

    fn upgrade(&self, room_id: &OwnedRoomId, version: &RoomVersionId) -> UpgradeRoom {
        UpgradeRoom {
            room_id: room_id.clone(),
            replacement: format!("!new{version}:test").try_into().unwrap(),
            version: version.clone(),
            additional_creators: Vec::new(),
            sender: self.ann.clone(),
            ts: ts(),
        }
    }

    fn records(&self) -> Vec<Record> {
        self.log.read(Offset::new(1), usize::MAX).unwrap()
    }

    /// The events of the last batches, from the record after `since`.
    fn events(&self, since: usize) -> Vec<RoomEvent> {
        let events = self.records().into_iter().skip(since);
        let events = events.filter_map(|record| match record.command().unwrap() {
            Some(Command::RoomEvent(body)) => Some(body),
            _ => None,
        });
        events.collect()
    }
}

/// The room that `room_id` says replaces it, if it does.
fn replacement(state: &State, events: &[RoomEvent], room_id: &OwnedRoomId) -> Option<OwnedRoomId> {
    let room = state.rooms.get(room_id)?;
    let offset = room.state_event(&StateEventType::RoomTombstone, "", Offset::MAX)?;
    assert!(offset > room.created);
    let tombstone = events.iter().find(|event| {
        event.room_id == *room_id && event.pdu.get().contains(r#""type":"m.room.tombstone""#)
    })?;
    let pdu: serde_json::Value = serde_json::from_str(tombstone.pdu.get()).unwrap();
    pdu["content"]["replacement_room"].as_str()?.try_into().ok()
}

#[tokio::test]
async fn a_tombstone_points_at_a_complete_room_wherever_the_log_ends() {
    for version in [RoomVersionId::V10, RoomVersionId::V12] {
        let world = World::new().await;
        let old = world.room(&RoomVersionId::V11, Vec::new()).await;
        let before = world.records().len();
        let new = world.propose(world.upgrade(&old, &version)).await.unwrap();
        let (records, events) = (world.records(), world.events(before));
        let state = State::default();
        let mut seen = 0;
        for record in &records {
            state.apply(record).unwrap();
            let Some(replacement) = replacement(&state, &events, &old) else { continue };
            seen += 1;
            assert_eq!(replacement, new);
            let room = state.rooms.get(&new).expect("the room is there before it is named");
            for event_type in [
                StateEventType::RoomCreate,
                StateEventType::RoomJoinRules,
                StateEventType::RoomName,
                StateEventType::RoomPowerLevels,
                StateEventType::RoomCanonicalAlias,
            ] {
                let event = room.state_event(&event_type, "", Offset::MAX);
                assert!(event.is_some(), "{event_type} at {}", record.offset());
            }
            assert!(room.is_joined(&world.ann, Offset::MAX));
        }
        assert!(seen >= 1, "there was no tombstone");
    }
}

#[tokio::test]
async fn two_concurrent_upgrades_create_two_rooms() {
    let world = World::new().await;
    let old = world.room(&RoomVersionId::V10, Vec::new()).await;
    let upgrade = || world.propose(world.upgrade(&old, &RoomVersionId::V12));
    let (first, second) = tokio::join!(upgrade(), upgrade());
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_ne!(first, second);
    // The alias is the later one's, and points at no room that is replaced.
    let alias = <&ruma::RoomAliasId>::try_from("#room10:test").unwrap();
    let target = world.engine.state().aliases.get(alias, Offset::MAX).unwrap().room_id;
    assert!([&first, &second].contains(&&target));
}

#[tokio::test]
async fn state_beyond_one_batch_is_not_carried_over_in_part() {
    let child = |number: usize| InitialState {
        event_type: "m.space.child".into(),
        state_key: format!("!child{number}:test"),
        content: CanonicalJsonObject::from([(
            "via".to_owned(),
            CanonicalJsonValue::Array(vec![CanonicalJsonValue::String("test".to_owned())]),
        )]),
    };
    let world = World::new().await;
    let old = world.room(&RoomVersionId::V10, (0..2001).map(child).collect()).await;
    let before = world.records().len();
    let refused = world.propose(world.upgrade(&old, &RoomVersionId::V11)).await;
    assert!(
        matches!(refused, Err(ProposeError::Refused(Refusal::TooLarge(_)))),
        "expected a refusal, got {refused:?}"
    );
    assert_eq!(world.records().len(), before);
}

#[tokio::test]
async fn an_event_of_65536_bytes_is_accepted_and_a_larger_one_is_not() {
    let world = World::new().await;
    for version in &ROOM_VERSIONS {
        let room_id = world.room(version, Vec::new()).await;
        let send = |bytes: usize| {
            let body = CanonicalJsonValue::String("x".repeat(bytes));
            world.propose(SendEvent {
                room_id: room_id.clone(),
                sender: world.ann.clone(),
                event_type: "m.room.message".into(),
                state_key: None,
                content: CanonicalJsonObject::from([("body".to_owned(), body)]).into(),
                redacts: None,
                transaction: None,
                ts: ts(),
            })
        };
        // The last event as another server gets it.
        let last_bytes = || {
            let event = world.events(0).pop().unwrap();
            let mut pdu: LaxObject = serde_json::from_str(event.pdu.get()).unwrap();
            let rules = version.rules().unwrap().redaction;
            world.engine.env().server.sign_event(&mut pdu, &rules).unwrap();
            serde_json::to_string(&pdu).unwrap().len()
        };
        // The ids of the events before it are as long each time, and so is what is around the text.
        send(1).await.unwrap();
        let around = last_bytes() - 1;
        let refused = send(65_536 - around + 1).await;
        assert!(
            matches!(refused, Err(ProposeError::Refused(Refusal::TooLarge(_)))),
            "version {version}: expected a refusal, got {refused:?}"
        );
        send(65_536 - around).await.unwrap();
        assert_eq!(last_bytes(), 65_536, "version {version}");
    }
}

#[tokio::test]
async fn a_change_without_effect_adds_no_record() {
    let world = World::new().await;
    let room_id = world.room(&RoomVersionId::V10, Vec::new()).await;
    let change = |change, reason: Option<&str>| {
        world.propose(ChangeMembership {
            reason: reason.map(ToOwned::to_owned),
            ..ChangeMembership::new(
                room_id.clone(),
                world.ann.clone(),
                "@bob:test".try_into().unwrap(),
                change,
                ts(),
            )
        })
    };
    for (kind, reason, adds) in [
        (Change::Invite, None, 1),
        (Change::Invite, None, 0),
        (Change::Invite, Some("please"), 1),
        (Change::Ban, None, 1),
        (Change::Ban, None, 0),
        (Change::Ban, Some("spam"), 1),
        (Change::Ban, Some("spam"), 0),
        (Change::Unban, None, 1),
    ] {
        let before = world.records().len();
        change(kind, reason).await.unwrap();
        assert_eq!(world.records().len(), before + adds, "{kind:?} {reason:?}");
    }
}
