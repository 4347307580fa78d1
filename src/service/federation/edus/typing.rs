//! `m.typing` (server-server API, "Typing Notifications").

use std::sync::Arc;

use ruma::{OwnedRoomId, OwnedUserId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{EduError, content};
use crate::{federation::PduReceiver, typing::end_after};
use logcabin_base::{clock::millis, limits};
use logcabin_decide::ephemeral::SetTyping;

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
        let room = self.room_of(origin, &room_id, &user_id)?;
        let (now_ms, lasts) = (self.engine.clock().now_ms(), limits::REMOTE_TYPING);
        let left_ms = room.typist(&user_id).map(|of| of.until_ms.saturating_sub(now_ms));
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
        self.propose_all(vec![typing.clone()]).await?;
        if until_ms > 0 {
            end_after(Arc::clone(self.engine), lasts, typing);
        }
        Ok(())
    }
}
