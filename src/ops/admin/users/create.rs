//! Create an account.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::{account::Register, status::CreateAccount};
use logcabin_record::command::Secret;
use logcabin_service::accounts::names::short_name;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreateUser {
    pub user: String,
    /// None for an account that cannot log in by password.
    pub password: Option<Secret>,
    /// None for the local part.
    pub display_name: Option<String>,
    pub admin: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Created {
    pub user_id: OwnedUserId,
}

impl Act for CreateUser {
    const NAME: &'static str = "create-user";
    const DONE: &'static str = "created";
    type Done = Created;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Create an account",
        fields: &[
            Field::new("user", "User name", Kind::Text),
            Field::new("password", "Password; empty for none", Kind::Secret),
            Field::new("display_name", "Display name", Kind::TextIfAny),
            Field::new("admin", "Administrator", Kind::Flag),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Created, ActError> {
        let Self { user, password, display_name, admin } = self;
        let user_id = context.new_user_id(&user)?;
        let display_name = short_name(display_name)?;
        let password = match password {
            Some(password) => Some(context.hash(&user_id, password).await?),
            None => None,
        };
        let display_name = display_name.unwrap_or_else(|| user_id.localpart().to_owned());
        let register = Register {
            password,
            display_name: Some(display_name),
            ..Register::user(user_id.clone())
        };
        let created = context.propose(by, CreateAccount { register, admin }).await;
        created.map_err(ActError::of_user(&user_id))?;
        Ok(Created { user_id })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.new_user_id(&self.user)?;
        if context.engine.state().accounts.contains(&user_id) {
            return Err(ActError::Taken(user_id));
        }
        let what = if self.admin { "administrator's account" } else { "account" };
        Ok(vec![format!("the {what} {user_id} is created")])
    }
}
