//! Copies a changed profile into the rooms of its user.

use std::sync::Arc;

use ruma::{OwnedRoomId, UserId};

use logcabin_decide::membership::{Change, ChangeMembership};
use logcabin_engine::Engine;
use logcabin_record::{Offset, Origin};
use logcabin_state::Membership;

/// Completes the copies that were interrupted when the server ended.
pub fn resume(engine: &Arc<Engine>) {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        for user_id in engine.state().accounts.user_ids() {
            spread(&engine, &Origin::server(), &user_id).await;
        }
    });
}

/// Copies a changed profile to the rooms that do not have it yet.
pub async fn spread(engine: &Engine, origin: &Origin, user_id: &UserId) {
    let rooms = rooms_without(engine, user_id);
    bring_to_rooms(engine, origin, user_id, rooms).await;
}

/// The rooms that the user was joined to before the profile last changed, and still is.
fn rooms_without(engine: &Engine, user_id: &UserId) -> Vec<OwnedRoomId> {
    let Some(account) = engine.state().accounts.get(user_id) else { return Vec::new() };
    let fields = ["displayname", "avatar_url"];
    let changed = {
        let account = account.read();
        let fields = fields.iter().filter_map(|field| account.profile.get(*field));
        fields.map(|field| field.changes.last_change()).max().unwrap_or(Offset::ZERO)
    };
    let parts = engine.state().memberships.of(user_id, Offset::MAX).into_iter();
    parts
        .filter(|part| part.membership == Membership::Join && part.offset < changed)
        .map(|part| part.room_id)
        .collect()
}

async fn bring_to_rooms(
    engine: &Engine,
    origin: &Origin,
    user_id: &UserId,
    rooms: Vec<OwnedRoomId>,
) {
    for room_id in rooms {
        let ms = ruma::UInt::try_from(engine.clock().now_ms()).unwrap_or(ruma::UInt::MAX);
        let proposal = ChangeMembership::new(
            room_id.clone(),
            user_id.to_owned(),
            user_id.to_owned(),
            Change::Profile,
            ruma::MilliSecondsSinceUnixEpoch(ms),
        );
        match engine.propose(origin.clone(), proposal).await {
            Ok(done) => drop(done.into_inner()),
            // A failure in one room does not affect the others.
            Err(error) => tracing::warn!(%room_id, %error, "a profile did not reach a room"),
        }
    }
}
