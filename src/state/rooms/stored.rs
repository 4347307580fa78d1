//! The serialized form of rooms.

use super::{servers::Claims, *};

/// The serialized form of a room: with parts that the digest covers separately or not at all.
pub(super) type KeptRoom =
    (OwnedRoomId, RoomVersionId, Offset, Inner, Relations, Offset, Graph, Gaps, Claims);

impl Serialize for Room {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let inner = self.inner.read();
        let Inner { relations, last_activity, graph, gaps, servers, .. } = &*inner;
        let (id, version, claims) = (&self.id, &self.version, &servers.claims);
        (id, version, self.created, &*inner, relations, last_activity, graph, gaps, claims)
            .serialize(serializer)
    }
}

impl TryFrom<KeptRoom> for Room {
    type Error = String;

    fn try_from(kept: KeptRoom) -> Result<Self, String> {
        let (id, version, created, mut inner, relations, last_activity, graph, gaps, claims) = kept;
        let rules =
            version.rules().ok_or_else(|| format!("room version `{version}` is unknown"))?;
        inner.relations = relations;
        inner.graph = graph;
        let gapped = Arc::new(AtomicBool::new(gaps.has_any()));
        inner.gaps = gaps;
        inner.last_activity = last_activity;
        for ((event_type, state_key), index) in inner.keys.iter().zip(0..) {
            let keys = inner.key_index.entry(event_type.clone()).or_default();
            keys.insert(state_key.clone(), index);
        }
        for (key, entry) in &inner.receipts {
            inner.moved.entry(entry.offset).or_default().push(Arc::clone(key));
        }
        inner.redaction_log = inner.redactions.iter().map(|(event, by)| (*by, *event)).collect();
        inner.redaction_log.sort_unstable();
        let Inner { relations, redactions, servers, members, .. } = &mut inner;
        relations.index(redactions);
        for (user_id, history) in members {
            history.latest().into_iter().for_each(|latest| servers.change(user_id, None, *latest));
        }
        servers.claim(claims);
        Ok(Self { id, version, rules, created, gapped, inner: Arc::new(RwLock::new(inner)) })
    }
}

/// Serializes rooms by id; each contains its id.
pub(super) mod by_id {
    use super::*;

    pub(in crate::rooms) fn serialize<S: Serializer>(
        rooms: &DashMap<OwnedRoomId, Arc<Room>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(in_order(rooms))
    }

    pub(in crate::rooms) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<DashMap<OwnedRoomId, Arc<Room>>, D::Error> {
        let rooms = Vec::<Room>::deserialize(deserializer)?;
        Ok(rooms.into_iter().map(|room| (room.id.clone(), Arc::new(room))).collect())
    }
}
