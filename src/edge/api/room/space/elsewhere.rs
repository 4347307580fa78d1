//! Rooms that this homeserver is not in, as others describe them (server-server API, "Spaces").

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use quick_cache::{Weighter, sync::Cache};
use ruma::{
    OwnedRoomId, OwnedServerName, RoomId, ServerName, SpaceChildOrder, UserId,
    api::federation::space::SpaceHierarchyParentSummary,
    room::{JoinRuleSummary, RoomSummary},
    serde::Raw,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Look, to_raw};
use crate::{
    base::{canonical::is_readable, limits},
    edge::{
        api::Server,
        http::{ApiError, Caller, Cx, ErrorCode},
    },
    state::{Membership, Room},
};

/// A room as another homeserver describes it.
#[derive(Debug)]
pub(crate) struct Described {
    pub(super) summary: RoomSummary,
    /// In display order.
    pub(super) children: Vec<RemoteChild>,
}

/// A room in a space of others.
#[derive(Debug)]
pub(super) struct RemoteChild {
    pub(super) room_id: OwnedRoomId,
    pub(super) via: Vec<OwnedServerName>,
    pub(super) suggested: bool,
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

    pub(super) fn stripped<T>(&self) -> Raw<T> {
        Raw::from_json(self.event.clone())
    }

    /// Its size in a response, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.event.get().len()
    }
}

impl Described {
    fn new(said: SpaceHierarchyParentSummary) -> Self {
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
type Asked = (OwnedRoomId, Vec<OwnedServerName>);

/// What other homeservers said of rooms, or that nobody would say anything, for some minutes.
pub(crate) struct Descriptions(Cache<Asked, Description, ByWeight>);

#[derive(Clone)]
struct Description {
    said: Option<Arc<Described>>,
    until: Instant,
    weight: u64,
}

#[derive(Clone)]
struct ByWeight;

impl Weighter<Asked, Description> for ByWeight {
    fn weight(&self, (room_id, via): &Asked, description: &Description) -> u64 {
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
    pub(super) fn get(
        &self,
        room_id: &RoomId,
        via: &[OwnedServerName],
    ) -> Option<Option<Arc<Described>>> {
        let known = self.0.get(&(room_id.to_owned(), via.to_vec()));
        known.filter(|known| Instant::now() < known.until).map(|known| known.said)
    }

    fn keep(&self, asked: Asked, said: Option<Described>) {
        let time: Duration =
            if said.is_some() { limits::DESCRIPTION_TIME.0 } else { limits::DESCRIPTION_TIME.1 };
        let weight = said.as_ref().map_or(0, Described::weight) as u64;
        let until = Instant::now() + time;
        self.0.insert(asked, Description { said: said.map(Arc::new), until, weight });
    }
}

impl Look<'_> {
    /// Whether a room is looked up at other homeservers: this one federates and is not in it.
    pub(super) fn is_elsewhere(&self, room: Option<&Room>) -> bool {
        let Some(own) = self.federates_as else { return false };
        room.is_none_or(|room| !room.has_server(own) && !room.servers().is_empty())
    }

    /// Whether the user may see how others describe a room: they could join it, knock on it, or
    /// read it.
    pub(super) fn may_know_of_remote(&self, described: &Described) -> bool {
        let summary = &described.summary;
        let own = self.user_id.and_then(|user_id| {
            let room = self.state.rooms.get(&summary.room_id)?;
            room.membership(user_id, self.at).map(|(_, membership)| membership)
        });
        if summary.world_readable || own == Some(Membership::Invite) {
            return true;
        }
        match &summary.join_rule {
            JoinRuleSummary::Public | JoinRuleSummary::Knock => own != Some(Membership::Ban),
            JoinRuleSummary::Restricted(restricted)
            | JoinRuleSummary::KnockRestricted(restricted) => self.user_id.is_some_and(|user_id| {
                let mut allowed = restricted.allowed_room_ids.iter();
                allowed.any(|room_id| self.is_joined(user_id, room_id))
            }),
            _ => false,
        }
    }

    fn is_joined(&self, user_id: &UserId, room_id: &RoomId) -> bool {
        let room = self.state.rooms.get(room_id);
        room.is_some_and(|room| room.is_joined(user_id, self.at))
    }
}

impl<C: Caller> Cx<Server, C> {
    /// Asks homeservers for a room, one after the other, and remembers what they say.
    ///
    /// # Errors
    /// When the caller may not have them asked now.
    pub(super) async fn describe(
        &self,
        room_id: &RoomId,
        via: &[OwnedServerName],
    ) -> Result<(), ApiError> {
        let servers = via.iter().filter(|server| self.is_remote(server));
        let mut described = None;
        for server in servers.take(limits::HIERARCHY_VIA) {
            match self.remote_space(server, room_id).await {
                Ok(said) if said.summary.room_id == *room_id => {
                    described = Some(Described::new(said));
                    break;
                }
                Err(error) if matches!(error.code(), ErrorCode::LimitExceeded { .. }) => {
                    return Err(error);
                }
                _ => {}
            }
        }
        self.app.listing.descriptions.keep((room_id.to_owned(), via.to_vec()), described);
        Ok(())
    }
}

/// Homeservers that may know a room: those that are named, and that of the room's id.
pub(super) fn via(room_id: &RoomId, named: &[OwnedServerName]) -> Vec<OwnedServerName> {
    let own = room_id.server_name().map(ServerName::to_owned);
    let mut via = named.to_vec();
    via.extend(own.filter(|own| !named.contains(own)));
    via
}

#[cfg(test)]
mod tests {
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
