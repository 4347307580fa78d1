//! Sync: what is new for a user between two offsets. [`v3`] is `/sync` and [`sliding`] is
//! simplified sliding sync; they share the other modules here. `api::sync` waits for news, and
//! `engine::head` wakes it.

pub mod account_data;
pub mod device_lists;
mod effort;
pub mod ephemeral;
mod gone;
mod key_counts;
pub mod lazy;
pub mod sliding;
mod summary;
mod timeline;
pub mod to_device;
pub mod v3;

use std::collections::BTreeSet;

pub use effort::{Effort, LookError, TooLong};
pub use gone::UndonePosition;
pub use lazy::KnownMembers;
use ruma::{OwnedRoomId, RoomId};
pub use summary::heroes;

use crate::view::View;
use logcabin_record::Offset;
use logcabin_state::RoomMembership;

/// The user's rooms that may have news after `since`, and the rooms in `also`. Either each room of
/// the user is checked, or, if there are fewer new records than rooms, the journal is read.
pub fn changed_rooms(
    view: &View<'_>,
    since: Offset,
    also: BTreeSet<OwnedRoomId>,
) -> Vec<RoomMembership> {
    let memberships = &view.state.memberships;
    let new_records = view.at().get().saturating_sub(since.get());
    let rooms = memberships.count(view.user_id());
    if usize::try_from(new_records).is_ok_and(|records| records <= rooms) {
        let mut touched = also;
        let streams = view.state.streams.touched(since, view.at());
        touched.extend(streams.iter().filter_map(|stream| stream.room_id().map(RoomId::to_owned)));
        return touched
            .iter()
            .filter_map(|room_id| memberships.in_room(view.user_id(), room_id, view.at()))
            .collect();
    }
    let mut parts = memberships.of(view.user_id(), view.at());
    parts.retain(|part| {
        let room = view.state.rooms.get(&part.room_id);
        // A purged room changed when its members left.
        let changed = room.map_or(part.offset, |room| room.changed());
        changed > since || also.contains(&part.room_id)
    });
    parts
}
