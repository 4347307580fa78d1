//! Which rules match a user, a room, an alias or a homeserver.

use ruma::{OwnedEventId, OwnedRoomId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::background::at_length;
use logcabin_log::ReadError;
use logcabin_read::policy_lists::{Match, MatchOutcome, RuleText, Subject};
use logcabin_record::{Offset, command::PolicyArea};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TestPolicy {
    /// The id of a user or a room, an alias, or the name of a homeserver.
    pub entity: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tested {
    pub entity: String,
    /// In the order in which they are looked up.
    pub matches: Vec<PolicyMatch>,
}

/// A rule that matches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyMatch {
    pub list: OwnedRoomId,
    /// The record of the rule's event, and the event.
    pub record: Offset,
    pub event_id: Option<OwnedEventId>,
    /// What the rule names; none for a hash.
    pub rule: Option<String>,
    /// What of the entity it matches: a user also has a homeserver.
    pub name: String,
    pub recommendation: String,
    pub reason: Option<String>,
    /// What the list is applied to.
    pub areas: Vec<PolicyArea>,
    /// `applied`, `noted`, `waits` or `excepted`.
    pub outcome: String,
}

impl Act for TestPolicy {
    const NAME: &'static str = "test-policy";
    const DONE: &'static str = "policy-tested";
    type Done = Tested;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Tested, ActError> {
        let matches = test(context, &self.entity)?;
        Ok(Tested { entity: self.entity, matches })
    }
}

/// The rules that match an entity, in the order in which they are looked up.
pub fn test(context: &ActContext, entity: &str) -> Result<Vec<PolicyMatch>, ActError> {
    let subject = Subject::try_from(entity).map_err(|_| {
        let why = "is neither the id of a user or a room, nor an alias or a server's name.";
        ActError::Invalid(format!("`{entity}` {why}"))
    })?;
    let (state, events) = (context.engine.state(), context.engine.events());
    let found = at_length(|| {
        events.policy_lists().refresh(&state, events)?;
        Ok::<_, ReadError>(events.policy_lists().all_matches(&state, subject))
    })?;
    let shown = |found: Match| {
        let event = events.get(found.rule)?;
        let text = event.as_ref().map(RuleText::of).unwrap_or_default();
        let list = state.policy_lists.get(&found.list);
        Ok(PolicyMatch {
            list: found.list,
            record: found.rule,
            event_id: event.map(|event| event.event_id.clone()),
            rule: text.entity,
            name: found.name,
            recommendation: text.recommendation,
            reason: text.reason,
            areas: list.into_iter().flat_map(|list| list.areas).collect(),
            outcome: match found.outcome {
                MatchOutcome::Applied => "applied",
                MatchOutcome::Noted => "noted",
                MatchOutcome::Waits => "waits",
                MatchOutcome::Excepted => "excepted",
            }
            .to_owned(),
        })
    };
    found.into_iter().map(shown).collect()
}
