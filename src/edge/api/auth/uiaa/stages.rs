//! The stages: what each asks of a client and what it proves. New stages are added here.

use std::{collections::BTreeMap, fs, net::IpAddr, sync::Arc};

use bytes::Bytes;
use ruma::{
    OwnedUserId, UserId,
    api::client::uiaa::{AuthData, AuthType, Password, ThirdpartyIdCredentials, UserIdentifier},
};
use serde_json::{Map, json};

use super::{
    Attempt, Authenticated, Binding, Facts, Failure, Offer, captcha::Captcha, terms::Terms,
};
use crate::{
    config::{Config, FilePath, value::RegistrationStage},
    decide::threepid::{SpendValidation, Validated},
    edge::{
        api::{
            Server,
            auth::{
                claim::{Claim, find_account, verified},
                validation::validated,
            },
            oauth::session::no_interactive_authentication,
        },
        http::{ApiError, Caller as _, ErrorCode, Session},
    },
    outside::{mail::Messages, oidc::Provider},
    record::{
        command::TokenHash,
        threepid::{Medium, Purpose},
    },
    service::accounts::names::is_registration_token,
};

/// The configuration of the stages.
#[derive(Debug)]
pub(crate) struct Stages {
    /// The offer for registration.
    pub(crate) registration: Arc<Offer>,
    pub(crate) captcha: Option<Captcha>,
    pub(crate) terms: Terms,
}

impl Stages {
    /// The stages of this configuration.
    ///
    /// # Errors
    /// When a required stage lacks its configuration: which one, and what it needs.
    pub(crate) fn load(config: &Config, messages: &Messages) -> Result<Self, String> {
        let captcha = match (&config.captcha.secret_key_file, &config.captcha.public_key) {
            (Some(file), Some(public_key)) => {
                let secret_key =
                    file.read().map_err(|error| format!("captcha.secret_key_file: {error}"))?;
                let captcha = Captcha::new(&config.captcha, public_key, &secret_key);
                Some(captcha.map_err(|error| format!("the captcha: {error}"))?)
            }
            _ => None,
        };
        let terms = match &config.registration.terms {
            Some(FilePath(path)) => {
                let wrong = |error: String| format!("the terms, {}: {error}", path.display());
                let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
                Some(Terms::parse(&text).map_err(wrong)?)
            }
            None => None,
        };

        let mut flows: Vec<Vec<AuthType>> = vec![Vec::new()];
        let mut params = Map::new();
        for requirement in &config.registration.require {
            let mut longer = Vec::new();
            for stage in &requirement.0 {
                let needs = |what: &str| {
                    format!("registration.require has \"{}\", which needs {what}", stage.as_str())
                };
                let auth_type = match stage {
                    RegistrationStage::Dummy => AuthType::Dummy,
                    RegistrationStage::Token => AuthType::RegistrationToken,
                    RegistrationStage::Captcha => {
                        let captcha = captcha.as_ref().ok_or_else(|| {
                            needs("captcha.public_key and captcha.secret_key_file")
                        })?;
                        let key = json!({ "public_key": captcha.public_key });
                        params.insert(AuthType::ReCaptcha.to_string(), key);
                        AuthType::ReCaptcha
                    }
                    RegistrationStage::Terms => {
                        let terms = terms.as_ref().ok_or_else(|| needs("registration.terms"))?;
                        params.insert(AuthType::Terms.to_string(), terms.params());
                        AuthType::Terms
                    }
                    RegistrationStage::Email if messages.reach(Medium::Email) => {
                        AuthType::EmailIdentity
                    }
                    RegistrationStage::Email => return Err(needs("email.host")),
                    RegistrationStage::Msisdn if messages.reach(Medium::Msisdn) => AuthType::Msisdn,
                    RegistrationStage::Msisdn => return Err(needs("sms.url")),
                };
                // In a choice, "dummy" means none of the other stages.
                let none = auth_type == AuthType::Dummy && requirement.0.len() > 1;
                for flow in &flows {
                    let mut flow = flow.clone();
                    if !none && !flow.contains(&auth_type) {
                        flow.push(auth_type.clone());
                    }
                    longer.push(flow);
                }
            }
            flows = longer;
        }
        for flow in flows.iter_mut().filter(|flow| flow.is_empty()) {
            flow.push(AuthType::Dummy);
        }
        let registration = Arc::new(Offer::new(flows, params));
        Ok(Self { registration, captcha, terms: terms.unwrap_or_default() })
    }
}

/// The proof of a stage.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// The stage was completed.
    Done,
    /// The user's identity.
    User(OwnedUserId),
    /// The ownership of this address or number. Except in a registration, it belongs to an account.
    Threepid(Validated),
    /// The knowledge of this valid registration token.
    Token(TokenHash),
    /// The acceptance of these documents, by name and version.
    Terms(BTreeMap<String, String>),
}

/// Checks the stage in `auth`.
///
/// # Errors
/// [`Failure::Retry`] when the client may try again, [`Failure::Final`] when the request fails.
pub(crate) async fn check(app: &Server, facts: &Facts, auth: &AuthData) -> Result<Proof, Failure> {
    match auth {
        AuthData::Dummy(_) => Ok(Proof::Done),
        AuthData::Password(given) => password(app, facts, given).await,
        AuthData::EmailIdentity(given) => {
            threepid(app, facts, Medium::Email, &given.thirdparty_id_creds)
        }
        AuthData::Msisdn(given) => threepid(app, facts, Medium::Msisdn, &given.thirdparty_id_creds),
        AuthData::RegistrationToken(given) => registration_token(app, &given.token),
        AuthData::Terms(_) => Ok(Proof::Terms(app.auth.stages.terms.versions())),
        AuthData::ReCaptcha(given) => {
            let captcha = app.auth.stages.captcha.as_ref().ok_or_else(not_offered)?;
            captcha.check(&app.outside.outbound, &given.response, facts.client).await?;
            Ok(Proof::Done)
        }
        _ => Err(not_offered()),
    }
}

/// What is kept of an attempt to repeat it: nothing, unless it may succeed while the client waits.
/// Then only the identifying members are kept, because clients may send anything else.
pub(super) fn to_wait_for(auth: &AuthData) -> Option<AuthData> {
    let mut kept = auth.clone();
    let (credentials, session) = match &mut kept {
        AuthData::EmailIdentity(given) => (&mut given.thirdparty_id_creds, &mut given.session),
        AuthData::Msisdn(given) => (&mut given.thirdparty_id_creds, &mut given.session),
        _ => return None,
    };
    let (sid, client_secret) = (credentials.sid.clone(), credentials.client_secret.clone());
    *credentials = ThirdpartyIdCredentials::new(sid, client_secret);
    *session = None;
    Some(kept)
}

fn not_offered() -> Failure {
    Failure::retry(ErrorCode::Unrecognized, "This cannot be done here.")
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
    facts: Facts,
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
    app.auth.uiaa.attempt(attempt, now_ms, check).await
}

/// How a user can confirm their identity.
pub(crate) fn ways_to_confirm(app: &Server, user_id: &UserId) -> Offer {
    let account = app.engine.state().accounts.get(user_id);
    let has_password = account
        .is_some_and(|account| account.read().password.latest().is_some_and(Option::is_some));
    let mut flows = Vec::new();
    if has_password {
        flows.push(vec![AuthType::Password]);
    } else {
        // The methods by which they could recover the account anyway.
        let own = app.engine.state().threepids.of_user(user_id);
        let has = |medium| own.iter().any(|(threepid, _)| threepid.medium == medium);
        flows.extend(by_threepid(app).filter(|(medium, _)| has(*medium)).map(|(_, flow)| flow));
    }
    if providers_of(app, user_id).next().is_some() {
        flows.push(vec![AuthType::Sso]);
    }
    Offer::new(flows, Map::new())
}

/// The single sign-on providers of a user.
pub(crate) fn providers_of<'a>(
    app: &'a Server,
    user_id: &UserId,
) -> impl Iterator<Item = &'a Provider> {
    let account = app.engine.state().accounts.get(user_id);
    let links = account.map(|account| account.read().links.clone()).unwrap_or_default();
    let is_linked = move |provider: &&Provider| links.iter().any(|(id, _)| id == provider.id());
    app.outside.providers.all().iter().filter(is_linked)
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
    let offer = ways_to_confirm(app, &session.user_id);
    if offer.is_empty() {
        return Err(ApiError::forbidden("This account has nothing to confirm this with."));
    }
    let facts = Facts { user_id: Some(session.user_id.clone()), registers: false, client };
    let authenticated =
        authenticate(app, endpoint, Binding::Body(body), auth, offer.into(), facts).await?;
    if let Some(validated) = authenticated.address() {
        let spent = SpendValidation(validated.clone());
        app.engine.propose(session.origin(""), spent).await?.into_inner();
    }
    Ok(())
}

fn registration_token(app: &Server, token: &str) -> Result<Proof, Failure> {
    let hash = TokenHash::of(token);
    let known = app.engine.state().registration_tokens.get(&hash);
    let now_ms = app.engine.clock().now_ms();
    if is_registration_token(token) && known.is_some_and(|known| known.is_good(now_ms)) {
        Ok(Proof::Token(hash))
    } else {
        Err(Failure::retry(ErrorCode::Unauthorized, "This registration token is not valid."))
    }
}

/// How a caller without a session can recover an account: by one of its addresses.
pub(crate) fn ways_to_recover(app: &Server) -> Offer {
    Offer::new(by_threepid(app).map(|(_, flow)| flow).collect(), Map::new())
}

/// How a caller without a session can prove which account they want to deactivate: by its password,
/// or by one of its addresses.
pub(crate) fn ways_to_prove(app: &Server) -> Offer {
    let by_password = app.config.login.password.then(|| vec![AuthType::Password]);
    let flows = by_password.into_iter().chain(by_threepid(app).map(|(_, flow)| flow));
    Offer::new(flows.collect(), Map::new())
}

/// The flows for addresses that messages can be sent to.
fn by_threepid(app: &Server) -> impl Iterator<Item = (Medium, Vec<AuthType>)> {
    let media = [(Medium::Email, AuthType::EmailIdentity), (Medium::Msisdn, AuthType::Msisdn)];
    let reached = media.into_iter().filter(|(medium, _)| app.outside.messages.reach(*medium));
    reached.map(|(medium, stage)| (medium, vec![stage]))
}

/// The purpose of a validation in such a request.
pub(super) const fn purpose_of(facts: &Facts) -> Purpose {
    if facts.registers { Purpose::Register } else { Purpose::Account }
}

fn threepid(
    app: &Server,
    facts: &Facts,
    medium: Medium,
    given: &ThirdpartyIdCredentials,
) -> Result<Proof, Failure> {
    let purpose = purpose_of(facts);
    let found = validated(app, purpose, given.sid.as_str(), given.client_secret.as_str());
    let found = found.filter(|found| found.threepid.medium == medium).ok_or_else(|| {
        Failure::retry(ErrorCode::ThreepidAuthFailed, "This address has not been confirmed yet.")
    })?;
    let owner = find_account(app, &found.threepid);
    let right = match purpose {
        Purpose::Account => match &facts.user_id {
            Some(caller) => owner.as_ref() == Some(caller),
            None => owner.is_some(),
        },
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
    let mut claim = Claim::by_identifier(app, &given.identifier);
    // If the user who makes the request is known, only their own password counts.
    let is_theirs = |named: &OwnedUserId| facts.user_id.as_ref().is_none_or(|id| id == named);
    claim.user_id = claim.user_id.filter(is_theirs);
    if claim.user_id.is_none() && !matches!(given.identifier, UserIdentifier::Matrix(_)) {
        // An unknown identifier is 403, whatever the password. So is that of another user, so that
        // the existence of accounts is not revealed.
        return Err(ApiError::forbidden("Wrong user name or password.").into());
    }
    match verified(app, facts.client, claim, given.password.clone()).await {
        Ok((user_id, _)) => Ok(Proof::User(user_id)),
        Err(error) if *error.code() == ErrorCode::Forbidden => {
            Err(Failure::retry(ErrorCode::Forbidden, "Wrong user name or password."))
        }
        // It was not checked, because there were too many attempts.
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiting_attempt_stores_only_what_identifies_the_validation() {
        for stage in ["m.login.email.identity", "m.login.msisdn"] {
            let given = json!({
                "type": stage, "session": "x",
                "threepid_creds": {
                    "sid": "1", "client_secret": "s",
                    "id_server": "x".repeat(1_000_000), "id_access_token": "x".repeat(1_000_000),
                },
            });
            let given: AuthData = serde_json::from_value(given).unwrap();
            let kept = serde_json::to_value(to_wait_for(&given).unwrap()).unwrap();
            assert_eq!(kept["threepid_creds"], json!({ "sid": "1", "client_secret": "s" }));
            assert_eq!(kept["session"], serde_json::Value::Null);
        }
        let other = json!({ "type": "m.login.registration_token", "token": "x", "session": "x" });
        assert!(to_wait_for(&serde_json::from_value(other).unwrap()).is_none());
    }
}
