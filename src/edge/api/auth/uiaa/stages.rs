//! The checks of the stages. A new stage begins here; it also needs a form in `fallback.rs`, and,
//! for registration, `config/value/account.rs` and `service/uiaa/stages.rs`.

use std::{net::IpAddr, sync::Arc};

use bytes::Bytes;
use ruma::{
    OwnedUserId, UserId,
    api::client::uiaa::{AuthData, AuthType, Password, ThirdpartyIdCredentials, UserIdentifier},
};
use serde_json::{Map, Value};

use super::failure::Failure;
use crate::{
    api::{
        auth::{
            claim::{Claim, find_account, verified},
            grants::no_interactive_authentication,
            validation::validated,
        },
        server::{Outside, Server},
    },
    http::{ApiError, Caller as _, ErrorCode, LoginRefusal, Session, refused_login},
};
use logcabin_config as config;
use logcabin_decide::threepid::SpendValidation;
use logcabin_engine::Engine;
use logcabin_outside::{
    mail::Messages,
    oidc::{Provider, Providers},
};
use logcabin_record::{
    command::TokenHash,
    threepid::{Medium, Purpose},
};
use logcabin_service::{
    accounts::names::is_registration_token,
    passwords::Passwords,
    uiaa::{
        Attempt, Authenticated, Binding, CaptchaError, Denied, Offer, Proof, QUESTION,
        RequestFacts, answered,
    },
};

/// Checks the stage in `auth`.
///
/// # Errors
/// [`Failure::Retry`] when the client may try again, [`Failure::Final`] when the request fails.
pub(crate) async fn check(
    app: &Server,
    facts: &RequestFacts,
    auth: &AuthData,
) -> Result<Proof, Failure> {
    match auth {
        AuthData::Dummy(_) => Ok(Proof::Done),
        AuthData::Password(given) => password(&app.engine, &app.auth.passwords, facts, given).await,
        AuthData::EmailIdentity(given) => {
            threepid(&app.engine, facts, Medium::Email, &given.thirdparty_id_creds)
        }
        AuthData::Msisdn(given) => {
            threepid(&app.engine, facts, Medium::Msisdn, &given.thirdparty_id_creds)
        }
        AuthData::RegistrationToken(given) => registration_token(&app.engine, &given.token),
        AuthData::Terms(_) => Ok(Proof::Terms(app.auth.stages.terms.versions())),
        AuthData::ReCaptcha(given) => {
            let captcha = app.auth.stages.captcha.as_ref().ok_or_else(not_offered)?;
            let checked = captcha.check(&app.outside.outbound, &given.response, facts.client);
            match checked.await {
                Ok(()) => Ok(Proof::Done),
                Err(CaptchaError::Missing) => Err(Failure::Retry(Denied::NoCaptcha)),
                Err(CaptchaError::Wrong) => Err(Failure::Retry(Denied::WrongCaptcha)),
                Err(error @ CaptchaError::Unavailable) => {
                    Err(ApiError::unavailable(error.to_string()).into())
                }
            }
        }
        other if other.auth_type().is_some_and(|stage| stage.as_str() == QUESTION) => {
            let data = other.data();
            let answer = data.get("answer").and_then(Value::as_str).and_then(answered);
            answer.ok_or(Failure::Retry(Denied::NoAnswer))
        }
        _ => Err(not_offered()),
    }
}

fn not_offered() -> Failure {
    Failure::Retry(Denied::NotPossible)
}

/// Authenticates an attempt at a request, for endpoints. Ok means that the request may be carried
/// out, once, with these proofs.
///
/// # Errors
/// 401 with the remaining stages or the reason of a failure; or the error of a stage.
pub(crate) async fn authenticate(
    app: &Server,
    endpoint: &str,
    binding: Binding<'_>,
    auth: Option<&AuthData>,
    offer: Arc<Offer>,
    facts: RequestFacts,
) -> Result<Authenticated, ApiError> {
    let now_ms = app.engine.clock().now_ms();
    if let Some(AuthData::FallbackAcknowledgement(given)) = auth
        && let Some((owner, waiting)) = app.auth.uiaa.waiting(&given.session, now_ms).await
        && let Some(stage) = waiting.auth_type()
    {
        // If it still fails, the attempt below says what remains to be done.
        let again = check(app, &owner, &waiting);
        let _ = app.auth.uiaa.complete(&given.session, &stage, now_ms, again).await;
    }
    let check = async {
        match auth {
            Some(auth) => check(app, &facts, auth).await,
            None => Err(not_offered()),
        }
    };
    let attempt = Attempt { endpoint, binding, auth, offer, facts: facts.clone() };
    Ok(app.auth.uiaa.attempt(attempt, now_ms, check).await?)
}

/// How a user can confirm their identity.
pub(crate) fn ways_to_confirm(engine: &Engine, outside: &Outside, user_id: &UserId) -> Offer {
    let account = engine.state().accounts.get(user_id);
    let has_password = account
        .is_some_and(|account| account.read().password.latest().is_some_and(Option::is_some));
    let mut flows = Vec::new();
    if has_password {
        flows.push(vec![AuthType::Password]);
    } else {
        // The methods by which they could recover the account anyway.
        let own = engine.state().threepids.of_user(user_id);
        let has = |medium| own.iter().any(|(threepid, _)| threepid.medium == medium);
        flows.extend(
            by_threepid(&outside.messages).filter(|(medium, _)| has(*medium)).map(|(_, flow)| flow),
        );
    }
    if providers_of(engine, &outside.providers, user_id).next().is_some() {
        flows.push(vec![AuthType::Sso]);
    }
    Offer::new(flows, Map::new())
}

/// The single sign-on providers of a user.
pub(crate) fn providers_of<'a>(
    engine: &Engine,
    providers: &'a Providers,
    user_id: &UserId,
) -> impl Iterator<Item = &'a Provider> {
    let account = engine.state().accounts.get(user_id);
    let links = account.map(|account| account.read().links.clone()).unwrap_or_default();
    let is_linked = move |provider: &&Provider| links.iter().any(|(id, _)| id == provider.id());
    providers.all().iter().filter(is_linked)
}

/// Makes the caller confirm their identity; an application service does so for its users.
/// `endpoint` includes the method and the path parameters.
///
/// # Errors
/// 401 with the remaining stages; 403 when the caller has no way to confirm.
pub(crate) async fn confirm_identity(
    app: &Server,
    session: &Session,
    client: IpAddr,
    endpoint: &str,
    body: &Bytes,
    auth: Option<&AuthData>,
) -> Result<(), ApiError> {
    if session.service.is_some() {
        return Ok(());
    }
    no_interactive_authentication(app, session)?;
    let offer = ways_to_confirm(&app.engine, &app.outside, &session.user_id);
    if offer.is_empty() {
        return Err(ApiError::forbidden("This account has nothing to confirm this with."));
    }
    let facts = RequestFacts { user_id: Some(session.user_id.clone()), registers: false, client };
    let authenticated =
        authenticate(app, endpoint, Binding::Body(body), auth, offer.into(), facts).await?;
    if let Some(validated) = authenticated.address() {
        let spent = SpendValidation(validated.clone());
        app.engine.propose(session.origin(""), spent).await?.into_inner();
    }
    Ok(())
}

fn registration_token(engine: &Engine, token: &str) -> Result<Proof, Failure> {
    let hash = TokenHash::of(token);
    let known = engine.state().registration_tokens.get(&hash);
    let now_ms = engine.clock().now_ms();
    if is_registration_token(token) && known.is_some_and(|known| known.is_good(now_ms)) {
        Ok(Proof::Token(hash))
    } else {
        Err(Failure::Retry(Denied::RegistrationToken))
    }
}

/// How a caller without a session can recover an account: by one of its addresses.
pub(crate) fn ways_to_recover(messages: &Messages) -> Offer {
    Offer::new(by_threepid(messages).map(|(_, flow)| flow).collect(), Map::new())
}

/// How a caller without a session can prove which account they want to deactivate: by its password,
/// or by one of its addresses.
pub(crate) fn ways_to_prove(login: &config::Login, messages: &Messages) -> Offer {
    let by_password = login.password.then(|| vec![AuthType::Password]);
    let flows = by_password.into_iter().chain(by_threepid(messages).map(|(_, flow)| flow));
    Offer::new(flows.collect(), Map::new())
}

/// The flows for addresses that messages can be sent to.
fn by_threepid(messages: &Messages) -> impl Iterator<Item = (Medium, Vec<AuthType>)> {
    let media = [(Medium::Email, AuthType::EmailIdentity), (Medium::Msisdn, AuthType::Msisdn)];
    let reached = media.into_iter().filter(|(medium, _)| messages.reach(*medium));
    reached.map(|(medium, stage)| (medium, vec![stage]))
}

/// The purpose of a validation in such a request.
pub(super) const fn purpose_of(facts: &RequestFacts) -> Purpose {
    if facts.registers { Purpose::Register } else { Purpose::Account }
}

fn threepid(
    engine: &Engine,
    facts: &RequestFacts,
    medium: Medium,
    given: &ThirdpartyIdCredentials,
) -> Result<Proof, Failure> {
    let purpose = purpose_of(facts);
    let found = validated(engine, purpose, given.sid.as_str(), given.client_secret.as_str());
    let found = found
        .filter(|found| found.threepid.medium == medium)
        .ok_or(Failure::Retry(Denied::Unconfirmed))?;
    let owner = find_account(engine, &found.threepid);
    let right = match purpose {
        Purpose::Account => match &facts.user_id {
            Some(caller) => owner.as_ref() == Some(caller),
            None => owner.is_some(),
        },
        // Whether it is still free is decided with the registration itself.
        Purpose::Register | Purpose::Add => true,
    };
    if !right {
        return Err(Failure::Retry(Denied::OtherAddress));
    }
    Ok(Proof::Threepid(found))
}

async fn password(
    engine: &Engine,
    passwords: &Passwords,
    facts: &RequestFacts,
    given: &Password,
) -> Result<Proof, Failure> {
    let mut claim = Claim::by_identifier(engine, &given.identifier);
    // If the user who makes the request is known, only their own password counts.
    let is_theirs = |named: &OwnedUserId| facts.user_id.as_ref().is_none_or(|id| id == named);
    claim.user_id = claim.user_id.filter(is_theirs);
    if claim.user_id.is_none() && !matches!(given.identifier, UserIdentifier::Matrix(_)) {
        // An unknown identifier is 403, whatever the password. So is that of another user, so that
        // the existence of accounts is not revealed.
        refused_login(facts.client, None, LoginRefusal::Password);
        return Err(ApiError::forbidden("Wrong user name or password.").into());
    }
    match verified(engine, passwords, facts.client, claim, given.password.clone()).await {
        Ok((user_id, _)) => Ok(Proof::User(user_id)),
        Err(error) if *error.code() == ErrorCode::Forbidden => {
            Err(Failure::Retry(Denied::Password))
        }
        // It was not checked, because there were too many attempts.
        Err(error) => Err(error.into()),
    }
}
