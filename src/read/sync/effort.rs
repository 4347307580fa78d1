//! Limits the work of a sync on a request thread.
//!
//! Most attempts of a sync find one new event, which takes less time than handing them to another
//! thread. An attempt that may be longer is refused before it begins, and runs where long work is
//! done.

use crate::{notifications::Unread, view::View};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::{Membership, RoomMembership};

/// The work that an attempt may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Short work, on a thread that answers requests: see [`limits`].
    Short,
    /// Unlimited.
    Any,
}

/// A short attempt would need more work than [`Effort::Short`] allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("more work than a short attempt may do")]
pub struct TooLong;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// It needs more work than allowed.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Effort {
    /// Refuses an attempt that would need more work than this. It covers everything new after
    /// `since` in `rooms`, which are all of the user's rooms with news, and unread events there.
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

/// Unread events of a room that may be evaluated without checking whether their counts are cached.
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
            // A user who enters a room gets all of it.
            let is_known = part.offset <= since || part.membership != Membership::Join;
            is_known
                && take(1 + new)
                && (part.membership != Membership::Join
                    || take(unread.distance(&view.state, view.user_id(), &room, view.at(), FEW)))
        })
}
