//! List the registration tokens, by id.

use serde::{Deserialize, Serialize};

use super::named::{TokenSummary, summary};
use crate::admin::{
    act::{Act, Attribution},
    office::{ActError, Office},
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

    async fn perform(self, office: &Office, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(RegistrationTokens { tokens: list(office) })
    }
}

pub fn list(office: &Office) -> Vec<TokenSummary> {
    let tokens = office.engine.state().registration_tokens.all();
    tokens.into_iter().map(|(hash, token)| summary(office, &hash, token)).collect()
}
