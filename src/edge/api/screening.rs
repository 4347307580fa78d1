//! What the operator's checks are told of a request: all of it but secrets.

use std::{borrow::Cow, net::IpAddr};

use futures_util::future::BoxFuture;
use http::{
    Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, USER_AGENT},
};
use ruma::UserId;
use serde_json::{Map, Value, json};

use super::server::Server;
use crate::http::{Admission, ApiError, Screened, Session, query_parameter};
use logcabin_base::limits;
use logcabin_config::HookPoint;
use logcabin_service::screening::{Admitted, AskedRequest, Question, Refused, Screening};

/// Members of bodies that nobody else is to know.
const SECRETS: [&str; 17] = [
    "access_token",
    "auth",
    "client_secret",
    "form",
    "guest_access_token",
    "id_access_token",
    "mac",
    "msisdn_token",
    "new_password",
    "nonce",
    "password",
    "refresh_token",
    "repeated",
    "session",
    "shared_secret",
    "sid",
    "token",
];

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let text = refused.to_string();
        match refused {
            Refused::Because(_) => Self::forbidden(text),
            Refused::Unavailable => Self::unavailable(text),
        }
    }
}

/// The verdict of the checks on a request; `None` if nothing is checked.
pub(super) fn screen(
    app: &Server,
    asked: &Screened<'_>,
) -> Option<BoxFuture<'static, Result<Admission, ApiError>>> {
    if !app.screening.is_on() || !may_concern(app, asked) {
        return None;
    }
    let session = asked.who.session.as_ref();
    let is_exempt = |user_id: &UserId| {
        let standing = app.engine.state().accounts.standing(user_id);
        standing.is_some_and(|standing| standing.admin)
            || app.engine.env().quotas.exempt.has(user_id)
    };
    if session.is_some_and(|session| session.service.is_some() || is_exempt(&session.user_id)) {
        return None;
    }
    if session.is_none() && asked.who.service.is_some() {
        return None;
    }
    let was_done = |session| was_sent(app, session, asked.uri, asked.parameters);
    if session.is_some_and(was_done) && !redacts_more(asked.body) {
        return None;
    }
    let content = read(asked);
    let point = point_of(app, asked, &content);
    if !app.screening.concerns(point) {
        return None;
    }
    if point == HookPoint::Registration && lacks_proof(asked, &content) {
        return None;
    }
    let user_id = session.map(|session| session.user_id.clone());
    let question = question(app, asked, point, content);
    let screening = std::sync::Arc::clone(&app.screening);
    Some(Box::pin(async move {
        Ok(match screening.admit(point, user_id.as_deref(), question).await? {
            Admitted::Done => Admission::Admitted,
            Admitted::Seemingly => Admission::Shadowed,
        })
    }))
}

/// Asks about somebody who comes from another service to log in, or to register.
///
/// # Errors
/// When they may not.
pub(in crate::api) async fn admit_by_sso(
    app: &Server,
    client: IpAddr,
    point: HookPoint,
    user_id: &UserId,
    provider: &str,
) -> Result<(), ApiError> {
    if !app.screening.concerns(point) {
        return Ok(());
    }
    let question = Question {
        id: Screening::new_id(),
        hook: point.name(),
        ts: app.engine.clock().timestamp(),
        user_id: None,
        device_id: None,
        account_age_ms: None,
        origin: None,
        ip: Some(client.to_string()),
        user_agent: None,
        request: AskedRequest {
            method: "POST".to_owned(),
            path: "sso",
            parameters: json!({}),
            content: json!({ "username": user_id.localpart(), "provider": provider }),
        },
    };
    app.screening.admit(point, None, question).await?;
    Ok(())
}

/// Whether a request repeats one by which a message or a redaction was sent: it sends nothing.
pub(super) fn was_sent(
    app: &Server,
    session: &Session,
    uri: &Uri,
    parameters: &[Cow<'_, str>],
) -> bool {
    let [room_id, of, id] = parameters else { return false };
    // What is scheduled for later has transactions of its own.
    let is_at_once = matches!(query_parameter(uri, "org.matrix.msc4140.delay"), Ok(None));
    let verb = match uri.path().split('/').nth_back(2) {
        Some(verb @ ("send" | "redact")) if is_at_once => verb,
        _ => return false,
    };
    let (state, scope) = (app.engine.state(), format!("{verb}/{room_id}/{of}"));
    let sent = app.engine.events().find_transaction(&state, session.session, &scope, id);
    sent.is_ok_and(|sent| sent.is_some())
}

/// Whether a request may redact what relates to an event, also if it is repeated (MSC3912).
fn redacts_more(body: &[u8]) -> bool {
    const NAMES: [&[u8]; 2] = [b"with_rel_types", b"with_relations"];
    NAMES.iter().any(|name| body.windows(name.len()).any(|part| part == *name))
}

/// Whether a registration only asks what is to be proven: it cannot succeed yet, and has no name.
fn lacks_proof(asked: &Screened<'_>, content: &Value) -> bool {
    let is_guest = asked.uri.query().is_some_and(|query| query.contains("kind=guest"));
    !is_page(asked)
        && !is_guest
        && content.get("auth").is_none()
        && content.get("username").is_none()
}

/// Whether a form is submitted on one of this server's pages.
fn is_page(asked: &Screened<'_>) -> bool {
    !asked.path.starts_with("/_matrix/") && !asked.path.starts_with("/_logcabin/admin/")
}

/// Whether a request may be about a point that is checked.
fn may_concern(app: &Server, asked: &Screened<'_>) -> bool {
    let others: &[HookPoint] = match asked.point {
        HookPoint::Message if is_member(asked) => &[HookPoint::Invite, HookPoint::Join],
        HookPoint::CreateRoom => &[HookPoint::Invite],
        _ => &[],
    };
    others.iter().chain([&asked.point]).any(|point| app.screening.concerns(*point))
}

/// Whether a request sends a member event.
fn is_member(asked: &Screened<'_>) -> bool {
    (asked.path.contains("/state/{") || asked.path.contains("/delayed_event/"))
        && asked.parameters.get(1).is_some_and(|kind| kind == "m.room.member")
}

/// What a request is about: membership events are sent like other state, and rooms are made to
/// invite somebody.
fn point_of(app: &Server, asked: &Screened<'_>, content: &Value) -> HookPoint {
    match asked.point {
        HookPoint::Message if is_member(asked) => match content["membership"].as_str() {
            Some("invite") => HookPoint::Invite,
            Some("join" | "knock") => HookPoint::Join,
            _ => HookPoint::Message,
        },
        HookPoint::CreateRoom if !app.screening.concerns(HookPoint::CreateRoom) => {
            let invites = |name: &str| content[name].as_array().is_some_and(|of| !of.is_empty());
            match invites("invite") || invites("invite_3pid") {
                true => HookPoint::Invite,
                false => HookPoint::CreateRoom,
            }
        }
        point => point,
    }
}

fn question(app: &Server, asked: &Screened<'_>, point: HookPoint, content: Value) -> Question {
    let session = asked.who.session.as_ref();
    let now = app.engine.clock().timestamp();
    let registered = session.and_then(|session| {
        let account = app.engine.state().accounts.get(&session.user_id)?;
        let registered = account.read().registered;
        app.engine.events().time_of(registered).ok().flatten()
    });
    let header = |name| asked.headers.get(name).and_then(|value| value.to_str().ok());
    let is_server = asked.who.server.is_some();
    Question {
        id: Screening::new_id(),
        hook: point.name(),
        ts: now,
        user_id: session.map(|session| session.user_id.to_string()),
        device_id: session.map(|session| session.device_id.to_string()),
        account_age_ms: registered.map(|since| u64::from(now.get()).saturating_sub(since)),
        origin: asked.who.server.as_ref().map(ToString::to_string),
        ip: (!is_server).then(|| asked.client.to_string()),
        user_agent: header(USER_AGENT).map(ToOwned::to_owned),
        request: AskedRequest {
            method: asked.method.to_string(),
            path: asked.path,
            parameters: parameters(asked),
            content: match asked.point {
                HookPoint::Upload => json!({
                    "content_type": header(CONTENT_TYPE),
                    "content_length":
                        header(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok()),
                }),
                // What is sent to a room is for those who are in it.
                HookPoint::Message => of_bounded_size(content),
                _ => of_bounded_size(without_secrets(content)),
            },
        },
    }
}

/// The parameters of the path, by the names that the specification has, and those of the query.
fn parameters(asked: &Screened<'_>) -> Value {
    let names = asked.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        let mut words = name.split('_');
        let first = words.next().unwrap_or_default().to_owned();
        Some(words.fold(first, |name, word| {
            let (initial, rest) = word.split_at_checked(1).unwrap_or((word, ""));
            name + &initial.to_uppercase() + rest
        }))
    });
    let mut all: Map<String, Value> =
        names.zip(asked.parameters).map(|(name, value)| (name, json!(value))).collect();
    let query = asked.uri.query().unwrap_or_default();
    let query = url::form_urlencoded::parse(query.as_bytes());
    let query = query.filter(|(name, _)| !SECRETS.contains(&&**name));
    let query: Map<String, Value> =
        query.map(|(name, value)| (name.into_owned(), json!(value))).collect();
    if !query.is_empty() {
        all.insert("query".to_owned(), Value::Object(query));
    }
    Value::Object(all)
}

/// The body as JSON, that of a form, too. Files have not arrived.
fn read(asked: &Screened<'_>) -> Value {
    if is_page(asked) {
        let fields = url::form_urlencoded::parse(asked.body);
        return fields.map(|(name, value)| (name.into_owned(), json!(value))).collect();
    }
    let mut content: Value = serde_json::from_slice(asked.body).unwrap_or_default();
    if asked.path.contains("/delayed_event/") { content["content"].take() } else { content }
}

/// White space in the body does not count.
fn of_bounded_size(content: Value) -> Value {
    if content.to_string().len() > limits::HOOK_CONTENT_BYTES { Value::Null } else { content }
}

fn without_secrets(mut content: Value) -> Value {
    strip(&mut content);
    content
}

/// Removes secrets, wherever they are.
fn strip(content: &mut Value) {
    match content {
        Value::Object(members) => {
            members.retain(|name, _| !SECRETS.contains(&name.as_str()));
            members.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}
