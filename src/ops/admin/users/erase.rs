//! Deactivate an account, and erase what the server stores about the user.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::status;
use logcabin_service::accounts::closing;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EraseUser {
    pub user: String,
    /// Whether to erase the user's messages, too.
    pub messages: bool,
}

/// What an erasure removes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserErased {
    pub user_id: OwnedUserId,
    /// Whether the user's messages are erased, too.
    pub messages: bool,
    /// How many rooms the user has or had a membership in.
    pub rooms: u64,
    pub devices: u64,
    pub files: u64,
    pub file_bytes: u64,
    /// Addresses that identity servers still publish, as text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub still_bound: Vec<String>,
}

impl Act for EraseUser {
    const NAME: &'static str = "erase-user";
    const DONE: &'static str = "user-erased";
    type Done = UserErased;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Erase a user",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("messages", "Erase what they sent, too", Kind::Flag),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<UserErased, ActError> {
        let mut erased = self.belongings(context)?;
        let user_id = erased.user_id.clone();
        let Attribution { origin, reason } = by;
        erased.still_bound = context.unbind(&origin, &user_id).await;
        let end = status::Deactivate {
            user_id: user_id.clone(),
            erase: true,
            messages: self.messages,
            media: true,
            reason,
            ts: context.engine.clock().now_ms(),
        };
        let closed = closing::close(&context.engine, origin, end).await;
        closed.map_err(ActError::of_user(&user_id))?;
        Ok(erased)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let UserErased { user_id, rooms, devices, files, file_bytes, .. } =
            self.belongings(context)?;
        let mut effect = vec![
            format!(
                "the account {user_id} is closed and the user's data erased, which cannot be undone"
            ),
            format!("{devices} device(s) are logged out"),
            format!(
                "their name is removed from {rooms} room(s), and they leave those that they are in"
            ),
            format!("{files} file(s) are removed, of {file_bytes} bytes"),
        ];
        if self.messages {
            effect.push("all that they sent is erased for everybody".to_owned());
        }
        Ok(effect)
    }
}

impl EraseUser {
    fn belongings(&self, context: &ActContext) -> Result<UserErased, ActError> {
        let user_id = context.user_id(&self.user)?;
        let state = context.engine.state();
        let files = state.media.of_user(&user_id);
        Ok(UserErased {
            messages: self.messages,
            rooms: state.memberships.count(&user_id) as u64,
            devices: context.devices(&user_id).len() as u64,
            files: files.len() as u64,
            file_bytes: files.iter().map(|(_, stored)| stored.size).sum(),
            still_bound: Vec::new(),
            user_id,
        })
    }
}
