//! Rooms as earlier versions wrote them.

use super::*;

/// Without gaps.
#[derive(Deserialize)]
pub struct V2 {
    rooms: Vec<RoomOfV2>,
    public: BTreeSet<OwnedRoomId>,
    networks: BTreeMap<(String, String), BTreeSet<OwnedRoomId>>,
    lifetimes: Lifetimes,
}

type KeptInV2 = (OwnedRoomId, RoomVersionId, Offset, Inner, Relations, Offset, Graph);

#[derive(Deserialize)]
#[serde(try_from = "KeptInV2")]
struct RoomOfV2(Room);

impl TryFrom<KeptInV2> for RoomOfV2 {
    type Error = String;

    fn try_from(kept: KeptInV2) -> Result<Self, String> {
        let (id, version, created, inner, relations, last_activity, graph) = kept;
        let gaps = Gaps::default();
        let kept = (id, version, created, inner, relations, last_activity, graph, gaps);
        Room::try_from(kept).map(Self)
    }
}

impl From<V2> for Rooms {
    fn from(former: V2) -> Self {
        let V2 { rooms, public, networks, lifetimes } = former;
        let rooms = rooms.into_iter().map(|RoomOfV2(room)| (room.id.clone(), Arc::new(room)));
        Self {
            rooms: rooms.collect(),
            public: RwLock::new(public),
            networks: RwLock::new(networks),
            lifetimes,
        }
    }
}

/// Without event graphs.
#[derive(Deserialize)]
pub struct V1 {
    rooms: Vec<RoomOfV1>,
    public: BTreeSet<OwnedRoomId>,
    networks: BTreeMap<(String, String), BTreeSet<OwnedRoomId>>,
    lifetimes: Lifetimes,
}

type KeptInV1 = (OwnedRoomId, RoomVersionId, Offset, Inner, Relations, Offset);

#[derive(Deserialize)]
#[serde(try_from = "KeptInV1")]
struct RoomOfV1(Room);

impl TryFrom<KeptInV1> for RoomOfV1 {
    type Error = String;

    fn try_from(kept: KeptInV1) -> Result<Self, String> {
        let (id, version, created, inner, relations, last_activity) = kept;
        let graph = Graph::default();
        let kept = (id, version, created, inner, relations, last_activity, graph);
        RoomOfV2::try_from(kept).map(|RoomOfV2(room)| Self(room))
    }
}

impl From<V1> for Rooms {
    fn from(former: V1) -> Self {
        let V1 { rooms, public, networks, lifetimes } = former;
        let rooms = rooms.into_iter().map(|RoomOfV1(room)| (room.id.clone(), Arc::new(room)));
        Self {
            rooms: rooms.collect(),
            public: RwLock::new(public),
            networks: RwLock::new(networks),
            lifetimes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_of_earlier_versions_are_read() {
        let room_id: OwnedRoomId = "!r:test".try_into().unwrap();
        let rooms = Rooms::default();
        assert!(rooms.create(Offset::new(3), room_id.clone(), RoomVersionId::V11));
        rooms.public.write().insert(room_id.clone());
        let room = rooms.get(&room_id).unwrap();
        let inner = room.inner.read();
        let networks = BTreeMap::<(String, String), BTreeSet<OwnedRoomId>>::new();
        let public = BTreeSet::from([&room_id]);
        let (id, version, created) = (&room.id, &room.version, room.created);
        let (relations, last_activity) = (&inner.relations, Offset::new(7));
        let kept = vec![(id, version, created, &*inner, relations, last_activity)];
        let stored = postcard::to_allocvec(&(kept, &public, &networks, &rooms.lifetimes)).unwrap();
        let of_v1 = Rooms::from(postcard::from_bytes::<V1>(&stored).unwrap());
        let graph = &inner.graph;
        let kept = vec![(id, version, created, &*inner, relations, last_activity, graph)];
        let stored = postcard::to_allocvec(&(kept, &public, &networks, &rooms.lifetimes)).unwrap();
        let of_v2 = Rooms::from(postcard::from_bytes::<V2>(&stored).unwrap());
        for read in [of_v1, of_v2] {
            let room = read.get(&room_id).unwrap();
            assert_eq!((room.created, room.last_activity()), (Offset::new(3), Offset::new(7)));
            assert_eq!(read.public().len(), 1);
        }
    }
}
