//! Rename a device of a user.

use ruma::OwnedDeviceId;
use serde::{Deserialize, Serialize};

use super::Changed;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::account;
use logcabin_service::accounts::names::short_name;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RenameDevice {
    pub user: String,
    pub device: OwnedDeviceId,
    pub display_name: String,
}

impl Act for RenameDevice {
    const NAME: &'static str = "rename-device";
    const DONE: &'static str = "changed";
    type Done = Changed;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Rename a device",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("device", "Device", Kind::Text),
            Field::new("display_name", "New name", Kind::Text),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Changed, ActError> {
        let Self { user, device: device_id, display_name } = self;
        let user_id = context.user_id(&user)?;
        context.must_have(&user_id, &device_id)?;
        let display_name = short_name(Some(display_name))?;
        let rename = account::RenameDevice { user_id: user_id.clone(), device_id, display_name };
        context.propose(by, rename).await.map_err(ActError::of_user(&user_id))?;
        Ok(Changed { user_id, changed: true })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.user_id(&self.user)?;
        context.must_have(&user_id, &self.device)?;
        Ok(vec![format!("the device {} of {user_id} is renamed", self.device)])
    }
}
