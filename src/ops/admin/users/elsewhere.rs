//! Users of other homeservers.

use ruma::{OwnedRoomId, UserId};

use crate::admin::context::ActContext;
use logcabin_record::Offset;
use logcabin_state::Membership;

/// The rooms of this server that know a user of another homeserver, each with the user's membership
/// and the record that last changed it. Looks through all rooms.
pub fn rooms_elsewhere(
    context: &ActContext,
    user_id: &UserId,
) -> Vec<(OwnedRoomId, Membership, Offset)> {
    let rooms = context.engine.state().rooms.all().into_iter();
    let known = rooms.filter_map(|room| {
        let (changed, membership) = room.membership(user_id, Offset::MAX)?;
        Some((room.id.clone(), membership, changed))
    });
    known.collect()
}
