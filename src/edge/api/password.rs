//! Passwords: who a password proves, and its change.

use std::net::IpAddr;

use ruma::{
    OwnedUserId, UserId,
    api::client::{account::change_password::v3 as change_password_v3, uiaa::UserIdentifier},
};

use super::{
    Server, capabilities,
    credentials::check_password,
    threepid::{account_of, auth_failed, find_account},
    uiaa::{self, Binding, Facts},
};
use crate::{
    decide::{
        account::{RenewPassword, SetPassword, Which},
        threepid::{ResetPassword, SpendValidation},
    },
    edge::http::{ApiError, Caller as _, Cx, ErrorCode, Session},
    record::{Offset, Origin},
    service::passwords::{Guess, Verdict},
};

pub(super) async fn change_password(
    cx: Cx<Server, Option<Session>>,
    request: change_password_v3::Request,
) -> Result<change_password_v3::Response, ApiError> {
    let Some(session) = cx.caller.clone() else { return reset_password(cx, request).await };
    if session.service.is_some() {
        return Err(ApiError::forbidden("An application service does not manage accounts."));
    }
    capabilities::may_change_password(&cx.app, &session)?;
    check_password(&cx.app, session.user_id.localpart(), &request.new_password)?;
    let auth = request.auth.as_ref();
    confirm_identity(&cx.app, &session, cx.client, "password", &cx.body, auth).await?;
    let password = cx.app.passwords.hash(request.new_password).await?;
    let log_out = request.logout_devices.then_some(Which::AllBut(session.device_id));
    let user_id = session.user_id;
    cx.propose(SetPassword { user_id, password, log_out }).await?.into_inner();
    Ok(change_password_v3::Response::new())
}

/// A new password for one who has forgotten theirs, and shows that an address of the account is
/// theirs.
async fn reset_password(
    cx: Cx<Server, Option<Session>>,
    request: change_password_v3::Request,
) -> Result<change_password_v3::Response, ApiError> {
    let offer = uiaa::ways_to_recover(&cx.app);
    if offer.is_empty() || !cx.app.config.accounts.change_password {
        return Err(ApiError::missing_token());
    }
    check_password(&cx.app, "", &request.new_password)?;
    let facts = Facts { user_id: None, registers: false, client: cx.client };
    let auth = request.auth.as_ref();
    let authenticated =
        uiaa::authenticate(&cx.app, "password", Binding::Body(&cx.body), auth, offer.into(), facts)
            .await?;
    let proof = authenticated.address().cloned().ok_or_else(auth_failed)?;
    let user_id = find_account(&cx.app, &proof.threepid).ok_or_else(auth_failed)?;
    check_password(&cx.app, user_id.localpart(), &request.new_password)?;
    let password = cx.app.passwords.hash(request.new_password).await?;
    let log_out = request.logout_devices.then_some(Which::All);
    let set = SetPassword { user_id, password, log_out };
    cx.propose(ResetPassword { set, proof }).await?.into_inner();
    Ok(change_password_v3::Response::new())
}

/// The user id of a user identifier's `user`: a full user id or a localpart of this server.
pub(super) fn named_user(app: &Server, name: &str) -> Option<OwnedUserId> {
    let name = name.to_ascii_lowercase();
    let user_id = match UserId::parse(&name) {
        Ok(user_id) => user_id,
        Err(_) => UserId::parse_with_server_name(name, &app.config.server.name).ok()?,
    };
    (user_id.server_name() == app.config.server.name).then_some(user_id)
}

/// Who somebody says to be.
pub(super) struct Claim {
    /// In a form in which all spellings are the same, whether it is anyone's or not: guesses are
    /// counted by it, which must not tell one from the other.
    pub(super) name: String,
    /// The user it names, if it could name one.
    pub(super) user_id: Option<OwnedUserId>,
}

impl Claim {
    /// By user id or localpart.
    pub(super) fn by_name(app: &Server, name: &str) -> Self {
        let user_id = named_user(app, name);
        let name = user_id.as_ref().map_or_else(|| name.to_owned(), ToString::to_string);
        Self { name, user_id }
    }

    /// By any identifier.
    pub(super) fn by_identifier(app: &Server, identifier: &UserIdentifier) -> Self {
        match identifier {
            UserIdentifier::Matrix(id) => Self::by_name(app, &id.user),
            other => {
                let user_id = account_of(app, other);
                let name =
                    user_id.as_ref().map_or_else(|| format!("{other:?}"), ToString::to_string);
                Self { name, user_id }
            }
        }
    }
}

/// The user, if the password is theirs, and when it was set. Says the same, after the same time,
/// when there is no such user.
///
/// # Errors
/// 403 if it is not theirs, 429 after too many that were not.
pub(super) async fn verified(
    app: &Server,
    client: IpAddr,
    claim: Claim,
    password: String,
) -> Result<(OwnedUserId, Offset), ApiError> {
    let Claim { name, user_id } = claim;
    let account = user_id.as_ref().and_then(|user_id| app.engine.state().accounts.get(user_id));
    let (stored, set) = account.map_or((None, Offset::ZERO), |account| {
        let account = account.read();
        (account.password.latest().cloned().flatten(), account.password.last_change())
    });
    let guess = Guess { name: &name, client };
    let verdict = app.passwords.check(guess, password, stored.clone()).await?;
    // No secret: nobody else can have the name.
    if user_id.as_ref().is_some_and(|id| app.engine.state().accounts.is_deactivated(id)) {
        let message = "This account has been deactivated.";
        return Err(ApiError::new(ErrorCode::UserDeactivated, message));
    }
    let (Verdict::Right { renewed }, Some(user_id), Some(weaker)) = (verdict, user_id, stored)
    else {
        return Err(ApiError::forbidden("Wrong user name or password."));
    };
    if let Some(stronger) = renewed {
        let origin = Origin { user: user_id.as_str().into(), ..Origin::default() };
        let renewal = RenewPassword { user_id: user_id.clone(), weaker, stronger };
        match app.engine.propose(origin, renewal).await {
            Ok(renewed) => renewed.into_inner(),
            // The hash there is proves as much; there will be another login.
            Err(error) => tracing::warn!(%error, "a password hash could not be renewed"),
        }
    }
    Ok((user_id, set))
}

/// Has the caller prove again that they are who they are; an application service vouches for its
/// users. `endpoint` names the method and what the path holds.
///
/// # Errors
/// 401 with what is still to be done; 403 when the caller has no way to prove it.
pub(super) async fn confirm_identity(
    app: &Server,
    session: &Session,
    client: IpAddr,
    endpoint: &str,
    body: &bytes::Bytes,
    auth: Option<&ruma::api::client::uiaa::AuthData>,
) -> Result<(), ApiError> {
    if session.service.is_some() {
        return Ok(());
    }
    let offer = uiaa::ways_to_confirm(app, &session.user_id);
    if offer.is_empty() {
        return Err(ApiError::forbidden("This account has nothing to confirm this with."));
    }
    let facts = Facts { user_id: Some(session.user_id.clone()), registers: false, client };
    let authenticated =
        uiaa::authenticate(app, endpoint, Binding::Body(body), auth, offer.into(), facts).await?;
    if let Some(validated) = authenticated.address() {
        let spent = SpendValidation(validated.clone());
        app.engine.propose(session.origin(""), spent).await?.into_inner();
    }
    Ok(())
}
