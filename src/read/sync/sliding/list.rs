//! The lists of a connection: a user's rooms that pass a filter, most recently active first.
//!
//! A list is kept and updated with the log: only changed rooms are examined again.

use std::{collections::HashSet, sync::Arc};

use parking_lot::RwLock;
use ruma::{OwnedRoomId, RoomId, events::StateEventType};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::rules::Filters;
use crate::{invites::INVITE_RULES, view::View};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Account, Membership, Room, RoomMembership};

/// The rooms of one list.
#[derive(Debug)]
pub(super) struct Order {
    filters: Filters,
    /// The offset of the list.
    at: Offset,
    /// The rooms with the offsets that they are sorted by, newest first.
    rooms: Vec<(Offset, Arc<Room>)>,
    /// The rooms in the spaces of the filter.
    in_spaces: HashSet<OwnedRoomId>,
}

/// What the filters need to know about the user.
#[derive(Clone, Copy, Debug)]
pub(super) struct FilterInput<'a> {
    pub(super) account: Option<&'a RwLock<Account>>,
    pub(super) direct: &'a HashSet<OwnedRoomId>,
}

/// A room of the user that may have changed.
#[derive(Clone, Debug)]
pub(super) struct ChangedRoom {
    pub(super) part: RoomMembership,
    pub(super) room: Arc<Room>,
}

impl Order {
    /// The list as of the view's offset, built from all of the user's rooms.
    pub(super) fn new(
        view: &View<'_>,
        filters: &Filters,
        facts: FilterInput<'_>,
    ) -> Result<Self, ReadError> {
        let mut order = Self {
            filters: filters.clone(),
            at: view.at(),
            rooms: Vec::new(),
            in_spaces: in_spaces(view, filters.spaces.as_deref().unwrap_or_default())?,
        };
        for part in view.state.memberships.of(view.user_id(), view.at()) {
            if let Some(room) = view.state.rooms.get(&part.room_id)
                && let Some(place) = order.place(view, &part, &room, facts)?
            {
                order.rooms.push((place, room));
            }
        }
        order.rooms.sort_unstable_by_key(|(place, _)| std::cmp::Reverse(*place));
        order.rooms.shrink_to_fit();
        Ok(order)
    }

    /// Whether [`Order::follow`] can update it to the view's offset, given the rooms that were
    /// touched after `since`: if the filter is the same, the list is neither too old nor newer than
    /// the view, and none of its spaces was touched.
    pub(super) fn can_follow(
        &self,
        view: &View<'_>,
        filters: &Filters,
        since: Offset,
        touched: &[ChangedRoom],
    ) -> bool {
        let spaces = filters.spaces.as_deref().unwrap_or_default();
        self.filters == *filters
            && (since..=view.at()).contains(&self.at)
            && !touched.iter().any(|touched| spaces.contains(&touched.room.id))
    }

    /// Updates the list to the view's offset, given all of the user's rooms that may have changed.
    pub(super) fn follow(
        &mut self,
        view: &View<'_>,
        touched: &[ChangedRoom],
        facts: FilterInput<'_>,
    ) -> Result<(), ReadError> {
        for ChangedRoom { part, room } in touched {
            let place = self.place(view, part, room, facts)?;
            if let Some(old) = self.index(room) {
                self.rooms.remove(old);
            }
            if let Some(place) = place {
                let new = self.rooms.partition_point(|(other, _)| *other > place);
                self.rooms.insert(new, (place, Arc::clone(room)));
            }
        }
        self.at = view.at();
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.rooms.len()
    }

    pub(super) fn rooms(&self, from: usize, to: usize) -> impl Iterator<Item = &Arc<Room>> {
        let to = to.min(self.rooms.len());
        self.rooms[from.min(to)..to].iter().map(|(_, room)| room)
    }

    /// The room's index in the list.
    pub(super) fn index(&self, room: &Room) -> Option<usize> {
        // A room known only from other homeservers may be replaced by one of the right version.
        self.rooms.iter().position(|(_, other)| room.id == other.id)
    }

    /// The offset that the room is sorted by, if it passes the filter.
    fn place(
        &self,
        view: &View<'_>,
        part: &RoomMembership,
        room: &Room,
        facts: FilterInput<'_>,
    ) -> Result<Option<Offset>, ReadError> {
        let place = match part.membership {
            Membership::Join => room.last_event(view.at()),
            Membership::Invite => view.shows_invite(part)?.then_some(part.offset),
            Membership::Knock => Some(part.offset),
            Membership::Leave | Membership::Ban => stays(view, part, room)?.then_some(part.offset),
        };
        let wanted = place.is_some() && self.wants(view, part, room, facts)?;
        Ok(place.filter(|_| wanted))
    }

    fn wants(
        &self,
        view: &View<'_>,
        part: &RoomMembership,
        room: &Room,
        facts: FilterInput<'_>,
    ) -> Result<bool, ReadError> {
        let filters = &self.filters;
        let is = |wanted: Option<bool>, is: &dyn Fn() -> bool| wanted.is_none_or(|w| w == is());
        // A user who is not in the room sees it as of the event that made it so.
        let seen = if part.membership == Membership::Join { view.at() } else { part.offset };
        let encryption = || room.state_event(&StateEventType::RoomEncryption, "", seen).is_some();
        if !is(filters.is_invite, &|| part.membership == Membership::Invite)
            || !is(filters.is_dm, &|| facts.direct.contains(&room.id))
            || !is(filters.is_encrypted, &encryption)
            || (filters.spaces.is_some() && !self.in_spaces.contains(&room.id))
        {
            return Ok(false);
        }
        if filters.room_types.is_some() || filters.not_room_types.is_some() {
            let create = StateEventType::RoomCreate;
            let room_type = view.events.state_text(room, &create, "type", seen)?;
            if filters.not_room_types.as_ref().is_some_and(|types| types.contains(&room_type))
                || filters.room_types.as_ref().is_some_and(|types| !types.contains(&room_type))
            {
                return Ok(false);
            }
        }
        if filters.tags.is_some() || filters.not_tags.is_some() {
            let tags = tags(view, &room.id)?;
            let any = |names: &[String]| names.iter().any(|name| tags.contains_key(name));
            if filters.not_tags.as_deref().is_some_and(any)
                || filters.tags.as_deref().is_some_and(|names| !any(names))
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Whether a room stays in the lists although the user is not in it: if they were removed by
/// somebody else, until they forget it.
pub(super) fn stays(
    view: &View<'_>,
    part: &RoomMembership,
    room: &Room,
) -> Result<bool, ReadError> {
    if part.forgotten || room.departed(view.user_id(), part.offset).is_none() {
        return Ok(false);
    }
    let event = view.events.get(part.offset)?;
    Ok(event.is_some_and(|event| event.sender != view.user_id()))
}

/// Whether the user changed whose invites they accept after `since`, up to and including `to`: then
/// any invite may appear or disappear.
pub(super) fn takes_other_invites(account: &Account, since: Offset, to: Offset) -> bool {
    ["m.ignored_user_list"].into_iter().chain(INVITE_RULES).any(|event_type| {
        let history = account.account_data.get(&(None, event_type.to_owned()));
        history.is_some_and(|history| history.between(since, to).next().is_some())
    })
}

/// The rooms in the user's `m.direct` as of `at`.
pub(super) fn direct(view: &View<'_>, at: Offset) -> Result<HashSet<OwnedRoomId>, ReadError> {
    let content = account_data(view, None, "m.direct", at)?;
    let rooms = content.values().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    Ok(rooms.filter_map(|room_id| room_id.try_into().ok()).collect())
}

/// When the user's `m.direct` changed after `since`, up to and including `to`.
pub(super) fn direct_changes(account: &Account, since: Offset, to: Offset) -> Vec<Offset> {
    let history = account.account_data.get(&(None, "m.direct".to_owned()));
    history.map_or_else(Vec::new, |history| {
        history.between(since, to).map(|(offset, ())| offset).collect()
    })
}

fn tags(view: &View<'_>, room_id: &RoomId) -> Result<Map<String, Value>, ReadError> {
    let mut content = account_data(view, Some(room_id), "m.tag", view.at())?;
    match content.remove("tags") {
        Some(Value::Object(tags)) => Ok(tags),
        _ => Ok(Map::new()),
    }
}

/// The content of the user's account data of this type as of `at`; empty if there is none.
fn account_data(
    view: &View<'_>,
    room_id: Option<&RoomId>,
    event_type: &str,
    at: Offset,
) -> Result<Map<String, Value>, ReadError> {
    let content = view.events.account_data(&view.state, view.user_id(), room_id, event_type, at)?;
    let content = content.and_then(|content| serde_json::from_str(content.get()).ok());
    Ok(content.unwrap_or_default())
}

/// The children of those `spaces` that the user is joined to.
fn in_spaces(view: &View<'_>, spaces: &[OwnedRoomId]) -> Result<HashSet<OwnedRoomId>, ReadError> {
    #[derive(Deserialize)]
    struct Child {
        #[serde(default)]
        via: Vec<String>,
    }
    let mut children = HashSet::new();
    for space in spaces {
        let Some(space) = view.state.rooms.get(space) else { continue };
        if !space.is_joined(view.user_id(), view.at()) {
            continue;
        }
        let offsets = space.state_like(Some(&StateEventType::SpaceChild), None, view.at());
        for event in view.events.get_all(&offsets)? {
            let event = crate::events::as_shown(&space, event, view.at());
            // A child without servers was removed.
            if event.content_as::<Child>().is_ok_and(|child| !child.via.is_empty())
                && let Some(Ok(child)) = event.state_key.as_deref().map(TryInto::try_into)
            {
                children.insert(child);
            }
        }
    }
    Ok(children)
}
