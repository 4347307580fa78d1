//! Application services as callers: the users that they act for, exclusive namespaces, and the
//! queries that they answer while a client waits (application service API, "Client-Server API
//! Extensions").

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use http::{Method, StatusCode, Uri};
use ruma::{
    OwnedRoomId, RoomAliasId, RoomOrAliasId, UserId,
    api::client::appservice::request_ping::v1 as request_ping,
};
use serde_json::json;

use crate::{
    api::server::{Outside, Server},
    http::{ApiError, Appservice, Cx, ErrorCode, Session, read_query},
};
use logcabin_engine::Engine;
use logcabin_outside::appservice::{QueryResult, Request, Service, Services};

/// The user that `service` acts for in a request: the one in the query's `user_id`, or the
/// service's own; with the device in `device_id`, if given.
pub(crate) fn assert_identity(
    engine: &Engine,
    service: Arc<Service>,
    uri: &Uri,
) -> Result<Session, ApiError> {
    #[derive(serde::Deserialize)]
    struct Asserted {
        user_id: Option<String>,
        device_id: Option<String>,
        #[serde(rename = "org.matrix.msc3202.device_id")]
        old_device_id: Option<String>,
    }
    let asserted: Asserted = read_query(uri)?;
    let user_id = match asserted.user_id {
        Some(user_id) => {
            UserId::parse(user_id).ok().filter(|user_id| service.owns_user(user_id)).ok_or_else(
                || ApiError::forbidden("The application service cannot be this user."),
            )?
        }
        None => service.sender.clone(),
    };
    let unregistered =
        || ApiError::forbidden("The application service has not registered this user.");
    let account = engine.state().accounts.get(&user_id).ok_or_else(unregistered)?;
    let account = account.read();
    let (device_id, session) = match asserted.device_id.or(asserted.old_device_id) {
        Some(device_id) => {
            let device = account.device(device_id.as_str().into()).ok_or_else(|| {
                ApiError::new(ErrorCode::UnknownDevice, "The user has no such device.")
            })?;
            (device_id.into(), device.session)
        }
        None => ("".into(), account.registered),
    };
    drop(account);
    Ok(Session { user_id, device_id, session, service: Some(service) })
}

/// The application service that calls an endpoint which users call, too.
///
/// # Errors
/// `M_MISSING_TOKEN` without a token, `M_UNKNOWN_TOKEN` for an unknown token or a user's.
fn calling(caller: Option<&Appservice>) -> Result<&Arc<Service>, ApiError> {
    let caller = caller.ok_or_else(ApiError::missing_token)?;
    caller.service().ok_or_else(|| ApiError::unknown_token(false))
}

/// Refuses a name for a new user that belongs to another application service, or that is not in the
/// calling service's namespace.
pub(crate) fn check_name(
    services: &Services,
    user_id: &UserId,
    caller: Option<&Service>,
) -> Result<(), ApiError> {
    if caller.is_some_and(|service| !service.owns_user(user_id)) {
        return Err(exclusive("This user name is not in the application service's namespace."));
    }
    if services.user_is_reserved(user_id, caller) {
        return Err(exclusive("This user name belongs to an application service."));
    }
    Ok(())
}

/// Like [`check_name`], for an alias that a session creates or removes.
pub(crate) fn check_alias(
    services: &Services,
    alias: &RoomAliasId,
    caller: &Session,
) -> Result<(), ApiError> {
    let service = caller.service.as_deref();
    if service.is_some_and(|service| !service.owns_alias(alias)) {
        return Err(exclusive("This alias is not in the application service's namespace."));
    }
    if services.alias_is_reserved(alias, service) {
        return Err(exclusive("This alias belongs to an application service."));
    }
    Ok(())
}

/// Refuses a name that is not the caller's to use.
pub(crate) fn exclusive(message: &'static str) -> ApiError {
    ApiError::new(ErrorCode::Exclusive, message)
}

/// The application service that registers one of its users.
pub(crate) fn registering(caller: Option<&Appservice>) -> Result<Arc<Service>, ApiError> {
    calling(caller).cloned()
}

/// The room of an id or an alias. For an unknown alias, application services are asked, because
/// they may create it.
pub(crate) async fn resolve(app: &Server, room: &RoomOrAliasId) -> Result<OwnedRoomId, ApiError> {
    let known = app.resolve(room);
    let Ok(alias) = <&RoomAliasId>::try_from(room) else { return known };
    if known.is_ok() || alias.server_name() != app.config.server.name {
        return known;
    }
    for service in app.outside.services.iter().filter(|service| service.owns_alias(alias)) {
        let asked = app.outside.appservice_queries.alias(service, alias).await;
        // Whatever they answer, the alias must exist now.
        if let Ok(room_id) = app.resolve(room) {
            return Ok(room_id);
        }
        if asked == QueryResult::NoAnswer {
            return Err(no_answer());
        }
    }
    known
}

/// Whether this local user exists. For an unknown user, application services are asked, because
/// they may create it.
pub(crate) async fn user_exists(
    engine: &Engine,
    outside: &Outside,
    user_id: &UserId,
) -> Result<bool, ApiError> {
    let is_there = || engine.state().accounts.contains(user_id);
    if is_there() {
        return Ok(true);
    }
    for service in outside.services.iter().filter(|service| service.owns_user(user_id)) {
        let asked = outside.appservice_queries.user(service, user_id).await;
        if is_there() {
            return Ok(true);
        }
        if asked == QueryResult::NoAnswer {
            return Err(no_answer());
        }
    }
    Ok(false)
}

fn no_answer() -> ApiError {
    ApiError::bad_request("The application service that would know does not answer.")
        .with_status(StatusCode::REQUEST_TIMEOUT)
}

/// Pings the calling application service.
pub(super) async fn ping(
    cx: Cx<Server, Appservice>,
    request: request_ping::Request,
) -> Result<request_ping::Response, ApiError> {
    let service = calling(Some(&cx.caller))?;
    if service.id != request.appservice_id {
        return Err(ApiError::forbidden("This is the token of another application service."));
    }
    if service.url.is_none() {
        return Err(ApiError::new(ErrorCode::UrlNotSet, "The application service has no `url`."));
    }
    let body =
        request.transaction_id.map_or_else(|| json!({}), |id| json!({ "transaction_id": id }));
    let ask =
        Request { method: Method::POST, body: body.to_string().into(), ..Request::get(&["ping"]) };
    let began = Instant::now();
    let answer = match cx.app.outside.appservice_queries.question(service, ask).await {
        Ok(answer) => answer,
        Err(error) if error.is_timeout() => {
            let text = "The application service does not answer in time.";
            return Err(ApiError::new(ErrorCode::ConnectionTimeout, text));
        }
        Err(error) => {
            let text = "The application service cannot be reached.";
            return Err(ApiError::new(ErrorCode::ConnectionFailed, text).with_cause(error));
        }
    };
    if !answer.status.is_success() {
        let body = String::from_utf8_lossy(&answer.body).chars().take(PING_BODY).collect();
        let code = ErrorCode::BadStatus { status: answer.status.as_u16(), body };
        let text = format!("The application service answers {}.", answer.status.as_u16());
        return Err(ApiError::new(code, text));
    }
    // Pending deliveries are retried at once.
    cx.app.outside.appservice_queries.is_back(service).notify_one();
    Ok(request_ping::Response::new(began.elapsed().max(Duration::from_millis(1))))
}

/// How many characters of a bad ping response the service is shown.
const PING_BODY: usize = 4096;
