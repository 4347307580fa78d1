//! Approve rules of a policy list that wait because they hit many users or rooms of this server.

use ruma::{OwnedEventId, OwnedRoomId};
use serde::{Deserialize, Serialize};

use super::{
    list::waiting_rule,
    subscribe::{subscribed, update},
};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::policy_list::ApproveRules;
use logcabin_record::Offset;
use logcabin_state::HeldRule;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ApprovePolicyRules {
    /// The room with the rules.
    pub room: String,
    /// The events of the rules. They are named, so that nothing is approved that nobody has seen.
    pub rules: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RulesApproved {
    pub room_id: OwnedRoomId,
    pub rules: Vec<OwnedEventId>,
}

impl ApprovePolicyRules {
    fn find(
        &self,
        context: &ActContext,
    ) -> Result<(OwnedRoomId, Vec<(Offset, HeldRule)>), ActError> {
        let room_id = subscribed(context, &self.room)?;
        if self.rules.is_empty() {
            return Err(ActError::invalid("No rule is named."));
        }
        let list = context.engine.state().policy_lists.get(&room_id);
        let held = list.map(|list| list.held).unwrap_or_default();
        let find = |rule: &String| {
            let found = held.iter().find(|(_, held)| held.event_id.as_str() == rule);
            let found = found.map(|(record, held)| (*record, held.clone()));
            found.ok_or_else(|| ActError::Invalid(format!("No rule `{rule}` waits in {room_id}.")))
        };
        let rules = self.rules.iter().map(find).collect::<Result<_, _>>()?;
        Ok((room_id, rules))
    }
}

impl Act for ApprovePolicyRules {
    const NAME: &'static str = "approve-policy-rules";
    const DONE: &'static str = "policy-rules-approved";
    type Done = RulesApproved;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Approve rules of a policy list",
        fields: &[
            Field::new("room", "Room with the rules", Kind::Text),
            Field::new("rules", "Events of the rules", Kind::Words),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let (room_id, waiting) = self.find(context)?;
        let rules: Vec<_> = waiting.into_iter().map(|(_, held)| held.event_id).collect();
        let approve = ApproveRules { room_id: room_id.clone(), rules: rules.clone() };
        context.propose(by, approve).await?;
        update(context).await?;
        Ok(RulesApproved { room_id, rules })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (_, waiting) = self.find(context)?;
        let mut effect = Vec::new();
        for (record, held) in &waiting {
            let rule = waiting_rule(context, *record, held)?;
            let (entity, hits) = (rule.entity.unwrap_or_default(), rule.hits);
            effect.push(format!(
                "the rule about `{entity}` is applied, which hits {hits} user(s) and room(s) here"
            ));
        }
        Ok(effect)
    }
}
