//! Let a user replace their cross-signing keys once without confirming who they are.

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::{clock::millis, limits};
use logcabin_decide::oauth;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PermitReset {
    pub user: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResetPermitted {
    pub user_id: OwnedUserId,
    /// Until when, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

impl Act for PermitReset {
    const NAME: &'static str = "permit-reset";
    const DONE: &'static str = "reset-permitted";
    type Done = ResetPermitted;

    async fn perform(
        self,
        context: &ActContext,
        by: Attribution,
    ) -> Result<ResetPermitted, ActError> {
        let user_id = self.user_with_keys(context)?;
        let now_ms = context.engine.clock().now_ms();
        let until_ms = now_ms.saturating_add(millis(limits::OAUTH_RESET));
        let permit = oauth::PermitReset { user_id: user_id.clone(), until_ms };
        context.propose(by, permit).await.map_err(ActError::of_user(&user_id))?;
        Ok(ResetPermitted { user_id, until_ms })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let user_id = self.user_with_keys(context)?;
        let minutes = limits::OAUTH_RESET.as_secs() / 60;
        Ok(vec![format!(
            "for {minutes} minutes, any client of {user_id} can replace the cross-signing keys once"
        )])
    }
}

impl PermitReset {
    fn user_with_keys(&self, context: &ActContext) -> Result<OwnedUserId, ActError> {
        let user_id = context.active(&self.user)?;
        let keys = context.engine.state().keys.get(&user_id);
        if keys.is_some_and(|keys| keys.read().master_key.is_some()) {
            Ok(user_id)
        } else {
            Err(ActError::NoCrossSigning(user_id))
        }
    }
}
