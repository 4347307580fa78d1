//! Change the limits of a registration token.

use serde::{Deserialize, Serialize};

use super::named::{TokenSummary, checked_label, named, of_token, summary_of};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::registration_token::{self, Change};
use logcabin_record::command::Secret;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpdateRegistrationToken {
    /// The token or its id.
    pub token: Secret,
    #[serde(default)]
    pub label: Change<String>,
    /// How many accounts can be created with it in all.
    #[serde(default)]
    pub uses_allowed: Change<u64>,
    /// In milliseconds since the Unix epoch.
    #[serde(default)]
    pub expires_ms: Change<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenUpdated {
    pub changed: bool,
    #[serde(flatten)]
    pub summary: TokenSummary,
}

impl Act for UpdateRegistrationToken {
    const NAME: &'static str = "update-registration-token";
    const DONE: &'static str = "registration-token-updated";
    type Done = TokenUpdated;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Change a registration token",
        fields: &[
            Field::new("token", "Token's id", Kind::Text),
            Field::new("label", "Label, or `none`", Kind::ChangeText),
            Field::new("uses_allowed", "Accounts in all, or `none`", Kind::Change),
            Field::new(
                "expires_ms",
                "Expires, in milliseconds since 1970, or `none`",
                Kind::Change,
            ),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<TokenUpdated, ActError> {
        let Self { token, label, uses_allowed, expires_ms } = self;
        let token = named(context, &token)?;
        let label = match label {
            Change::To(label) => checked_label(Some(label))?.map_or(Change::Clear, Change::To),
            other => other,
        };
        let update =
            registration_token::UpdateRegistrationToken { token, label, uses_allowed, expires_ms };
        let changed = context.propose(by, update).await.map_err(of_token)?;
        Ok(TokenUpdated { changed, summary: summary_of(context, &token)? })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let id = named(context, &self.token)?.start();
        Ok(vec![format!("the registration token {id} is changed")])
    }
}
