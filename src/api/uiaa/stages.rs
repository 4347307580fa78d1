//! The stages: what each asks of a client and what it proves. This is the one place to add one.

use std::sync::Arc;

use bytes::Bytes;
use ruma::{
    OwnedUserId, UserId,
    api::client::uiaa::{AuthData, AuthType, Password, UserIdentifier},
};
use serde_json::Map;

use super::{Attempt, Authenticated, Facts, Failure, Offer};
use crate::{
    api::{
        Server,
        password::{account_of, verified},
        sso,
    },
    http::{ApiError, ErrorCode},
};

/// What a stage proved.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// That it was completed, and nothing besides.
    Done,
    /// That this user is there.
    User(OwnedUserId),
}

/// Decides the stage that `auth` is about.
///
/// # Errors
/// [`Failure::Retry`] when the client may try again, [`Failure::Final`] when the request is to fail.
pub(crate) async fn check(app: &Server, facts: &Facts, auth: &AuthData) -> Result<Proof, Failure> {
    match auth {
        AuthData::Dummy(_) => Ok(Proof::Done),
        AuthData::Password(given) => password(app, facts, given).await,
        // No flow has these, so that nobody gets as far as here with them.
        AuthData::EmailIdentity(_) | AuthData::Msisdn(_) => Err(not_offered()),
        _ => Err(not_offered()),
    }
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
    let check = async {
        match auth {
            Some(auth) => check(app, &facts, auth).await,
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
    }
    if sso::providers_of(app, user_id).next().is_some() {
        flows.push(vec![AuthType::Sso]);
    }
    Offer::new(flows, Map::new())
}

async fn password(app: &Server, facts: &Facts, given: &Password) -> Result<Proof, Failure> {
    let named = match (account_of(app, &given.identifier), &given.identifier) {
        (Some(named), _) => Some(named),
        (None, UserIdentifier::Matrix(_)) => None,
        // An identifier that belongs to nobody is 403, whatever the password.
        _ => return Err(ApiError::forbidden("Nobody here has this identifier.").into()),
    };
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
