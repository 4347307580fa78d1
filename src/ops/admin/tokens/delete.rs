//! Delete a registration token.

use serde::{Deserialize, Serialize};

use super::named::{named, of_token};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::registration_token::RemoveRegistrationToken;
use logcabin_record::command::Secret;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeleteRegistrationToken {
    /// The token or its id.
    pub token: Secret,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TokenDeleted {
    pub id: String,
}

impl Act for DeleteRegistrationToken {
    const NAME: &'static str = "delete-registration-token";
    const DONE: &'static str = "registration-token-deleted";
    type Done = TokenDeleted;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Delete a registration token",
        fields: &[Field::new("token", "Token's id", Kind::Text)],
        is_final: true,
        foretells: true,
    });

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<TokenDeleted, ActError> {
        let token = named(context, &self.token)?;
        context.propose(by, RemoveRegistrationToken { token }).await.map_err(of_token)?;
        Ok(TokenDeleted { id: token.start() })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let id = named(context, &self.token)?.start();
        let text = format!("nobody can register with the registration token {id} any more");
        Ok(vec![text])
    }
}
