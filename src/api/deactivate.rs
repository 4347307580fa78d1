//! The end of an account (client-server API, "Account deactivation").
//!
//! What was published on identity servers is taken back first, as well as that can be done. One batch of
//! records closes the account: devices and tokens, scheduled events, keys, password, addresses, single
//! sign-on. The rooms are left after that, each by an event of its own; if the server ends meanwhile, it goes
//! on when it starts again.

use std::sync::Arc;

use ruma::{
    MilliSecondsSinceUnixEpoch, OwnedRoomId, OwnedUserId, UInt, UserId,
    api::client::{
        account::{ThirdPartyIdRemovalStatus, deactivate::v3 as deactivate_v3},
        uiaa::AuthData,
    },
};

use super::{
    Server, identity,
    password::confirm_identity,
    rights,
    threepid::{auth_failed, find_account},
    uiaa::{self, Binding, Facts},
};
use crate::{
    decide::{
        membership::{Change, ChangeMembership},
        status::Deactivate,
        threepid::SpendValidation,
    },
    engine::{Engine, Rejected},
    http::{ApiError, Cx, Session},
    record::{Offset, Origin},
    state::Membership,
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
    let (app, mut origin) = (Arc::clone(&cx.app), cx.origin());
    origin.user = user_id.as_str().into();
    let (erase, id_server) = (request.erase, request.id_server);
    let ts = app.engine.clock().now_ms();
    let closing = Deactivate { user_id, erase, messages: false, media: false, reason: None, ts };
    // In a task of its own: a client that hangs up does not stay in half of its rooms.
    let closed = tokio::spawn(async move {
        let (user_id, servers) = (&closing.user_id, app.identity_servers());
        let left = identity::unbind_all(servers, &origin, user_id, id_server.as_deref()).await;
        close(&app.engine, origin, closing).await.map(|_| left)
    });
    let left = closed.await.map_err(ApiError::internal)??;
    Ok(deactivate_v3::Response::new(if left.is_empty() {
        ThirdPartyIdRemovalStatus::Success
    } else {
        ThirdPartyIdRemovalStatus::NoSupport
    }))
}

/// Whose account somebody without a session wants to close: the one whose password they know, or an
/// address of which they have.
async fn proved(
    cx: &Cx<Server, Option<Session>>,
    auth: Option<&AuthData>,
) -> Result<OwnedUserId, ApiError> {
    let app = &*cx.app;
    let offer = uiaa::ways_to_prove(app);
    if offer.is_empty() {
        return Err(ApiError::missing_token());
    }
    let facts = Facts { user_id: None, registers: false, client: cx.client };
    let authenticated =
        uiaa::authenticate(app, "deactivate", Binding::Body(&cx.body), auth, offer.into(), facts)
            .await?;
    let user_id = match authenticated.user_id() {
        Some(user_id) => user_id.clone(),
        None => {
            let proof = authenticated.address().ok_or_else(auth_failed)?;
            cx.propose(SpendValidation(proof.clone())).await?.into_inner();
            find_account(app, &proof.threepid).ok_or_else(auth_failed)?
        }
    };
    rights::may_log_in(app, &user_id)?;
    Ok(user_id)
}

/// What closing an account came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Closed {
    /// Whether it was open until now, or is erased only now.
    pub(crate) changed: bool,
    /// How many rooms were left and invites rejected.
    pub(crate) rooms: usize,
}

/// Closes an account and leaves its rooms.
///
/// # Errors
/// When there is no such account or the log takes no writes.
pub(crate) async fn close(
    engine: &Engine,
    origin: Origin,
    closing: Deactivate,
) -> Result<Closed, Rejected> {
    let user_id: OwnedUserId = closing.user_id.clone();
    let changed = engine.propose(origin.clone(), closing).await?.into_inner();
    Ok(Closed { changed, rooms: leave_all(engine, &origin, &user_id).await })
}

/// Leaves the rooms that those whose accounts were closed shortly before the server ended have not left.
pub(crate) fn resume(engine: &Arc<Engine>) {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        for user_id in engine.state().accounts.user_ids() {
            if engine.state().accounts.is_deactivated(&user_id) {
                leave_all(&engine, &Origin::server(), &user_id).await;
            }
        }
    });
}

/// Leaves all rooms, rejects all invites, takes back all knocks. Says how many there were.
async fn leave_all(engine: &Engine, origin: &Origin, user_id: &UserId) -> usize {
    let mut left = 0;
    for part in engine.state().memberships.of(user_id, Offset::MAX) {
        let is_in =
            matches!(part.membership, Membership::Join | Membership::Invite | Membership::Knock);
        if is_in && leave(engine, origin, part.room_id, user_id).await {
            left += 1;
        }
    }
    left
}

/// Has a user leave a room. One room that cannot be left is no reason to stay in the rest: says whether
/// it was.
pub(crate) async fn leave(
    engine: &Engine,
    origin: &Origin,
    room_id: OwnedRoomId,
    user_id: &UserId,
) -> bool {
    let ts = UInt::try_from(engine.clock().now_ms()).unwrap_or(UInt::MAX);
    let proposal = ChangeMembership {
        room_id: room_id.clone(),
        sender: user_id.to_owned(),
        target: user_id.to_owned(),
        change: Change::Leave,
        reason: None,
        is_direct: false,
        third_party_signed: None,
        ts: MilliSecondsSinceUnixEpoch(ts),
    };
    match engine.propose(origin.clone(), proposal).await {
        Ok(left) => {
            drop(left.into_inner());
            true
        }
        Err(error) => {
            tracing::warn!(%room_id, %error, "a room could not be left");
            false
        }
    }
}
