//! Claimed identities, and whether a password proves them.

use std::net::IpAddr;

use ruma::{OwnedUserId, UserId, api::client::uiaa::UserIdentifier};

use crate::{
    api::server::Server,
    http::{ApiError, ErrorCode},
};
use logcabin_decide::account::RenewPassword;
use logcabin_record::{Offset, Origin, address as threepid, threepid::Threepid};
use logcabin_service::passwords::{Guess, Verdict};

/// The account that an identifier belongs to.
pub(crate) fn find_account(app: &Server, threepid: &Threepid) -> Option<OwnedUserId> {
    app.engine.state().threepids.owner(threepid)
}

/// The account that a client names: by user id, localpart or third-party identifier.
pub(super) fn account_of(app: &Server, identifier: &UserIdentifier) -> Option<OwnedUserId> {
    let threepid = match identifier {
        UserIdentifier::Matrix(id) => return named_user(app, &id.user),
        UserIdentifier::Email(id) => threepid::email(&id.address),
        UserIdentifier::Msisdn(id) => threepid::parse("msisdn", &id.number),
        UserIdentifier::PhoneNumber(id) => threepid::phone(&id.country, &id.phone),
        _ => return None,
    };
    find_account(app, &threepid.ok()?)
}

/// The error for an identifier whose ownership has not been proved.
pub(crate) fn auth_failed() -> ApiError {
    ApiError::new(ErrorCode::ThreepidAuthFailed, "This address has not been confirmed yet.")
}

/// The user id in a user identifier's `user`: a full user id or a localpart of this server.
pub(crate) fn named_user(app: &Server, name: &str) -> Option<OwnedUserId> {
    let name = name.to_ascii_lowercase();
    let user_id = match UserId::parse(&name) {
        Ok(user_id) => user_id,
        Err(_) => UserId::parse_with_server_name(name, &app.config.server.name).ok()?,
    };
    (user_id.server_name() == app.config.server.name).then_some(user_id)
}

/// A claimed identity.
pub(in crate::api) struct Claim {
    /// A normalized form, whether the user exists or not. Password guesses are counted by it, and
    /// counting must not reveal which users exist.
    pub(super) name: String,
    /// The user, if the name could be one.
    pub(super) user_id: Option<OwnedUserId>,
}

impl Claim {
    /// By user id or localpart.
    pub(in crate::api) fn by_name(app: &Server, name: &str) -> Self {
        let user_id = named_user(app, name);
        let name = user_id.as_ref().map_or_else(|| name.to_owned(), ToString::to_string);
        Self { name, user_id }
    }

    /// By any identifier.
    pub(in crate::api) fn by_identifier(app: &Server, identifier: &UserIdentifier) -> Self {
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

/// The user, if the password is correct, and when it was set. If there is no such user, the result
/// and the time it takes are the same.
///
/// # Errors
/// 403 for a wrong password, 429 after too many.
pub(in crate::api) async fn verified(
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
    let verdict = app.auth.passwords.check(guess, password, stored.clone()).await?;
    // This is no secret: nobody else can have the name.
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
            // The old hash is just as valid; the next login retries.
            Err(error) => tracing::warn!(%error, "a password hash could not be renewed"),
        }
    }
    Ok((user_id, set))
}
