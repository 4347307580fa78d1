//! Users and their devices.

use std::sync::Arc;

use http::StatusCode;
use ruma::{
    OwnedDeviceId, OwnedRoomId, OwnedUserId, UserId,
    api::{auth_scheme::AccessToken, client::admin::get_user_info::v3 as get_user_info},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::parts::{ActParameters, AdminParts as _, PageOf, nothing, nullable, would_do};
use crate::{
    api::{
        account::moderation, answer::json as to_json, auth::registration::free_user_id,
        server::Server,
    },
    http::{ApiError, Cx, Json, Received, Reply, endpoint},
};
use logcabin_base::background::at_length;
use logcabin_ops::admin::{
    act::{Act, Outcome},
    context::{ActContext, ActError},
    users::{
        self, ApproveUsers, Changed, CreateUser, ExternalId, LogInAs, LogOut, LoggedInAs,
        ResetPassword, ResetPermitted, SetProfile, SetStatus, UserDetails, UserDevice, UserSummary,
        search::{self, FoundUser, UserOrder, UserSearch},
    },
};
use logcabin_record::{Offset, Origin, threepid::Threepid};
use logcabin_state::Membership;

endpoint! {
    /// `GET …/users`
    pub(super) struct List = GET "/_synapse/admin/v2/users";
    for AccessToken;
    { deactivated: Option<bool> = flag, wanted: UserQuery = wanted }
}

/// An account in a tool's request. Settings that nobody can change here are accepted if they have
/// that value already.
#[derive(Deserialize)]
#[allow(clippy::option_option, reason = "missing, null, and a value")]
pub(super) struct UserBody {
    admin: Option<bool>,
    password: Option<String>,
    logout_devices: Option<bool>,
    #[serde(default, deserialize_with = "nullable")]
    displayname: Option<Option<String>>,
    #[serde(default, deserialize_with = "nullable")]
    avatar_url: Option<Option<String>>,
    locked: Option<bool>,
    suspended: Option<bool>,
    approved: Option<bool>,
    deactivated: Option<bool>,
    user_type: Option<String>,
    threepids: Option<Vec<Address>>,
    external_ids: Option<Vec<ExternalId>>,
}

impl UserBody {
    /// Drops the fields that change nothing: tools send whole accounts back, even deactivated ones.
    fn changes_of(mut self, is: Option<UserSummary>) -> Self {
        let Some(is) = is else { return self };
        self.admin.take_if(|admin| *admin == is.admin);
        self.locked.take_if(|locked| *locked == is.locked);
        self.suspended.take_if(|suspended| *suspended == is.suspended);
        let same = |new: &Option<String>, old: &Option<String>| {
            new.as_ref().filter(|new| !new.is_empty()) == old.as_ref()
        };
        self.displayname.take_if(|name| same(name, &is.display_name));
        self.avatar_url.take_if(|url| same(url, &is.avatar_url));
        self
    }
}

#[derive(Deserialize)]
struct Address {
    medium: String,
    address: String,
}

/// Whether to make a user an administrator.
#[derive(Deserialize)]
pub(super) struct AdminBody {
    admin: bool,
}

/// Whether to suspend a user.
#[derive(Deserialize)]
pub(super) struct SuspendBody {
    suspend: bool,
}

/// How to deactivate an account.
#[derive(Deserialize)]
pub(super) struct DeactivateBody {
    erase: Option<bool>,
}

/// A new password.
#[derive(Deserialize)]
pub(super) struct PasswordBody {
    new_password: String,
    logout_devices: Option<bool>,
}

/// How long a login as another user is valid.
#[derive(Deserialize)]
pub(super) struct LoginBody {
    valid_until_ms: Option<u64>,
}

/// The new name of a device.
#[derive(Deserialize)]
pub(super) struct DeviceBody {
    display_name: Option<String>,
}

/// Devices to log out.
#[derive(Deserialize)]
pub(super) struct DevicesBody {
    devices: Vec<OwnedDeviceId>,
}

/// A page of users. Deactivated and locked users are included only on request.
pub(super) async fn list(cx: Cx<Server>, request: List) -> Result<Json, ApiError> {
    let with_deactivated = request.deactivated.unwrap_or(false);
    page(&cx.app.context, request.wanted, (!with_deactivated).then_some(false))
}

endpoint! {
    /// `GET …/users`
    pub(super) struct ListV3 = GET "/_synapse/admin/v3/users";
    for AccessToken;
    { deactivated: Option<bool> = flag, wanted: UserQuery = wanted }
}

/// Like [`list`], but `deactivated` selects users with that value, and without it all users are
/// included.
pub(super) async fn list_v3(cx: Cx<Server>, request: ListV3) -> Result<Json, ApiError> {
    page(&cx.app.context, request.wanted, request.deactivated)
}

/// The requested users, and their order. Each endpoint reads `deactivated` in its own way.
pub(super) struct UserQuery {
    page: PageOf,
    order: UserOrder,
    name: Option<String>,
    id: Option<String>,
    guests: Option<bool>,
    admins: Option<bool>,
    locked: Option<bool>,
    approved: Option<bool>,
    reverse: bool,
}

trait UserParts {
    fn wanted(&mut self, name: &str) -> Result<UserQuery, ApiError>;
}

impl UserParts for Received<'_> {
    fn wanted(&mut self, _: &str) -> Result<UserQuery, ApiError> {
        let name = self.parameter("name")?;
        Ok(UserQuery {
            page: self.page("page")?,
            order: order(self.parameter("order_by")?.as_deref())?,
            id: if name.is_some() { None } else { self.parameter("user_id")? },
            name,
            guests: self.flag("guests")?,
            admins: self.flag("admins")?,
            locked: self.flag("locked")?,
            approved: self.flag("approved")?,
            reverse: self.backwards("dir")?.unwrap_or(false),
        })
    }
}

fn order(name: Option<&str>) -> Result<UserOrder, ApiError> {
    Ok(match name {
        None | Some("name") => UserOrder::Name,
        Some("displayname") => UserOrder::DisplayName,
        Some("avatar_url") => UserOrder::AvatarUrl,
        Some("is_guest") => UserOrder::IsGuest,
        Some("admin") => UserOrder::Admin,
        Some("deactivated") => UserOrder::Deactivated,
        Some("locked") => UserOrder::Locked,
        Some("creation_ts") => UserOrder::CreationTs,
        Some("last_seen_ts") => UserOrder::LastSeenTs,
        Some("shadow_banned") => UserOrder::ShadowBanned,
        // All users are equal in this.
        Some("user_type") => UserOrder::Nothing,
        Some(_) => return Err(ApiError::invalid_param("There is no such order of users.")),
    })
}

fn page(context: &ActContext, of: UserQuery, deactivated: Option<bool>) -> Result<Json, ApiError> {
    let UserQuery { page: PageOf { from, limit }, order, name, id, guests, admins, .. } = of;
    let excluded = |shown: Option<bool>, unless: bool| {
        let shown = shown.unwrap_or(unless);
        (!shown).then_some(false)
    };
    let wanted = UserSearch {
        id,
        name,
        guests: excluded(guests, true),
        admins,
        deactivated,
        locked: excluded(of.locked, false),
        waiting: (of.approved == Some(false)).then_some(true),
        order,
        reverse: of.reverse,
        from,
        limit,
    };
    let (users, total) = at_length(|| search::search(context, &wanted));
    let next = from.saturating_add(users.len());
    let mut shown = Vec::with_capacity(users.len());
    for FoundUser { user, registered } in users {
        let mut user = words(&user);
        user["creation_ts"] = context.time_of(registered)?.into();
        shown.push(user);
    }
    let mut answer = json!({ "users": shown, "total": total });
    if next < total {
        answer["next_token"] = next.to_string().into();
    }
    to_json(&answer)
}

/// A user in the format of the tools.
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
        "shadow_banned": user.shadow_banned,
        "approved": !user.waiting,
        "locked": user.locked,
        "suspended": user.suspended,
        "last_seen_ts": user.last_seen_ms,
    })
}

endpoint! {
    /// `GET …/users/{user_id}`
    pub(super) struct Get = GET "/_synapse/admin/v2/users/{user_id}";
    for AccessToken;
    { user: String = path }
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    to_json(&details(&users::details(&cx.app.context, &request.user)?))
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

endpoint! {
    /// `PUT …/users/{user_id}`
    pub(super) struct Put = PUT "/_synapse/admin/v2/users/{user_id}";
    for AccessToken;
    { user: String = path, body: UserBody = json, terms: ActParameters = terms }
}

/// Creates or changes an account. The whole request is checked before anything is done.
pub(super) async fn put(cx: Cx<Server>, request: Put) -> Result<Reply, ApiError> {
    let Put { user: name, body, terms } = request;
    let (app, dry_run) = (&cx.app, terms.dry_run);
    let user_id = <&UserId>::try_from(name.as_str())
        .map_err(|_| ApiError::invalid_param("This is not a user id."))?;
    if user_id.server_name() != app.config.server.name {
        return Err(ApiError::invalid_param("This user is not of this server."));
    }
    let standing = |user_id: &UserId| app.engine.state().accounts.standing(user_id);
    // New accounts have lowercase names, as when users register.
    let lower = user_id.localpart().to_ascii_lowercase();
    let lower = UserId::parse(format!("@{lower}:{}", user_id.server_name()));
    let lower = lower.ok().filter(|_| standing(user_id).is_none());
    let user_id = lower.as_deref().unwrap_or(user_id);
    let (name, known) = (user_id.to_string(), standing(user_id));
    let user = || name.clone();
    let is = users::details(&cx.app.context, user_id.as_str()).ok();
    must_be_so_already(&body, is.as_ref())?;
    let body = body.changes_of(is.map(|user| user.summary));
    let admin = body.admin;
    if known.is_some() && admin == Some(false) && cx.caller.user_id == user_id {
        return Err(ApiError::invalid_param("You cannot remove your own administrator rights."));
    }
    let mut changes = Changes::default();
    let waits = known.is_some_and(|standing| standing.waiting.is_some());
    match (body.approved, waits) {
        (Some(true), true) => changes.approve = Some(ApproveUsers { users: vec![user()] }),
        (Some(false), false) => {
            let why = "An account that is in use cannot be made to wait for approval.";
            return Err(ApiError::invalid_param(why));
        }
        _ => {}
    }
    let UserBody { password, displayname: display_name, avatar_url, locked, suspended, .. } = body;
    if known.is_none() {
        changes.create = Some(CreateUser {
            user: user(),
            password: password.map(Into::into),
            display_name: display_name.flatten().filter(|name| !name.is_empty()),
            admin: admin.unwrap_or(false),
        });
    } else {
        changes.password = password.map(|password| ResetPassword {
            user: user(),
            password: password.into(),
            keep_devices: !body.logout_devices.unwrap_or(true),
        });
        changes.profile.extend(display_name.map(|value| SetProfile {
            user: user(),
            field: "displayname".to_owned(),
            value,
        }));
    }
    changes.profile.extend(avatar_url.map(|value| SetProfile {
        user: user(),
        field: "avatar_url".to_owned(),
        value,
    }));
    let admin = admin.filter(|_| known.is_some());
    if admin.is_some() || locked.is_some() || suspended.is_some() {
        let shadow_banned = None;
        changes.status = Some(SetStatus { user: user(), admin, locked, suspended, shadow_banned });
    }
    let is_closed = known.is_some_and(|standing| standing.deactivated.is_some());
    match (body.deactivated, is_closed) {
        (Some(true), false) => {
            changes.deactivate = Some(users::Deactivate { user: user(), erase: false });
        }
        (Some(false), true) => {
            let why = "A deactivated account cannot be reactivated.";
            return Err(ApiError::invalid_param(why));
        }
        _ => {}
    }
    let (context, origin) = (Arc::clone(&app.context), cx.origin());
    let effect = cx.complete(async move { changes.carry_out(&context, &origin, &terms).await });
    let effect = effect.await?;
    if dry_run {
        return Ok(Reply::json(to_json(&would_do(effect))?.0));
    }
    let status = if known.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok(Reply::json(to_json(&details(&users::details(&app.context, &name)?))?.0).with_status(status))
}

/// What one request changes about an account.
#[derive(Default)]
struct Changes {
    create: Option<CreateUser>,
    password: Option<ResetPassword>,
    profile: Vec<SetProfile>,
    approve: Option<ApproveUsers>,
    status: Option<SetStatus>,
    deactivate: Option<users::Deactivate>,
}

impl Changes {
    /// Carries them out in order. In a dry run, describes what would be done.
    async fn carry_out(
        self,
        context: &ActContext,
        origin: &Origin,
        terms: &ActParameters,
    ) -> Result<Vec<String>, ActError> {
        let mut effect = Vec::new();
        let created = self.create.is_some();
        effect.extend(step(context, origin, terms, self.create).await?);
        if created && terms.dry_run {
            // The account does not exist yet, so the other acts cannot be described.
            return Ok(effect);
        }
        effect.extend(step(context, origin, terms, self.password).await?);
        effect.extend(step(context, origin, terms, self.profile).await?);
        effect.extend(step(context, origin, terms, self.approve).await?);
        effect.extend(step(context, origin, terms, self.status).await?);
        effect.extend(step(context, origin, terms, self.deactivate).await?);
        Ok(effect)
    }
}

async fn step<A: Act>(
    context: &ActContext,
    origin: &Origin,
    terms: &ActParameters,
    acts: impl IntoIterator<Item = A, IntoIter: Send> + Send,
) -> Result<Vec<String>, ActError> {
    let mut all = Vec::new();
    for act in acts {
        let order = terms.order(act);
        if let Outcome::WouldDo(effect) = order.carry_out(context, origin.clone()).await? {
            all.extend(effect);
        }
    }
    Ok(all)
}

/// Refuses settings that tools can change elsewhere but nobody can here, unless they have that
/// value already.
fn must_be_so_already(body: &UserBody, user: Option<&UserDetails>) -> Result<(), ApiError> {
    let refused = |what: &str| Err(ApiError::invalid_param(what.to_owned()));
    if body.user_type.is_some() {
        return refused("There are no types of users here.");
    }
    if let Some(wanted) = &body.threepids {
        let known = user.into_iter().flat_map(|user| &user.threepids);
        let mut known: Vec<_> =
            known.map(|known| (known.medium.clone(), known.address.clone())).collect();
        let wanted = wanted.iter().map(|of| (of.medium.clone(), of.address.clone()));
        let mut wanted: Vec<_> = wanted.collect();
        known.sort_unstable();
        wanted.sort_unstable();
        if known != wanted {
            return refused("Addresses are added and removed by their owners alone.");
        }
    }
    if let Some(mut wanted) = body.external_ids.clone() {
        let mut known = user.map(|user| user.external_ids.clone()).unwrap_or_default();
        let key = |of: &ExternalId| (of.auth_provider.clone(), of.external_id.clone());
        known.sort_by_key(key);
        wanted.sort_by_key(key);
        if known != wanted {
            return refused("Accounts are linked with providers by their owners alone.");
        }
    }
    Ok(())
}

endpoint! {
    /// `GET …/users/{user_id}/admin`
    pub(super) struct IsAdmin = GET "/_synapse/admin/v1/users/{user_id}/admin";
    for AccessToken;
    { user: String = path }
}

pub(super) async fn is_admin(cx: Cx<Server>, request: IsAdmin) -> Result<Json, ApiError> {
    let user = users::details(&cx.app.context, &request.user)?;
    to_json(&json!({ "admin": user.summary.admin }))
}

endpoint! {
    /// `PUT …/users/{user_id}/admin`
    pub(super) struct SetAdmin = PUT "/_synapse/admin/v1/users/{user_id}/admin";
    for AccessToken;
    { user: String = path, body: AdminBody = parameters, terms: ActParameters = terms }
}

pub(super) async fn set_admin(cx: Cx<Server>, request: SetAdmin) -> Result<Json, ApiError> {
    let SetAdmin { user, body: AdminBody { admin }, terms } = request;
    if !admin && cx.app.context.user_id(&user)? == cx.caller.user_id {
        return Err(ApiError::invalid_param("You cannot remove your own administrator rights."));
    }
    let admin = Some(admin);
    let act = SetStatus { user, admin, locked: None, suspended: None, shadow_banned: None };
    cx.act(act, terms, nothing).await
}

endpoint! {
    /// `PUT …/suspend/{user_id}`
    pub(super) struct Suspend = PUT "/_synapse/admin/v1/suspend/{user_id}";
    for AccessToken;
    { user: String = path, body: SuspendBody = parameters, terms: ActParameters = terms }
}

pub(super) async fn suspend(cx: Cx<Server>, request: Suspend) -> Result<Json, ApiError> {
    let Suspend { user, body, terms } = request;
    let suspended = Some(body.suspend);
    let act = SetStatus { user, admin: None, locked: None, suspended, shadow_banned: None };
    cx.act(
        act,
        terms,
        |Changed { user_id, .. }| json!({ format!("user_{user_id}_suspended"): suspended }),
    )
    .await
}

endpoint! {
    /// `POST …/deactivate/{user_id}`
    pub(super) struct Deactivate = POST "/_synapse/admin/v1/deactivate/{user_id}";
    for AccessToken;
    { user: String = path, body: DeactivateBody = json, terms: ActParameters = terms }
}

pub(super) async fn deactivate(cx: Cx<Server>, request: Deactivate) -> Result<Json, ApiError> {
    let Deactivate { user, body, terms } = request;
    let erase = body.erase.unwrap_or(false);
    cx.act(users::Deactivate { user, erase }, terms, |done| {
        let unbound = if done.still_bound.is_empty() { "success" } else { "no-support" };
        json!({ "id_server_unbind_result": unbound })
    })
    .await
}

endpoint! {
    /// `POST …/reset_password/{user_id}`
    pub(super) struct Password = POST "/_synapse/admin/v1/reset_password/{user_id}";
    for AccessToken;
    { user: String = path, body: PasswordBody = parameters, terms: ActParameters = terms }
}

pub(super) async fn password(cx: Cx<Server>, request: Password) -> Result<Json, ApiError> {
    let Password { user, body: PasswordBody { new_password, logout_devices }, terms } = request;
    let (password, keep_devices) = (new_password.into(), !logout_devices.unwrap_or(true));
    cx.act(ResetPassword { user, password, keep_devices }, terms, nothing).await
}

endpoint! {
    /// `GET …/whois/{user_id}`
    pub(super) struct Whois = GET "/_synapse/admin/v1/whois/{user_id}";
    for AccessToken;
    { user_id: OwnedUserId = path }
}

/// Tools expect `devices` also of a user who has none.
pub(super) async fn whois(cx: Cx<Server>, request: Whois) -> Result<Json, ApiError> {
    let whois = moderation::whois(cx, get_user_info::Request::new(request.user_id)).await?;
    to_json(&json!({ "user_id": whois.user_id, "devices": whois.devices }))
}

endpoint! {
    /// `POST …/users/{user_id}/login`
    pub(super) struct LogIn = POST "/_synapse/admin/v1/users/{user_id}/login";
    for AccessToken;
    { user: String = path, body: LoginBody = json, terms: ActParameters = terms }
}

pub(super) async fn log_in(cx: Cx<Server>, request: LogIn) -> Result<Json, ApiError> {
    let LogIn { user, body: LoginBody { valid_until_ms: expires_ms }, terms } = request;
    if cx.app.context.user_id(&user)? == cx.caller.user_id {
        return Err(ApiError::invalid_param("You are already logged in as yourself."));
    }
    cx.act(LogInAs { user, expires_ms }, terms, |LoggedInAs { access_token, device_id, .. }| {
        json!({ "access_token": access_token, "device_id": device_id })
    })
    .await
}

endpoint! {
    /// `GET …/users/{user_id}/joined_rooms`
    pub(super) struct JoinedRooms = GET "/_synapse/admin/v1/users/{user_id}/joined_rooms";
    for AccessToken;
    { user: String = path }
}

pub(super) async fn joined_rooms(cx: Cx<Server>, request: JoinedRooms) -> Result<Json, ApiError> {
    let parts = at_length(|| memberships(&cx, &request.user))?.into_iter();
    let joined = parts.filter(|(_, membership)| *membership == Membership::Join);
    let joined: Vec<_> = joined.map(|(room_id, _)| room_id).collect();
    to_json(&json!({ "total": joined.len(), "joined_rooms": joined }))
}

endpoint! {
    /// `GET …/users/{user_id}/memberships`
    pub(super) struct Parts = GET "/_synapse/admin/v1/users/{user_id}/memberships";
    for AccessToken;
    { user: String = path }
}

pub(super) async fn parts(cx: Cx<Server>, request: Parts) -> Result<Json, ApiError> {
    let parts = at_length(|| memberships(&cx, &request.user))?.into_iter();
    let parts = parts.map(|(room_id, membership)| (room_id.into(), membership.as_str().into()));
    to_json(&json!({ "memberships": parts.collect::<serde_json::Map<_, Value>>() }))
}

/// The rooms of this server that a user has or had to do with, on whatever homeserver.
fn memberships(cx: &Cx<Server>, user: &str) -> Result<Vec<(OwnedRoomId, Membership)>, ActError> {
    let (context, state) = (&cx.app.context, cx.app.engine.state());
    match UserId::parse(user) {
        Ok(user_id) if user_id.server_name() != cx.app.config.server.name => {
            let rooms = users::rooms_elsewhere(context, &user_id).into_iter();
            Ok(rooms.map(|(room_id, membership, _)| (room_id, membership)).collect())
        }
        _ => {
            let parts = state.memberships.of(&context.user_id(user)?, Offset::MAX).into_iter();
            Ok(parts.map(|part| (part.room_id, part.membership)).collect())
        }
    }
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

endpoint! {
    /// `GET …/users/{user_id}/devices`
    pub(super) struct Devices = GET "/_synapse/admin/v2/users/{user_id}/devices";
    for AccessToken;
    { user: String = path }
}

pub(super) async fn devices(cx: Cx<Server>, request: Devices) -> Result<Json, ApiError> {
    let user = users::details(&cx.app.context, &request.user)?;
    let devices = user.logged_in.iter();
    let devices: Vec<_> =
        devices.map(|(device_id, of)| device_words(&user, device_id.as_str(), of)).collect();
    to_json(&json!({ "total": devices.len(), "devices": devices }))
}

/// The device to create.
#[derive(Deserialize)]
pub(super) struct NewDeviceBody {
    device_id: OwnedDeviceId,
}

endpoint! {
    /// `POST …/users/{user_id}/devices`
    pub(super) struct CreateDevice = POST "/_synapse/admin/v2/users/{user_id}/devices";
    for AccessToken;
    { user: String = path, body: NewDeviceBody = parameters, terms: ActParameters = terms }
}

/// Creates a device on which nobody is logged in, unless it is there.
pub(super) async fn create_device(
    cx: Cx<Server>,
    request: CreateDevice,
) -> Result<Reply, ApiError> {
    let CreateDevice { user, body: NewDeviceBody { device_id: device }, terms } = request;
    let status = if terms.dry_run { StatusCode::OK } else { StatusCode::CREATED };
    let done = cx.act(users::CreateDevice { user, device }, terms, nothing).await?;
    Ok(Reply::json(done.0).with_status(status))
}

endpoint! {
    /// `GET …/users/{user_id}/devices/{device_id}`
    pub(super) struct Device = GET "/_synapse/admin/v2/users/{user_id}/devices/{device_id}";
    for AccessToken;
    { user: String = path, device_id: OwnedDeviceId = path }
}

pub(super) async fn device(cx: Cx<Server>, request: Device) -> Result<Json, ApiError> {
    let Device { user, device_id } = request;
    let user = users::details(&cx.app.context, &user)?;
    let device = user.logged_in.get(&device_id);
    let device = device.ok_or_else(|| ApiError::not_found("There is no such device."))?;
    to_json(&device_words(&user, device_id.as_str(), device))
}

endpoint! {
    /// `PUT …/users/{user_id}/devices/{device_id}`
    pub(super) struct RenameDevice = PUT "/_synapse/admin/v2/users/{user_id}/devices/{device_id}";
    for AccessToken;
    {
        user: String = path,
        device: OwnedDeviceId = path,
        body: DeviceBody = json,
        terms: ActParameters = terms,
    }
}

pub(super) async fn rename_device(cx: Cx<Server>, request: RenameDevice) -> Result<Json, ApiError> {
    let RenameDevice { user, device, body, terms } = request;
    known_device(&cx.app.context, &user, &device)?;
    match body.display_name {
        Some(display_name) => {
            cx.act(users::RenameDevice { user, device, display_name }, terms, nothing).await
        }
        None => to_json(&json!({})),
    }
}

fn known_device(context: &ActContext, user: &str, device: &OwnedDeviceId) -> Result<(), ApiError> {
    let user = users::details(context, user)?;
    let known = user.logged_in.contains_key(device);
    if known { Ok(()) } else { Err(ApiError::not_found("There is no such device.")) }
}

endpoint! {
    /// `DELETE …/users/{user_id}/devices/{device_id}`
    pub(super) struct DeleteDevice = DELETE
        "/_synapse/admin/v2/users/{user_id}/devices/{device_id}";
    for AccessToken;
    { user: String = path, device: OwnedDeviceId = path, terms: ActParameters = terms }
}

pub(super) async fn delete_device(cx: Cx<Server>, request: DeleteDevice) -> Result<Json, ApiError> {
    let DeleteDevice { user, device, terms } = request;
    known_device(&cx.app.context, &user, &device)?;
    cx.act(LogOut { user, devices: Some(vec![device]) }, terms, nothing).await
}

endpoint! {
    /// `POST …/users/{user_id}/delete_devices`
    pub(super) struct DeleteDevices = POST "/_synapse/admin/v2/users/{user_id}/delete_devices";
    for AccessToken;
    { user: String = path, body: DevicesBody = parameters, terms: ActParameters = terms }
}

/// Devices that do not exist need not be deleted.
pub(super) async fn delete_devices(
    cx: Cx<Server>,
    request: DeleteDevices,
) -> Result<Json, ApiError> {
    let DeleteDevices { user, body: DevicesBody { mut devices }, terms } = request;
    let known = users::details(&cx.app.context, &user)?;
    devices.retain(|device| known.logged_in.contains_key(device));
    cx.act(LogOut { user, devices: Some(devices) }, terms, nothing).await
}

endpoint! {
    /// `POST …/users/{user_id}/_allow_cross_signing_replacement_without_uia`
    pub(super) struct PermitReset = POST
        "/_synapse/admin/v1/users/{user_id}/_allow_cross_signing_replacement_without_uia";
    for AccessToken;
    { user: String = path, terms: ActParameters = terms }
}

/// Lets the user replace their cross-signing keys once, for some minutes.
pub(super) async fn permit_reset(cx: Cx<Server>, request: PermitReset) -> Result<Json, ApiError> {
    let PermitReset { user, terms } = request;
    cx.act(users::PermitReset { user }, terms, |permitted: ResetPermitted| {
        json!({ "updatable_without_uia_before_ms": permitted.until_ms })
    })
    .await
}

endpoint! {
    /// `GET …/username_available`
    pub(super) struct IsFree = GET "/_synapse/admin/v1/username_available";
    for AccessToken;
    { username: Option<String> = parameter }
}

pub(super) async fn is_free(cx: Cx<Server>, request: IsFree) -> Result<Json, ApiError> {
    let username = request.username;
    let username = username.ok_or_else(|| ApiError::missing_param("`username` is missing."))?;
    free_user_id(&cx.app, &username, None)?;
    to_json(&json!({ "available": true }))
}

endpoint! {
    /// `GET …/auth_providers/{provider}/users/{external_id}`
    pub(super) struct ByLink = GET
        "/_synapse/admin/v1/auth_providers/{provider}/users/{external_id}";
    for AccessToken;
    { provider: String = path, external_id: String = path }
}

pub(super) async fn by_link(cx: Cx<Server>, request: ByLink) -> Result<Json, ApiError> {
    let user_id = cx.app.engine.state().accounts.linked(&request.provider, &request.external_id);
    found(user_id)
}

endpoint! {
    /// `GET …/threepid/{medium}/users/{address}`
    pub(super) struct ByThreepid = GET "/_synapse/admin/v1/threepid/{medium}/users/{address}";
    for AccessToken;
    { medium: String = path, address: String = path }
}

pub(super) async fn by_threepid(cx: Cx<Server>, request: ByThreepid) -> Result<Json, ApiError> {
    let ByThreepid { medium, address } = request;
    let medium = serde_json::from_value(medium.into())
        .map_err(|_| ApiError::invalid_param("`medium` is `email` or `msisdn`."))?;
    let threepid = Threepid { medium, address: address.to_lowercase() };
    found(cx.app.engine.state().threepids.owner(&threepid))
}

fn found(user_id: Option<OwnedUserId>) -> Result<Json, ApiError> {
    let user_id = user_id.ok_or_else(|| ApiError::not_found("There is no such user."))?;
    to_json(&json!({ "user_id": user_id }))
}
