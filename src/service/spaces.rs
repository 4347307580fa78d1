//! Spaces: rooms as other homeservers describe them (server-server API, "Spaces"), and where the
//! pages of a hierarchy ended.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use quick_cache::{Weighter, sync::Cache};
use ruma::{
    OwnedRoomId, OwnedServerName, RoomId, SpaceChildOrder,
    api::federation::space::SpaceHierarchyParentSummary, room::RoomSummary, serde::Raw,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::walks::Walk;
use logcabin_base::{canonical::is_readable, limits};
use logcabin_read::events::to_raw;
use logcabin_record::Offset;

/// A room as another homeserver describes it.
#[derive(Debug)]
pub struct Described {
    pub summary: RoomSummary,
    /// In display order.
    pub children: Vec<RemoteChild>,
}

/// A room in a space of others.
#[derive(Debug)]
pub struct RemoteChild {
    pub room_id: OwnedRoomId,
    pub via: Vec<OwnedServerName>,
    pub suggested: bool,
    event: Box<RawValue>,
}

impl RemoteChild {
    fn new(event: Box<RawValue>) -> Option<(impl Ord + use<>, Self)> {
        #[derive(Deserialize)]
        struct Stripped {
            state_key: OwnedRoomId,
            content: Content,
            origin_server_ts: u64,
        }
        #[derive(Deserialize)]
        struct Content {
            via: Vec<OwnedServerName>,
            #[serde(default)]
            order: Option<serde_json::Value>,
            #[serde(default)]
            suggested: bool,
        }
        let Stripped { state_key: room_id, content, origin_server_ts } =
            serde_json::from_str(event.get()).ok()?;
        let Content { mut via, order, suggested } = content;
        via.truncate(limits::HIERARCHY_VIA);
        let order = order.and_then(|order| order.as_str().map(ToOwned::to_owned));
        let order = order.filter(|order| SpaceChildOrder::parse(order).is_ok());
        let place = (order.is_none(), order, origin_server_ts, room_id.clone());
        (!via.is_empty()).then_some((place, Self { room_id, via, suggested, event }))
    }

    pub fn stripped<T>(&self) -> Raw<T> {
        Raw::from_json(self.event.clone())
    }

    /// Its size in a response, in bytes.
    pub fn bytes(&self) -> usize {
        self.event.get().len()
    }
}

impl Described {
    pub fn new(said: SpaceHierarchyParentSummary) -> Self {
        let SpaceHierarchyParentSummary { summary, children_state, .. } = said;
        let mut children: Vec<_> = children_state
            .into_iter()
            .take(limits::SPACE_CHILDREN)
            .map(Raw::into_json)
            .filter(|event| is_readable(event.get()))
            .filter_map(RemoteChild::new)
            .collect();
        children.sort_by(|(one, _), (other, _)| one.cmp(other));
        Self { summary, children: children.into_iter().map(|(_, child)| child).collect() }
    }

    fn weight(&self) -> usize {
        let children: usize = self.children.iter().map(|child| child.bytes() + 256).sum();
        to_raw(&self.summary).get().len() + children
    }
}

/// A room, and the homeservers that are asked for it: what one says is not believed of those who
/// ask another.
type DescriptionKey = (OwnedRoomId, Vec<OwnedServerName>);

/// What other homeservers said of rooms, or that nobody would say anything, for some minutes.
pub struct Descriptions(Cache<DescriptionKey, Description, ByWeight>);

#[derive(Clone)]
struct Description {
    said: Option<Arc<Described>>,
    until: Instant,
    weight: u64,
}

#[derive(Clone)]
struct ByWeight;

impl Weighter<DescriptionKey, Description> for ByWeight {
    fn weight(&self, (room_id, via): &DescriptionKey, description: &Description) -> u64 {
        let names: usize = via.iter().map(|server| server.as_str().len() + 32).sum();
        (room_id.as_str().len() + names) as u64 + 128 + description.weight
    }
}

impl Default for Descriptions {
    fn default() -> Self {
        Self(Cache::with_weighter(32, limits::DESCRIPTIONS_BYTES, ByWeight))
    }
}

impl Descriptions {
    /// What is known of a room; `None` if that is not known either.
    pub fn get(&self, room_id: &RoomId, via: &[OwnedServerName]) -> Option<Option<Arc<Described>>> {
        let known = self.0.get(&(room_id.to_owned(), via.to_vec()));
        known.filter(|known| Instant::now() < known.until).map(|known| known.said)
    }

    /// Remembers what was said of a room, or that nobody said anything.
    pub fn keep(&self, asked: DescriptionKey, said: Option<Described>) {
        let time: Duration =
            if said.is_some() { limits::DESCRIPTION_TIME.0 } else { limits::DESCRIPTION_TIME.1 };
        let weight = said.as_ref().map_or(0, Described::weight) as u64;
        let until = Instant::now() + time;
        self.0.insert(asked, Description { said: said.map(Arc::new), until, weight });
    }
}

/// A room to visit.
#[derive(Clone, Debug)]
pub struct Visit {
    pub room_id: OwnedRoomId,
    /// Homeservers that may know it.
    pub via: Vec<OwnedServerName>,
    pub depth: u64,
}

/// The position of a paused walk.
#[derive(Clone, Debug, Default)]
pub struct Paused {
    /// Rooms to visit, next one last.
    pub stack: Vec<Visit>,
    /// The rooms that were visited, by their `created`.
    pub seen: HashSet<Offset>,
    /// The rooms of others that were visited.
    pub seen_elsewhere: HashSet<OwnedRoomId>,
    /// The number of rooms that it has passed.
    pub passed: usize,
    /// The number of rooms and children that were examined.
    pub looks: usize,
}

impl Walk for Paused {
    fn weight(&self) -> u64 {
        let visits = self.stack.iter();
        let stack: usize =
            visits.map(|visit| visit.room_id.as_str().len() + 72 + 48 * visit.via.len()).sum();
        (stack + self.seen.capacity() * 16 + self.seen_elsewhere.capacity() * 80) as u64
    }
}

#[cfg(test)]
mod tests {
    use ruma::room::JoinRuleSummary;
    use serde_json::{json, value::to_raw_value};

    use super::*;

    #[test]
    fn children_come_in_order_and_those_without_servers_are_left_out() {
        let child = |id: &str, order: Option<&str>, ts: u64, via: &[&str]| {
            let event = json!({
                "type": "m.space.child", "state_key": id, "sender": "@a:b", "origin_server_ts": ts,
                "content": { "via": via, "order": order },
            });
            Raw::from_json(to_raw_value(&event).unwrap())
        };
        let summary = RoomSummary::new(
            "!space:b".try_into().unwrap(),
            JoinRuleSummary::Public,
            false,
            1_u32.into(),
            false,
        );
        let said = SpaceHierarchyParentSummary::new(
            summary,
            vec![
                child("!late:b", None, 2, &["b"]),
                child("!early:b", None, 1, &["b"]),
                child("!removed:b", Some("a"), 1, &[]),
                child("!first:b", Some("b"), 9, &["b", "c"]),
            ],
        );
        let described = Described::new(said);
        let ids: Vec<_> = described.children.iter().map(|child| child.room_id.as_str()).collect();
        assert_eq!(ids, ["!first:b", "!early:b", "!late:b"]);
        let descriptions = Descriptions::default();
        let room_id = RoomId::parse("!space:b").unwrap();
        let via = ["b", "c"].map(|server| vec![OwnedServerName::try_from(server).unwrap()]);
        let get = |via: &Vec<OwnedServerName>| descriptions.get(&room_id, via);
        assert!(get(&via[0]).is_none());
        descriptions.keep((room_id.clone(), via[0].clone()), None);
        assert!(get(&via[0]).is_some_and(|said| said.is_none()));
        descriptions.keep((room_id.clone(), via[0].clone()), Some(described));
        assert!(get(&via[0]).flatten().is_some());
        assert!(get(&via[1]).is_none(), "it is what another homeserver said");
    }
}
