//! History visibility: which events of a room a user may see (client-server API, "Room history
//! visibility").

use std::sync::Arc;

use ruma::events::{StateEventType, TimelineEventType};
use serde::Deserialize;

use super::View;
use crate::{
    events::EventRef,
    log::ReadError,
    push::Ignored,
    record::Offset,
    state::{Membership, Room},
};

/// What decides for one user in one room.
#[derive(Debug)]
pub(super) struct Visibility<'a> {
    room: &'a Room,
    /// The user's memberships, oldest first.
    memberships: Vec<(Offset, Membership)>,
    /// Until when the user was last joined; [`Offset::MAX`] while they are.
    joined_until: Offset,
    /// Whose messages the user does not get.
    ignored: Arc<Ignored>,
}

/// From the most to the least private.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    Joined,
    Invited,
    Shared,
    WorldReadable,
}

impl Setting {
    /// The setting of this name. What is missing or not known counts as `shared`, the default.
    fn named(name: &str) -> Self {
        match name {
            "joined" => Self::Joined,
            "invited" => Self::Invited,
            "world_readable" => Self::WorldReadable,
            _ => Self::Shared,
        }
    }
}

impl<'a> Visibility<'a> {
    pub(super) fn of(view: &View<'_>, room: &'a Room) -> Result<Self, ReadError> {
        let memberships = view.membership_changes(room);
        let mut joined_until = Offset::ZERO;
        let mut joined = false;
        for (offset, membership) in &memberships {
            if joined {
                joined_until = *offset;
            }
            joined = *membership == Membership::Join;
        }
        if joined {
            joined_until = Offset::MAX;
        }
        Ok(Self { room, memberships, joined_until, ignored: view.ignored()? })
    }

    pub(super) fn shows(&self, view: &View<'_>, event: &EventRef) -> Result<bool, ReadError> {
        // State is seen whoever sent it, or the room would look different to this user.
        if event.state_key.is_none() && self.ignored.contains(&event.sender) {
            return Ok(false);
        }
        let index = self.memberships.partition_point(|(offset, _)| *offset <= event.offset);
        let then = index.checked_sub(1).and_then(|i| self.memberships.get(i)).map(|(_, m)| *m);
        if then == Some(Membership::Join) || self.is_own_membership(view, event, index) {
            return Ok(true);
        }
        let setting = self.setting(view, event)?;
        Ok(match setting {
            Setting::WorldReadable => true,
            Setting::Shared => event.offset < self.joined_until,
            Setting::Invited => then == Some(Membership::Invite),
            Setting::Joined => false,
        })
    }

    /// What happened to the user's own membership is never hidden from them.
    fn is_own_membership(&self, view: &View<'_>, event: &EventRef, index: usize) -> bool {
        event.event_type == TimelineEventType::RoomMember
            && event.state_key.as_deref() == Some(view.user_id().as_str())
            && index > 0
    }

    fn setting(&self, view: &View<'_>, event: &EventRef) -> Result<Setting, ReadError> {
        let then = setting(view, self.room, event.offset)?;
        if event.event_type == TimelineEventType::RoomHistoryVisibility {
            // A change of the setting is seen by those who see what came before or what comes after.
            return Ok(then.max(setting(view, self.room, event.offset.prev())?));
        }
        Ok(then)
    }
}

fn setting(view: &View<'_>, room: &Room, at: Offset) -> Result<Setting, ReadError> {
    #[derive(Deserialize)]
    struct Content {
        history_visibility: String,
    }
    let Some(offset) = room.state_event(&StateEventType::RoomHistoryVisibility, "", at) else {
        return Ok(Setting::Shared);
    };
    let event = view.events.get(offset)?;
    let content = event.and_then(|event| event.content_as::<Content>().ok());
    Ok(content.map_or(Setting::Shared, |content| Setting::named(&content.history_visibility)))
}

/// Whether everyone may read the room as of `at`.
pub(super) fn is_world_readable(
    view: &View<'_>,
    room: &Room,
    at: Offset,
) -> Result<bool, ReadError> {
    Ok(setting(view, room, at)? == Setting::WorldReadable)
}
