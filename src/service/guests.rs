//! Removes guests from rooms that no longer admit them (client-server API, "Guest Access", "Server
//! behaviour").

use std::{collections::BTreeSet, sync::Arc};

use ruma::{OwnedRoomId, UserId, events::StateEventType};

use crate::accounts::closing::leave;
use logcabin_base::shutdown::Shutdown;
use logcabin_engine::{Engine, Lagged};
use logcabin_log::ReadError;
use logcabin_record::{Offset, Origin};
use logcabin_state::{Effect, Membership};

/// Checks each room that may no longer admit guests, until the server shuts down.
pub async fn keep_out(engine: Arc<Engine>, shutdown: Shutdown) {
    let mut work = engine.head().work();
    let room = |effect: &Effect| match effect {
        Effect::GuestAccess(room_id) => Some(room_id.clone()),
        _ => None,
    };
    // The server may have ended before all guests had left.
    let mut rooms = rooms_with_guests(&engine);
    loop {
        for room_id in rooms {
            let Some(room) = engine.state().rooms.get(&room_id) else { continue };
            let mut guests = Vec::new();
            room.each_joined_now(|user_id| guests.push(user_id.clone()));
            guests.retain(|user_id| engine.state().accounts.is_guest(user_id));
            for guest in guests {
                leave_unless_welcome(&engine, room_id.clone(), &guest).await;
            }
        }
        rooms = tokio::select! {
            rooms = work.next(room) => match rooms {
                Ok(rooms) => rooms.into_iter().collect(),
                Err(Lagged) => rooms_with_guests(&engine),
            },
            () = shutdown.given() => return,
        };
    }
}

fn rooms_with_guests(engine: &Engine) -> BTreeSet<OwnedRoomId> {
    let state = engine.state();
    let users = state.accounts.user_ids().into_iter();
    let guests = users.filter(|user_id| state.accounts.is_guest(user_id));
    let parts = guests.flat_map(|guest| state.memberships.of(&guest, Offset::MAX));
    let joined = parts.filter(|part| part.membership == Membership::Join);
    joined.map(|part| part.room_id).collect()
}

async fn leave_unless_welcome(engine: &Engine, room_id: OwnedRoomId, guest: &UserId) {
    match takes_guests(engine, &room_id) {
        Ok(true) => {}
        Ok(false) => {
            leave(engine, &Origin::server(), room_id, guest).await;
        }
        Err(error) => {
            tracing::warn!(%room_id, %error, "the guest access of a room could not be read")
        }
    }
}

fn takes_guests(engine: &Engine, room_id: &OwnedRoomId) -> Result<bool, ReadError> {
    let Some(room) = engine.state().rooms.get(room_id) else { return Ok(false) };
    let kind = StateEventType::RoomGuestAccess;
    let access = engine.events().state_text(&room, &kind, "guest_access", Offset::MAX)?;
    Ok(access.as_deref() == Some("can_join"))
}
