//! The stages of registration, from the configuration, and the proofs of stages. They are checked
//! in `edge/api/auth/uiaa/stages.rs`.

use std::{collections::BTreeMap, fs, sync::Arc};

use ruma::{
    OwnedUserId,
    api::client::uiaa::{AuthData, AuthType, ThirdpartyIdCredentials},
};
use serde_json::{Map, json};

use super::{Offer, captcha::Captcha, terms::Terms};
use logcabin_base::limits;
use logcabin_config::{self as config, FilePath, value::RegistrationStage};
use logcabin_decide::threepid::Validated;
use logcabin_outside::mail::Messages;
use logcabin_record::{command::TokenHash, threepid::Medium};

/// What registration demands, and what its stages need.
#[derive(Debug)]
pub struct Stages {
    registration: Arc<Offer>,
    /// The same with the operator's question.
    asking: Option<Arc<Offer>>,
    pub captcha: Option<Captcha>,
    pub terms: Terms,
}

impl Stages {
    /// Reads the stages from the configuration.
    ///
    /// # Errors
    /// When a required stage lacks its configuration, or the captcha or the terms cannot be read.
    /// The text says which, and why.
    pub fn load(
        registration: &config::Registration,
        captcha: &config::Captcha,
        messages: &Messages,
    ) -> Result<Self, String> {
        let captcha = match (&captcha.secret_key_file, &captcha.public_key) {
            (Some(file), Some(public_key)) => {
                let secret_key =
                    file.read().map_err(|error| format!("captcha.secret_key_file: {error}"))?;
                let captcha = Captcha::new(captcha, public_key, &secret_key);
                Some(captcha.map_err(|error| format!("the captcha: {error}"))?)
            }
            _ => None,
        };
        let terms = match &registration.terms {
            Some(FilePath(path)) => {
                let wrong = |error: String| format!("the terms, {}: {error}", path.display());
                let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
                Some(Terms::parse(&text).map_err(wrong)?)
            }
            None => None,
        };

        let mut flows: Vec<Vec<AuthType>> = vec![Vec::new()];
        let mut params = Map::new();
        for requirement in &registration.require {
            let mut extended = Vec::new();
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
                // In a choice, "dummy" adds no stage.
                let adds_nothing = auth_type == AuthType::Dummy && requirement.0.len() > 1;
                for flow in &flows {
                    let mut flow = flow.clone();
                    if !adds_nothing && !flow.contains(&auth_type) {
                        flow.push(auth_type.clone());
                    }
                    extended.push(flow);
                }
            }
            flows = extended;
        }
        let asking = registration.question.as_ref().map(|question| {
            let (mut flows, mut params) = (flows.clone(), params.clone());
            for flow in &mut flows {
                flow.retain(|stage| *stage != AuthType::Dummy);
                flow.push(AuthType::from(QUESTION));
            }
            params.insert(QUESTION.to_owned(), json!({ "question": question }));
            Arc::new(Offer::new(flows, params))
        });
        for flow in flows.iter_mut().filter(|flow| flow.is_empty()) {
            flow.push(AuthType::Dummy);
        }
        let registration = Arc::new(Offer::new(flows, params));
        Ok(Self { registration, asking, captcha, terms: terms.unwrap_or_default() })
    }

    /// The stages of registration; with the operator's question, if there is one, where accounts
    /// are approved.
    pub fn of_registration(&self, approval: bool) -> Arc<Offer> {
        let asking = self.asking.as_ref().filter(|_| approval);
        Arc::clone(asking.unwrap_or(&self.registration))
    }
}

/// The stage of the operator's question to newcomers. A client gives `answer`.
pub const QUESTION: &str = "org.logcabin.question";

/// The proof of the question's stage, if this answers it.
pub fn answered(answer: &str) -> Option<Proof> {
    let answer = answer.trim();
    let fits = !answer.is_empty() && answer.len() <= limits::REGISTRATION_ANSWER_BYTES;
    fits.then(|| Proof::Answer(answer.to_owned()))
}

/// The proof of a stage.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The stage was completed.
    Done,
    /// The user's identity.
    User(OwnedUserId),
    /// Ownership of this address or number. Outside registration, an account has it.
    Threepid(Validated),
    /// Knowledge of this valid registration token.
    Token(TokenHash),
    /// Acceptance of these documents, by name and version.
    Terms(BTreeMap<String, String>),
    /// This answer to the operator's question.
    Answer(String),
}

/// What is kept of an attempt so that it can be repeated: nothing, unless it may succeed while the
/// client waits.
/// Then only the identifying members are kept, because clients may send anything else.
pub(super) fn kept_for_repeat(auth: &AuthData) -> Option<AuthData> {
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
            let kept = serde_json::to_value(kept_for_repeat(&given).unwrap()).unwrap();
            assert_eq!(kept["threepid_creds"], json!({ "sid": "1", "client_secret": "s" }));
            assert_eq!(kept["session"], serde_json::Value::Null);
        }
        let other = json!({ "type": "m.login.registration_token", "token": "x", "session": "x" });
        assert!(kept_for_repeat(&serde_json::from_value(other).unwrap()).is_none());
    }
}
