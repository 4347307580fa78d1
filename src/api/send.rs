//! Sending events.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, MilliSecondsSinceUnixEpoch, OwnedEventId,
    OwnedRoomId, UserId,
    api::client::{
        message::send_message_event::v3 as send_message_event,
        redact::redact_event::v3 as redact_event, state::send_state_event::v3 as send_state_event,
    },
    events::TimelineEventType,
};

use bytes::Bytes;
use serde_json::json;

use super::{
    Server,
    delayed::{self, Delay},
    json,
    membership::check_invitee,
    rights::suspended,
};
use crate::{
    decide::{canonical, send::SendEvent},
    http::{ApiError, Cx},
    limits,
    record::command::Transaction,
};

#[allow(clippy::too_many_arguments, reason = "the parts of an event, each of its own type")]
async fn send(
    cx: &Cx<Server>,
    room_id: OwnedRoomId,
    event_type: TimelineEventType,
    state_key: Option<String>,
    content: CanonicalJsonObject,
    redacts: Option<OwnedEventId>,
    transaction: Option<Transaction>,
    ts: Option<MilliSecondsSinceUnixEpoch>,
) -> Result<OwnedEventId, ApiError> {
    cx.is_active();
    let sender = cx.caller.user_id.clone();
    // Only an application service says when something was sent; the record has the time that it is.
    let ts = ts.filter(|_| cx.caller.service.is_some()).unwrap_or_else(|| cx.app.now());
    let proposal =
        SendEvent { room_id, sender, event_type, state_key, content, redacts, transaction, ts };
    Ok(cx.propose(proposal).await?.into_inner())
}

/// The client's transaction: of its session, and of one endpoint with its path.
pub(super) fn transaction(
    cx: &Cx<Server>,
    scope: String,
    id: &str,
) -> Result<Transaction, ApiError> {
    if id.len() > limits::TRANSACTION_ID_BYTES {
        return Err(ApiError::invalid_param("The transaction id is too long."));
    }
    Ok(Transaction { session: cx.caller.session, id: id.to_owned(), scope })
}

pub(super) async fn message(
    cx: Cx<Server>,
    request: send_message_event::Request,
) -> Result<Bytes, ApiError> {
    let event_type = request.event_type.to_string();
    if let Some(delay) = Delay::in_query(&cx)? {
        let scope = format!("send delayed/{}/{event_type}", request.room_id);
        let transaction = transaction(&cx, scope, request.txn_id.as_str())?;
        let content = request.body.into_json();
        let event = delayed::Event { event_type, state_key: None, content };
        return delayed::schedule(&cx, request.room_id, event, delay, Some(transaction)).await;
    }
    let scope = format!("send/{}/{event_type}", request.room_id);
    let transaction = transaction(&cx, scope, request.txn_id.as_str())?;
    let mut content = canonical(request.body.json())?;
    let event_type = TimelineEventType::from(event_type);
    let redacts = match event_type {
        TimelineEventType::RoomRedaction => Some(redacts(&mut content)?),
        _ => None,
    };
    let (transaction, ts) = (Some(transaction), request.timestamp);
    let event_id =
        send(&cx, request.room_id, event_type, None, content, redacts, transaction, ts).await?;
    json(&json!({ "event_id": event_id }))
}

/// The event that a redaction sent as an ordinary event names in its content.
pub(super) fn redacts(content: &mut CanonicalJsonObject) -> Result<OwnedEventId, ApiError> {
    let Some(CanonicalJsonValue::String(event_id)) = content.remove("redacts") else {
        return Err(ApiError::missing_param("A redaction names the event in `redacts`."));
    };
    event_id.try_into().map_err(|_| ApiError::invalid_param("`redacts` is not an event id."))
}

pub(super) async fn state(
    cx: Cx<Server>,
    request: send_state_event::Request,
) -> Result<Bytes, ApiError> {
    if let Some(delay) = Delay::in_query(&cx)? {
        let event = delayed::Event {
            event_type: request.event_type.to_string(),
            state_key: Some(request.state_key),
            content: request.body.into_json(),
        };
        return delayed::schedule(&cx, request.room_id, event, delay, None).await;
    }
    let content = canonical(request.body.json())?;
    let event_type = TimelineEventType::from(request.event_type.to_string());
    if event_type == TimelineEventType::RoomMember
        && content.get("membership").and_then(CanonicalJsonValue::as_str) == Some("invite")
        && let Ok(invitee) = UserId::parse(&request.state_key)
    {
        check_invitee(&cx.app, &invitee).await?;
    }
    let state_key = Some(request.state_key);
    let ts = request.timestamp;
    let event_id =
        send(&cx, request.room_id, event_type, state_key, content, None, None, ts).await?;
    json(&json!({ "event_id": event_id }))
}

/// A suspended user may take back what they sent themselves, and no more (client-server API, "Account
/// suspension").
fn must_own_if_suspended(cx: &Cx<Server>, event_id: &EventId) -> Result<(), ApiError> {
    let engine = &cx.app.engine;
    let standing = engine.state().accounts.standing(&cx.caller.user_id);
    if !standing.is_some_and(|standing| standing.suspended) {
        return Ok(());
    }
    let event = engine.events().find(&engine.state(), event_id)?;
    if event.is_none_or(|event| event.sender == cx.caller.user_id) {
        Ok(())
    } else {
        Err(suspended())
    }
}

pub(super) async fn redact(
    cx: Cx<Server>,
    request: redact_event::Request,
) -> Result<redact_event::Response, ApiError> {
    must_own_if_suspended(&cx, &request.event_id)?;
    let scope = format!("redact/{}/{}", request.room_id, request.event_id);
    let transaction = transaction(&cx, scope, request.txn_id.as_str())?;
    let mut content = CanonicalJsonObject::new();
    if let Some(reason) = request.reason {
        content.insert("reason".to_owned(), CanonicalJsonValue::String(reason));
    }
    let event_id = send(
        &cx,
        request.room_id,
        TimelineEventType::RoomRedaction,
        None,
        content,
        Some(request.event_id),
        Some(transaction),
        None,
    )
    .await?;
    Ok(redact_event::Response::new(event_id))
}
