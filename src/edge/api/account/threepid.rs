//! The email addresses and phone numbers of accounts (client-server API, "Adding Account
//! Administrative Contact Information").

use ruma::{
    UserId,
    api::{
        auth_scheme::AccessToken,
        client::account::{
            ThirdPartyIdRemovalStatus, add_3pid::v3 as add_3pid, bind_3pid::v3 as bind_3pid,
            delete_3pid::v3 as delete_3pid, get_3pids::v3 as get_3pids,
            unbind_3pid::v3 as unbind_3pid,
        },
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    api::{
        answer::json,
        auth::{
            capabilities::may_change_third_party_ids,
            claim::{auth_failed, find_account},
            uiaa::confirm_identity,
            validation::{check_allowed, threepid_in_use, validated},
        },
        server::Server,
    },
    http::{ApiError, Cx, ErrorCode, Json, endpoint},
};
use logcabin_decide::threepid::{AddThreepid, RemoveThreepid};
use logcabin_record::{
    Origin, address as threepid,
    threepid::{Medium, Purpose, Threepid},
};
use logcabin_service::accounts::identity::{self, Credentials};

endpoint! {
    /// The former endpoint for binding identifiers.
    pub(super) struct OldBind = POST
        "/_matrix/client/r0/account/3pid"
        "/_matrix/client/v3/account/3pid";
    for AccessToken;
    { body: OldBindBody = json }
}

/// The confirmation of an identity server.
#[derive(Deserialize)]
pub(super) struct OldBindBody {
    three_pid_creds: Credentials,
}

#[derive(Serialize)]
struct Listed {
    threepids: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    medium: Medium,
    address: String,
    added_at: u64,
    validated_at: u64,
}

// Not ruma's response, which leaves out an empty list.
pub(super) async fn list(cx: Cx<Server>, _: get_3pids::Request) -> Result<Json, ApiError> {
    let own = cx.app.engine.state().threepids.of_user(&cx.caller.user_id);
    let entries = own.into_iter().map(|(Threepid { medium, address }, owned)| Entry {
        medium,
        address,
        added_at: owned.added_ms,
        validated_at: owned.validated_ms,
    });
    json(&Listed { threepids: entries.collect() })
}

pub(super) async fn add(
    cx: Cx<Server>,
    request: add_3pid::Request,
) -> Result<add_3pid::Response, ApiError> {
    may_change_third_party_ids(&cx.app, &cx.caller)?;
    // Before the user has to authenticate: a password would not help.
    let (sid, secret) = (request.sid.as_str(), request.client_secret.as_str());
    let find = || {
        let found = validated(&cx.app.engine, Purpose::Add, sid, secret);
        found.ok_or_else(auth_failed)
    };
    let found = find()?;
    check_allowed(&cx.app.config.threepids, &found.threepid)?;
    if find_account(&cx.app.engine, &found.threepid).is_some_and(|owner| owner != cx.caller.user_id)
    {
        return Err(threepid_in_use());
    }
    let auth = request.auth.as_ref();
    confirm_identity(&cx.app, &cx.caller, cx.client, "3pid/add", &cx.body, auth).await?;
    let proposal = AddThreepid { user_id: cx.caller.user_id.clone(), validated: find()? };
    cx.propose(proposal).await?.into_inner();
    Ok(add_3pid::Response::new())
}

pub(super) async fn bind(
    cx: Cx<Server>,
    request: bind_3pid::Request,
) -> Result<bind_3pid::Response, ApiError> {
    may_change_third_party_ids(&cx.app, &cx.caller)?;
    let credentials = Credentials {
        client_secret: request.client_secret.to_string(),
        id_server: request.identity_server_info.id_server,
        id_access_token: request.identity_server_info.id_access_token,
        sid: request.sid.to_string(),
    };
    identity::bind(cx.app.identity_servers(), cx.origin(), &cx.caller.user_id, credentials).await?;
    Ok(bind_3pid::Response::new())
}

/// Like [`bind`], at its former path.
pub(super) async fn old_bind(cx: Cx<Server>, request: OldBind) -> Result<Json, ApiError> {
    may_change_third_party_ids(&cx.app, &cx.caller)?;
    let credentials = request.body.three_pid_creds;
    let bound =
        identity::bind(cx.app.identity_servers(), cx.origin(), &cx.caller.user_id, credentials)
            .await;
    bound.map_err(|error| match error.errcode().unwrap_or_default() {
        "M_SESSION_NOT_VALIDATED" | "M_NO_VALID_SESSION" | "M_SESSION_EXPIRED" => {
            let why = "The identity server has not seen this address confirmed.";
            ApiError::new(ErrorCode::ThreepidAuthFailed, why)
        }
        _ => error.into(),
    })?;
    Ok("{}".into())
}

pub(super) async fn unbind(
    cx: Cx<Server>,
    request: unbind_3pid::Request,
) -> Result<unbind_3pid::Response, ApiError> {
    may_change_third_party_ids(&cx.app, &cx.caller)?;
    let threepid = threepid::parse(request.medium.as_str(), &request.address)?;
    let (user_id, id_server) = (&cx.caller.user_id, request.id_server.as_deref());
    let result =
        identity::unbind(cx.app.identity_servers(), &cx.origin(), user_id, &threepid, id_server)
            .await?;
    Ok(unbind_3pid::Response::new(result))
}

pub(super) async fn delete(
    cx: Cx<Server>,
    request: delete_3pid::Request,
) -> Result<delete_3pid::Response, ApiError> {
    may_change_third_party_ids(&cx.app, &cx.caller)?;
    let threepid = threepid::parse(request.medium.as_str(), &request.address)?;
    let (user_id, id_server) = (cx.caller.user_id.clone(), request.id_server.as_deref());
    if let Some(name) = id_server {
        identity::trusted(cx.app.identity_servers(), name)?;
    }
    let result = remove(&cx.app, &cx.origin(), &user_id, &threepid, id_server).await?;
    Ok(delete_3pid::Response::new(result))
}

/// Removes an address from an account, and from an identity server as far as possible.
pub(in crate::api) async fn remove(
    app: &Server,
    origin: &Origin,
    user_id: &UserId,
    threepid: &Threepid,
    id_server: Option<&str>,
) -> Result<ThirdPartyIdRemovalStatus, ApiError> {
    let proposal = RemoveThreepid { user_id: user_id.to_owned(), threepid: threepid.clone() };
    app.engine.propose(origin.clone(), proposal).await?.into_inner();
    // It is removed here, whatever the identity server answers.
    let unbound =
        identity::unbind(app.identity_servers(), origin, user_id, threepid, id_server).await;
    Ok(unbound.unwrap_or_else(|error| {
        tracing::warn!(%error, "an address was removed, but not unbound");
        ThirdPartyIdRemovalStatus::NoSupport
    }))
}
