//! Which policy lists this server applies, and the approval of rules that wait for it.

use ruma::{OwnedEventId, OwnedRoomId};

use super::{Commit, Proposal, Refusal};
use logcabin_base::{glob::Glob, limits};
use logcabin_read::policy_lists::Judged;
use logcabin_record::{
    Stream,
    command::{PolicyApprove, PolicySubscribe, PolicyUnsubscribe},
};
use logcabin_state::Subscription;

/// Apply the rules of a policy list, or apply them in another way.
#[derive(Clone, Debug)]
pub struct Subscribe(pub PolicySubscribe);

impl Proposal for Subscribe {
    /// Whether that changed anything.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::room(&self.0.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let invalid = |why: &str| Err(Refusal::InvalidParam(why.to_owned()));
        let PolicySubscribe { room_id, areas, order, except, takedowns, hold_above } = &self.0;
        if areas.is_empty() {
            return invalid("Nothing is named that the rules are to be applied to.");
        }
        if except.len() > limits::POLICY_EXCEPT
            || except.iter().any(|text| text.len() > limits::POLICY_ENTITY_BYTES)
        {
            return invalid("There are too many exceptions, or they are too long.");
        }
        if *hold_above > limits::POLICY_HITS {
            return invalid("A list may hit at most a thousand users and rooms without approval.");
        }
        if except.iter().any(|text| Glob::new(text).is_none()) {
            return invalid("An exception has too many characters between two wildcards.");
        }
        let lists = &commit.env.state.policy_lists;
        let now = lists.get(room_id);
        if now.is_none() && lists.len() >= limits::POLICY_LISTS {
            return invalid("The maximum number of policy lists is applied already.");
        }
        let is_same = |now: &Subscription| {
            now.areas == areas.iter().copied().collect()
                && (now.order, &now.except) == (*order, except)
                && (now.takedowns, now.hold_above) == (*takedowns, *hold_above)
        };
        let changed = !now.as_ref().is_some_and(is_same);
        if changed {
            commit.append(self.stream(), self.0.clone());
        }
        Ok(changed)
    }
}

/// Apply the rules of a policy list no longer.
#[derive(Clone, Debug)]
pub struct Unsubscribe {
    pub room_id: OwnedRoomId,
}

impl Proposal for Unsubscribe {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if commit.env.state.policy_lists.get(&self.room_id).is_none() {
            return Err(no_such_list());
        }
        commit.append(self.stream(), PolicyUnsubscribe { room_id: self.room_id.clone() });
        Ok(())
    }
}

/// Record which new rules of a list wait for approval.
#[derive(Debug)]
pub struct Judge(pub Judged);

impl Proposal for Judge {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.0.body.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Judged { body, of } = &self.0;
        // Otherwise they are judged again.
        if commit.env.state.policy_lists.changed(&body.room_id) == Some(*of) {
            commit.append(self.stream(), body.clone());
        }
        Ok(())
    }
}

/// Approve rules that wait.
#[derive(Clone, Debug)]
pub struct ApproveRules {
    pub room_id: OwnedRoomId,
    /// The events of the rules.
    pub rules: Vec<OwnedEventId>,
}

impl Proposal for ApproveRules {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let list = commit.env.state.policy_lists.get(&self.room_id).ok_or_else(no_such_list)?;
        let new = self.rules.iter().filter(|event_id| !list.approved.contains(*event_id));
        let rules: Vec<_> = new.cloned().collect();
        for some in rules.chunks(limits::POLICY_APPROVED) {
            let (room_id, rules) = (self.room_id.clone(), some.to_vec());
            commit.append(self.stream(), PolicyApprove { room_id, rules });
        }
        Ok(())
    }
}

fn no_such_list() -> Refusal {
    Refusal::NotFound("This server does not apply the rules of this room.".to_owned())
}
