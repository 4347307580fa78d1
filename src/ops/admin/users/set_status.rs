//! Make a user an administrator; lock, suspend or shadow-ban an account; or undo this.

use serde::{Deserialize, Serialize};

use super::Changed;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::status;

/// None leaves a setting as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SetStatus {
    pub user: String,
    pub admin: Option<bool>,
    pub locked: Option<bool>,
    pub suspended: Option<bool>,
    #[serde(default)]
    pub shadow_banned: Option<bool>,
}

impl Act for SetStatus {
    const NAME: &'static str = "set-status";
    const DONE: &'static str = "changed";
    type Done = Changed;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Change what an account may do",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("admin", "Administrator", Kind::FlagIfAny),
            Field::new("locked", "Locked", Kind::FlagIfAny),
            Field::new("suspended", "Suspended", Kind::FlagIfAny),
            Field::new("shadow_banned", "Shadow-banned", Kind::FlagIfAny),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Changed, ActError> {
        let Self { user, admin, locked, suspended, shadow_banned } = self;
        let user_id = context.user_id(&user)?;
        let Attribution { origin, reason } = by;
        let set = status::SetStatus {
            user_id: user_id.clone(),
            admin,
            locked,
            suspended,
            shadow_banned,
            reason,
        };
        let set = context.engine.propose(origin, set).await;
        let changed = set.map_err(ActError::of_user(&user_id))?.into_inner();
        Ok(Changed { user_id, changed })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.active(&self.user)?;
        let is = context.engine.state().accounts.standing(&user_id).unwrap_or_default();
        if self.admin.unwrap_or(is.admin) && self.shadow_banned.unwrap_or(is.shadow_banned) {
            let why = "An administrator of the server cannot be shadow-banned.";
            return Err(ActError::Invalid(why.to_owned()));
        }
        if self.admin == Some(true) && is.waiting.is_some() {
            let why = "The account has to be approved before it can be an administrator's.";
            return Err(ActError::Invalid(why.to_owned()));
        }
        let changes = [
            ("an administrator", self.admin, is.admin),
            ("locked", self.locked, is.locked),
            ("suspended", self.suspended, is.suspended),
            ("shadow-banned", self.shadow_banned, is.shadow_banned),
        ];
        let sentence = |(what, wanted, is): (&str, Option<bool>, bool)| {
            let wanted = wanted.filter(|wanted| *wanted != is)?;
            let not = if wanted { "" } else { "not " };
            Some(format!("{user_id} is {not}{what}"))
        };
        Ok(changes.into_iter().filter_map(sentence).collect())
    }
}
