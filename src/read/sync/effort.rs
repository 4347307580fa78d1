//! How much work a look may be.
//!
//! Most looks of a sync find one new event, and take less time than it takes to hand them to
//! another thread. A look that may be more is told so before it begins: it goes where long work is
//! done.

use crate::{
    base::limits,
    log::ReadError,
    read::{push::Unread, view::View},
    record::Offset,
    state::{Membership, RoomMembership},
};

/// How much work a look may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A short piece of work, on a thread that answers requests: see [`limits`].
    Short,
    /// Whatever it takes.
    Any,
}

/// A look that was to be a short piece of work would be a long one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is no short piece of work")]
pub struct TooLong;

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// It is more work than it may be.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Effort {
    /// Refuses a look that would be more work than this. It looks at what is new after `since` in
    /// `rooms`, which are all of the user's rooms in which anything is, and at what is unread
    /// there.
    pub(super) fn suffices(
        self,
        view: &View<'_>,
        since: Offset,
        rooms: &[RoomMembership],
        unread: &Unread,
    ) -> Result<(), TooLong> {
        let fits = self == Self::Any || is_short(view, since, rooms, unread);
        if fits { Ok(()) } else { Err(TooLong) }
    }
}

/// Unread events of a room that may be judged rather than found out to be known.
const FEW: usize = limits::SHORT_SYNC / 4;

fn is_short(view: &View<'_>, since: Offset, rooms: &[RoomMembership], unread: &Unread) -> bool {
    let mut left = limits::SHORT_SYNC;
    let mut take = |what: usize| {
        let enough = left.checked_sub(what);
        left = enough.unwrap_or(0);
        enough.is_some()
    };
    let records = view.at().get().saturating_sub(since.get());
    records <= limits::SHORT_SYNC_RECORDS
        && rooms.iter().all(|part| {
            let Some(room) = view.state.rooms.get(&part.room_id) else { return take(1) };
            let new = room.event_count(view.at()).saturating_sub(room.event_count(since));
            // One who comes into a room is told all of it.
            let is_known = part.offset <= since || part.membership != Membership::Join;
            is_known
                && take(1 + new)
                && (part.membership != Membership::Join
                    || take(unread.distance(&view.state, view.user_id(), &room, view.at(), FEW)))
        })
}
