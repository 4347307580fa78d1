//! What a user sees: the way of a read, from projections as of an offset to the JSON of events.
//!
//! A [`View`] is one user's look at the server as of one offset. Every path an event can take to a
//! client goes through it, so that visibility and redaction are judged in one place.

pub mod filter;
mod form;
pub mod key_backup;
mod presence;
pub mod relations;
mod time;
pub mod token;
mod visibility;

use std::{cell::Cell, collections::HashSet, sync::Arc};

use ruma::{RoomId, UserId, events::StateEventType};
use serde_json::value::RawValue;

use self::{filter::EventFilter, form::Sight, visibility::Visibility};
use crate::{
    base::limits,
    log::ReadError,
    read::{
        events::{
            ClientEvent, EventForm, EventRef, EventStore, StoredEvent, Viewer, as_shown, strip,
        },
        push::{self, Ignored},
    },
    record::Offset,
    state::{Membership, Room, RoomMembership, State},
};

/// One user's look at the server as of one offset.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The projections.
    pub state: Arc<State>,
    /// The bodies.
    pub events: &'a EventStore,
    /// Who looks, and as of when.
    pub viewer: Viewer<'a>,
}

/// How many events a page has at most, and what it takes its bytes from. A page has fewer events if
/// they are large, but one at least.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit<'a> {
    /// How many events.
    pub events: usize,
    /// What all pages of one answer have left.
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

/// How many bytes of events an answer of several pages may still have.
#[derive(Debug)]
pub struct ByteBudget(Cell<usize>);

impl ByteBudget {
    /// So many.
    #[must_use]
    pub const fn new(bytes: usize) -> Self {
        Self(Cell::new(bytes))
    }

    /// How many are left.
    #[must_use]
    pub const fn left(&self) -> usize {
        self.0.get()
    }

    /// Takes what there is of `bytes`.
    pub fn take(&self, bytes: usize) {
        self.0.set(self.left().saturating_sub(bytes));
    }
}

/// About how many bytes an event takes in an answer.
#[must_use]
pub fn shown_bytes(event: &StoredEvent) -> usize {
    /// What comes with the content: identifiers, the time, `unsigned`.
    const ENVELOPE: usize = 512;
    event.content.get().len() + ENVELOPE
}

/// A stretch of a room's timeline.
#[derive(Debug, Default)]
pub struct Page {
    /// The events, in the order in which they were looked for.
    pub events: Vec<EventRef>,
    /// The position after the last event that was looked at; `None` at the end of the stretch.
    pub next: Option<Offset>,
}

impl<'a> View<'a> {
    /// The user who looks.
    #[must_use]
    pub const fn user_id(&self) -> &'a UserId {
        self.viewer.user_id
    }

    /// As of which offset.
    #[must_use]
    pub const fn at(&self) -> Offset {
        self.viewer.at
    }

    /// Whom the user ignores.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn ignored(&self) -> Result<Arc<Ignored>, ReadError> {
        push::ignored(&self.state, self.events, self.user_id(), self.at())
    }

    /// Whether the user is told of this invite of theirs: not by someone whom they ignore, nor
    /// where they take none.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn shows_invite(&self, invite: &RoomMembership) -> Result<bool, ReadError> {
        // What those who run the server have to say is for everyone.
        if self.state.notices.is_room_of(self.user_id(), &invite.room_id) {
            return Ok(true);
        }
        if self.events.blocks_invites(&self.state, self.user_id())? {
            return Ok(false);
        }
        let ignored = self.ignored()?;
        if ignored.users().is_empty() {
            return Ok(true);
        }
        let event = self.events.get(invite.offset)?;
        Ok(event.is_none_or(|event| !ignored.contains(&event.sender)))
    }

    /// The event in this form: redacted if it was, and with what the server adds for the user.
    /// Whether they may see it is asked before.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn client_event(
        &self,
        room: &Room,
        event: &EventRef,
        form: &EventForm,
    ) -> Result<ClientEvent, ReadError> {
        Sight::new(self, room).form(event, form)
    }

    /// As [`View::client_event`], for several events.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn client_events(
        &self,
        room: &Room,
        events: &[EventRef],
        form: &EventForm,
    ) -> Result<Vec<ClientEvent>, ReadError> {
        let sight = Sight::new(self, room);
        events.iter().map(|event| sight.form(event, form)).collect()
    }

    /// Whether the event's sender had what they sent erased before the user could see it: the user
    /// then gets it without its content (client-server API, `POST /account/deactivate`, `erase`).
    /// What a room is, its state, stays; what its members said of themselves does not.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn is_erased(&self, room: &Room, event: &StoredEvent) -> Result<bool, ReadError> {
        let erased = self.state.accounts.erased(&event.sender);
        let Some(erased) = erased.filter(|at| *at <= self.at() && event.offset < *at) else {
            return Ok(false);
        };
        let of_the_room =
            event.state_key.as_deref().is_some_and(|state_key| state_key != event.sender.as_str());
        if of_the_room {
            return Ok(false);
        }
        // Who could see it by then?
        let before = View { viewer: Viewer { at: erased, ..self.viewer }, ..self.clone() };
        let visibility = Visibility::of(&before, room);
        Ok(visibility.is_strangers() || !visibility.admits(&before, event)?)
    }

    /// Whether the user may see this event.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn may_see(&self, room: &Room, event: &EventRef) -> Result<bool, ReadError> {
        Visibility::of(self, room).shows(self, event)
    }

    /// Up to `limit` visible events that pass the filter, newest first: from `from` (included) back
    /// to `after` (not included).
    ///
    /// # Errors
    /// When the log cannot be read.
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

    /// Up to `limit` visible events that pass the filter, oldest first: after `after`, up to and
    /// with `to`.
    ///
    /// # Errors
    /// When the log cannot be read.
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

    /// Looks at what `next` gives from a position on, until there is enough, nothing more, or
    /// enough looked at. `passed` is the position when an event has been looked at, and `wanted`
    /// what else is asked of it.
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
        let visibility = Visibility::of(self, room);
        let mut page = Page::default();
        let (mut looked_at, mut bytes, looks) = (0, 0, filter.looks());
        let mut position = start;
        let chunk = chunk(limit.events);
        loop {
            let offsets = next(position, chunk);
            let exhausted = offsets.len() < chunk;
            for offset in offsets {
                let is_full = page.events.len() == limit.events
                    || (bytes >= limit.bytes() && !page.events.is_empty());
                if is_full || looked_at >= limits::SCANNED_EVENTS {
                    page.next = Some(position);
                    break;
                }
                looked_at += looks;
                position = passed(offset);
                if let Some(event) = self.events.get(offset)?
                    && wanted(&event)?
                    && filter.matches(room, &event, self.at())
                    && visibility.shows(self, &event)?
                {
                    bytes += shown_bytes(&event);
                    page.events.push(event);
                }
            }
            if exhausted || page.next.is_some() {
                if let Some(budget) = limit.budget {
                    budget.take(bytes);
                }
                return Ok(page);
            }
        }
    }

    /// The member events of those who sent `events`, and of `also`, as of `at`: what a client that
    /// loads members lazily needs.
    ///
    /// # Errors
    /// When the log cannot be read.
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

    /// The offset as of which the user sees the room's state: now while joined, otherwise when
    /// they left. `None` for one who was never in the room, unless everyone may read it.
    ///
    /// # Errors
    /// When the log cannot be read.
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

    /// Whether the user may see what the room's state was at `at`, an earlier offset than that of
    /// [`View::state_as_of`]: as the events there, it is history.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn sees_state_at(&self, room: &Room, at: Offset) -> Result<bool, ReadError> {
        Visibility::of(self, room).shows_at(self, at)
    }

    /// The state that one who is invited to a room or knocks on it is shown (client-server API,
    /// "Stripped state"): as of their own member event, which is part of it.
    ///
    /// # Errors
    /// When the log cannot be read.
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

/// How many offsets are looked at in one go: what is wanted and some more, as a few may not be
/// visible, within what one look under the room's lock should cost.
const fn chunk(limit: usize) -> usize {
    if limit >= 1000 { 1000 } else { limit + 16 }
}
