//! Capabilities (client-server API, "Capabilities negotiation"): what users of this server can do.

use ruma::api::client::profile::ProfileFieldName;

use super::grants::no_interactive_authentication;
use crate::{
    api::server::Server,
    http::{ApiError, ErrorCode, Session},
};
use logcabin_config as config;
use logcabin_engine::Engine;

/// Whether the user may change their password. (Guests have none.)
pub(crate) fn may_change_password(app: &Server, session: &Session) -> Result<(), ApiError> {
    let switch = app.config.accounts.change_password;
    not_a_guest(&app.engine, session)?;
    no_interactive_authentication(app, session)?;
    allowed(switch, "You cannot change your password here.")
}

/// Whether the user may set or remove this profile field. (Guests only have the display name:
/// "Guest access".)
pub(crate) fn may_set_profile(
    engine: &Engine,
    accounts: &config::Accounts,
    session: &Session,
    field: &str,
) -> Result<(), ApiError> {
    let switch = match ProfileFieldName::from(field) {
        ProfileFieldName::DisplayName => accounts.set_displayname,
        ProfileFieldName::AvatarUrl => accounts.set_avatar_url,
        _ => accounts.profile_fields,
    };
    if field != "displayname" {
        not_a_guest(engine, session)?;
    }
    allowed(switch, "You cannot change this of your profile.")
}

/// Whether the user may add and remove email addresses and phone numbers.
pub(crate) fn may_change_third_party_ids(app: &Server, session: &Session) -> Result<(), ApiError> {
    not_a_guest(&app.engine, session)?;
    no_interactive_authentication(app, session)?;
    allowed(app.config.accounts.third_party_ids, "You cannot change your addresses here.")
}

/// Whether the user may create login tokens for their other clients.
pub(crate) fn may_get_login_token(app: &Server, session: &Session) -> Result<(), ApiError> {
    not_a_guest(&app.engine, session)?;
    no_interactive_authentication(app, session)?;
    if app.config.login.get_token {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::Unrecognized, "There are no login tokens here."))
}

fn allowed(switch: bool, otherwise: &'static str) -> Result<(), ApiError> {
    switch.then_some(()).ok_or_else(|| ApiError::forbidden(otherwise))
}

fn not_a_guest(engine: &Engine, session: &Session) -> Result<(), ApiError> {
    if engine.state().accounts.is_guest(&session.user_id) {
        let message = "Guests cannot do this.";
        return Err(ApiError::new(ErrorCode::GuestAccessForbidden, message));
    }
    Ok(())
}
