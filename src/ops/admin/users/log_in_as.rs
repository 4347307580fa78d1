//! Log in as a user, on a new device.

use ruma::{OwnedDeviceId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_decide::account::Login;
use logcabin_record::command::{Secret, Tokens};
use logcabin_service::accounts::{
    names::new_device_id,
    token::{self, Kind},
};

/// The display name of the device.
const DEVICE_NAME: &str = "Administrator";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LogInAs {
    pub user: String,
    /// When the access token expires, in milliseconds since the Unix epoch; none for never.
    pub expires_ms: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoggedInAs {
    pub(crate) user_id: OwnedUserId,
    pub device_id: OwnedDeviceId,
    /// The server stores only its hash.
    pub access_token: Secret,
}

impl Act for LogInAs {
    const NAME: &'static str = "log-in-as";
    const DONE: &'static str = "logged-in-as";
    type Done = LoggedInAs;

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<LoggedInAs, ActError> {
        let Self { user, expires_ms } = self;
        let user_id = context.active(&user)?;
        if expires_ms.is_some_and(|ms| ms <= context.engine.clock().now_ms()) {
            return Err(ActError::Invalid("This time is in the past.".to_owned()));
        }
        let device_id = new_device_id();
        let access = Kind::Access.random();
        let tokens = Tokens { access: token::hash(&access), expires_ms, refresh: None };
        let login = Login {
            user_id: user_id.clone(),
            device_id: device_id.clone(),
            display_name: Some(DEVICE_NAME.to_owned()),
            tokens,
            verified: None,
        };
        context.propose(by, login).await.map_err(ActError::of_user(&user_id))?;
        Ok(LoggedInAs { user_id, device_id, access_token: access.into() })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        Ok(vec![format!("an administrator is logged in as {}", context.active(&self.user)?)])
    }
}
