//! What several sections answer.

use std::cell::Cell;

use crate::http::{ApiError, Json};
use logcabin_base::canonical::{self, Numbers};

/// The refusal for a room whose existence must not be revealed to the caller.
pub(super) fn not_in_it() -> ApiError {
    ApiError::forbidden("You are not in this room.")
}

/// How large a response may be for the memory that it was made in to be kept for the next.
const KEPT_JSON_BYTES: usize = 256 * 1024;

/// Whether other homeservers can read this, which may have come in before it was checked.
pub(super) fn can_leave(value: &impl serde::Serialize) -> bool {
    let text = serde_json::to_string(value);
    text.is_ok_and(|text| canonical::check(&text, Numbers::Strict).is_ok())
}

/// A response that is serialised here.
pub(super) fn json<T: serde::Serialize>(value: &T) -> Result<Json, ApiError> {
    thread_local! {
        // How long a response will be is not known. To copy it once takes less than to make room
        // for it again and again.
        static ROOM: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    }
    let mut room = ROOM.take();
    room.clear();
    serde_json::to_writer(&mut room, value).map_err(ApiError::internal)?;
    if room.len() > KEPT_JSON_BYTES {
        return Ok(room.into());
    }
    let json = bytes::Bytes::copy_from_slice(&room);
    ROOM.set(room);
    Ok(Json(json))
}
