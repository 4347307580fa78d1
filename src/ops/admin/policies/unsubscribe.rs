//! Apply the rules of a policy list no longer.

use ruma::OwnedRoomId;
use serde::{Deserialize, Serialize};

use super::subscribe::{subscribed, update};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::policy_list::Unsubscribe;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnsubscribePolicyList {
    /// The room with the rules.
    pub room: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unsubscribed {
    pub room_id: OwnedRoomId,
}

impl Act for UnsubscribePolicyList {
    const NAME: &'static str = "unsubscribe-policy-list";
    const DONE: &'static str = "policy-list-unsubscribed";
    type Done = Unsubscribed;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Stop applying a policy list",
        fields: &[Field::new("room", "Room with the rules", Kind::Text)],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let room_id = subscribed(context, &self.room)?;
        context.propose(by, Unsubscribe { room_id: room_id.clone() }).await?;
        update(context).await?;
        Ok(Unsubscribed { room_id })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let room_id = subscribed(context, &self.room)?;
        Ok(vec![format!(
            "the rules in {room_id} are no longer applied, and approvals of them are forgotten"
        )])
    }
}
