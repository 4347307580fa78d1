//! Properties of searches: by timestamp, in a partly visible room.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

use std::sync::Arc;

use logcabin::{
    clock::Clock,
    decide::{
        account::Register,
        create_room::{CreateRoom, Preset, ROOM_VERSIONS},
        membership::{Change, ChangeMembership},
        send::SendEvent,
    },
    engine::{Engine, Options},
    events::Viewer,
    log::{Log, memory::MemoryLog},
    record::{Offset, Origin},
    view::View,
};
use proptest::prelude::*;
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId,
    UInt, api::Direction, device_id, events::TimelineEventType,
};

/// What happens in the room, each at some time.
#[derive(Clone, Debug)]
enum Step {
    Text(u64),
    Join(u64),
    Leave(u64),
    Visibility(u64, u8),
}

fn step() -> impl Strategy<Value = Step> {
    let ts = || prop_oneof![4 => 10..40_u64, 1 => 0..60_u64, 1 => Just(25_u64)];
    prop_oneof![
        6 => ts().prop_map(Step::Text),
        1 => ts().prop_map(Step::Join),
        1 => ts().prop_map(Step::Leave),
        1 => (ts(), 0..4_u8).prop_map(|(ts, to)| Step::Visibility(ts, to)),
    ]
}

fn at(ts: u64) -> MilliSecondsSinceUnixEpoch {
    MilliSecondsSinceUnixEpoch(UInt::try_from(ts).unwrap())
}

fn content(key: &str, value: &str) -> CanonicalJsonObject {
    let value = CanonicalJsonValue::String(value.to_owned());
    CanonicalJsonObject::from([(key.to_owned(), value)])
}

async fn engine() -> (Engine, OwnedUserId, OwnedUserId) {
    let clock = Clock::manual(1_700_000_000_000);
    let log: Arc<dyn Log> = Arc::new(MemoryLog::new(clock.clone()));
    let engine = Engine::open(log, Options::small(clock)).await.unwrap();
    let users = ["@ann:test", "@bob:test"].map(|id| OwnedUserId::try_from(id).unwrap());
    for user_id in &users {
        let register = Register::user(user_id.clone());
        let _ = engine.propose(Origin::server(), register).await.unwrap();
    }
    let [ann, bob] = users;
    (engine, ann, bob)
}

async fn play(steps: &[Step]) -> (Engine, OwnedUserId, OwnedRoomId) {
    let (engine, ann, bob) = engine().await;
    let create = CreateRoom::new(
        "!room:test".try_into().unwrap(),
        ann.clone(),
        ROOM_VERSIONS[ROOM_VERSIONS.len() - 2].clone(),
        Preset::PublicChat,
        at(20),
    );
    let room_id = engine.propose(Origin::server(), create).await.unwrap().into_inner();
    let send = |event_type: &str, state: bool, content: CanonicalJsonObject, ts| SendEvent {
        room_id: room_id.clone(),
        sender: ann.clone(),
        event_type: TimelineEventType::from(event_type),
        state_key: state.then(String::new),
        content: content.into(),
        redacts: None,
        transaction: None,
        ts: at(ts),
    };
    for step in steps {
        let change = |change, ts| {
            ChangeMembership::new(room_id.clone(), bob.clone(), bob.clone(), change, at(ts))
        };
        match *step {
            Step::Text(ts) => {
                let send = send("m.room.message", false, content("body", "x"), ts);
                let _ = engine.propose(Origin::server(), send).await.unwrap();
            }
            Step::Visibility(ts, to) => {
                let to = ["joined", "invited", "shared", "world_readable"][usize::from(to)];
                let content = content("history_visibility", to);
                let send = send("m.room.history_visibility", true, content, ts);
                let _ = engine.propose(Origin::server(), send).await.unwrap();
            }
            // A user who is in or out already stays so.
            Step::Join(ts) => {
                drop(engine.propose(Origin::server(), change(Change::Join, ts)).await)
            }
            Step::Leave(ts) => {
                drop(engine.propose(Origin::server(), change(Change::Leave, ts)).await)
            }
        }
    }
    (engine, bob, room_id)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever the clocks said and whatever the user may see.
    #[test]
    fn the_closest_event_agrees_with_a_linear_scan(
        steps in proptest::collection::vec(step(), 0..40),
    ) {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (engine, bob, room_id) = runtime.block_on(play(&steps));
        let room = engine.state().rooms.get(&room_id).unwrap();
        let head = engine.head().offset().get();
        for look_at in [head, head / 2] {
            let view = View {
                state: engine.state().share(),
                events: engine.events(),
                viewer: Viewer {
                    user_id: &bob,
                    device_id: device_id!("DEVICE"),
                    session: Offset::ZERO,
                    at: Offset::new(look_at),
                    now_ms: 0,
                },
            };
            let mut visible = Vec::new();
            for offset in room.events_forward(Offset::ZERO, view.at(), usize::MAX) {
                let event = engine.events().get(offset).unwrap().unwrap();
                if view.may_see(&room, &event).unwrap() {
                    visible.push((u64::from(event.origin_server_ts.get()), offset));
                }
            }
            for ts in 0..=61 {
                let found = |direction| {
                    view.closest_event(&room, ts, direction).unwrap().map(|event| event.offset)
                };
                let after = visible.iter().filter(|(time, _)| *time >= ts).min();
                prop_assert_eq!(found(Direction::Forward), after.map(|(_, o)| *o), "from {}", ts);
                let before = visible.iter().filter(|(time, _)| *time <= ts).max();
                prop_assert_eq!(found(Direction::Backward), before.map(|(_, o)| *o), "to {}", ts);
            }
        }
    }
}
