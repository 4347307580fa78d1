//! Delayed events (MSC4140): scheduling, listing, restarting and cancelling.
//!
//! The proposal has had two forms, and both are in use: a delay in the query of the sending
//! endpoints, and an endpoint of its own; an action in the body, and one in the path.

use http::StatusCode;
use ruma::{
    OwnedRoomId, RoomId,
    api::auth_scheme::{AccessToken, AccessTokenOptional},
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use super::space;
use crate::{
    api::{
        answer::{json, not_in_it},
        server::Server,
    },
    http::{ApiError, Caller, Cx, ErrorCode, Json, Session, endpoint},
};
use logcabin_base::{clock, limits};
use logcabin_decide::delayed::{CANCELLED_BY_STATE_UPDATE, GiveUp, Restart, Schedule, SendDelayed};
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_read::events::to_raw;
use logcabin_record::{
    Offset,
    command::{DelayedOutcome, Transaction},
};
use logcabin_service::delayed::{Unsendable, content, parts, to_send};
use logcabin_state::{DelayedEvent, delayed::FINISHED_KEPT_MS};

endpoint! {
    /// Schedules an event by the dedicated endpoint.
    pub(super) struct Put = PUT
        "/_matrix/client/unstable/org.matrix.msc4140/rooms/{room_id}/delayed_event/{event_type}/{txn_id}";
    for AccessToken;
    {
        room_id: OwnedRoomId = path,
        event_type: String = path,
        txn_id: String = path,
        body: Content = json,
    }
}

/// The event to schedule, and its delay.
#[derive(Deserialize)]
pub(super) struct Content {
    delay: u64,
    #[serde(default)]
    state_key: Option<String>,
    content: Box<RawValue>,
}

endpoint! {
    /// The caller's delayed events.
    pub(super) struct List = GET "/_matrix/client/unstable/org.matrix.msc4140/delayed_events";
    for AccessToken;
    {}
}

endpoint! {
    /// One of the caller's delayed events.
    pub(super) struct Get = GET
        "/_matrix/client/unstable/org.matrix.msc4140/delayed_events/{delay_id}";
    for AccessToken;
    { delay_id: String = path }
}

endpoint! {
    /// An action on a delayed event, in the body.
    pub(super) struct Act = POST
        "/_matrix/client/unstable/org.matrix.msc4140/delayed_events/{delay_id}";
    for AccessTokenOptional;
    { delay_id: String = path, body: ActionBody = json }
}

/// The action on a delayed event.
#[derive(Deserialize)]
pub(super) struct ActionBody {
    #[serde(default)]
    action: Option<String>,
}

endpoint! {
    /// An action on a delayed event, in the path.
    pub(super) struct ActByPath = POST
        "/_matrix/client/unstable/org.matrix.msc4140/delayed_events/{delay_id}/{action}";
    for AccessTokenOptional;
    { delay_id: String = path, action: String = path }
}

/// An event to send later.
pub(super) struct Event {
    pub(super) event_type: String,
    pub(super) state_key: Option<String>,
    pub(super) content: Box<RawValue>,
}

/// The delay of an event.
pub(super) struct Delay {
    ms: u64,
    /// Whether it was in the query, so that errors have the older form.
    in_query: bool,
}

impl Delay {
    /// The delay in the query of an endpoint that otherwise sends at once.
    pub(super) fn in_query<C>(cx: &Cx<Server, C>) -> Result<Option<Self>, ApiError> {
        let Some(text) = cx.query("org.matrix.msc4140.delay")? else { return Ok(None) };
        let ms = text.parse().map_err(|_| not_a_delay())?;
        Ok(Some(Self { ms, in_query: true }))
    }
}

fn not_a_delay() -> ApiError {
    ApiError::invalid_param("The delay is a number of milliseconds above zero.")
}

/// Schedules an event; returns the response.
pub(super) async fn schedule<C: Caller>(
    cx: &Cx<Server, C>,
    room_id: OwnedRoomId,
    event: Event,
    delay: Delay,
    transaction: Option<Transaction>,
) -> Result<Json, ApiError> {
    let session = cx.caller.session().ok_or_else(ApiError::missing_token)?;
    let settings = &cx.app.config.delayed_events;
    let max_delay_ms = settings.max_delay_seconds.saturating_mul(1000);
    if delay.ms == 0 {
        return Err(not_a_delay());
    }
    if delay.ms > max_delay_ms {
        let code = ErrorCode::MaxDelayExceeded { max_delay_ms, first_form: delay.in_query };
        return Err(ApiError::new(code, "The requested delay exceeds the allowed maximum."));
    }
    let Event { event_type, state_key, content } = event;
    for text in [Some(&event_type), state_key.as_ref()].into_iter().flatten() {
        if text.len() > limits::EVENT_FIELD_BYTES {
            return Err(ApiError::too_large("The type or the state key is too long."));
        }
    }
    if content.get().len() > limits::EVENT_BYTES {
        return Err(ApiError::too_large("The content is too large for an event."));
    }
    // The user must not learn whether hidden rooms exist.
    let state = cx.app.engine.state();
    let has_part = state.memberships.part(&session.user_id, &room_id).is_some();
    if !has_part && !space::may_know_of(&cx.app.engine, &session.user_id, &room_id)? {
        return Err(not_in_it());
    }
    // An event that could never be sent is refused now.
    parts(&event_type, state_key.as_deref(), &content)?;
    let proposal = Schedule {
        delay_id: clock::random_token(),
        user_id: session.user_id.clone(),
        room_id,
        event_type,
        state_key,
        content,
        delay_ms: delay.ms,
        since_ms: cx.app.engine.clock().now_ms(),
        transaction,
        most: settings.max_per_user,
    };
    let delay_id = cx.propose(proposal).await?.into_inner();
    json(&json!({ "delay_id": delay_id }))
}

pub(super) async fn put(cx: Cx<Server>, request: Put) -> Result<Json, ApiError> {
    let Put { room_id, event_type, txn_id, body } = request;
    if txn_id.len() > limits::TRANSACTION_ID_BYTES {
        return Err(ApiError::invalid_param("The transaction id is too long."));
    }
    let session = cx.caller.session;
    let scope = format!("delayed_event/{room_id}/{event_type}");
    let transaction = Transaction { session, id: txn_id, scope };
    let Content { delay, state_key, content } = body;
    let event = Event { event_type, state_key, content };
    let delay = Delay { ms: delay, in_query: false };
    schedule(&cx, room_id, event, delay, Some(transaction)).await
}

fn no_such_event() -> ApiError {
    ApiError::not_found("There is no such delayed event.")
}

// Listing.

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    let event = cx.app.engine.state().delayed.get(&request.delay_id);
    let event = event.filter(|event| event.user_id == cx.caller.user_id);
    let event = event.ok_or_else(no_such_event)?;
    json(&shown(&cx.app.engine, &event)?)
}

/// A delayed event as shown to its owner.
fn shown(engine: &Engine, event: &DelayedEvent) -> Result<Value, ReadError> {
    let state = engine.state();
    let sent = match event.finished.as_ref().map(|finished| &finished.outcome) {
        Some(DelayedOutcome::Send { event_id }) => engine.events().find(&state, event_id)?,
        _ => None,
    };
    let is_redacted = sent.is_some_and(|sent| {
        let room = state.rooms.get(&sent.room_id);
        room.is_some_and(|room| room.redaction_of(sent.offset, Offset::MAX).is_some())
    });
    let content = content(engine.events(), event)?.filter(|_| !is_redacted);
    let content = content.unwrap_or_else(|| to_raw(&json!({})));
    let mut shown = json!({
        "delay_id": event.delay_id,
        "room_id": event.room_id,
        "type": event.event_type,
        "delay": event.delay_ms,
        "running_since": event.since_ms,
        "content": content,
    });
    if let Some(state_key) = &event.state_key {
        shown["state_key"] = state_key.as_str().into();
    }
    if let Some(finished) = &event.finished {
        // ruma, and with it the Rust SDK, reads the second name.
        shown["origin_server_ts"] = finished.ts.into();
        shown["finalised_ts"] = finished.ts.into();
        match &finished.outcome {
            DelayedOutcome::Send { event_id } => shown["event_id"] = event_id.as_str().into(),
            DelayedOutcome::Cancel => {}
            // It is not an error code of the specification yet.
            DelayedOutcome::Error { errcode, error } if errcode == CANCELLED_BY_STATE_UPDATE => {
                shown["error"] = json!({
                    "errcode": "M_UNKNOWN",
                    "org.matrix.msc4140.errcode": errcode,
                    "error": error,
                });
            }
            DelayedOutcome::Error { errcode, error } => {
                shown["error"] = json!({ "errcode": errcode, "error": error });
            }
        }
    }
    Ok(shown)
}

/// A position in the list: a time, and its event.
type ListPosition = (u64, Offset);

/// The requested part of the list.
struct Query {
    room_id: Option<String>,
    event_type: Option<String>,
    finished: bool,
    outcome: Option<String>,
    by_action: Option<bool>,
    order_by: Order,
    backward: bool,
    from: ListPosition,
}

#[derive(Clone, Copy)]
enum Order {
    Due,
    Finished,
    Since,
}

impl Query {
    fn read(cx: &Cx<Server>) -> Result<Self, ApiError> {
        let bad = |name: &str| ApiError::invalid_param(format!("`{name}` has no such value."));
        /// The value of a keyword parameter.
        fn word<T: Copy>(
            cx: &Cx<Server>,
            name: &str,
            words: &[(&str, T)],
        ) -> Result<Option<T>, ApiError> {
            let Some(text) = cx.query(name)? else { return Ok(None) };
            let found = words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
            let bad = || ApiError::invalid_param(format!("`{name}` has no such value."));
            found.map(Some).ok_or_else(bad)
        }
        let room_id = cx.query("room_id")?;
        if room_id.as_ref().is_some_and(|id| <&RoomId>::try_from(id.as_str()).is_err()) {
            return Err(bad("room_id"));
        }
        let outcomes = [("send", "send"), ("cancel", "cancel"), ("error", "error")];
        let orders = [
            ("send_ts", Order::Due),
            ("origin_server_ts", Order::Finished),
            ("running_since", Order::Since),
        ];
        let backward = word(cx, "dir", &[("f", false), ("b", true)])?.unwrap_or(false);
        // One position beyond the time on the far side, so that the time itself is included.
        let at = |ts: u64| if backward { (ts, Offset::MAX) } else { (ts, Offset::ZERO) };
        let from = match (cx.query("from")?, cx.query("since_ts")?.as_deref()) {
            (Some(token), _) => place(&token).ok_or_else(|| bad("from"))?,
            (None, Some("end")) => (u64::MAX, Offset::MAX),
            (None, Some(ts)) => at(ts.parse().map_err(|_| bad("since_ts"))?),
            (None, None) => at(cx.app.engine.clock().now_ms()),
        };
        let outcome = word(cx, "outcome", &outcomes)?.map(ToOwned::to_owned);
        let by_action = word(cx, "reason", &[("action", true), ("delay", false)])?;
        let finished = word(cx, "status", &[("scheduled", false), ("finalised", true)])?;
        Ok(Self {
            room_id,
            event_type: cx.query("type")?,
            // Only finished events have an outcome and a reason.
            finished: finished.unwrap_or_else(|| outcome.is_some() || by_action.is_some()),
            outcome,
            by_action,
            order_by: word(cx, "order_by", &orders)?.unwrap_or(Order::Due),
            backward,
            from,
        })
    }

    fn place_of(&self, event: &DelayedEvent) -> ListPosition {
        let ts = match self.order_by {
            Order::Due => event.due_ms(),
            Order::Finished => {
                event.finished.as_ref().map_or_else(|| event.due_ms(), |finished| finished.ts)
            }
            Order::Since => event.since_ms,
        };
        (ts, event.offset)
    }

    fn wants(&self, event: &DelayedEvent) -> bool {
        let is = |wanted: &Option<String>, text: &str| wanted.as_ref().is_none_or(|w| w == text);
        let finished = event.finished.as_ref();
        let outcome = finished.map_or("", |finished| match finished.outcome {
            DelayedOutcome::Send { .. } => "send",
            DelayedOutcome::Cancel => "cancel",
            DelayedOutcome::Error { .. } => "error",
        });
        let by_action = finished.map(|finished| finished.by_action);
        is(&self.room_id, event.room_id.as_str())
            && is(&self.event_type, &event.event_type)
            && is(&self.outcome, outcome)
            && self.finished == finished.is_some()
            && self.by_action.is_none_or(|wanted| by_action == Some(wanted))
    }
}

fn place(token: &str) -> Option<ListPosition> {
    let (ts, offset) = token.split_once('_')?;
    Some((ts.parse().ok()?, Offset::new(offset.parse().ok()?)))
}

pub(super) async fn list(cx: Cx<Server>, _: List) -> Result<Json, ApiError> {
    let query = Query::read(&cx)?;
    let now_ms = cx.app.engine.clock().now_ms();
    let mut events = cx.app.engine.state().delayed.of(&cx.caller.user_id);
    events.retain(|event| {
        let place = query.place_of(event);
        let ahead = if query.backward { place < query.from } else { place > query.from };
        let finished = event.finished.as_ref();
        let kept = finished.is_none_or(|f| f.ts.saturating_add(FINISHED_KEPT_MS) >= now_ms);
        ahead && kept && query.wants(event)
    });
    events.sort_unstable_by_key(|event| query.place_of(event));
    if query.backward {
        events.reverse();
    }
    let more = events.len() > limits::DELAYED_PAGE;
    events.truncate(limits::DELAYED_PAGE);
    let shown: Result<Vec<_>, _> =
        events.iter().map(|event| shown(&cx.app.engine, event)).collect();
    let mut response = json!({ "delayed_events": shown? });
    if let Some(last) = events.last().filter(|_| more) {
        let (ts, offset) = query.place_of(last);
        let batch = if query.backward { "prev_batch" } else { "next_batch" };
        response[batch] = format!("{ts}_{offset}").into();
    }
    json(&response)
}

// Actions. The id is enough: it is a secret, meant for a service that knows better than the client
// whether the client is still there.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Action {
    Send,
    Cancel,
    Restart,
}

impl Action {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "send" => Self::Send,
            "cancel" => Self::Cancel,
            "restart" => Self::Restart,
            _ => return None,
        })
    }
}

pub(super) async fn act(cx: Cx<Server, Option<Session>>, request: Act) -> Result<Json, ApiError> {
    let action = request.body.action;
    let action =
        action.ok_or_else(|| ApiError::missing_param("`action` says what is to be done."))?;
    let action = Action::named(&action)
        .ok_or_else(|| ApiError::invalid_param("`action` is `send`, `cancel` or `restart`."))?;
    perform(&cx, &request.delay_id, action).await
}

pub(super) async fn act_by_path(
    cx: Cx<Server, Option<Session>>,
    request: ActByPath,
) -> Result<Json, ApiError> {
    let action = Action::named(&request.action).ok_or_else(ApiError::no_such_endpoint)?;
    perform(&cx, &request.delay_id, action).await
}

async fn perform(
    cx: &Cx<Server, Option<Session>>,
    delay_id: &str,
    action: Action,
) -> Result<Json, ApiError> {
    let app = &cx.app;
    let event = app.engine.state().delayed.get(delay_id).ok_or_else(no_such_event)?;
    let (delay_id, user_id) = (event.delay_id.clone(), event.user_id.clone());
    let ts = app.engine.clock().now_ms();
    let before = match action {
        Action::Restart => cx.propose(Restart { delay_id, user_id, since_ms: ts }).await?,
        Action::Cancel => {
            let outcome = DelayedOutcome::Cancel;
            cx.propose(GiveUp { delay_id, user_id, outcome, ts }).await?
        }
        Action::Send => {
            let event = to_send(&event, content(app.engine.events(), &event)?, ts)?;
            cx.propose(SendDelayed { delay_id, user_id, event, by_action: true, ts }).await?
        }
    };
    // Repeating an action is fine; the opposite action is refused.
    let fits = match (action, before.into_inner()) {
        (_, None) | (Action::Send, Some(DelayedOutcome::Send { .. })) => true,
        (Action::Cancel, Some(outcome)) => !matches!(outcome, DelayedOutcome::Send { .. }),
        _ => false,
    };
    if !fits {
        return Err(ApiError::new(ErrorCode::Unknown, "The delayed event is finished already.")
            .with_status(StatusCode::CONFLICT));
    }
    Ok("{}".into())
}

// Sending.

impl From<Unsendable> for ApiError {
    fn from(unsendable: Unsendable) -> Self {
        let text = unsendable.to_string();
        match unsendable {
            Unsendable::Gone => Self::not_found(text),
            Unsendable::NoRedacts => Self::missing_param(text),
            Unsendable::BadRedacts => Self::invalid_param(text),
            Unsendable::Refused(refusal) => refusal.into(),
        }
    }
}

/// How a delayed event ends that cannot be sent.
pub fn given_up(unsendable: Unsendable) -> DelayedOutcome {
    let body = ApiError::from(unsendable).body();
    let text = |key: &str| body[key].as_str().unwrap_or_default().to_owned();
    DelayedOutcome::Error { errcode: text("errcode"), error: text("error") }
}
