//! Typing.

use std::{sync::Arc, time::Duration};

use ruma::api::client::typing::create_typing_event::v3::{self as create_typing_event, Typing};

use crate::{
    base::clock::millis,
    decide::ephemeral::SetTyping,
    edge::{
        api::Server,
        http::{ApiError, Cx},
    },
    engine::Engine,
    record::Origin,
};

/// The longest time until a typing notification must be repeated.
const LONGEST: Duration = Duration::from_secs(120);

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
    cx.propose(proposal.clone()).await?.into_inner();
    if let Some(lasts) = lasts {
        end_after(Arc::clone(&cx.app.engine), lasts, proposal);
    }
    Ok(create_typing_event::Response::new())
}

/// Restarts the timers that end typing after a restart of the server, for waiting syncs.
pub(crate) fn resume(engine: &Arc<Engine>) {
    for room in engine.state().rooms.all() {
        for (user_id, until_ms) in room.typing().0 {
            let lasts = until_ms.saturating_sub(engine.clock().now_ms());
            let typing =
                SetTyping { room_id: room.id.clone(), user_id, until_ms, only_if_until: None };
            end_after(Arc::clone(engine), Duration::from_millis(lasts).min(LONGEST), typing);
        }
    }
}

fn end_after(engine: Arc<Engine>, lasts: Duration, typing: SetTyping) {
    tokio::spawn(async move {
        tokio::time::sleep(lasts).await;
        let until = Some(typing.until_ms);
        let stop = SetTyping { until_ms: 0, only_if_until: until, ..typing };
        // A user who has left meanwhile has stopped typing already.
        match engine.propose(Origin::server(), stop).await {
            Ok(stopped) => stopped.into_inner(),
            Err(error) => tracing::debug!(%error, "typing was not ended"),
        }
    });
}
