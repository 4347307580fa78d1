//! `m.typing` (server-server API, "Typing Notifications").

use ruma::{OwnedRoomId, OwnedUserId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{EduError, content};
use crate::federation::PduReceiver;
use logcabin_base::{clock::millis, limits};
use logcabin_decide::ephemeral::SetTyping;
use logcabin_record::Origin;

#[derive(Deserialize)]
struct Content {
    room_id: OwnedRoomId,
    user_id: OwnedUserId,
    typing: bool,
}

impl PduReceiver<'_> {
    pub(super) async fn take_typing(
        &self,
        origin: &ServerName,
        raw: &RawValue,
    ) -> Result<(), EduError> {
        let Content { room_id, user_id, typing } = content(raw)?;
        self.room_of(origin, &room_id, &user_id)?;
        let (now_ms, lasts) = (self.engine.clock().now_ms(), limits::REMOTE_TYPING);
        let until_ms = self.typing.until_ms(&room_id, &user_id);
        let left_ms = until_ms.map(|until_ms| until_ms.saturating_sub(now_ms));
        let is_known = match left_ms {
            None => !typing,
            // The homeserver repeats it while it lasts.
            Some(left_ms) => typing && left_ms > millis(lasts) / 2,
        };
        if is_known {
            return Ok(());
        }
        self.admit_edu(&user_id)?;
        let until_ms = if typing { now_ms.saturating_add(millis(lasts)) } else { 0 };
        let typing = SetTyping { room_id, user_id, until_ms, only_if_until: None };
        match self.typing.set(Origin::server(), typing.clone()).await {
            Err(error) if error.is_for_now() => return Err(error.into()),
            // Those that are refused are dropped.
            Ok(()) | Err(_) => {}
        }
        if until_ms > 0 {
            self.typing.end_after(lasts, typing);
        }
        Ok(())
    }
}
