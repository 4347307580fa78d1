//! The summary of a room, from which clients compute a name: the member counts and some members
//! (client-server API, "Room Summary").

use ruma::{OwnedUserId, events::StateEventType};

use crate::{
    log::ReadError,
    read::view::View,
    record::Offset,
    state::{Membership, Room},
};

/// The number of heroes (client-server API, `m.heroes`).
const HEROES: usize = 5;

/// The summary of a room.
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
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(super) fn of(view: &View<'_>, room: &Room) -> Result<Self, ReadError> {
        let at = view.at();
        let counts = room.counts(at);
        let text = |event_type, field| view.events.state_text(room, &event_type, field, at);
        let named = text(StateEventType::RoomName, "name")?.is_some()
            || text(StateEventType::RoomCanonicalAlias, "alias")?.is_some();
        let heroes = (!named).then(|| heroes(view, room));
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

fn heroes(view: &View<'_>, room: &Room) -> Vec<OwnedUserId> {
    let others = |membership| {
        let members = room.members(membership, view.at()).into_iter();
        members.filter(|(user_id, _)| user_id != view.user_id())
    };
    let mut heroes: Vec<_> = others(Membership::Join).chain(others(Membership::Invite)).collect();
    if heroes.is_empty() {
        heroes = others(Membership::Leave).chain(others(Membership::Ban)).collect();
    }
    heroes.sort_unstable_by_key(|(_, offset)| *offset);
    heroes.truncate(HEROES);
    heroes.into_iter().map(|(user_id, _)| user_id).collect()
}
