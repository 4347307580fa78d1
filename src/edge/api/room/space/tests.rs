use futures_util::future::join_all;
use ruma::{MilliSecondsSinceUnixEpoch, OwnedUserId, RoomVersionId, events::TimelineEventType};
use serde_json::json;

use super::*;
use logcabin_base::{clock::Clock, work};
use logcabin_decide::{
    account::Register,
    create_room::{CreateRoom, Preset},
    send::SendEvent,
};
use logcabin_engine::{Engine, Options};
use logcabin_log::memory::MemoryLog;
use logcabin_record::Origin;

struct World {
    engine: Engine,
    ann: OwnedUserId,
}

impl World {
    async fn new() -> Self {
        let clock = Clock::manual(1);
        let options = Options { event_cache_bytes: 1 << 24, ..Options::small(clock.clone()) };
        let engine = Engine::open(Arc::new(MemoryLog::new(clock)), options).await.unwrap();
        let ann: OwnedUserId = "@ann:test".try_into().unwrap();
        let register = Register::user(ann.clone());
        engine.propose(Origin::server(), register).await.unwrap().into_inner();
        Self { engine, ann }
    }

    async fn room(&self, name: &str, creation_content: serde_json::Value) -> OwnedRoomId {
        let create = CreateRoom {
            creation_content: serde_json::from_value(creation_content).unwrap(),
            ..CreateRoom::new(
                format!("!{name}:test").try_into().unwrap(),
                self.ann.clone(),
                RoomVersionId::V10,
                Preset::PublicChat,
                MilliSecondsSinceUnixEpoch(1_u32.into()),
            )
        };
        self.engine.propose(Origin::server(), create).await.unwrap().into_inner()
    }

    async fn space(&self) -> OwnedRoomId {
        self.room("space", json!({ "type": "m.space" })).await
    }

    async fn add(&self, space: &RoomId, child: &str, via: &str) {
        let add = SendEvent {
            room_id: space.to_owned(),
            sender: self.ann.clone(),
            event_type: TimelineEventType::SpaceChild,
            state_key: Some(child.to_owned()),
            content: serde_json::from_value(json!({ "via": [via] })).unwrap(),
            redacts: None,
            transaction: None,
            ts: MilliSecondsSinceUnixEpoch(1_u32.into()),
        };
        drop(self.engine.propose(Origin::server(), add).await.unwrap().into_inner());
    }

    /// Up to `limit` rooms of a walk, its positions before and after, and the number of examined
    /// items.
    fn page(
        &self,
        walk: &Walk,
        from: Option<&Paused>,
        limit: usize,
    ) -> (Vec<OwnedRoomId>, Option<Paused>, u64) {
        let state = self.engine.state();
        let (at, events) = (self.engine.head().offset(), self.engine.events());
        let user_id = Some(&*self.ann);
        let look =
            SpaceView { state: &state, events, user_id, sees_all: false, at, federates_as: None };
        let descriptions = Descriptions::default();
        let (page, looks) = work::counted(|| {
            let mut rooms = walk.rooms(look, look, &descriptions, from).unwrap();
            let mut page = Vec::new();
            while let Some((next, depth)) = rooms.advance().unwrap() {
                if page.len() == limit {
                    rooms.put_back(next, depth);
                    return (page, Some(rooms.state));
                }
                let chunk = rooms.open(&next, depth).unwrap().unwrap();
                page.push(chunk.rooms.summary.room_id);
            }
            (page, None)
        });
        (page.0, page.1, looks)
    }
}

#[tokio::test]
async fn the_cost_of_a_page_does_not_depend_on_its_position() {
    let world = World::new().await;
    let root = world.space().await;
    let leaves = join_all((0..60).map(|number| {
        let world = &world;
        async move { world.room(&format!("leaf{number:02}"), json!({})).await }
    }))
    .await;
    for leaf in &leaves {
        world.add(&root, leaf.as_str(), "test").await;
    }
    let walk = Walk { root, suggested_only: false, max_depth: None, sees_all: false };
    let whole = world.page(&walk, None, usize::MAX).0;
    assert_eq!(whole.len(), 61);
    let (mut seen, first, _) = world.page(&walk, None, 5);
    let (mut paused, mut most) = (first, 0);
    while let Some(from) = &paused {
        let (rooms, next, looks) = world.page(&walk, Some(from), 5);
        seen.extend(rooms);
        (paused, most) = (next, most.max(looks));
    }
    assert_eq!(seen, whole);
    assert!(most < 60, "{most} looks for five rooms");
}

#[tokio::test]
async fn a_space_with_large_child_events_shows_the_newest_ones() {
    let world = World::new().await;
    let root = world.space().await;
    let via = "x".repeat(60_000);
    for number in 0..40 {
        world.add(&root, &format!("!child{number}:test"), &via).await;
    }
    let state = world.engine.state();
    let (at, events) = (world.engine.head().offset(), world.engine.events());
    let user_id = Some(&*world.ann);
    let look =
        SpaceView { state: &state, events, user_id, sees_all: false, at, federates_as: None };
    let descriptions = Descriptions::default();
    let walk = Walk { root: root.clone(), suggested_only: false, max_depth: None, sees_all: false };
    let mut rooms = walk.rooms(look, look, &descriptions, None).unwrap();
    let Some((Next::Here(room), _)) = rooms.advance().unwrap() else { panic!("no room") };
    let children = rooms.children(&room).unwrap();
    let bytes: usize = children.iter().map(Child::bytes).sum();
    assert!(bytes <= limits::SPACE_CHILDREN_BYTES + 40 * 1024, "{bytes}");
    let has = |name: &str| children.iter().any(|child| child.room_id == name);
    assert!(has("!child39:test") && !has("!child0:test") && children.len() > 30);
}
