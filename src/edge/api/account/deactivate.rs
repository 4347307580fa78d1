//! Deactivation of accounts (client-server API, "Account deactivation").
//!
//! First, identifiers are unbound from identity servers as far as possible. Then the account is
//! deactivated.

use std::sync::Arc;

use ruma::{
    OwnedUserId,
    api::client::{
        account::{ThirdPartyIdRemovalStatus, deactivate::v3 as deactivate_v3},
        uiaa::AuthData,
    },
};

use crate::{
    api::{
        auth::{
            claim::{auth_failed, find_account},
            rights,
            uiaa::{self, confirm_identity},
        },
        server::Server,
    },
    http::{ApiError, Cx, Session},
};
use logcabin_decide::{status::Deactivate, threepid::SpendValidation};
use logcabin_record::Origin;
use logcabin_service::{
    accounts::{closing, identity},
    uiaa::{Binding, RequestFacts},
};

pub(super) async fn deactivate(
    cx: Cx<Server, Option<Session>>,
    request: deactivate_v3::Request,
) -> Result<deactivate_v3::Response, ApiError> {
    let auth = request.auth.as_ref();
    let user_id = match cx.caller.clone() {
        Some(session) => {
            confirm_identity(&cx.app, &session, cx.client, "deactivate", &cx.body, auth).await?;
            session.user_id
        }
        None => proved(&cx, auth).await?,
    };
    let mut origin = cx.origin();
    origin.user = user_id.as_str().into();
    let unbound = close(&cx.app, origin, user_id, request.erase, request.id_server).await?;
    Ok(deactivate_v3::Response::new(if unbound {
        ThirdPartyIdRemovalStatus::Success
    } else {
        ThirdPartyIdRemovalStatus::NoSupport
    }))
}

/// Deactivates an account. Whether its identifiers were unbound everywhere.
pub(in crate::api) async fn close(
    app: &Arc<Server>,
    origin: Origin,
    user_id: OwnedUserId,
    erase: bool,
    id_server: Option<String>,
) -> Result<bool, ApiError> {
    let (app, ts) = (Arc::clone(app), app.engine.clock().now_ms());
    let end = Deactivate { user_id, erase, messages: false, media: false, reason: None, ts };
    // In its own task: a client that hangs up must not leave the user in half of their rooms.
    let closed = tokio::spawn(async move {
        let (user_id, servers) = (&end.user_id, app.identity_servers());
        let left = identity::unbind_all(servers, &origin, user_id, id_server.as_deref()).await;
        closing::close(&app.engine, origin, end).await.map(|_| left)
    });
    let left = closed.await.map_err(ApiError::internal)??;
    Ok(left.is_empty())
}

/// The account that a caller without a session wants to deactivate, proved by its password or one
/// of its addresses.
async fn proved(
    cx: &Cx<Server, Option<Session>>,
    auth: Option<&AuthData>,
) -> Result<OwnedUserId, ApiError> {
    let app = &*cx.app;
    let offer = uiaa::ways_to_prove(&app.config.login, &app.outside.messages);
    if offer.is_empty() {
        return Err(ApiError::missing_token());
    }
    let facts = RequestFacts { user_id: None, registers: false, client: cx.client };
    let authenticated =
        uiaa::authenticate(app, "deactivate", Binding::Body(&cx.body), auth, offer.into(), facts)
            .await?;
    let user_id = match authenticated.user_id() {
        Some(user_id) => user_id.clone(),
        None => {
            let proof = authenticated.address().ok_or_else(auth_failed)?;
            cx.propose(SpendValidation(proof.clone())).await?.into_inner();
            find_account(&app.engine, &proof.threepid).ok_or_else(auth_failed)?
        }
    };
    rights::may_log_in(&app.engine, &user_id)?;
    Ok(user_id)
}
