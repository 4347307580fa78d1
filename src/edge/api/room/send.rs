//! Sending events.

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, EventId, MilliSecondsSinceUnixEpoch, OwnedEventId,
    OwnedRoomId, OwnedUserId, UInt, UserId,
    api::{
        auth_scheme::AccessToken,
        client::{
            message::send_message_event::v3 as send_message_event,
            redact::redact_event::v3 as redact_event,
            state::send_state_event::v3 as send_state_event,
        },
    },
    events::TimelineEventType,
};

use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{
    delayed::{self, Delay},
    membership::check_invitee,
};
use crate::{
    api::{answer::json, auth::rights::suspended, server::Server},
    http::{ApiError, Cx, Extended, Json, endpoint},
};
use logcabin_base::limits;
use logcabin_decide::{canonical, content as content_of, send::SendEvent};
use logcabin_record::{command::Transaction, lax_object::LaxObject};
use logcabin_service::{delayed::redacts, related_redactions::RedactRelated};

#[allow(clippy::too_many_arguments, reason = "the parts of an event, each of its own type")]
async fn send(
    cx: &Cx<Server>,
    room_id: OwnedRoomId,
    event_type: TimelineEventType,
    state_key: Option<String>,
    content: LaxObject,
    redacts: Option<OwnedEventId>,
    transaction: Option<Transaction>,
    ts: Option<MilliSecondsSinceUnixEpoch>,
) -> Result<OwnedEventId, ApiError> {
    cx.is_active();
    let sender = cx.caller.user_id.clone();
    // Only an application service may set the timestamp; the record always has the present time.
    let ts = ts.filter(|_| cx.caller.service.is_some()).unwrap_or_else(|| cx.app.now());
    let proposal =
        SendEvent { room_id, sender, event_type, state_key, content, redacts, transaction, ts };
    Ok(cx.propose(proposal).await?.into_inner())
}

endpoint! {
    /// A message without a transaction, as old clients send it.
    pub(super) struct SendOnce = POST
        "/_matrix/client/r0/rooms/{room_id}/send/{event_type}"
        "/_matrix/client/v3/rooms/{room_id}/send/{event_type}";
    for AccessToken;
    {
        room_id: OwnedRoomId = path,
        event_type: String = path,
        ts: Option<String> = parameter,
        content: Box<RawValue> = json,
    }
}

endpoint! {
    /// A redaction without a transaction, as old clients send it.
    pub(super) struct RedactOnce = POST
        "/_matrix/client/r0/rooms/{room_id}/redact/{event_id}"
        "/_matrix/client/v3/rooms/{room_id}/redact/{event_id}";
    for AccessToken;
    { room_id: OwnedRoomId = path, event_id: OwnedEventId = path, body: RedactOnceBody = json }
}

/// Why an event is redacted, and what else.
#[derive(Deserialize)]
pub(super) struct RedactOnceBody {
    reason: Option<String>,
    #[serde(flatten)]
    related: RelatedRedactions,
}

/// Which of the events that relate to a redacted one are redacted, too (MSC3912).
#[derive(Default, Deserialize)]
pub(super) struct RelatedRedactions {
    /// Their relation types; `*` stands for all.
    with_rel_types: Option<Vec<String>>,
    #[serde(rename = "org.matrix.msc3912.with_relations")]
    unstable: Option<Vec<String>>,
}

/// The client's transaction, which belongs to its session and to one endpoint with its path.
pub(crate) fn transaction(
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
) -> Result<Json, ApiError> {
    let message = Message {
        room_id: request.room_id,
        event_type: request.event_type.to_string(),
        content: request.body.into_json(),
        ts: request.timestamp,
    };
    message.send(&cx, Some(request.txn_id.as_str())).await
}

/// A message in a request.
struct Message {
    room_id: OwnedRoomId,
    event_type: String,
    content: Box<RawValue>,
    ts: Option<MilliSecondsSinceUnixEpoch>,
}

impl Message {
    /// Sends it now, or later if the query has a delay: once for each transaction, or every time
    /// without one.
    async fn send(self, cx: &Cx<Server>, txn_id: Option<&str>) -> Result<Json, ApiError> {
        let Self { room_id, event_type, content, ts } = self;
        let delay = Delay::in_query(cx)?;
        let verb = if delay.is_some() { "send delayed" } else { "send" };
        let scope = format!("{verb}/{room_id}/{event_type}");
        let transaction = txn_id.map(|id| transaction(cx, scope, id)).transpose()?;
        if let Some(delay) = delay {
            let event = delayed::Event { event_type, state_key: None, content };
            return delayed::schedule(cx, room_id, event, delay, transaction).await;
        }
        let mut content = content_of(&content)?;
        let event_type = TimelineEventType::from(event_type);
        let redacts = match event_type {
            TimelineEventType::RoomRedaction => Some(redacts(&mut content)?),
            _ => None,
        };
        let event_id =
            send(cx, room_id, event_type, None, content, redacts, transaction, ts).await?;
        json(&json!({ "event_id": event_id }))
    }
}

/// `POST …/send/{eventType}`, by which old clients send without a transaction.
pub(super) async fn message_without_transaction(
    cx: Cx<Server>,
    request: SendOnce,
) -> Result<Json, ApiError> {
    let SendOnce { room_id, event_type, ts, content } = request;
    let ts = ts.map(|ts| ts.parse::<UInt>()).transpose();
    let ts = ts.map_err(|_| ApiError::invalid_param("`ts` is not a number of milliseconds."))?;
    let ts = ts.map(MilliSecondsSinceUnixEpoch);
    Message { room_id, event_type, content, ts }.send(&cx, None).await
}

pub(super) async fn state(
    cx: Cx<Server>,
    request: send_state_event::Request,
) -> Result<Json, ApiError> {
    if let Some(delay) = Delay::in_query(&cx)? {
        let event = delayed::Event {
            event_type: request.event_type.to_string(),
            state_key: Some(request.state_key),
            content: request.body.into_json(),
        };
        return delayed::schedule(&cx, request.room_id, event, delay, None).await;
    }
    let content = content_of(request.body.json())?;
    let event_type = TimelineEventType::from(request.event_type.to_string());
    if event_type == TimelineEventType::RoomMember
        && content.get("membership").and_then(CanonicalJsonValue::as_str) == Some("invite")
        && let Ok(invitee) = UserId::parse(&request.state_key)
    {
        if cx.is_remote(invitee.server_name()) {
            let content = canonical(request.body.json())?;
            return invite_by_state(&cx, request.room_id, invitee, content).await;
        }
        check_invitee(&cx, &invitee).await?;
    }
    let state_key = Some(request.state_key);
    let ts = request.timestamp;
    let event_id =
        send(&cx, request.room_id, event_type, state_key, content, None, None, ts).await?;
    json(&json!({ "event_id": event_id }))
}

/// Invites a user of another homeserver, which has to sign the event before it is in the room.
async fn invite_by_state(
    cx: &Cx<Server>,
    room_id: OwnedRoomId,
    invitee: OwnedUserId,
    mut content: CanonicalJsonObject,
) -> Result<Json, ApiError> {
    // An identity server's word comes by another endpoint.
    content.remove("third_party_invite");
    content.remove("join_authorised_via_users_server");
    cx.may_ask()?;
    let event_id = cx.invite_elsewhere(room_id, invitee, content).await?;
    json(&json!({ "event_id": event_id }))
}

/// A suspended user may redact only their own events (client-server API, "Account suspension"), and
/// not by their relation.
fn must_own_if_suspended(
    cx: &Cx<Server>,
    event_id: &EventId,
    by_relation: bool,
) -> Result<(), ApiError> {
    let engine = &cx.app.engine;
    let standing = engine.state().accounts.standing(&cx.caller.user_id);
    if !standing.is_some_and(|standing| standing.suspended) {
        return Ok(());
    }
    let event = engine.events().find(&engine.state(), event_id)?;
    if !by_relation && event.is_none_or(|event| event.sender == cx.caller.user_id) {
        Ok(())
    } else {
        Err(suspended())
    }
}

pub(super) async fn redact(
    cx: Cx<Server>,
    Extended { request, more }: Extended<redact_event::Request, RelatedRedactions>,
) -> Result<Json, ApiError> {
    let scope = format!("redact/{}/{}", request.room_id, request.event_id);
    let transaction = transaction(&cx, scope, request.txn_id.as_str())?;
    let redaction = Redaction {
        room_id: request.room_id,
        event_id: request.event_id,
        reason: request.reason,
        related: more,
    };
    let event_id = redaction.send(&cx, Some(transaction)).await?;
    json(&json!({ "event_id": event_id }))
}

/// A redaction in a request.
struct Redaction {
    room_id: OwnedRoomId,
    event_id: OwnedEventId,
    reason: Option<String>,
    related: RelatedRedactions,
}

impl Redaction {
    async fn send(
        self,
        cx: &Cx<Server>,
        transaction: Option<Transaction>,
    ) -> Result<OwnedEventId, ApiError> {
        let Self { room_id, event_id, reason, related } = self;
        let rel_types = related.with_rel_types.or(related.unstable).unwrap_or_default();
        must_own_if_suspended(cx, &event_id, !rel_types.is_empty())?;
        if rel_types.len() > limits::FILTER_RELATED {
            let most = limits::FILTER_RELATED;
            return Err(ApiError::invalid_param(format!("More than {most} relation types.")));
        }
        let mut content = CanonicalJsonObject::new();
        if let Some(reason) = reason {
            content.insert("reason".to_owned(), CanonicalJsonValue::String(reason));
        }
        let kind = TimelineEventType::RoomRedaction;
        let related = RedactRelated {
            room_id: room_id.clone(),
            parent: event_id.clone(),
            rel_types,
            by: cx.caller.user_id.clone(),
            content: content.clone(),
        };
        let redaction =
            send(cx, room_id, kind, None, content.into(), Some(event_id), transaction, None)
                .await?;
        // A repeated request got here although its user has been shadow-banned since.
        let standing = cx.app.engine.state().accounts.standing(&cx.caller.user_id);
        if !standing.is_some_and(|standing| standing.shadow_banned) {
            related.redact(&cx.app.engine, &cx.origin()).await?;
        }
        Ok(redaction)
    }
}

/// `POST …/redact/{eventId}`, by which old clients redact without a transaction.
pub(super) async fn redact_without_transaction(
    cx: Cx<Server>,
    request: RedactOnce,
) -> Result<Json, ApiError> {
    let RedactOnce { room_id, event_id, body: RedactOnceBody { reason, related } } = request;
    let event_id = Redaction { room_id, event_id, reason, related }.send(&cx, None).await?;
    json(&json!({ "event_id": event_id }))
}
