//! Changing the password.

use ruma::api::client::account::change_password::v3 as change_password_v3;

use super::{
    claim::{auth_failed, find_account},
    credentials::check_password,
    uiaa::{self, confirm_identity},
};
use crate::{
    api::{auth::capabilities, server::Server},
    http::{ApiError, Cx, Session},
};
use logcabin_decide::{
    account::{DeviceSet, SetPassword},
    threepid::ResetPassword,
};
use logcabin_service::uiaa::{Binding, RequestFacts};

pub(super) async fn change_password(
    cx: Cx<Server, Option<Session>>,
    request: change_password_v3::Request,
) -> Result<change_password_v3::Response, ApiError> {
    let Some(session) = cx.caller.clone() else { return reset_password(cx, request).await };
    if session.service.is_some() {
        return Err(ApiError::forbidden("An application service does not manage accounts."));
    }
    capabilities::may_change_password(&cx.app, &session)?;
    check_password(&cx.app.config.passwords, session.user_id.localpart(), &request.new_password)?;
    let auth = request.auth.as_ref();
    confirm_identity(&cx.app, &session, cx.client, "password", &cx.body, auth).await?;
    let password = cx.app.auth.passwords.hash(request.new_password).await?;
    let log_out = request.logout_devices.then_some(DeviceSet::AllBut(session.device_id));
    let user_id = session.user_id;
    cx.propose(SetPassword { user_id, password, log_out }).await?.into_inner();
    Ok(change_password_v3::Response::new())
}

/// Sets a new password for a user who has forgotten theirs and proves ownership of one of the
/// account's addresses.
async fn reset_password(
    cx: Cx<Server, Option<Session>>,
    request: change_password_v3::Request,
) -> Result<change_password_v3::Response, ApiError> {
    let offer = uiaa::ways_to_recover(&cx.app.outside.messages);
    if offer.is_empty() || !cx.app.config.accounts.change_password {
        return Err(ApiError::missing_token());
    }
    check_password(&cx.app.config.passwords, "", &request.new_password)?;
    let facts = RequestFacts { user_id: None, registers: false, client: cx.client };
    let auth = request.auth.as_ref();
    let authenticated =
        uiaa::authenticate(&cx.app, "password", Binding::Body(&cx.body), auth, offer.into(), facts)
            .await?;
    let proof = authenticated.address().cloned().ok_or_else(auth_failed)?;
    let user_id = find_account(&cx.app.engine, &proof.threepid).ok_or_else(auth_failed)?;
    check_password(&cx.app.config.passwords, user_id.localpart(), &request.new_password)?;
    let password = cx.app.auth.passwords.hash(request.new_password).await?;
    let log_out = request.logout_devices.then_some(DeviceSet::All);
    let set = SetPassword { user_id, password, log_out };
    cx.propose(ResetPassword { set, proof }).await?.into_inner();
    Ok(change_password_v3::Response::new())
}
