//! Claimed identities, and whether a password proves them.

use std::net::IpAddr;

use ruma::{OwnedUserId, UserId, api::client::uiaa::UserIdentifier};

use crate::http::{ApiError, ErrorCode, LoginRefusal, refused_login};
use logcabin_decide::account::RenewPassword;
use logcabin_engine::Engine;
use logcabin_record::{Offset, Origin, address as threepid, threepid::Threepid};
use logcabin_service::passwords::{Denied, Guess, Passwords, Verdict};

/// The account that an identifier belongs to.
pub(crate) fn find_account(engine: &Engine, threepid: &Threepid) -> Option<OwnedUserId> {
    engine.state().threepids.owner(threepid)
}

/// The account that a client names: by user id, localpart or third-party identifier.
pub(super) fn account_of(engine: &Engine, identifier: &UserIdentifier) -> Option<OwnedUserId> {
    let threepid = match identifier {
        UserIdentifier::Matrix(id) => return named_user(engine, &id.user),
        UserIdentifier::Email(id) => threepid::email(&id.address),
        UserIdentifier::Msisdn(id) => threepid::parse("msisdn", &id.number),
        UserIdentifier::PhoneNumber(id) => threepid::phone(&id.country, &id.phone),
        _ => return None,
    };
    find_account(engine, &threepid.ok()?)
}

/// The error for an identifier whose ownership has not been proved.
pub(crate) fn auth_failed() -> ApiError {
    ApiError::new(ErrorCode::ThreepidAuthFailed, "This address has not been confirmed yet.")
}

/// The user id in a user identifier's `user`: a full user id or a localpart of this server.
pub(crate) fn named_user(engine: &Engine, name: &str) -> Option<OwnedUserId> {
    let own = &engine.env().server.name;
    let name = name.to_ascii_lowercase();
    let user_id = match UserId::parse(&name) {
        Ok(user_id) => user_id,
        Err(_) => UserId::parse_with_server_name(name, own).ok()?,
    };
    (user_id.server_name() == *own).then_some(user_id)
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
    pub(in crate::api) fn by_name(engine: &Engine, name: &str) -> Self {
        let user_id = named_user(engine, name);
        let name = user_id.as_ref().map_or_else(|| name.to_owned(), ToString::to_string);
        Self { name, user_id }
    }

    /// By any identifier.
    pub(in crate::api) fn by_identifier(engine: &Engine, identifier: &UserIdentifier) -> Self {
        match identifier {
            UserIdentifier::Matrix(id) => Self::by_name(engine, &id.user),
            other => {
                let user_id = account_of(engine, other);
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
    engine: &Engine,
    passwords: &Passwords,
    client: IpAddr,
    claim: Claim,
    password: String,
) -> Result<(OwnedUserId, Offset), ApiError> {
    let name = claim.name.clone();
    let outcome = check(engine, passwords, client, claim, password).await;
    let refused = |reason| refused_login(client, Some(&name), reason);
    outcome.map_err(|failure| match failure {
        WrongLogin::Wrong => {
            refused(LoginRefusal::Password);
            ApiError::forbidden("Wrong user name or password.")
        }
        WrongLogin::Deactivated => {
            refused(LoginRefusal::Account);
            ApiError::new(ErrorCode::UserDeactivated, "This account has been deactivated.")
        }
        WrongLogin::Unchecked(denied) => {
            if matches!(denied, Denied::TooOften(_)) {
                refused(LoginRefusal::Rate);
            }
            denied.into()
        }
    })
}

/// Why a password proves nothing.
enum WrongLogin {
    /// It is wrong, or there is no such user.
    Wrong,
    Deactivated,
    /// It was not looked at.
    Unchecked(Denied),
}

async fn check(
    engine: &Engine,
    passwords: &Passwords,
    client: IpAddr,
    claim: Claim,
    password: String,
) -> Result<(OwnedUserId, Offset), WrongLogin> {
    let Claim { name, user_id } = claim;
    let account = user_id.as_ref().and_then(|user_id| engine.state().accounts.get(user_id));
    let (stored, set) = account.map_or((None, Offset::ZERO), |account| {
        let account = account.read();
        (account.password.latest().cloned().flatten(), account.password.last_change())
    });
    let guess = Guess { name: &name, client };
    let verdict = passwords.check(guess, password, stored.clone()).await;
    let verdict = verdict.map_err(WrongLogin::Unchecked)?;
    // This is no secret: nobody else can have the name.
    if user_id.as_ref().is_some_and(|id| engine.state().accounts.is_deactivated(id)) {
        return Err(WrongLogin::Deactivated);
    }
    let (Verdict::Right { renewed }, Some(user_id), Some(weaker)) = (verdict, user_id, stored)
    else {
        return Err(WrongLogin::Wrong);
    };
    if let Some(stronger) = renewed {
        let origin = Origin { user: user_id.as_str().into(), ..Origin::default() };
        let renewal = RenewPassword { user_id: user_id.clone(), weaker, stronger };
        match engine.propose(origin, renewal).await {
            Ok(renewed) => renewed.into_inner(),
            // The old hash is just as valid; the next login retries.
            Err(error) => tracing::warn!(%error, "a password hash could not be renewed"),
        }
    }
    Ok((user_id, set))
}
