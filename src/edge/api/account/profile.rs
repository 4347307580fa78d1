//! Profiles.

use std::{collections::BTreeMap, sync::Arc};

use ruma::{
    UserId,
    api::client::profile::{
        delete_profile_field::v3 as delete_profile_field, get_profile::v3 as get_profile,
        get_profile_field::v3 as get_profile_field, set_profile_field::v3 as set_profile_field,
    },
};
use serde_json::{Value, json};

use crate::{
    api::{
        answer::json,
        appservice::services as appservice,
        auth::capabilities,
        server::{Outside, Server},
    },
    http::{ApiError, AsOfRequest, Cx, ErrorCode, Json, Session},
};
use logcabin_base::{background::at_length, limits};
use logcabin_decide::account::SetProfile;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset, Origin};
use logcabin_service::accounts::profile::spread;
use logcabin_state::accounts::ProfileField;

/// The fields of a profile (empty without an account).
fn fields(engine: &Engine, user_id: &UserId) -> Option<BTreeMap<String, Value>> {
    let account = engine.state().accounts.get(user_id)?;
    let account = account.read();
    let fields = account.profile.keys().filter_map(|field| {
        let value = account.profile_field(field)?;
        Some((field.clone(), value.clone()))
    });
    Some(fields.collect())
}

fn no_profile() -> ApiError {
    ApiError::not_found("There is no such profile.")
}

fn fields_as_of(
    engine: &Engine,
    user_id: &UserId,
    at: Offset,
) -> Result<Option<BTreeMap<String, Value>>, ReadError> {
    let changes: Vec<_> = {
        let Some(account) = engine.state().accounts.get(user_id) else { return Ok(None) };
        let account = account.read();
        if account.registered > at {
            return Ok(None);
        }
        let changed = |field: &ProfileField| Some(field.changes.at(at)?.0);
        let fields = account.profile.iter();
        fields.filter_map(|(name, field)| Some((name.clone(), changed(field)?))).collect()
    };
    let mut fields = BTreeMap::new();
    for (name, offset) in changes {
        // Erased values are gone.
        let Some(Command::ProfileSet(body)) = engine.events().command(offset)? else { continue };
        if let Some(value) = body.value {
            fields.insert(name, value);
        }
    }
    Ok(Some(fields))
}

/// The requested fields: as of now, or as of the moment in the request.
async fn asked(
    cx: Cx<Server, Option<Session>>,
    user_id: &UserId,
) -> Result<BTreeMap<String, Value>, ApiError> {
    let app = Arc::clone(&cx.app);
    if cx.is_remote(user_id.server_name()) {
        return cx.remote_profile(user_id).await;
    }
    if let Some(session) = cx.caller.clone()
        && let Some(at) = cx.called_by(session).moment()?
    {
        let fields = at_length(|| fields_as_of(&app.engine, user_id, at))?;
        return fields.ok_or_else(no_profile);
    }
    of_local(&app.engine, &app.outside, user_id).await
}

/// The profile of a user of this server.
pub(in crate::api) async fn of_local(
    engine: &Engine,
    outside: &Outside,
    user_id: &UserId,
) -> Result<BTreeMap<String, Value>, ApiError> {
    if !appservice::user_exists(engine, outside, user_id).await? {
        return Err(no_profile());
    }
    fields(engine, user_id).ok_or_else(no_profile)
}

pub(super) async fn get(
    cx: Cx<Server, Option<Session>>,
    AsOfRequest(request): AsOfRequest<get_profile::Request>,
) -> Result<Json, ApiError> {
    json(&asked(cx, &request.user_id).await?)
}

pub(super) async fn get_field(
    cx: Cx<Server, Option<Session>>,
    AsOfRequest(request): AsOfRequest<get_profile_field::Request>,
) -> Result<Json, ApiError> {
    let fields = asked(cx, &request.user_id).await?;
    let field = request.field.to_string();
    let value = fields.get(&field);
    json(&json!({ field: value.ok_or_else(|| ApiError::not_found("This field is not set."))? }))
}

pub(super) async fn set_field(
    cx: Cx<Server>,
    request: set_profile_field::Request,
) -> Result<set_profile_field::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let field = request.value.field_name().to_string();
    let value = request.value.value().into_owned();
    // An empty name or address means none.
    let value = Some(value).filter(|value| !value.is_null() && *value != json!(""));
    set(&cx, field, value).await?;
    Ok(set_profile_field::Response::new())
}

pub(super) async fn delete_field(
    cx: Cx<Server>,
    request: delete_profile_field::Request,
) -> Result<delete_profile_field::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    set(&cx, request.field.to_string(), None).await?;
    Ok(delete_profile_field::Response::new())
}

async fn set(cx: &Cx<Server>, field: String, value: Option<Value>) -> Result<(), ApiError> {
    check(cx, &field, value.as_ref())?;
    change(&cx.app.engine, cx.origin(), &cx.caller.user_id, field, value).await
}

/// Refuses a field that the caller may not set.
fn check(cx: &Cx<Server>, field: &str, value: Option<&Value>) -> Result<(), ApiError> {
    if field.len() > limits::IDENTIFIER_BYTES {
        return Err(ApiError::new(ErrorCode::KeyTooLarge, "The field's name is too long."));
    }
    // Existing fields with other names can be removed.
    if value.is_some() && !is_field_name(field) {
        return Err(ApiError::invalid_param(
            "A field is named in lower-case letters, digits and `._-`, and begins with a letter.",
        ));
    }
    // As the specification lists the endpoints for guests ("Guest Access").
    if field != "displayname" && cx.app.engine.state().accounts.is_guest(&cx.caller.user_id) {
        return Err(ApiError::new(
            ErrorCode::GuestAccessForbidden,
            "Guests may set only their display name.",
        ));
    }
    capabilities::may_set_profile(&cx.app.engine, &cx.app.config.accounts, &cx.caller, field)
}

/// Sets or removes a field, in the user's rooms, too.
pub(in crate::api) async fn change(
    engine: &Arc<Engine>,
    origin: Origin,
    user_id: &UserId,
    field: String,
    value: Option<Value>,
) -> Result<(), ApiError> {
    let in_rooms = matches!(field.as_str(), "displayname" | "avatar_url");
    if in_rooms && value.as_ref().is_some_and(|value| !value.is_string()) {
        return Err(ApiError::bad_json("This field holds a string."));
    }
    // These are copied to a member event of each room, which must have space for them.
    let longest = match field.as_str() {
        "displayname" => limits::DISPLAY_NAME_BYTES,
        "avatar_url" => limits::AVATAR_URL_BYTES,
        _ => usize::MAX,
    };
    if value.as_ref().and_then(Value::as_str).is_some_and(|text| text.len() > longest) {
        return Err(ApiError::too_large(format!("This field has {longest} bytes at most.")));
    }
    let mut profile = fields(engine, user_id).unwrap_or_default();
    match value.clone() {
        Some(value) => profile.insert(field.clone(), value),
        None => profile.remove(&field),
    };
    if json(&profile)?.0.len() > limits::PROFILE_BYTES {
        return Err(ApiError::new(ErrorCode::ProfileTooLarge, "The profile would be too large."));
    }
    let user_id = user_id.to_owned();
    let proposal = SetProfile { user_id: user_id.clone(), field, value };
    let changed = engine.propose(origin.clone(), proposal).await?;
    if changed.into_inner() && in_rooms {
        let engine = Arc::clone(engine);
        // In its own task: a client that hangs up must not leave half of the rooms without the
        // change.
        let spreading = tokio::spawn(async move {
            spread(&engine, &origin, &user_id).await;
        });
        spreading.await.map_err(ApiError::internal)?;
    }
    Ok(())
}

/// Whether this is a valid name by the Common Namespaced Identifier Grammar (appendices).
fn is_field_name(name: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b);
    name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(fine)
}
