//! What is known of a registration token, and how an order names it.

use serde::{Deserialize, Serialize};

use crate::admin::context::{ActContext, ActError};
use logcabin_decide::Refusal;
use logcabin_engine::ProposeError;
use logcabin_record::command::{Secret, TokenHash};
use logcabin_state::RegistrationToken;

/// The longest label, in bytes: a line.
const LABEL_BYTES: usize = 128;

/// A registration token, of which only a hash is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSummary {
    /// The first digits of its hash.
    pub id: String,
    pub label: Option<String>,
    /// How many accounts can be created with it in all; none for any number.
    pub uses_allowed: Option<u64>,
    /// How many were created.
    pub uses: u64,
    /// When it expires, in milliseconds since the Unix epoch; none for never.
    pub expires_ms: Option<u64>,
    /// Whether one more account can be created with it.
    pub good: bool,
}

/// The hash of the token that an order names by its id or by the token itself.
pub fn named(context: &ActContext, name: &Secret) -> Result<TokenHash, ActError> {
    let tokens = &context.engine.state().registration_tokens;
    let itself = TokenHash::of(name.expose());
    if tokens.get(&itself).is_some() {
        return Ok(itself);
    }
    let all = tokens.all().into_iter().map(|(hash, _)| hash);
    let mut named = all.filter(|hash| hash.start() == name.expose());
    match (named.next(), named.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(ActError::NoToken),
        // One pair in four billion.
        (Some(_), Some(_)) => {
            let why = "Two registration tokens have this id: give the token itself.";
            Err(ActError::Invalid(why.to_owned()))
        }
    }
}

pub fn summary_of(context: &ActContext, hash: &TokenHash) -> Result<TokenSummary, ActError> {
    let token = context.engine.state().registration_tokens.get(hash).ok_or(ActError::NoToken)?;
    Ok(summary(context, hash, token))
}

pub(super) fn summary(
    context: &ActContext,
    hash: &TokenHash,
    token: RegistrationToken,
) -> TokenSummary {
    let good = token.is_good(context.engine.clock().now_ms());
    let RegistrationToken { label, uses_allowed, uses, expires_ms } = token;
    TokenSummary { id: hash.start(), label, uses_allowed, uses, expires_ms, good }
}

pub(super) fn checked_label(label: Option<String>) -> Result<Option<String>, ActError> {
    match label {
        Some(label) if label.len() > LABEL_BYTES => {
            Err(ActError::Invalid(format!("A label has at most {LABEL_BYTES} bytes.")))
        }
        label => Ok(label.filter(|label| !label.trim().is_empty())),
    }
}

pub(super) fn of_token(error: ProposeError) -> ActError {
    match error {
        ProposeError::Refused(Refusal::NotFound(_)) => ActError::NoToken,
        ProposeError::Refused(Refusal::InvalidParam(why)) => ActError::Invalid(why),
        other => ActError::Propose(other),
    }
}
