//! Create a device of a user, on which nobody is logged in.

use ruma::OwnedDeviceId;
use serde::{Deserialize, Serialize};

use super::Changed;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_decide::account::Login;
use logcabin_record::command::Tokens;
use logcabin_service::accounts::{
    names::device_id_or_new,
    token::{self, Kind},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CreateDevice {
    pub user: String,
    pub device: OwnedDeviceId,
}

impl Act for CreateDevice {
    const NAME: &'static str = "create-device";
    const DONE: &'static str = "changed";
    type Done = Changed;

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Changed, ActError> {
        let Self { user, device } = self;
        let user_id = context.active(&user)?;
        let device_id = device_id_or_new(Some(device))?;
        if context.devices(&user_id).contains(&device_id) {
            return Ok(Changed { user_id, changed: false });
        }
        // Nobody learns the token. A login with the name of the device replaces it.
        let access = token::hash(&Kind::Access.random());
        let login = Login {
            user_id: user_id.clone(),
            device_id,
            display_name: None,
            tokens: Tokens { access, expires_ms: None, refresh: None },
            verified: None,
        };
        context.propose(by, login).await.map_err(ActError::of_user(&user_id))?;
        Ok(Changed { user_id, changed: true })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.active(&self.user)?;
        let device_id = device_id_or_new(Some(self.device.clone()))?;
        if context.devices(&user_id).contains(&device_id) {
            return Ok(Vec::new());
        }
        Ok(vec![format!("{user_id} has a device {device_id}, on which nobody is logged in")])
    }
}
