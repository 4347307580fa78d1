//! The stages: what each asks of a client and what it proves. This is the one place to add one.

use std::sync::Arc;

use bytes::Bytes;
use ruma::{
    OwnedUserId, UserId,
    api::client::uiaa::{AuthData, AuthType, Password, ThirdpartyIdCredentials, UserIdentifier},
};
use serde_json::Map;

use super::{Attempt, Authenticated, Facts, Failure, Offer};
use crate::{
    api::{
        Server,
        password::verified,
        threepid::{account_of, find_account},
        validation::validated,
    },
    decide::threepid::Validated,
    http::{ApiError, ErrorCode},
    record::threepid::{Medium, Purpose},
};

/// What a stage proved.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// That it was completed, and nothing besides.
    Done,
    /// That this user is there.
    User(OwnedUserId),
    /// That this address or number is theirs. For whatever but a registration, an account has it.
    Threepid(Validated),
}

/// Decides the stage that `auth` is about.
///
/// # Errors
/// [`Failure::Retry`] when the client may try again, [`Failure::Final`] when the request is to fail.
pub(crate) async fn check(
    app: &Server,
    endpoint: &str,
    facts: &Facts,
    auth: &AuthData,
) -> Result<Proof, Failure> {
    match auth {
        AuthData::Dummy(_) => Ok(Proof::Done),
        AuthData::Password(given) => password(app, facts, given).await,
        AuthData::EmailIdentity(given) => {
            threepid(app, endpoint, facts, Medium::Email, &given.thirdparty_id_creds)
        }
        AuthData::Msisdn(given) => {
            threepid(app, endpoint, facts, Medium::Msisdn, &given.thirdparty_id_creds)
        }
        _ => Err(not_offered()),
    }
}

/// Whether what an attempt is about may come to be while the client waits.
pub(super) const fn waits(auth: &AuthData) -> bool {
    matches!(auth, AuthData::EmailIdentity(_) | AuthData::Msisdn(_))
}

fn not_offered() -> Failure {
    Failure::retry(ErrorCode::Unrecognized, "This cannot be done here.")
}

/// Authenticates an attempt at a request: what endpoints call. Ok means that the request may be carried out,
/// once, on what was proved.
///
/// # Errors
/// 401 with what is still to be done, or with why the attempt failed; or what a stage says.
pub(crate) async fn authenticate(
    app: &Server,
    endpoint: &str,
    body: &Bytes,
    auth: Option<&AuthData>,
    offer: Arc<Offer>,
    facts: Facts,
) -> Result<Authenticated, ApiError> {
    let now_ms = app.engine.clock().now_ms();
    if let Some(AuthData::FallbackAcknowledgement(given)) = auth
        && let Some(waiting) = app.uiaa.waiting(&given.session, now_ms).await
        && let Some(stage) = waiting.auth_type()
    {
        // If it is still not so, what is to be done is what the attempt below says.
        let again = check(app, endpoint, &facts, &waiting);
        let _ = app.uiaa.complete(&given.session, &stage, now_ms, again).await;
    }
    let check = async {
        match auth {
            Some(auth) => check(app, endpoint, &facts, auth).await,
            None => Err(not_offered()),
        }
    };
    let attempt = Attempt { endpoint, body, auth, offer, facts: facts.clone() };
    app.uiaa.attempt(attempt, now_ms, check).await
}

/// How a user can prove again that they are who they are.
pub(crate) fn ways_to_confirm(app: &Server, user_id: &UserId) -> Offer {
    let account = app.engine.state().accounts.get(user_id);
    let has_password = account
        .is_some_and(|account| account.read().password.latest().is_some_and(Option::is_some));
    let mut flows = Vec::new();
    if has_password {
        flows.push(vec![AuthType::Password]);
    } else {
        // By what could get them back into the account anyway.
        let own = app.engine.state().threepids.of_user(user_id);
        let has = |medium| own.iter().any(|(threepid, _)| threepid.medium == medium);
        flows.extend(by_threepid(app).filter(|(medium, _)| has(*medium)).map(|(_, flow)| flow));
    }
    Offer::new(flows, Map::new())
}

/// How one who has no session can prove that an account is theirs: by an address of it.
pub(crate) fn ways_to_recover(app: &Server) -> Offer {
    Offer::new(by_threepid(app).map(|(_, flow)| flow).collect(), Map::new())
}

/// The flows by addresses that messages can be sent to.
fn by_threepid(app: &Server) -> impl Iterator<Item = (Medium, Vec<AuthType>)> {
    let media = [(Medium::Email, AuthType::EmailIdentity), (Medium::Msisdn, AuthType::Msisdn)];
    let reached = media.into_iter().filter(|(medium, _)| app.messages.reach(*medium));
    reached.map(|(medium, stage)| (medium, vec![stage]))
}

fn threepid(
    app: &Server,
    endpoint: &str,
    facts: &Facts,
    medium: Medium,
    given: &ThirdpartyIdCredentials,
) -> Result<Proof, Failure> {
    let purpose = if endpoint == "register" { Purpose::Register } else { Purpose::Account };
    let found = validated(app, purpose, given.sid.as_str(), given.client_secret.as_str());
    let found = found.filter(|found| found.threepid.medium == medium).ok_or_else(|| {
        Failure::retry(ErrorCode::ThreepidAuthFailed, "This address has not been confirmed yet.")
    })?;
    let owner = find_account(app, &found.threepid);
    let right = match purpose {
        Purpose::Account => {
            facts.user_id.as_ref().map_or(owner.is_some(), |caller| owner.as_ref() == Some(caller))
        }
        // Whether it is still free is decided with the registration itself.
        Purpose::Register | Purpose::Add => true,
    };
    if !right {
        let message = "This is not an address of the account.";
        return Err(Failure::retry(ErrorCode::ThreepidAuthFailed, message));
    }
    Ok(Proof::Threepid(found))
}

async fn password(app: &Server, facts: &Facts, given: &Password) -> Result<Proof, Failure> {
    let named = account_of(app, &given.identifier);
    if named.is_none() && !matches!(given.identifier, UserIdentifier::Matrix(_)) {
        // An identifier that belongs to nobody is 403, whatever the password.
        return Err(ApiError::forbidden("Wrong user name or password.").into());
    }
    // Of whoever makes the request, where that is known; then it is theirs alone that counts.
    let named = named.filter(|named| facts.user_id.as_ref().is_none_or(|caller| caller == named));
    match verified(app, named, given.password.clone()).await {
        Ok((user_id, _)) => Ok(Proof::User(user_id)),
        Err(error) if *error.code() == ErrorCode::Forbidden => {
            Err(Failure::retry(ErrorCode::Forbidden, "Wrong user name or password."))
        }
        Err(error) => Err(error.into()),
    }
}
