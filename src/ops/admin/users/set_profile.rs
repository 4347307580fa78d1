//! Set or remove the display name or avatar of a user.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Changed;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::limits;
use logcabin_decide::account;
use logcabin_service::accounts::profile;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetProfile {
    pub user: String,
    /// `displayname` or `avatar_url`.
    pub field: String,
    /// None, or an empty one, removes it.
    pub value: Option<String>,
}

impl Act for SetProfile {
    const NAME: &'static str = "set-profile";
    const DONE: &'static str = "changed";
    type Done = Changed;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Change a profile",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("field", "Field", Kind::OneOf(&["displayname", "avatar_url"])),
            Field::new("value", "Value; empty to remove it", Kind::TextIfAny),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Changed, ActError> {
        let Self { user, field, value } = self;
        let user_id = context.user_id(&user)?;
        let longest = match field.as_str() {
            "displayname" => limits::DISPLAY_NAME_BYTES,
            "avatar_url" => limits::AVATAR_URL_BYTES,
            _ => return Err(ActError::Invalid(format!("There is no field `{field}` to set."))),
        };
        let value = value.filter(|value| !value.is_empty());
        if value.as_ref().is_some_and(|value| value.len() > longest) {
            return Err(ActError::Invalid(format!("This field has at most {longest} bytes.")));
        }
        let value = value.map(Value::from);
        let origin = by.origin.clone();
        let set = account::SetProfile { user_id: user_id.clone(), field, value };
        let changed = context.propose(by, set).await.map_err(ActError::of_user(&user_id))?;
        if changed {
            profile::spread(&context.engine, &origin, &user_id).await;
        }
        Ok(Changed { user_id, changed })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        Ok(vec![format!("the {} of {} is set", self.field, context.user_id(&self.user)?)])
    }
}
