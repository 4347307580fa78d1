//! Continues the shutdown of a room to its end.
//!
//! The first batch of records marks the room as shut down, and removes it from the directory. Its
//! members and aliases follow one by one, so that a room of any size can be shut down while others
//! are served; if the server stops meanwhile, it continues after the next start. The state alone
//! shows what is already done, so that nothing is done twice.

use std::sync::Arc;

use futures_util::future::join_all;
use ruma::{OwnedRoomAliasId, OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use crate::admin::context::ActContext;
use logcabin_base::{
    limits,
    progress::{self, Work},
};
use logcabin_decide::{
    membership::{Change, ChangeMembership},
    moderation::{FinishShutdown, MoveAlias, OpenReplacement},
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_record::{Offset, Origin};
use logcabin_service::{
    accounts::closing::leave,
    erasure::{self, purge::PurgeError},
};
use logcabin_state::{Membership, Room, Shutdown, State};

/// How far the shutdown of a room has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownStatus {
    pub id: String,
    pub room_id: OwnedRoomId,
    pub complete: bool,
    /// Whether the room was purged; none if no purge was ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub purged: Option<bool>,
    /// Who was in the room, or invited, when it began, and no longer is.
    pub kicked_users: Vec<OwnedUserId>,
    /// Who could not be made to leave.
    pub failed_to_kick_users: Vec<OwnedUserId>,
    /// The aliases that pointed at the room when it began and no longer do.
    pub local_aliases: Vec<OwnedRoomAliasId>,
    /// The room to which members and aliases move.
    pub new_room_id: Option<OwnedRoomId>,
}

impl ShutdownStatus {
    /// As tools know it: `active`, `failed`, or `complete`.
    pub const fn in_words(&self) -> &'static str {
        match (self.complete, self.purged) {
            (false, _) => "active",
            (true, Some(false)) => "failed",
            (true, _) => "complete",
        }
    }
}

/// Continues the shutdowns that the end of the server interrupted.
pub fn resume(engine: &Arc<Engine>) {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        for shutdown in engine.state().closures.under_way() {
            let room_id = shutdown.room_id.clone();
            if let Err(error) = go_on(&engine, &Origin::server(), shutdown).await {
                tracing::warn!(%room_id, %error, "the shutdown of a room could not continue");
            }
        }
    });
}

/// Does the rest of a shutdown.
pub(super) async fn go_on(
    engine: &Engine,
    origin: &Origin,
    shutdown: Shutdown,
) -> Result<(), PurgeError> {
    let Shutdown { id, room_id, begun, replacement, purge, .. } = shutdown;
    let mut new_room = None;
    if let Some(replacement) = replacement {
        let to = replacement.room_id.clone();
        let open = OpenReplacement { replacement, ts: engine.clock().timestamp() };
        match engine.propose(origin.clone(), open).await {
            Ok(opened) => {
                opened.into_inner();
                new_room = Some(to);
            }
            // The creator of the new room may have left the server meanwhile. The old room is shut
            // down all the same.
            Err(ProposeError::Refused(error)) => {
                tracing::warn!(%room_id, %error, "no replacement was created for a room that is shut down");
            }
            Err(error) => return Err(error.into()),
        }
    }
    for alias in engine.state().aliases.of_room(&room_id, Offset::MAX) {
        let moving = MoveAlias { alias, from: room_id.clone(), to: new_room.clone() };
        engine.propose(origin.clone(), moving).await?.into_inner();
    }
    let mut failed = Vec::new();
    let members = members(&engine.state(), &room_id);
    let work = Work::about(progress::DEPARTURE, room_id.as_str(), 0, members.len() as u64);
    for some in members.chunks(limits::SHUTDOWN_AT_ONCE) {
        let leaving = some.iter().map(|(user_id, membership)| async {
            let joins = new_room.as_deref().filter(|_| *membership == Membership::Join);
            if let Some(new_room) = joins {
                join(engine, origin, new_room, user_id).await;
            }
            leave(engine, origin, room_id.clone(), user_id).await
        });
        let left = join_all(leaving).await;
        let stayed = some.iter().zip(left).filter(|(_, left)| !left);
        failed.extend(stayed.map(|((user_id, _), _)| user_id.clone()));
        work.add(some.len() as u64);
    }
    drop(work);
    let mut left = Vec::new();
    if purge && let Some(room) = engine.state().rooms.get(&room_id) {
        left = gone(&room, begun, Offset::MAX);
        drop(room);
        match erasure::purge::purge(engine, origin.clone(), &room_id, None).await {
            Ok(_) | Err(PurgeError::NoRoom(_)) => {}
            // Somebody is still in it, as the last record of the shutdown says.
            Err(PurgeError::Propose(ProposeError::Refused(error))) => {
                tracing::warn!(%room_id, %error, "a room that was shut down is not purged");
                left.clear();
            }
            Err(error) => return Err(error),
        }
    }
    // One record names all of them.
    failed.truncate(limits::SHUTDOWN_NAMED);
    left.truncate(limits::SHUTDOWN_NAMED);
    let finish = FinishShutdown { room_id, id, failed, left };
    engine.propose(origin.clone(), finish).await?.into_inner();
    Ok(())
}

/// The users who are in the room, are invited, or knock.
fn members(state: &State, room_id: &RoomId) -> Vec<(OwnedUserId, Membership)> {
    let Some(room) = state.rooms.get(room_id) else { return Vec::new() };
    let of = |membership| room.members(membership, Offset::MAX).into_iter();
    let all = [Membership::Join, Membership::Invite, Membership::Knock].into_iter();
    all.flat_map(|membership| of(membership).map(move |(user_id, _)| (user_id, membership)))
        .collect()
}

async fn join(engine: &Engine, origin: &Origin, room_id: &RoomId, user_id: &UserId) {
    let proposal = ChangeMembership::new(
        room_id.to_owned(),
        user_id.to_owned(),
        user_id.to_owned(),
        Change::Join,
        engine.clock().timestamp(),
    );
    match engine.propose(origin.clone(), proposal).await {
        Ok(joined) => drop(joined.into_inner()),
        // A guest, for example. They leave the old room all the same.
        Err(error) => tracing::info!(%room_id, %user_id, %error, "a user was not moved"),
    }
}

/// The shutdown of this id.
pub fn of_id(context: &ActContext, id: &str) -> Option<ShutdownStatus> {
    let state = context.engine.state();
    state.closures.shutdown(id).map(|shutdown| status(&state, shutdown))
}

/// The shutdowns of a room, which need not exist.
pub fn of_room(context: &ActContext, room_id: &RoomId) -> Vec<ShutdownStatus> {
    let state = context.engine.state();
    let shutdowns = state.closures.of_room(room_id).into_iter();
    shutdowns.map(|shutdown| status(&state, shutdown)).collect()
}

pub fn status(state: &State, shutdown: Shutdown) -> ShutdownStatus {
    let Shutdown { id, room_id, begun, replacement, purge, ended, failed, left } = shutdown;
    let until = ended.unwrap_or(Offset::MAX);
    let room = state.rooms.get(&room_id);
    let purged = purge.then_some(room.is_none());
    let kicked_users = room.map_or(left, |room| gone(&room, begun, until));
    let aliases = &state.aliases;
    let points_here = |alias: &OwnedRoomAliasId| {
        aliases.get(alias, until).is_some_and(|target| target.room_id == room_id)
    };
    let mut local_aliases = aliases.of_room(&room_id, begun);
    local_aliases.retain(|alias| !points_here(alias));
    let new_room_id: Option<OwnedRoomId> = replacement.map(|replacement| replacement.room_id);
    ShutdownStatus {
        id,
        room_id,
        complete: ended.is_some(),
        purged,
        kicked_users,
        failed_to_kick_users: failed,
        local_aliases,
        new_room_id,
    }
}

/// Who was in the room, or invited, at `begun`, and no longer at `until`.
fn gone(room: &Room, begun: Offset, until: Offset) -> Vec<OwnedUserId> {
    let mut gone = Vec::new();
    for membership in [Membership::Join, Membership::Invite, Membership::Knock] {
        let members = room.members(membership, begun).into_iter();
        gone.extend(members.map(|(user_id, _)| user_id).filter(|user_id| {
            let then = room.membership(user_id, until).map(|(_, membership)| membership);
            matches!(then, None | Some(Membership::Leave | Membership::Ban))
        }));
    }
    gone.sort_unstable();
    gone
}
