//! Log out a user's devices.

use ruma::{OwnedDeviceId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::account::{DeviceSet, RemoveDevices};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogOut {
    pub user: String,
    /// None for all.
    pub devices: Option<Vec<OwnedDeviceId>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoggedOut {
    pub user_id: OwnedUserId,
    pub devices: Vec<OwnedDeviceId>,
}

impl Act for LogOut {
    const NAME: &'static str = "log-out";
    const DONE: &'static str = "logged-out";
    type Done = LoggedOut;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Log out devices",
        fields: &[
            Field::new("user", "User", Kind::Text),
            Field::new("devices", "Devices; empty for all", Kind::Words),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<LoggedOut, ActError> {
        let user_id = context.user_id(&self.user)?;
        let which = match self.devices {
            Some(devices) => {
                for device in &devices {
                    context.must_have(&user_id, device)?;
                }
                DeviceSet::These(devices)
            }
            None => DeviceSet::All,
        };
        let before = context.devices(&user_id);
        let remove = RemoveDevices { user_id: user_id.clone(), which };
        context.propose(by, remove).await.map_err(ActError::of_user(&user_id))?;
        let left = context.devices(&user_id);
        let devices = before.into_iter().filter(|device| !left.contains(device)).collect();
        Ok(LoggedOut { user_id, devices })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = context.user_id(&self.user)?;
        let number = match &self.devices {
            None => context.devices(&user_id).len(),
            Some(devices) => {
                for device in devices {
                    context.must_have(&user_id, device)?;
                }
                devices.len()
            }
        };
        Ok(vec![format!("{number} device(s) of {user_id} are logged out")])
    }
}
