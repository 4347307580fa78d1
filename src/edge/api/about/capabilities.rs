//! Capabilities (client-server API, "Capabilities negotiation"): what users of this server can do.
//! The same functions tell clients and enforce it.

use ruma::api::client::{
    discovery::get_capabilities::v3 as get_capabilities, profile::ProfileFieldName,
};
use serde_json::{Map, Value, json};

use crate::{
    decide::create_room::ROOM_VERSIONS,
    edge::{
        api::{answer::json, oauth::session::no_interactive_authentication, server::Server},
        http::{ApiError, Cx, ErrorCode, Json, Session},
    },
};

/// Lists every capability, including those that clients would assume.
pub(super) async fn get(cx: Cx<Server>, _: get_capabilities::Request) -> Result<Json, ApiError> {
    let Cx { app, caller, .. } = &cx;
    let enabled = |may: Result<(), ApiError>| json!({ "enabled": may.is_ok() });
    let versions = ROOM_VERSIONS.iter().map(|version| (version.to_string(), json!("stable")));
    let capabilities = json!({
        "m.room_versions": {
            "default": app.config.rooms.default_version.0,
            "available": versions.collect::<Map<String, Value>>(),
        },
        "m.change_password": enabled(may_change_password(app, caller)),
        "m.set_displayname": enabled(may_set_profile(app, caller, "displayname")),
        "m.set_avatar_url": enabled(may_set_profile(app, caller, "avatar_url")),
        "m.profile_fields": profile_fields(app, caller),
        "m.3pid_changes": enabled(may_change_third_party_ids(app, caller)),
        "m.get_login_token": enabled(may_get_login_token(app, caller)),
        "m.account_moderation": { "lock": cx.is_admin(), "suspend": cx.is_admin() },
        "m.forget_forced_upon_leave": { "enabled": app.config.accounts.forget_on_leave },
    });
    json(&json!({ "capabilities": capabilities }))
}

/// The profile fields that the user may set: all except disabled ones, or only enabled ones.
fn profile_fields(app: &Server, session: &Session) -> Value {
    let named = ["displayname", "avatar_url"];
    let (allowed, disallowed): (Vec<&str>, Vec<&str>) =
        named.into_iter().partition(|field| may_set_profile(app, session, field).is_ok());
    let others = may_set_profile(app, session, "org.example.any").is_ok();
    match (others, allowed.is_empty(), disallowed.is_empty()) {
        (true, _, true) => json!({ "enabled": true }),
        (true, _, false) => json!({ "enabled": true, "disallowed": disallowed }),
        (false, false, _) => json!({ "enabled": true, "allowed": allowed }),
        (false, true, _) => json!({ "enabled": false }),
    }
}

/// Whether the user may change their password. (Guests have none.)
pub(crate) fn may_change_password(app: &Server, session: &Session) -> Result<(), ApiError> {
    let switch = app.config.accounts.change_password;
    not_a_guest(app, session)?;
    no_interactive_authentication(app, session)?;
    allowed(switch, "You cannot change your password here.")
}

/// Whether the user may set or remove this profile field. (Guests only have the display name:
/// "Guest access".)
pub(crate) fn may_set_profile(
    app: &Server,
    session: &Session,
    field: &str,
) -> Result<(), ApiError> {
    let accounts = &app.config.accounts;
    let switch = match ProfileFieldName::from(field) {
        ProfileFieldName::DisplayName => accounts.set_displayname,
        ProfileFieldName::AvatarUrl => accounts.set_avatar_url,
        _ => accounts.profile_fields,
    };
    if field != "displayname" {
        not_a_guest(app, session)?;
    }
    allowed(switch, "You cannot change this of your profile.")
}

/// Whether the user may add and remove email addresses and phone numbers.
pub(crate) fn may_change_third_party_ids(app: &Server, session: &Session) -> Result<(), ApiError> {
    not_a_guest(app, session)?;
    no_interactive_authentication(app, session)?;
    allowed(app.config.accounts.third_party_ids, "You cannot change your addresses here.")
}

/// Whether the user may create login tokens for their other clients.
pub(crate) fn may_get_login_token(app: &Server, session: &Session) -> Result<(), ApiError> {
    not_a_guest(app, session)?;
    no_interactive_authentication(app, session)?;
    if app.config.login.get_token {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::Unrecognized, "There are no login tokens here."))
}

fn allowed(switch: bool, otherwise: &'static str) -> Result<(), ApiError> {
    switch.then_some(()).ok_or_else(|| ApiError::forbidden(otherwise))
}

fn not_a_guest(app: &Server, session: &Session) -> Result<(), ApiError> {
    if app.engine.state().accounts.is_guest(&session.user_id) {
        let message = "Guests cannot do this.";
        return Err(ApiError::new(ErrorCode::GuestAccessForbidden, message));
    }
    Ok(())
}
