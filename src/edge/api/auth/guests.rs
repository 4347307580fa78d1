//! Removes guests from rooms that no longer admit them (client-server API, "Guest Access", "Server
//! behaviour").

use std::sync::Arc;

use ruma::{OwnedRoomId, UserId, events::StateEventType};

use crate::{
    base::shutdown::Shutdown,
    engine::Engine,
    log::ReadError,
    record::{Offset, Origin},
    service::accounts::closing::leave,
    state::Membership,
};

/// Checks each room that may no longer admit guests, until the server shuts down. After a start,
/// that is every room with a guest, because the server may have ended before all had left.
pub(crate) async fn keep_out(engine: Arc<Engine>, shutdown: Shutdown) {
    let guests = engine.state().accounts.user_ids().into_iter();
    for guest in guests.filter(|user_id| engine.state().accounts.is_guest(user_id)) {
        for part in engine.state().memberships.of(&guest, Offset::MAX) {
            if part.membership == Membership::Join {
                leave_unless_welcome(&engine, part.room_id, &guest).await;
            }
        }
    }
    loop {
        let rooms = tokio::select! {
            rooms = engine.head().guest_access_changed() => rooms,
            () = shutdown.given() => return,
        };
        for room_id in rooms {
            let Some(room) = engine.state().rooms.get(&room_id) else { continue };
            let mut guests = Vec::new();
            room.each_joined_now(|user_id| guests.push(user_id.clone()));
            guests.retain(|user_id| engine.state().accounts.is_guest(user_id));
            for guest in guests {
                leave_unless_welcome(&engine, room_id.clone(), &guest).await;
            }
        }
    }
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
