//! Log out a user's devices.

use ruma::{OwnedDeviceId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    form::{Field, Form, Kind},
    office::{ActError, Office},
};
use logcabin_decide::account::{RemoveDevices, Which};

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

    async fn perform(self, office: &Office, by: Attribution) -> Result<LoggedOut, ActError> {
        let user_id = office.user_id(&self.user)?;
        let which = match self.devices {
            Some(devices) => {
                for device in &devices {
                    office.must_have(&user_id, device)?;
                }
                Which::These(devices)
            }
            None => Which::All,
        };
        let before = office.devices(&user_id);
        let remove = RemoveDevices { user_id: user_id.clone(), which };
        office.propose(by, remove).await.map_err(ActError::of_user(&user_id))?;
        let left = office.devices(&user_id);
        let devices = before.into_iter().filter(|device| !left.contains(device)).collect();
        Ok(LoggedOut { user_id, devices })
    }

    async fn effect(&self, office: &Office) -> Result<Vec<String>, ActError> {
        let user_id = office.user_id(&self.user)?;
        let number = match &self.devices {
            None => office.devices(&user_id).len(),
            Some(devices) => {
                for device in devices {
                    office.must_have(&user_id, device)?;
                }
                devices.len()
            }
        };
        Ok(vec![format!("{number} device(s) of {user_id} are logged out")])
    }
}
