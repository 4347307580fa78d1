//! Rendezvous sessions, through which one device signs in another with a QR code: MSC4388, and its
//! predecessor MSC4108, which some clients still use.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{
        ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, IF_MATCH,
        IF_NONE_MATCH, LAST_MODIFIED, PRAGMA, X_CONTENT_TYPE_OPTIONS,
    },
};
use ruma::api::auth_scheme::{AccessTokenOptional, NoAccessToken};
use serde::Deserialize;
use serde_json::json;

use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Body, Caller, Cx, ErrorCode, Json, Reply, Session, endpoint},
};
use logcabin_base::limits;
use logcabin_service::rendezvous::{RendezvousSession, WriteError};

/// A text for the other device.
#[derive(Deserialize)]
pub(super) struct New {
    data: String,
}

/// A text for the other device, by a device that has read up to `sequence_token`.
#[derive(Deserialize)]
pub(super) struct Write {
    sequence_token: String,
    data: String,
}

endpoint! {
    /// Whether the caller may create a session.
    pub(super) struct Discover = GET "/_matrix/client/unstable/io.element.msc4388/rendezvous";
    for AccessTokenOptional;
    {}
}

endpoint! {
    /// Creates a session.
    pub(super) struct Create = POST "/_matrix/client/unstable/io.element.msc4388/rendezvous";
    for AccessTokenOptional;
    { body: New = parameters }
}

endpoint! {
    /// Reads the text of a session.
    pub(super) struct Get = GET "/_matrix/client/unstable/io.element.msc4388/rendezvous/{id}";
    for NoAccessToken;
    { id: String = path, headers: HeaderMap = headers }
}

endpoint! {
    /// Writes the text of a session. The proposal now has transaction ids in the path; clients do
    /// not use that yet.
    pub(super) struct Put = PUT
        "/_matrix/client/unstable/io.element.msc4388/rendezvous/{id}"
        "/_matrix/client/unstable/io.element.msc4388/rendezvous/{id}/{txn_id}";
    for NoAccessToken;
    { id: String = path, txn_id: Option<String> = path_if_any, body: Write = parameters }
}

endpoint! {
    /// Ends a session.
    pub(super) struct Delete = DELETE "/_matrix/client/unstable/io.element.msc4388/rendezvous/{id}";
    for NoAccessToken;
    { id: String = path }
}

endpoint! {
    /// Like [`Create`], in the former version.
    pub(super) struct FormerCreate = POST
        "/_matrix/client/unstable/org.matrix.msc4108/rendezvous";
    for NoAccessToken;
    body Body::Short(limits::RENDEZVOUS_BYTES);
    { headers: HeaderMap = headers }
}

endpoint! {
    /// Like [`Get`], in the former version.
    pub(super) struct FormerGet = GET
        "/_matrix/client/unstable/org.matrix.msc4108/rendezvous/{id}";
    for NoAccessToken;
    { id: String = path, headers: HeaderMap = headers }
}

endpoint! {
    /// Like [`Put`], in the former version.
    pub(super) struct FormerPut = PUT
        "/_matrix/client/unstable/org.matrix.msc4108/rendezvous/{id}";
    for NoAccessToken;
    body Body::Short(limits::RENDEZVOUS_BYTES);
    { id: String = path, headers: HeaderMap = headers }
}

endpoint! {
    /// Like [`Delete`], in the former version.
    pub(super) struct FormerDelete = DELETE
        "/_matrix/client/unstable/org.matrix.msc4108/rendezvous/{id}";
    for NoAccessToken;
    body Body::Short(limits::RENDEZVOUS_BYTES);
    { id: String = path }
}

type Anyone = Cx<Server, ()>;

impl<C: Caller> Cx<Server, C> {
    fn there_are_meetings(&self) -> Result<(), ApiError> {
        let enabled = self.app.config.rendezvous.enabled;
        if enabled { Ok(()) } else { Err(ApiError::no_such_endpoint()) }
    }

    fn may_begin(&self) -> bool {
        self.caller.session().is_some() || self.app.config.rendezvous.for_anyone
    }

    fn now_ms(&self) -> u64 {
        self.app.engine.clock().now_ms()
    }
}

fn bounded(data: String) -> Result<Bytes, ApiError> {
    if data.len() > limits::RENDEZVOUS_BYTES {
        let most = limits::RENDEZVOUS_BYTES;
        return Err(ApiError::too_large(format!("`data` has {most} bytes at most.")));
    }
    Ok(data.into())
}

fn refused(error: WriteError, former: bool) -> ApiError {
    match error {
        WriteError::NoMeeting => no_meeting(),
        WriteError::Unseen => ApiError::new(
            ErrorCode::ConcurrentWrite { former },
            "Something is there that you have not seen: look, and write again.",
        ),
        WriteError::TooOften => ApiError::new(
            ErrorCode::LimitExceeded { retry_after: None },
            "This is more than two devices have to say to each other.",
        ),
    }
}

fn no_meeting() -> ApiError {
    ApiError::not_found("There is no such rendezvous (any more).")
}

/// Anyone may have written the content: it is for programs, and must not be displayed as a page of
/// this server.
fn not_a_page(headers: &HeaderMap) -> Result<(), ApiError> {
    let says = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let is_shown = says("sec-fetch-mode") == Some("navigate")
        || says("sec-fetch-dest").is_some_and(|what| what != "empty");
    if is_shown { Err(ApiError::forbidden("This is not a page to be shown.")) } else { Ok(()) }
}

pub(super) async fn is_there(
    cx: Cx<Server, Option<Session>>,
    _: Discover,
) -> Result<Json, ApiError> {
    cx.there_are_meetings()?;
    to_json(&json!({ "create_available": cx.may_begin() }))
}

pub(super) async fn create(
    cx: Cx<Server, Option<Session>>,
    request: Create,
) -> Result<Json, ApiError> {
    cx.there_are_meetings()?;
    if !cx.may_begin() {
        return Err(ApiError::forbidden(
            "Log in first: only users of this server can start a rendezvous.",
        ));
    }
    let data = bounded(request.body.data)?;
    let (id, meeting) = cx.app.auth.rendezvous.begin(data, cx.now_ms());
    to_json(&json!({
        "id": id,
        "sequence_token": meeting.writing.to_string(),
        "expires_in_ms": meeting.ends_ms.saturating_sub(cx.now_ms()),
    }))
}

pub(super) async fn get(cx: Anyone, request: Get) -> Result<Json, ApiError> {
    cx.there_are_meetings()?;
    not_a_page(&request.headers)?;
    let now_ms = cx.now_ms();
    let meeting = cx.app.auth.rendezvous.look(&request.id, now_ms).ok_or_else(no_meeting)?;
    to_json(&json!({
        "data": String::from_utf8_lossy(&meeting.data),
        "sequence_token": meeting.writing.to_string(),
        "expires_in_ms": meeting.ends_ms.saturating_sub(now_ms),
    }))
}

/// With or without a transaction id in the path.
pub(super) async fn put(cx: Anyone, request: Put) -> Result<Json, ApiError> {
    cx.there_are_meetings()?;
    let Write { sequence_token, data } = request.body;
    let transaction = request.txn_id.as_deref();
    if transaction.is_some_and(|id| id.len() > limits::TRANSACTION_ID_BYTES) {
        return Err(ApiError::invalid_param("The transaction id is too long."));
    }
    let (seen, data) = (sequence_token.parse().ok(), bounded(data)?);
    let written = cx.app.auth.rendezvous.write(&request.id, transaction, seen, data, cx.now_ms());
    let writing = written.map_err(|error| refused(error, false))?.writing;
    to_json(&json!({ "sequence_token": writing.to_string() }))
}

pub(super) async fn delete(cx: Anyone, request: Delete) -> Result<Json, ApiError> {
    cx.there_are_meetings()?;
    if cx.app.auth.rendezvous.end(&request.id, cx.now_ms()) {
        Ok("{}".into())
    } else {
        Err(no_meeting())
    }
}

// The former version: plain text, and HTTP headers in place of the JSON above. No request is
// authenticated.

fn former(cx: &Anyone) -> Result<(), ApiError> {
    cx.there_are_meetings()?;
    let open = cx.app.config.rendezvous.for_anyone;
    if open { Ok(()) } else { Err(ApiError::no_such_endpoint()) }
}

fn plain_text(headers: &HeaderMap) -> Result<(), ApiError> {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = given.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("text/plain") {
        Ok(())
    } else {
        Err(ApiError::invalid_param("What is left here is text/plain."))
    }
}

fn tag(meeting: &RendezvousSession) -> String {
    format!("\"{}\"", meeting.writing)
}

/// The sequence numbers in a header.
fn tags(value: &HeaderValue) -> impl Iterator<Item = u64> + '_ {
    let tags = value.to_str().unwrap_or_default().split(',').map(str::trim);
    tags.filter_map(|tag| tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"').parse().ok())
}

fn described(reply: Reply, meeting: &RendezvousSession) -> Reply {
    let date = |ms| {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
        httpdate::fmt_http_date(time.unwrap_or(SystemTime::UNIX_EPOCH))
    };
    let value = |text: String| HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""));
    reply
        .with_header(ETAG, value(tag(meeting)))
        .with_header(EXPIRES, value(date(meeting.ends_ms)))
        .with_header(LAST_MODIFIED, value(date(meeting.written_ms)))
        .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .with_header(PRAGMA, HeaderValue::from_static("no-cache"))
        .with_header(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"))
        .with_header(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("ETag"))
}

fn text(data: impl Into<Bytes>) -> Reply {
    // As it was sent: matrix-rust-sdk takes no parameter.
    Reply::bytes("text/plain", data)
}

pub(super) async fn former_create(cx: Anyone, request: FormerCreate) -> Result<Reply, ApiError> {
    former(&cx)?;
    plain_text(&request.headers)?;
    let (id, meeting) = cx.app.auth.former_rendezvous.begin(cx.body.clone(), cx.now_ms());
    // With the same prefix as the client's request.
    let path = cx.uri.path().trim_end_matches('/');
    let url = format!("{}{path}/{id}", cx.app.config.server.url());
    let reply = Reply::json(to_json(&json!({ "url": url }))?.0).with_status(StatusCode::CREATED);
    Ok(described(reply, &meeting))
}

pub(super) async fn former_get(cx: Anyone, request: FormerGet) -> Result<Reply, ApiError> {
    former(&cx)?;
    not_a_page(&request.headers)?;
    let meeting =
        cx.app.auth.former_rendezvous.look(&request.id, cx.now_ms()).ok_or_else(no_meeting)?;
    let known = request.headers.get(IF_NONE_MATCH);
    if known.is_some_and(|known| tags(known).any(|writing| writing == meeting.writing)) {
        return Ok(described(text("").with_status(StatusCode::NOT_MODIFIED), &meeting));
    }
    Ok(described(text(meeting.data.clone()), &meeting))
}

pub(super) async fn former_put(cx: Anyone, request: FormerPut) -> Result<Reply, ApiError> {
    former(&cx)?;
    plain_text(&request.headers)?;
    let seen = request.headers.get(IF_MATCH);
    let seen = seen.ok_or_else(|| ApiError::missing_param("The header If-Match is missing."))?;
    let seen = tags(seen).next();
    let written =
        cx.app.auth.former_rendezvous.write(&request.id, None, seen, cx.body.clone(), cx.now_ms());
    let meeting = written.map_err(|error| refused(error, true))?;
    Ok(described(text("").with_status(StatusCode::ACCEPTED), &meeting))
}

pub(super) async fn former_delete(cx: Anyone, request: FormerDelete) -> Result<Reply, ApiError> {
    former(&cx)?;
    if cx.app.auth.former_rendezvous.end(&request.id, cx.now_ms()) {
        Ok(text("").with_status(StatusCode::NO_CONTENT))
    } else {
        Err(no_meeting())
    }
}
