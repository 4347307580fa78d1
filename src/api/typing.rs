//! Typing.

use std::{sync::Arc, time::Duration};

use ruma::api::client::typing::create_typing_event::v3::{self as create_typing_event, Typing};

use super::Server;
use crate::{
    decide::ephemeral::SetTyping,
    http::{ApiError, Cx},
    record::Origin,
};

/// The longest that one can be said to type without saying so again.
const LONGEST: Duration = Duration::from_secs(120);

pub(super) async fn typing(
    cx: Cx<Server>,
    request: create_typing_event::Request,
) -> Result<create_typing_event::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let lasts = match &request.state {
        Typing::Yes(info) => Some(info.timeout.min(LONGEST)),
        Typing::No => None,
    };
    let now_ms = cx.app.engine.clock().now_ms();
    let millis = |lasts: Duration| u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
    let until_ms = lasts.map_or(0, |lasts| now_ms.saturating_add(millis(lasts)));
    let proposal = SetTyping {
        room_id: request.room_id.clone(),
        user_id: request.user_id.clone(),
        until_ms,
        only_if_until: None,
    };
    cx.propose(proposal.clone()).await?.into_inner();
    if let Some(lasts) = lasts {
        end_later(&cx.app, proposal, lasts);
    }
    Ok(create_typing_event::Response::new())
}

/// Ends by itself, for those who wait in a sync.
fn end_later(app: &Arc<Server>, typing: SetTyping, lasts: Duration) {
    let app = Arc::clone(app);
    tokio::spawn(async move {
        tokio::time::sleep(lasts).await;
        let stop = SetTyping { until_ms: 0, only_if_until: Some(typing.until_ms), ..typing };
        // One who has left meanwhile has stopped typing already.
        if let Err(error) = app.engine.propose(Origin::server(), stop).await {
            tracing::debug!(%error, "typing was not ended");
        }
    });
}

/// Ends in time what was typed when the server was stopped.
pub(crate) fn resume(app: &Arc<Server>) {
    let now_ms = app.engine.clock().now_ms();
    for room in app.engine.state().rooms.all() {
        for (user_id, until_ms) in room.typing().0 {
            let typing =
                SetTyping { room_id: room.id.clone(), user_id, until_ms, only_if_until: None };
            let lasts = Duration::from_millis(until_ms.saturating_sub(now_ms)).min(LONGEST);
            end_later(app, typing, lasts);
        }
    }
}
