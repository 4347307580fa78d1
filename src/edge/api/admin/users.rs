//! Users and their devices.

use http::StatusCode;
use ruma::{OwnedDeviceId, UserId, api::client::admin::get_user_info::v3 as get_user_info};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Caller, Desk, nothing, reply, would_do};
use crate::{
    edge::{
        api::{at_length, moderation, registration::free_user_id},
        http::{ApiError, RawRequest, Reply},
    },
    ops::admin::{
        Act, Done, ExternalId, UserDetails, UserDevice, UserSummary,
        users::{Listed, UserOrder, UsersWanted},
    },
    record::{Offset, threepid::Threepid},
    state::Membership,
};

pub(super) const JOINED_ROOMS: &str = "/_synapse/admin/v1/users/{user_id}/joined_rooms";
pub(super) const DEVICE: &str = "/_synapse/admin/v2/users/{user_id}/devices/{device_id}";
pub(super) const DELETE_DEVICES: &str = "/_synapse/admin/v2/users/{user_id}/delete_devices";
pub(super) const BY_LINK: &str = "/_synapse/admin/v1/auth_providers/{provider}/users/{external_id}";
pub(super) const BY_THREEPID: &str = "/_synapse/admin/v1/threepid/{medium}/users/{address}";

/// A page of the users. Deactivated and locked ones are on it only if they are asked for.
pub(super) async fn list(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let with_deactivated = desk.flag("deactivated")?.unwrap_or(false);
    page(&desk, (!with_deactivated).then_some(false))
}

/// As [`list`], but what is said of deactivated ones is what is looked for, and without it all are
/// there.
pub(super) async fn list_v3(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    page(&desk, desk.flag("deactivated")?)
}

fn page(desk: &Desk, deactivated: Option<bool>) -> Result<Reply, ApiError> {
    let (from, limit) = desk.page()?;
    let order = match desk.cx.query("order_by")?.as_deref() {
        None | Some("name") => UserOrder::Name,
        Some("displayname") => UserOrder::DisplayName,
        Some("avatar_url") => UserOrder::AvatarUrl,
        Some("is_guest") => UserOrder::IsGuest,
        Some("admin") => UserOrder::Admin,
        Some("deactivated") => UserOrder::Deactivated,
        Some("locked") => UserOrder::Locked,
        Some("creation_ts") => UserOrder::CreationTs,
        Some("last_seen_ts") => UserOrder::LastSeenTs,
        // All are alike in these.
        Some("user_type" | "shadow_banned") => UserOrder::Nothing,
        Some(_) => return Err(ApiError::invalid_param("There is no such order of users.")),
    };
    let name = desk.cx.query("name")?;
    let excluded = |shown: Option<bool>, unless: bool| {
        let shown = shown.unwrap_or(unless);
        (!shown).then_some(false)
    };
    let wanted = UsersWanted {
        id: if name.is_some() { None } else { desk.cx.query("user_id")? },
        name,
        guests: excluded(desk.flag("guests")?, true),
        admins: desk.flag("admins")?,
        deactivated,
        locked: excluded(desk.flag("locked")?, false),
        order,
        reverse: desk.backwards()?.unwrap_or(false),
        from,
        limit,
    };
    let office = &desk.cx.app.office;
    let (users, total) = at_length(|| office.users(&wanted));
    let next = from.saturating_add(users.len());
    let mut shown = Vec::with_capacity(users.len());
    for Listed { user, registered } in users {
        let mut user = words(&user);
        user["creation_ts"] = office.time_of(registered)?.into();
        shown.push(user);
    }
    let mut answer = json!({ "users": shown, "total": total });
    if next < total {
        answer["next_token"] = next.to_string().into();
    }
    reply(&answer)
}

/// A user in the words of the tools.
fn words(user: &UserSummary) -> Value {
    json!({
        "name": user.user_id,
        "displayname": user.display_name,
        "avatar_url": user.avatar_url,
        "is_guest": user.guest,
        "admin": user.admin,
        "user_type": null,
        "deactivated": user.deactivated,
        "erased": user.erased,
        "shadow_banned": false,
        "locked": user.locked,
        "suspended": user.suspended,
        "last_seen_ts": user.last_seen_ms,
    })
}

pub(super) async fn get(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    reply(&details(&desk.cx.app.office.user_details(desk.arg(0)?)?))
}

fn details(user: &UserDetails) -> Value {
    let mut shown = words(&user.summary);
    // In seconds here, unlike in the list.
    shown["creation_ts"] = (user.created_ms / 1000).into();
    shown["threepids"] = json!(user.threepids);
    shown["external_ids"] = json!(user.external_ids);
    shown["media_count"] = user.media_count.into();
    shown["media_length"] = user.media_bytes.into();
    for unused in ["appservice_id", "consent_server_notice_sent", "consent_version", "consent_ts"] {
        shown[unused] = Value::Null;
    }
    shown
}

/// Makes an account or changes one. All that is asked for is looked at before any of it is done.
pub(super) async fn put(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (app, name) = (&desk.cx.app, desk.arg(0)?.to_owned());
    let user_id = <&UserId>::try_from(name.as_str())
        .map_err(|_| ApiError::invalid_param("This is not a user id."))?;
    if user_id.server_name() != app.config.server.name {
        return Err(ApiError::invalid_param("This user is not of this server."));
    }
    let known = app.engine.state().accounts.standing(user_id);
    let user = || name.clone();
    must_be_so_already(&desk, user_id)?;
    let admin: Option<bool> = desk.field("admin")?;
    if known.is_some() && admin == Some(false) && desk.cx.caller.user_id == user_id {
        return Err(ApiError::invalid_param("You cannot take administration from yourself."));
    }
    let password: Option<String> = desk.field("password")?;
    let display_name: Option<Option<String>> = desk.nullable("displayname")?;
    let mut acts = Vec::new();
    if known.is_none() {
        acts.push(Act::CreateUser {
            user: user(),
            password: password.map(Into::into),
            display_name: display_name.flatten().filter(|name| !name.is_empty()),
            admin: admin.unwrap_or(false),
        });
    } else {
        if let Some(password) = password {
            let keep_devices = !desk.field("logout_devices")?.unwrap_or(true);
            acts.push(Act::ResetPassword { user: user(), password: password.into(), keep_devices });
        }
        if let Some(value) = display_name {
            let field = "displayname".to_owned();
            acts.push(Act::SetProfile { user: user(), field, value });
        }
    }
    if let Some(value) = desk.nullable("avatar_url")? {
        acts.push(Act::SetProfile { user: user(), field: "avatar_url".to_owned(), value });
    }
    let admin = admin.filter(|_| known.is_some());
    let (locked, suspended) = (desk.field("locked")?, desk.field("suspended")?);
    if admin.is_some() || locked.is_some() || suspended.is_some() {
        acts.push(Act::SetStatus { user: user(), admin, locked, suspended, reason: None });
    }
    let is_closed = known.is_some_and(|standing| standing.deactivated.is_some());
    match (desk.field("deactivated")?, is_closed) {
        (Some(true), false) => {
            acts.push(Act::Deactivate { user: user(), erase: false, reason: None });
        }
        (Some(false), true) => {
            let why = "A deactivated account cannot be reactivated.";
            return Err(ApiError::invalid_param(why));
        }
        _ => {}
    }
    if let Some(Act::CreateUser { .. }) = acts.first()
        && desk.flag("dry_run")? == Some(true)
    {
        // There is nobody yet whom the rest could be said of.
        acts.truncate(1);
    }
    let done = desk.carry_out(acts).await?;
    let effects = done.into_iter().filter_map(|done| match done {
        Done::WouldDo { effect } => Some(effect),
        _ => None,
    });
    let effects: Vec<_> = effects.flatten().collect();
    if desk.flag("dry_run")? == Some(true) {
        return reply(&would_do(effects));
    }
    let status = if known.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok(reply(&details(&app.office.user_details(&name)?))?.with_status(status))
}

/// What the tools can set elsewhere and nobody can here: it may be said, if it is so.
fn must_be_so_already(desk: &Desk, user_id: &UserId) -> Result<(), ApiError> {
    #[derive(Deserialize)]
    struct Address {
        medium: String,
        address: String,
    }
    let user = desk.cx.app.office.user_details(user_id.as_str()).ok();
    let refused = |what: &str| Err(ApiError::invalid_param(what.to_owned()));
    if desk.field::<String>("user_type")?.is_some() {
        return refused("There are no types of users here.");
    }
    if let Some(mut wanted) = desk.field::<Vec<Address>>("threepids")? {
        let known = user.iter().flat_map(|user| &user.threepids);
        let mut known: Vec<_> =
            known.map(|known| (known.medium.clone(), known.address.clone())).collect();
        let mut wanted: Vec<_> = wanted.drain(..).map(|of| (of.medium, of.address)).collect();
        known.sort_unstable();
        wanted.sort_unstable();
        if known != wanted {
            return refused("Addresses are added and removed by their owners alone.");
        }
    }
    if let Some(mut wanted) = desk.field::<Vec<ExternalId>>("external_ids")? {
        let mut known = user.map(|user| user.external_ids).unwrap_or_default();
        let key = |of: &ExternalId| (of.auth_provider.clone(), of.external_id.clone());
        known.sort_by_key(key);
        wanted.sort_by_key(key);
        if known != wanted {
            return refused("Accounts are linked with providers by their owners alone.");
        }
    }
    Ok(())
}

pub(super) async fn is_admin(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let user = desk.cx.app.office.user_details(desk.arg(0)?)?;
    reply(&json!({ "admin": user.summary.admin }))
}

pub(super) async fn set_admin(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, admin) = (desk.arg(0)?.to_owned(), desk.required::<bool>("admin")?);
    if !admin && desk.cx.app.office.user_id(&user)? == desk.cx.caller.user_id {
        return Err(ApiError::invalid_param("You cannot take administration from yourself."));
    }
    let admin = Some(admin);
    let act = Act::SetStatus { user, admin, locked: None, suspended: None, reason: None };
    desk.act(act, nothing).await
}

pub(super) async fn suspend(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, suspended) = (desk.arg(0)?.to_owned(), desk.required("suspend")?);
    let suspended = Some(suspended);
    let act = Act::SetStatus { user, admin: None, locked: None, suspended, reason: None };
    desk.act(act, |done| match done {
        Done::Changed { user_id, .. } => {
            json!({ format!("user_{user_id}_suspended"): suspended })
        }
        other => nothing(other),
    })
    .await
}

pub(super) async fn deactivate(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let user = desk.arg(0)?.to_owned();
    let erase = desk.field("erase")?.unwrap_or(false);
    desk.act(Act::Deactivate { user, erase, reason: None }, |done| match done {
        Done::Deactivated { still_bound, .. } if !still_bound.is_empty() => {
            json!({ "id_server_unbind_result": "no-support" })
        }
        _ => json!({ "id_server_unbind_result": "success" }),
    })
    .await
}

pub(super) async fn password(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, password) = (desk.arg(0)?.to_owned(), desk.required::<String>("new_password")?);
    let keep_devices = !desk.field("logout_devices")?.unwrap_or(true);
    desk.act(Act::ResetPassword { user, password: password.into(), keep_devices }, nothing).await
}

pub(super) async fn whois(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let Desk { cx, args, .. } = Desk::open(cx, request)?;
    let user_id = args.first().and_then(|user_id| UserId::parse(user_id).ok());
    let user_id = user_id.ok_or_else(|| ApiError::invalid_param("This is not a user id."))?;
    Reply::typed(moderation::whois(cx, get_user_info::Request::new(user_id)).await?)
}

pub(super) async fn log_in(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, expires_ms) = (desk.arg(0)?.to_owned(), desk.field("valid_until_ms")?);
    if desk.cx.app.office.user_id(&user)? == desk.cx.caller.user_id {
        return Err(ApiError::invalid_param("You are logged in as yourself already."));
    }
    desk.act(Act::LogInAs { user, expires_ms }, |done| match done {
        Done::LoggedInAs { access_token, device_id, .. } => {
            json!({ "access_token": access_token, "device_id": device_id })
        }
        other => nothing(other),
    })
    .await
}

pub(super) async fn joined_rooms(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let user_id = desk.cx.app.office.user_id(desk.arg(0)?)?;
    let parts = desk.cx.app.engine.state().memberships.of(&user_id, Offset::MAX).into_iter();
    let joined = parts.filter(|part| part.membership == Membership::Join);
    let joined: Vec<_> = joined.map(|part| part.room_id).collect();
    reply(&json!({ "total": joined.len(), "joined_rooms": joined }))
}

pub(super) async fn parts(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let user_id = desk.cx.app.office.user_id(desk.arg(0)?)?;
    let parts = desk.cx.app.engine.state().memberships.of(&user_id, Offset::MAX).into_iter();
    let parts = parts.map(|part| (part.room_id.to_string(), part.membership.as_str().into()));
    reply(&json!({ "memberships": parts.collect::<serde_json::Map<_, Value>>() }))
}

fn device_words(user: &UserDetails, device_id: &str, device: &UserDevice) -> Value {
    json!({
        "device_id": device_id,
        "display_name": device.display_name,
        "last_seen_ip": device.seen_ip,
        "last_seen_user_agent": device.seen_agent,
        "last_seen_ts": device.seen_ms,
        "user_id": user.summary.user_id,
        "dehydrated": device.dehydrated,
    })
}

pub(super) async fn devices(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let user = desk.cx.app.office.user_details(desk.arg(0)?)?;
    let devices = user.logged_in.iter();
    let devices: Vec<_> =
        devices.map(|(device_id, of)| device_words(&user, device_id.as_str(), of)).collect();
    reply(&json!({ "total": devices.len(), "devices": devices }))
}

pub(super) async fn device(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, device_id) = (desk.cx.app.office.user_details(desk.arg(0)?)?, desk.arg(1)?);
    let device = user.logged_in.iter().find(|(known, _)| known.as_str() == device_id);
    let (_, device) = device.ok_or_else(|| ApiError::not_found("There is no such device."))?;
    reply(&device_words(&user, device_id, device))
}

pub(super) async fn rename_device(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, device) = (desk.arg(0)?.to_owned(), OwnedDeviceId::from(desk.arg(1)?));
    known_device(&desk, &user, &device)?;
    match desk.field("display_name")? {
        Some(display_name) => {
            desk.act(Act::RenameDevice { user, device, display_name }, nothing).await
        }
        None => reply(&json!({})),
    }
}

fn known_device(desk: &Desk, user: &str, device: &OwnedDeviceId) -> Result<(), ApiError> {
    let user = desk.cx.app.office.user_details(user)?;
    let known = user.logged_in.contains_key(device);
    if known { Ok(()) } else { Err(ApiError::not_found("There is no such device.")) }
}

pub(super) async fn delete_device(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, device) = (desk.arg(0)?.to_owned(), OwnedDeviceId::from(desk.arg(1)?));
    known_device(&desk, &user, &device)?;
    desk.act(Act::LogOut { user, devices: Some(vec![device]) }, nothing).await
}

/// Those that are not there need not be deleted.
pub(super) async fn delete_devices(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (user, mut devices) =
        (desk.arg(0)?.to_owned(), desk.required::<Vec<OwnedDeviceId>>("devices")?);
    let known = desk.cx.app.office.user_details(&user)?;
    devices.retain(|device| known.logged_in.contains_key(device));
    desk.act(Act::LogOut { user, devices: Some(devices) }, nothing).await
}

pub(super) async fn is_free(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let username = desk.cx.query("username")?;
    let username = username.ok_or_else(|| ApiError::missing_param("`username` is missing."))?;
    free_user_id(&desk.cx.app, &username, None)?;
    reply(&json!({ "available": true }))
}

pub(super) async fn by_link(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let user_id = desk.cx.app.engine.state().accounts.linked(desk.arg(0)?, desk.arg(1)?);
    found(user_id)
}

pub(super) async fn by_threepid(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (medium, address) = (desk.arg(0)?, desk.arg(1)?);
    let medium = serde_json::from_value(medium.into())
        .map_err(|_| ApiError::invalid_param("`medium` is `email` or `msisdn`."))?;
    let threepid = Threepid { medium, address: address.to_lowercase() };
    found(desk.cx.app.engine.state().threepids.owner(&threepid))
}

fn found(user_id: Option<ruma::OwnedUserId>) -> Result<Reply, ApiError> {
    let user_id = user_id.ok_or_else(|| ApiError::not_found("There is no such user."))?;
    reply(&json!({ "user_id": user_id }))
}
