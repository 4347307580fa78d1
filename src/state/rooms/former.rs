//! Rooms as earlier versions wrote them.

use super::*;

/// All rooms, each in an earlier form.
#[derive(Deserialize)]
pub(crate) struct Former<R> {
    rooms: Vec<R>,
    public: BTreeSet<OwnedRoomId>,
    networks: BTreeMap<(String, String), BTreeSet<OwnedRoomId>>,
    lifetimes: Lifetimes,
}

impl<R: Into<Room>> From<Former<R>> for Rooms {
    fn from(former: Former<R>) -> Self {
        let Former { rooms, public, networks, lifetimes } = former;
        let rooms = rooms.into_iter().map(R::into);
        Self {
            rooms: rooms.map(|room| (room.id.clone(), Arc::new(room))).collect(),
            public: RwLock::new(public),
            networks: RwLock::new(networks),
            lifetimes,
        }
    }
}

/// Without claimed joins.
pub(crate) type V3 = Former<RoomOfV3>;

type KeptInV3 = (OwnedRoomId, RoomVersionId, Offset, Inner, Relations, Offset, Graph, Gaps);

#[derive(Deserialize)]
#[serde(try_from = "KeptInV3")]
pub(crate) struct RoomOfV3(Room);

impl TryFrom<KeptInV3> for RoomOfV3 {
    type Error = String;

    fn try_from(kept: KeptInV3) -> Result<Self, String> {
        let (id, version, created, inner, relations, last_activity, graph, gaps) = kept;
        let claims = servers::Claims::default();
        let kept = (id, version, created, inner, relations, last_activity, graph, gaps, claims);
        Room::try_from(kept).map(Self)
    }
}

impl From<RoomOfV3> for Room {
    fn from(RoomOfV3(room): RoomOfV3) -> Self {
        room
    }
}

/// Without gaps, too.
pub(crate) type V2 = Former<RoomOfV2>;

type KeptInV2 = (OwnedRoomId, RoomVersionId, Offset, Inner, Relations, Offset, Graph);

#[derive(Deserialize)]
#[serde(try_from = "KeptInV2")]
pub(crate) struct RoomOfV2(RoomOfV3);

impl TryFrom<KeptInV2> for RoomOfV2 {
    type Error = String;

    fn try_from(kept: KeptInV2) -> Result<Self, String> {
        let (id, version, created, inner, relations, last_activity, graph) = kept;
        let gaps = Gaps::default();
        let kept = (id, version, created, inner, relations, last_activity, graph, gaps);
        RoomOfV3::try_from(kept).map(Self)
    }
}

impl From<RoomOfV2> for Room {
    fn from(RoomOfV2(room): RoomOfV2) -> Self {
        room.into()
    }
}

/// Without event graphs, too.
pub(crate) type V1 = Former<RoomOfV1>;

type KeptInV1 = (OwnedRoomId, RoomVersionId, Offset, Inner, Relations, Offset);

#[derive(Deserialize)]
#[serde(try_from = "KeptInV1")]
pub(crate) struct RoomOfV1(RoomOfV2);

impl TryFrom<KeptInV1> for RoomOfV1 {
    type Error = String;

    fn try_from(kept: KeptInV1) -> Result<Self, String> {
        let (id, version, created, inner, relations, last_activity) = kept;
        let graph = Graph::default();
        let kept = (id, version, created, inner, relations, last_activity, graph);
        RoomOfV2::try_from(kept).map(Self)
    }
}

impl From<RoomOfV1> for Room {
    fn from(RoomOfV1(room): RoomOfV1) -> Self {
        room.into()
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
        let gaps = &inner.gaps;
        let kept = vec![(id, version, created, &*inner, relations, last_activity, graph, gaps)];
        let stored = postcard::to_allocvec(&(kept, &public, &networks, &rooms.lifetimes)).unwrap();
        let of_v3 = Rooms::from(postcard::from_bytes::<V3>(&stored).unwrap());
        for read in [of_v1, of_v2, of_v3] {
            let room = read.get(&room_id).unwrap();
            assert_eq!((room.created, room.last_activity()), (Offset::new(3), Offset::new(7)));
            assert_eq!(read.public().len(), 1);
        }
    }
}
