//! Create a registration token.

use serde::{Deserialize, Serialize};

use super::named::{TokenSummary, checked_label, of_token, summary_of};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::clock::random_letters;
use logcabin_decide::registration_token;
use logcabin_record::command::{Secret, TokenHash};
use logcabin_service::accounts::names::is_registration_token;

/// Letters of a generated token: too many to guess, few enough to type.
const TOKEN_LETTERS: usize = 24;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreateRegistrationToken {
    /// None for a generated one.
    pub token: Option<Secret>,
    pub label: Option<String>,
    /// How many accounts can be created with it; none for any number.
    pub uses_allowed: Option<u64>,
    /// In milliseconds since the Unix epoch; none for never.
    pub expires_ms: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenCreated {
    /// The token itself, which is not stored.
    pub token: Secret,
    #[serde(flatten)]
    pub summary: TokenSummary,
}

impl Act for CreateRegistrationToken {
    const NAME: &'static str = "create-registration-token";
    const DONE: &'static str = "registration-token-created";
    type Done = TokenCreated;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Create a registration token",
        fields: &[
            Field::new("token", "Token; empty for a random one", Kind::Secret),
            Field::new("label", "Label", Kind::TextIfAny),
            Field::new("uses_allowed", "Accounts; empty for any number", Kind::NumberIfAny),
            Field::new(
                "expires_ms",
                "Expires, in milliseconds since 1970; empty for never",
                Kind::NumberIfAny,
            ),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<TokenCreated, ActError> {
        let Self { token, label, uses_allowed, expires_ms } = self;
        let token = token.unwrap_or_else(|| random_letters(TOKEN_LETTERS).into());
        if !is_registration_token(token.expose()) {
            let why = "A registration token has 1 to 64 of A-Za-z0-9._~-";
            return Err(ActError::Invalid(why.to_owned()));
        }
        let hash = TokenHash::of(token.expose());
        let label = checked_label(label)?;
        let create = registration_token::CreateRegistrationToken {
            token: hash,
            label,
            uses_allowed,
            expires_ms,
        };
        context.propose(by, create).await.map_err(of_token)?;
        Ok(TokenCreated { token, summary: summary_of(context, &hash)? })
    }

    async fn effect(&self, _: &ActContext) -> Result<Vec<String>, ActError> {
        Ok(vec!["a registration token is created".to_owned()])
    }
}
