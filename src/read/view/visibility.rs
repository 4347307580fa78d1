//! History visibility: which events of a room a user may see (client-server API, "Room history
//! visibility").

use std::{
    cell::{Cell, OnceCell},
    sync::Arc,
};

use ruma::events::{StateEventType, TimelineEventType};
use serde::Deserialize;

use super::View;
use crate::{events::StoredEvent, notifications::Ignored};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Membership, Room, rooms::gaps::GapPosition};

/// The visibility of one room for one user.
#[derive(Debug)]
pub(super) struct Visibility<'a> {
    room: &'a Room,
    /// The user's memberships, oldest first.
    memberships: Vec<(Offset, Membership)>,
    /// The end of the user's last time in the room; [`Offset::MAX`] while they are joined.
    joined_until: Offset,
    /// The last setting that was looked up, with its state event: most events that are checked
    /// together have the same one.
    last_setting: Cell<Option<(Offset, Setting)>>,
    /// The users whose messages are hidden.
    ignored: OnceCell<Arc<Ignored>>,
}

/// History visibility, from the most to the least private.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Setting {
    Joined,
    Invited,
    Shared,
    WorldReadable,
}

impl Setting {
    /// The setting with this name. A missing or unknown one counts as `shared`, the default.
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
    pub(super) fn of(view: &View<'_>, room: &'a Room) -> Self {
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
        Self {
            room,
            memberships,
            joined_until,
            last_setting: Cell::new(None),
            ignored: OnceCell::new(),
        }
    }

    fn ignored(&self, view: &View<'_>) -> Result<&Ignored, ReadError> {
        if let Some(ignored) = self.ignored.get() {
            return Ok(ignored);
        }
        let ignored = view.ignored()?;
        Ok(self.ignored.get_or_init(|| ignored))
    }

    /// Whether the user was never in the room, invited to it or knocking.
    pub(super) fn is_strangers(&self) -> bool {
        self.memberships.is_empty()
    }

    /// Whether the user may see this event.
    pub(super) fn shows(&self, view: &View<'_>, event: &StoredEvent) -> Result<bool, ReadError> {
        // State is visible regardless of its sender, or the room would look different to this user.
        if event.state_key.is_none() && self.ignored(view)?.contains(&event.sender) {
            return Ok(false);
        }
        self.admits(view, event)
    }

    /// Like [`Visibility::shows`], regardless of the sender.
    pub(super) fn admits(&self, view: &View<'_>, event: &StoredEvent) -> Result<bool, ReadError> {
        if self.is_own_membership(view, event) {
            return Ok(true);
        }
        if view.events.is_over(self.room, event) {
            return Ok(false);
        }
        if event.aside.is_some()
            && let Some(slot) = self.room.slot(event.offset)
        {
            return self.shows_in_gap(view, event, slot);
        }
        if event.event_type == TimelineEventType::RoomHistoryVisibility {
            // A change of the setting is visible to those who see events before it or after it.
            let before = self.setting(view, event.offset.prev())?;
            let after = self.setting(view, event.offset)?;
            return Ok(self.shows_under(before.max(after), event.offset));
        }
        self.shows_at(view, event.offset)
    }

    /// Whether the user may see an event in a gap. Who was in the room then is not fully known:
    /// where only members see events, a user must have been joined on both sides of the gap.
    fn shows_in_gap(
        &self,
        view: &View<'_>,
        event: &StoredEvent,
        slot: GapPosition,
    ) -> Result<bool, ReadError> {
        let (before, after) = self.room.visibility_around(slot);
        let mut setting = before.map_or(Setting::Joined, |name| Setting::named(&name));
        if event.event_type == TimelineEventType::RoomHistoryVisibility {
            // Like any change of the setting, it is visible to those who see either side of it.
            let after = match after {
                Some(name) => Setting::named(&name),
                None => self.setting(view, slot.gap.prev())?,
            };
            setting = setting.max(after);
        }
        let is_joined = |at| self.membership_at(at) == Some(Membership::Join);
        Ok(match setting {
            Setting::WorldReadable => true,
            Setting::Shared => slot.gap < self.joined_until,
            Setting::Invited | Setting::Joined => is_joined(slot.gap.prev()) && is_joined(slot.gap),
        })
    }

    /// Whether the user is joined.
    pub(super) fn is_joined(&self) -> bool {
        self.joined_until == Offset::MAX
    }

    /// Whether the user may see an event at this offset that is neither their own membership nor a
    /// change of the history visibility.
    pub(super) fn shows_at(&self, view: &View<'_>, offset: Offset) -> Result<bool, ReadError> {
        if self.membership_at(offset) == Some(Membership::Join) {
            return Ok(true);
        }
        Ok(self.shows_under(self.setting(view, offset)?, offset))
    }

    /// The visible ranges of the room's timeline, apart from the exceptions in
    /// [`Visibility::admits`]: each after an offset, up to and including another, oldest first.
    pub(super) fn stretches(&self, view: &View<'_>) -> Result<Vec<(Offset, Offset)>, ReadError> {
        let turns = view.turns(self.room);
        let first = turns.first().map_or_else(|| view.at(), |turn| turn.prev());
        let ends = turns.iter().skip(1).map(|turn| turn.prev()).chain([view.at()]);
        // There is nothing before the first turn, except the room's first events if the user sees
        // all.
        let mut pieces = vec![(Offset::ZERO, first, first)];
        pieces.extend(turns.iter().zip(ends).map(|(turn, end)| (turn.prev(), end, *turn)));
        let mut stretches: Vec<(Offset, Offset)> = Vec::new();
        for (after, to, place) in pieces {
            if to <= after || !self.shows_at(view, place)? {
                continue;
            }
            match stretches.last_mut() {
                Some((_, end)) if *end == after => *end = to,
                _ => stretches.push((after, to)),
            }
        }
        Ok(stretches)
    }

    fn shows_under(&self, setting: Setting, offset: Offset) -> bool {
        let then = self.membership_at(offset);
        then == Some(Membership::Join)
            || match setting {
                Setting::WorldReadable => true,
                Setting::Shared => offset < self.joined_until,
                Setting::Invited => then == Some(Membership::Invite),
                Setting::Joined => false,
            }
    }

    fn membership_at(&self, offset: Offset) -> Option<Membership> {
        let index = self.memberships.partition_point(|(changed, _)| *changed <= offset);
        index.checked_sub(1).and_then(|i| self.memberships.get(i)).map(|(_, is)| *is)
    }

    /// A change of the user's own membership is never hidden from them.
    fn is_own_membership(&self, view: &View<'_>, event: &StoredEvent) -> bool {
        event.event_type == TimelineEventType::RoomMember
            && event.state_key.as_deref() == Some(view.user_id().as_str())
            && self.membership_at(event.offset).is_some()
    }

    fn setting(&self, view: &View<'_>, at: Offset) -> Result<Setting, ReadError> {
        let key = &StateEventType::RoomHistoryVisibility;
        let Some(offset) = self.room.state_event(key, "", at) else { return Ok(Setting::Shared) };
        if let Some((known, setting)) = self.last_setting.get()
            && known == offset
        {
            return Ok(setting);
        }
        let setting = setting_of(view, offset)?;
        self.last_setting.set(Some((offset, setting)));
        Ok(setting)
    }
}

/// The setting in the state event at `offset`.
fn setting_of(view: &View<'_>, offset: Offset) -> Result<Setting, ReadError> {
    #[derive(Deserialize)]
    struct Content {
        history_visibility: String,
    }
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
    match room.state_event(&StateEventType::RoomHistoryVisibility, "", at) {
        Some(offset) => Ok(setting_of(view, offset)? == Setting::WorldReadable),
        None => Ok(false),
    }
}
