//! Set a new password.

use serde::{Deserialize, Serialize};

use super::Changed;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::account::{DeviceSet, SetPassword};
use logcabin_record::command::Secret;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResetPassword {
    pub user: String,
    pub password: Secret,
    /// Whether the user's devices stay logged in.
    pub keep_devices: bool,
}

impl Act for ResetPassword {
    const NAME: &'static str = "reset-password";
    const DONE: &'static str = "changed";
    type Done = Changed;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Set a new password",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("password", "New password", Kind::Secret),
            Field::new("keep_devices", "Devices stay logged in", Kind::Flag),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Changed, ActError> {
        let user_id = context.user_id(&self.user)?;
        if context.engine.state().accounts.is_guest(&user_id) {
            return Err(ActError::Invalid("A guest has no password.".to_owned()));
        }
        let password = context.hash(&user_id, self.password).await?;
        let log_out = (!self.keep_devices).then_some(DeviceSet::All);
        let set = SetPassword { user_id: user_id.clone(), password, log_out };
        context.propose(by, set).await.map_err(ActError::of_user(&user_id))?;
        Ok(Changed { user_id, changed: true })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.active(&self.user)?;
        let devices = if self.keep_devices { 0 } else { context.devices(&user_id).len() };
        Ok(vec![
            format!("{user_id} has a new password"),
            format!("{devices} device(s) are logged out"),
        ])
    }
}
