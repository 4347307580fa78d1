//! A user's view of the server: from projections as of an offset to the JSON of events.
//!
//! A [`View`] is one user's view as of one offset. Every event goes to a client through it, so
//! visibility and redaction are decided in one place.

pub mod filter;
mod form;
pub mod key_backup;
pub mod past;
pub mod presence;
pub mod relations;
pub mod time;
pub mod token;
mod visibility;

use std::{cell::Cell, collections::HashSet, sync::Arc};

use ruma::{RoomId, UserId, events::StateEventType};
use serde_json::value::RawValue;

use self::{filter::EventFilter, form::RoomFormatter, visibility::Visibility};
use crate::{
    events::{ClientEvent, EventForm, EventRef, EventStore, StoredEvent, Viewer, as_shown, strip},
    invites,
    notifications::{self, Ignored},
};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Membership, Room, RoomMembership, State};

/// One user's view of the server as of one offset.
#[derive(Clone, Debug)]
pub struct View<'a> {
    pub state: Arc<State>,
    pub events: &'a EventStore,
    /// The viewer, and the offset.
    pub viewer: Viewer<'a>,
}

/// The most events on a page, and its byte budget. A page of large events has fewer of them, but at
/// least one.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit<'a> {
    pub events: usize,
    /// The remaining budget of all pages in one response.
    pub budget: Option<&'a ByteBudget>,
}

impl From<usize> for PageLimit<'_> {
    fn from(events: usize) -> Self {
        Self { events, budget: None }
    }
}

impl PageLimit<'_> {
    fn bytes(self) -> usize {
        let left = self.budget.map_or(usize::MAX, ByteBudget::left);
        left.min(limits::PAGE_BYTES)
    }
}

/// The remaining bytes of events in a response with several pages.
#[derive(Debug)]
pub struct ByteBudget(Cell<usize>);

impl ByteBudget {
    pub const fn new(bytes: usize) -> Self {
        Self(Cell::new(bytes))
    }

    /// The remaining bytes.
    pub const fn left(&self) -> usize {
        self.0.get()
    }

    /// Takes `bytes`, or what is left.
    pub fn take(&self, bytes: usize) {
        self.0.set(self.left().saturating_sub(bytes));
    }
}

/// The approximate size of an event in a response, in bytes.
pub fn shown_bytes(event: &StoredEvent) -> usize {
    /// Everything beside the content: identifiers, the time, `unsigned`.
    const ENVELOPE: usize = 512;
    event.content.get().len() + ENVELOPE
}

/// A part of a room's timeline.
#[derive(Debug, Default)]
pub struct Page {
    /// The events, in the requested direction.
    pub events: Vec<EventRef>,
    /// The position after the last examined event; `None` at the end of the range.
    pub next: Option<Offset>,
}

/// What was found for a page.
struct Filled<P> {
    events: Vec<EventRef>,
    /// The position after the last examined event.
    position: P,
    /// The position after the last event of the page.
    last: Option<P>,
    /// The same as `position`, if there is more to examine.
    cut: Option<P>,
}

impl<'a> View<'a> {
    pub const fn user_id(&self) -> &'a UserId {
        self.viewer.user_id
    }

    /// The offset of the view.
    pub const fn at(&self) -> Offset {
        self.viewer.at
    }

    /// The users whom the viewer ignores.
    pub fn ignored(&self) -> Result<Arc<Ignored>, ReadError> {
        notifications::ignored(&self.state, self.events, self.user_id(), self.at())
    }

    /// Whether the user sees this invite to them: not if it is by somebody whom they ignore, or if
    /// their rules for invites or those of the server are against it.
    pub fn shows_invite(&self, invite: &RoomMembership) -> Result<bool, ReadError> {
        let event = self.events.get(invite.offset)?;
        event.map_or(Ok(true), |event| self.shows_invite_event(&event))
    }

    /// As [`View::shows_invite`], for the event of the invite.
    pub fn shows_invite_event(&self, event: &EventRef) -> Result<bool, ReadError> {
        // Server notices reach everyone.
        if self.state.notices.is_room_of(self.user_id(), &event.room_id) {
            return Ok(true);
        }
        Ok(!self.ignored()?.contains(&event.sender)
            && invites::is_shown(self.events, &self.state, self.user_id(), event)?)
    }

    /// Whether somebody else ended an invite with this membership that the user does not see.
    pub(crate) fn ends_hidden_invite(
        &self,
        room: &Room,
        ended: &RoomMembership,
    ) -> Result<bool, ReadError> {
        let before = room.membership(self.user_id(), ended.offset.prev());
        let Some((offset, Membership::Invite)) = before else { return Ok(false) };
        let by_other = self.events.get(ended.offset)?;
        if by_other.is_none_or(|event| event.sender == self.user_id()) {
            return Ok(false);
        }
        Ok(!self.shows_invite(&RoomMembership { offset, ..ended.clone() })?)
    }

    /// The event in this format, redacted if it was, with the server's additions for the user. The
    /// caller has checked that they may see it.
    pub fn client_event(
        &self,
        room: &Room,
        event: &EventRef,
        form: &EventForm,
    ) -> Result<ClientEvent, ReadError> {
        RoomFormatter::new(self, room).form(event, form)
    }

    /// Like [`View::client_event`], for several events.
    pub fn client_events(
        &self,
        room: &Room,
        events: &[EventRef],
        form: &EventForm,
    ) -> Result<Vec<ClientEvent>, ReadError> {
        let sight = RoomFormatter::new(self, room);
        events.iter().map(|event| sight.form(event, form)).collect()
    }

    /// Whether the event's sender had their messages erased before the user could see it: the user
    /// then gets it without its content (client-server API, `POST /account/deactivate`, `erase`).
    /// State of the room stays; the content of member events does not.
    pub fn is_erased(&self, room: &Room, event: &StoredEvent) -> Result<bool, ReadError> {
        let erased = self.state.accounts.erased(&event.sender);
        let Some(erased) = erased.filter(|at| *at <= self.at()) else { return Ok(false) };
        let of_the_room =
            event.state_key.as_deref().is_some_and(|state_key| state_key != event.sender.as_str());
        if of_the_room {
            return Ok(false);
        }
        if erased <= event.offset {
            // Others may send it again, as a part of a room's history.
            return Ok(event.aside.is_some());
        }
        // Who could see it by then?
        let before = View { viewer: Viewer { at: erased, ..self.viewer }, ..self.clone() };
        let visibility = Visibility::of(&before, room);
        Ok(visibility.is_strangers() || !visibility.admits(&before, event)?)
    }

    /// Whether the user may see this event.
    pub fn may_see(&self, room: &Room, event: &EventRef) -> Result<bool, ReadError> {
        Visibility::of(self, room).shows(self, event)
    }

    /// Up to `limit` visible events that match the filter, newest first: from `from` (inclusive)
    /// back to `after` (exclusive).
    pub fn page_backward(
        &self,
        room: &Room,
        from: Offset,
        after: Offset,
        limit: impl Into<PageLimit<'a>>,
        filter: &EventFilter,
    ) -> Result<Page, ReadError> {
        let start = from.min(self.at());
        let next = |position, count| room.events_backward(position, after, count);
        self.page(room, start, limit.into(), filter, next, Offset::prev, |_| Ok(true))
    }

    /// Up to `limit` visible events that match the filter, oldest first: after `after`, up to and
    /// including `to`.
    pub fn page_forward(
        &self,
        room: &Room,
        after: Offset,
        to: Offset,
        limit: impl Into<PageLimit<'a>>,
        filter: &EventFilter,
    ) -> Result<Page, ReadError> {
        let to = to.min(self.at());
        let next = |position, count| room.events_forward(position, to, count);
        self.page(room, after, limit.into(), filter, next, |offset| offset, |_| Ok(true))
    }

    /// As [`Self::fill`], of a room's timeline. `passed` returns the position after an examined
    /// event.
    #[expect(clippy::too_many_arguments, reason = "each says something else")]
    fn page(
        &self,
        room: &Room,
        start: Offset,
        limit: PageLimit<'_>,
        filter: &EventFilter,
        next: impl Fn(Offset, usize) -> Vec<Offset>,
        passed: impl Fn(Offset) -> Offset,
        wanted: impl Fn(&EventRef) -> Result<bool, ReadError>,
    ) -> Result<Page, ReadError> {
        let next = |position, count| {
            next(position, count).into_iter().map(|offset| (offset, passed(offset)))
        };
        let Filled { events, cut, .. } = self.fill(room, start, limit, filter, next, wanted)?;
        Ok(Page { events, next: cut })
    }

    /// Examines what `next` returns from a position on, each event with the position after it,
    /// until there are enough events, no more events, or too many were examined. `wanted` is an
    /// additional condition.
    fn fill<P: Copy, N: ExactSizeIterator<Item = (Offset, P)>>(
        &self,
        room: &Room,
        start: P,
        limit: PageLimit<'_>,
        filter: &EventFilter,
        mut next: impl FnMut(P, usize) -> N,
        wanted: impl Fn(&EventRef) -> Result<bool, ReadError>,
    ) -> Result<Filled<P>, ReadError> {
        let visibility = Visibility::of(self, room);
        let mut page = Filled { events: Vec::new(), position: start, last: None, cut: None };
        let (mut looked_at, mut bytes, looks) = (0, 0, filter.looks());
        let chunk = chunk(limit.events);
        loop {
            let found = next(page.position, chunk);
            let exhausted = found.len() < chunk;
            for (offset, after) in found {
                let is_full = page.events.len() == limit.events
                    || (bytes >= limit.bytes() && !page.events.is_empty());
                if is_full || looked_at >= limits::SCANNED_EVENTS {
                    page.cut = Some(page.position);
                    break;
                }
                looked_at += looks;
                page.position = after;
                if let Some(event) = self.events.get(offset)?
                    && wanted(&event)?
                    && filter.matches(room, &event, self.at())
                    && visibility.shows(self, &event)?
                {
                    bytes += shown_bytes(&event);
                    page.events.push(event);
                    page.last = Some(after);
                }
            }
            if exhausted || page.cut.is_some() {
                if let Some(budget) = limit.budget {
                    budget.take(bytes);
                }
                return Ok(page);
            }
        }
    }

    /// The member events as of `at` of the senders of `events` and of `also`, for clients that load
    /// members lazily.
    pub fn members_of(
        &self,
        room: &Room,
        events: &[EventRef],
        also: Option<&UserId>,
        at: Offset,
    ) -> Result<Vec<EventRef>, ReadError> {
        let mut users: Vec<&UserId> = events.iter().map(|event| &*event.sender).collect();
        users.extend(also);
        let mut seen = HashSet::new();
        users.retain(|user_id| seen.insert(*user_id));
        let mut offsets: Vec<_> = users
            .into_iter()
            .filter_map(|user_id| {
                room.state_event(&StateEventType::RoomMember, user_id.as_str(), at)
            })
            .collect();
        offsets.sort_unstable();
        self.events.get_all(&offsets)
    }

    /// The user's memberships in the room, oldest first; none if they have forgotten it.
    fn membership_changes(&self, room: &Room) -> Vec<(Offset, Membership)> {
        let part = self.state.memberships.part(self.user_id(), &room.id);
        if part.is_some_and(|part| part.is_forgotten(self.at())) {
            return Vec::new();
        }
        room.membership_changes(self.user_id(), self.at())
    }

    /// The offset as of which the user sees the room's state: the present one while joined,
    /// otherwise that of their leave. `None` for a user who was never in the room, unless everyone
    /// may read it.
    pub fn state_as_of(&self, room: &Room) -> Result<Option<Offset>, ReadError> {
        if room.is_joined(self.user_id(), self.at()) {
            return Ok(Some(self.at()));
        }
        if visibility::is_world_readable(self, room, self.at())? {
            return Ok(Some(self.at()));
        }
        let changes = self.membership_changes(room);
        let mut left = None;
        let mut joined = false;
        for (offset, membership) in changes {
            if joined && membership != Membership::Join {
                left = Some(offset);
            }
            joined = membership == Membership::Join;
        }
        Ok(left)
    }

    /// Whether the user may see the room's state at `at`, an earlier offset than that of
    /// [`View::state_as_of`]: like events there, it is history.
    pub fn sees_state_at(&self, room: &Room, at: Offset) -> Result<bool, ReadError> {
        Visibility::of(self, room).shows_at(self, at)
    }

    /// The stripped state for a user who is invited to a room or knocks on it (client-server API,
    /// "Stripped state"): as of their own member event, which is part of it.
    pub fn stripped_state(&self, room_id: &RoomId) -> Result<Vec<Box<RawValue>>, ReadError> {
        let Some(room) = self.state.rooms.get(room_id) else { return Ok(Vec::new()) };
        let Some((at, _)) = room.membership(self.user_id(), self.at()) else {
            return Ok(Vec::new());
        };
        let Some(member) = self.events.get(at)? else { return Ok(Vec::new()) };
        let mut state = self.events.stripped_state(&room, &member, self.at())?;
        state.push(strip(&as_shown(&room, member, self.at())));
        Ok(state)
    }
}

/// How many offsets are read at a time: slightly more than requested, because a few may be
/// invisible, but not too many for one lock of the room.
const fn chunk(limit: usize) -> usize {
    if limit >= 1000 { 1000 } else { limit + 16 }
}
