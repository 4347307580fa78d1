//! List the registration tokens, by id.

use serde::{Deserialize, Serialize};

use super::named::{TokenSummary, summary};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListRegistrationTokens {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RegistrationTokens {
    pub tokens: Vec<TokenSummary>,
}

impl Act for ListRegistrationTokens {
    const NAME: &'static str = "list-registration-tokens";
    const DONE: &'static str = "registration-tokens";
    type Done = RegistrationTokens;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(RegistrationTokens { tokens: list(context) })
    }
}

pub fn list(context: &ActContext) -> Vec<TokenSummary> {
    let tokens = context.engine.state().registration_tokens.all();
    tokens.into_iter().map(|(hash, token)| summary(context, &hash, token)).collect()
}
