//! The summary of a room, from which clients compute a name: the member counts and some members
//! (client-server API, "Room Summary").

use ruma::{OwnedUserId, UserId, events::StateEventType};

use crate::{events::EventStore, view::View};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Membership, Room};

/// The number of heroes (client-server API, `m.heroes`).
const HEROES: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// The members that name the room, in the order in which they joined; `None` for a room with a
    /// name.
    pub(super) heroes: Option<Vec<OwnedUserId>>,
    /// The number of joined members.
    pub(super) joined: u64,
    /// The number of invited members.
    pub(super) invited: u64,
}

impl Summary {
    /// The summary for the viewer.
    pub(super) fn of(view: &View<'_>, room: &Room) -> Result<Self, ReadError> {
        let at = view.at();
        let counts = room.counts(at);
        let heroes = heroes(view.events, room, view.user_id(), at)?;
        Ok(Self { heroes, joined: counts.joined, invited: counts.invited })
    }

    /// Whether the summary of the room may have changed after `since`.
    pub(super) fn changed(view: &View<'_>, room: &Room, since: Offset) -> bool {
        let renamed = |event_type| {
            room.state_event(&event_type, "", view.at()).is_some_and(|offset| offset > since)
        };
        room.counts_changed(since, view.at())
            || renamed(StateEventType::RoomName)
            || renamed(StateEventType::RoomCanonicalAlias)
    }
}

/// The members that name a room for this user as of `at`, in the order in which they joined; `None`
/// for a room with a name.
pub fn heroes(
    events: &EventStore,
    room: &Room,
    user_id: &UserId,
    at: Offset,
) -> Result<Option<Vec<OwnedUserId>>, ReadError> {
    let text = |event_type, field| events.state_text(room, &event_type, field, at);
    if text(StateEventType::RoomName, "name")?.is_some()
        || text(StateEventType::RoomCanonicalAlias, "alias")?.is_some()
    {
        return Ok(None);
    }
    let others = |membership| {
        let members = room.members(membership, at).into_iter();
        members.filter(|(other, _)| other != user_id)
    };
    let mut heroes: Vec<_> = others(Membership::Join).chain(others(Membership::Invite)).collect();
    if heroes.is_empty() {
        heroes = others(Membership::Leave).chain(others(Membership::Ban)).collect();
    }
    heroes.sort_unstable_by_key(|(_, offset)| *offset);
    heroes.truncate(HEROES);
    Ok(Some(heroes.into_iter().map(|(user_id, _)| user_id).collect()))
}
