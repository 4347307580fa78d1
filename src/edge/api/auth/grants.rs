//! Sessions that began by OAuth 2.0, and what sets them apart: they prove nothing by
//! user-interactive authentication, and they may do what their scope says.

use ruma::api::client::uiaa::{AuthFlow, AuthType};
use serde_json::{Map, json};

use crate::{
    api::{
        addresses::{account_url, is_offered},
        server::Server,
    },
    http::{ApiError, AuthRequired, ErrorCode, OpenTo, Session},
};
use logcabin_base::clock::random_token;
use logcabin_config as config;
use logcabin_engine::Engine;
use logcabin_record::scope::Scope;
use logcabin_state::oauth::Grant;

/// The action of the account's page that allows cross-signing keys to be replaced.
const RESET: &str = "org.matrix.cross_signing_reset";

/// The grant of a session; `None` for one that did not begin by OAuth.
pub(crate) fn grant_of(engine: &Engine, session: &Session) -> Option<Grant> {
    match session.service {
        Some(_) => None,
        None => engine.state().oauth.grant_of_session(session.session),
    }
}

/// Whether this session may use what is only for administrators, if its user is one: a session that
/// began by OAuth needs the scope for it.
pub(crate) fn may_administer(engine: &Engine, session: &Session, open_to: OpenTo) -> bool {
    grant_of(engine, session).is_none_or(|grant| has_administration(&grant.scope(), open_to))
}

fn has_administration(scope: &Scope, open_to: OpenTo) -> bool {
    open_to.administrators_only && (scope.admin || open_to.scope_of_changes && scope.changes)
}

/// Refuses a session without a device what its scope does not have.
pub(crate) fn check_scope(
    engine: &Engine,
    session: &Session,
    open_to: OpenTo,
) -> Result<(), ApiError> {
    if !session.device_id.as_str().is_empty() || session.service.is_some() {
        return Ok(());
    }
    let scope = grant_of(engine, session).map(|grant| grant.scope()).unwrap_or_default();
    if scope.api || has_administration(&scope, open_to) {
        return Ok(());
    }
    Err(ApiError::forbidden("The scope of this token does not have this."))
}

/// Refuses what needs user-interactive authentication to sessions that cannot give it.
pub(crate) fn no_interactive_authentication(
    app: &Server,
    session: &Session,
) -> Result<(), ApiError> {
    if grant_of(&app.engine, session).is_none() {
        return Ok(());
    }
    let page = if is_offered(&app.config.oauth, &app.config.server) {
        format!("on the page of your account, {}", account_url(&app.config.server))
    } else {
        "by a login of another kind".to_owned()
    };
    Err(ApiError::forbidden(format!("This login cannot do this: it is done {page}.")))
}

/// Whether the cross-signing keys may be replaced without user-interactive authentication, because
/// the user or an administrator allowed it. A session that began by OAuth waits until then
/// (client-server API, "OAuth authentication").
pub(crate) fn confirm_reset(
    engine: &Engine,
    server: &config::Server,
    session: &Session,
) -> Result<bool, ApiError> {
    let now_ms = engine.clock().now_ms();
    if engine.state().oauth.may_reset(&session.user_id, now_ms) {
        return Ok(true);
    }
    if grant_of(engine, session).is_none() {
        return Ok(false);
    }
    let url = format!("{}?action={RESET}", account_url(server));
    // Under the name of the specification, and of MSC4312.
    let stages = ["m.oauth", RESET];
    let params = stages.map(|stage| (stage.to_owned(), json!({ "url": url })));
    Err(ApiError::auth_required(AuthRequired {
        flows: stages.map(|stage| AuthFlow::new(vec![AuthType::from(stage)])).into(),
        completed: Vec::new(),
        params: Map::from_iter(params),
        session: Some(random_token()),
        failure: None,
    }))
}

/// Said of an endpoint of the API without OAuth 2.0, where that is turned off.
pub(crate) fn legacy_is_off() -> ApiError {
    let text = "OAuth 2.0 authentication is in use on this homeserver.";
    ApiError::new(ErrorCode::Unrecognized, text)
}
