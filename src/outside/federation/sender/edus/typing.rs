//! `m.typing` (server-server API, "Typing Notifications").

use serde_json::json;

use super::{Edu, edu};
use logcabin_record::command::RoomTyping;

/// The key, and the EDU.
pub(super) fn transient(body: &RoomTyping, now_ms: u64) -> (String, Edu) {
    let RoomTyping { room_id, user_id, until_ms, .. } = body;
    let typing = *until_ms > now_ms;
    let content = json!({ "room_id": room_id, "user_id": user_id, "typing": typing });
    (format!("typing {room_id} {user_id}"), edu("m.typing", &content))
}
