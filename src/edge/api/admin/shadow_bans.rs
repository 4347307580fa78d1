//! Shadow bans.

use ruma::api::auth_scheme::AccessToken;

use super::parts::{ActParameters, AdminParts as _, nothing};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_ops::admin::users::SetStatus;

endpoint! {
    /// `POST …/users/{user_id}/shadow_ban`
    pub(super) struct ShadowBan = POST "/_synapse/admin/v1/users/{user_id}/shadow_ban";
    for AccessToken;
    { user: String = path, terms: ActParameters = terms }
}

endpoint! {
    /// `DELETE …/users/{user_id}/shadow_ban`
    pub(super) struct LiftShadowBan = DELETE "/_synapse/admin/v1/users/{user_id}/shadow_ban";
    for AccessToken;
    { user: String = path, terms: ActParameters = terms }
}

pub(super) async fn ban(cx: Cx<Server>, request: ShadowBan) -> Result<Json, ApiError> {
    set(&cx, request.user, true, request.terms).await
}

pub(super) async fn lift(cx: Cx<Server>, request: LiftShadowBan) -> Result<Json, ApiError> {
    set(&cx, request.user, false, request.terms).await
}

async fn set(
    cx: &Cx<Server>,
    user: String,
    shadow_banned: bool,
    terms: ActParameters,
) -> Result<Json, ApiError> {
    let (admin, locked, suspended) = (None, None, None);
    let act = SetStatus { user, admin, locked, suspended, shadow_banned: Some(shadow_banned) };
    cx.act(act, terms, nothing).await
}
