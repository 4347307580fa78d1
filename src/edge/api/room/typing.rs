//! Typing.

use ruma::api::client::typing::create_typing_event::v3::{self as create_typing_event, Typing};

use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};
use logcabin_base::clock::millis;
use logcabin_decide::ephemeral::SetTyping;
use logcabin_service::typing::LONGEST;

pub(super) async fn typing(
    cx: Cx<Server>,
    request: create_typing_event::Request,
) -> Result<create_typing_event::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    cx.is_active();
    let lasts = match &request.state {
        Typing::Yes(info) => Some(info.timeout.min(LONGEST)),
        Typing::No => None,
    };
    let now_ms = cx.app.engine.clock().now_ms();
    let until_ms = lasts.map_or(0, |lasts| now_ms.saturating_add(millis(lasts)));
    let proposal = SetTyping {
        room_id: request.room_id.clone(),
        user_id: request.user_id.clone(),
        until_ms,
        only_if_until: None,
    };
    cx.app.typing.set(cx.origin(), proposal.clone()).await?;
    if let Some(lasts) = lasts {
        cx.app.typing.end_after(lasts, proposal);
    }
    Ok(create_typing_event::Response::new())
}
