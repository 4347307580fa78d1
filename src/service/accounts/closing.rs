//! Closing an account: one batch of records deactivates it, with its devices and tokens, scheduled
//! events, keys, password, addresses and single sign-on. Afterwards, the user leaves each room by
//! an event of its own. If the server ends meanwhile, it continues at the next start.

use std::sync::Arc;

use ruma::{MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, RoomId, UInt, UserId};

use crate::federation::{EnterError, EntryRequest, leave_alone};
use logcabin_decide::{
    federation::RemoteMembership,
    membership::{Change, ChangeMembership},
    status::{Deactivate, Refuse},
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_record::{Offset, Origin};
use logcabin_state::Membership;

/// The result of closing an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    /// False if it was closed (and erased) before.
    pub changed: bool,
    /// How many rooms were left and invites rejected.
    pub rooms: usize,
}

/// Closes an account and leaves its rooms.
///
/// # Errors
/// When there is no such account or the log takes no writes.
pub async fn close(
    engine: &Engine,
    origin: Origin,
    closing: Deactivate,
) -> Result<Closed, ProposeError> {
    let user_id: OwnedUserId = closing.user_id.clone();
    let changed = engine.propose(origin.clone(), closing).await?.into_inner();
    Ok(Closed { changed, rooms: leave_all(engine, &origin, &user_id).await })
}

/// Closes and erases an account that waits for approval. Returns whether it waited.
///
/// # Errors
/// When there is no such account or the log takes no writes.
pub async fn refuse(
    engine: &Engine,
    origin: Origin,
    refusing: Refuse,
) -> Result<bool, ProposeError> {
    let user_id: OwnedUserId = refusing.user_id.clone();
    let waited = engine.propose(origin.clone(), refusing).await?.into_inner();
    if waited {
        leave_all(engine, &origin, &user_id).await;
    }
    Ok(waited)
}

/// Completes the departures that were interrupted when the server ended.
pub fn resume(engine: &Arc<Engine>) {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        for user_id in engine.state().accounts.user_ids() {
            if engine.state().accounts.is_deactivated(&user_id) {
                leave_all(&engine, &Origin::server(), &user_id).await;
            }
        }
    });
}

/// Leaves all rooms, rejects all invitations, withdraws all knocks. Returns their number.
async fn leave_all(engine: &Engine, origin: &Origin, user_id: &UserId) -> usize {
    let mut left = 0;
    for part in engine.state().memberships.of(user_id, Offset::MAX) {
        let is_in =
            matches!(part.membership, Membership::Join | Membership::Invite | Membership::Knock);
        if is_in && leave(engine, origin, part.room_id, user_id).await {
            left += 1;
        }
    }
    left
}

/// Makes a user leave a room. Returns whether that worked: a failure in one room must not affect
/// the others.
pub async fn leave(
    engine: &Engine,
    origin: &Origin,
    room_id: OwnedRoomId,
    user_id: &UserId,
) -> bool {
    let ts = UInt::try_from(engine.clock().now_ms()).unwrap_or(UInt::MAX);
    let proposal = ChangeMembership::new(
        room_id.clone(),
        user_id.to_owned(),
        user_id.to_owned(),
        Change::Leave,
        MilliSecondsSinceUnixEpoch(ts),
    );
    match engine.propose(origin.clone(), proposal).await {
        Ok(left) => {
            drop(left.into_inner());
            true
        }
        Err(error) => match end_invite(engine, origin, &room_id, user_id).await {
            Ok(true) => true,
            Ok(false) => {
                tracing::warn!(%room_id, %error, "a room could not be left");
                false
            }
            Err(error) => {
                tracing::warn!(%room_id, %error, "an invite could not be rejected");
                false
            }
        },
    }
}

/// Ends an invite to a room that this homeserver is not in, whose rules it does not know. Whoever
/// invited is not told. Returns whether it is such a room.
async fn end_invite(
    engine: &Engine,
    origin: &Origin,
    room_id: &RoomId,
    user_id: &UserId,
) -> Result<bool, EnterError> {
    let Some(leave) = of_invite_elsewhere(engine, room_id, user_id)? else { return Ok(false) };
    engine.propose(origin.clone(), leave).await?.into_inner();
    Ok(true)
}

/// The end of an invite to a room that this homeserver is not in; `None` if it is another room.
pub fn of_invite_elsewhere(
    engine: &Engine,
    room_id: &RoomId,
    user_id: &UserId,
) -> Result<Option<RemoteMembership>, EnterError> {
    let env = engine.env();
    let room = env.state.rooms.get(room_id);
    if room.is_none_or(|room| room.has_server(&env.server.name)) {
        return Ok(None);
    }
    leave_alone(engine, EntryRequest { room_id, user_id, reason: None })
}
