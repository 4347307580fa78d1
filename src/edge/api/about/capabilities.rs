//! The list of capabilities (client-server API, "Capabilities negotiation"). The same functions
//! tell clients and enforce it.

use ruma::api::client::discovery::get_capabilities::v3 as get_capabilities;
use serde_json::{Map, Value, json};

use crate::{
    api::{
        answer::json,
        auth::capabilities::{
            may_change_password, may_change_third_party_ids, may_get_login_token, may_set_profile,
        },
        server::Server,
    },
    http::{ApiError, Cx, Json, Session},
};
use logcabin_config as config;
use logcabin_decide::create_room::ROOM_VERSIONS;
use logcabin_engine::Engine;

/// Lists every capability, including those that clients would assume.
pub(super) async fn get(cx: Cx<Server>, _: get_capabilities::Request) -> Result<Json, ApiError> {
    let Cx { app, caller, .. } = &cx;
    let enabled = |may: Result<(), ApiError>| json!({ "enabled": may.is_ok() });
    let (engine, accounts) = (&app.engine, &app.config.accounts);
    let may_set = |field| may_set_profile(engine, accounts, caller, field);
    let versions = ROOM_VERSIONS.iter().map(|version| (version.to_string(), json!("stable")));
    let moderates = json!({ "lock": cx.is_admin(), "suspend": cx.is_admin() });
    let capabilities = json!({
        "m.room_versions": {
            "default": app.config.rooms.default_version.0,
            "available": versions.collect::<Map<String, Value>>(),
        },
        "m.change_password": enabled(may_change_password(app, caller)),
        "m.set_displayname": enabled(may_set("displayname")),
        "m.set_avatar_url": enabled(may_set("avatar_url")),
        "m.profile_fields": profile_fields(engine, accounts, caller),
        "m.3pid_changes": enabled(may_change_third_party_ids(app, caller)),
        "m.get_login_token": enabled(may_get_login_token(app, caller)),
        "m.account_moderation": moderates,
        "uk.timedout.msc4323": moderates,
        "org.matrix.msc4155.invite_permission_config_enforced": { "enabled": true },
        "m.forget_forced_upon_leave": { "enabled": app.config.accounts.forget_on_leave },
    });
    json(&json!({ "capabilities": capabilities }))
}

/// The profile fields that the user may set: all except disabled ones, or only enabled ones.
fn profile_fields(engine: &Engine, accounts: &config::Accounts, session: &Session) -> Value {
    let named = ["displayname", "avatar_url"];
    let (allowed, disallowed): (Vec<&str>, Vec<&str>) = named
        .into_iter()
        .partition(|field| may_set_profile(engine, accounts, session, field).is_ok());
    let others = may_set_profile(engine, accounts, session, "org.example.any").is_ok();
    match (others, allowed.is_empty(), disallowed.is_empty()) {
        (true, _, true) => json!({ "enabled": true }),
        (true, _, false) => json!({ "enabled": true, "disallowed": disallowed }),
        (false, false, _) => json!({ "enabled": true, "allowed": allowed }),
        (false, true, _) => json!({ "enabled": false }),
    }
}
