//! Events of other homeservers that are known without a place in the timeline, many at a time:
//! auth events of others, the state of a room on entry, history that fills gaps.

use std::sync::Arc;

use ruma::{OwnedEventId, OwnedRoomId, OwnedServerName};
use serde_json::value::RawValue;

use super::{
    receive::{IncomingPdu, TAKEN, Verdict, body},
    resolve::NoState,
};
use crate::{Commit, Proposal, Refusal, not_in_it};
use logcabin_read::{
    branches::{Branches, PENDING},
    events::StoredEvent,
};
use logcabin_record::{
    Stream,
    command::{Outcome, RoomPdu},
    event_format::differ,
};

/// Record events of another homeserver as outliers.
#[derive(Clone, Debug)]
pub struct RecordOutliers {
    pub room_id: OwnedRoomId,
    /// The homeserver that sent them.
    pub from: OwnedServerName,
    /// The events with their ids, with valid signatures, and redacted if their content does not
    /// match their hash. Each follows those of them that authorise it.
    pub events: Vec<(OwnedEventId, Box<RawValue>)>,
    /// Whether events that are not allowed are recorded, too. Other events may depend on them, and
    /// are then not allowed.
    pub keeps_rejected: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutlierOutcome {
    /// It is now known.
    Recorded,
    /// Its auth events do not allow it.
    Rejected(String),
    /// It cannot be judged without its auth events. It is not recorded.
    NeedsAuthEvents,
}

impl Proposal for RecordOutliers {
    type Outcome = Vec<OutlierOutcome>;

    fn is_from_elsewhere(&self) -> bool {
        true
    }

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn is_long(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Vec<OutlierOutcome>, Refusal> {
        let env = commit.env;
        let room = env.state.rooms.get(&self.room_id).ok_or_else(not_in_it)?;
        let branches = Branches::new(&env.state, &env.events, &room);
        let mut judged = Vec::with_capacity(self.events.len());
        for (event_id, pdu) in &self.events {
            let of = (&*self.room_id, &room.rules);
            if env.events.is_taken(&env.state, of, event_id, pdu)? {
                judged.push(OutlierOutcome::Rejected(TAKEN.to_owned()));
                continue;
            }
            if let Some(known) = branches.find(event_id)? {
                if differ(&known.pdu, pdu, &room.rules) {
                    // Both are in this list.
                    judged.push(OutlierOutcome::Rejected(TAKEN.to_owned()));
                    continue;
                }
                judged.push(match known.aside.as_deref() {
                    Some((Outcome::Rejected { reason }, _)) => {
                        OutlierOutcome::Rejected(reason.clone())
                    }
                    _ => OutlierOutcome::Recorded,
                });
                continue;
            }
            let body = body(&self.room_id, event_id, pdu.clone(), None, None);
            let Ok(event) = StoredEvent::new(PENDING, body) else {
                judged.push(OutlierOutcome::Rejected("it is not an event".to_owned()));
                continue;
            };
            let mut event = Arc::new(event);
            let receipt = IncomingPdu::new(&room, &branches, &event);
            let verdict = receipt.judge(true).map_err(NoState::refusal)?;
            let outcome = match verdict {
                Verdict::NeedsAuthEvents(_) => {
                    judged.push(OutlierOutcome::NeedsAuthEvents);
                    continue;
                }
                Verdict::Aside { outcome, .. } => outcome,
                Verdict::Accepted { .. } => Outcome::Outlier,
            };
            let rejected = match &outcome {
                Outcome::Rejected { reason } | Outcome::SoftFailed { reason } => Some(reason),
                Outcome::Outlier => None,
            };
            judged
                .push(rejected.cloned().map_or(OutlierOutcome::Recorded, OutlierOutcome::Rejected));
            let is_rejected = rejected.is_some();
            if is_rejected {
                let aside = Some(Box::new((outcome.clone(), None)));
                event = Arc::new(StoredEvent { aside, ..StoredEvent::clone(&event) });
            }
            // Later ones are judged by it.
            branches.note(&event);
            if is_rejected && !self.keeps_rejected {
                continue;
            }
            let record = RoomPdu {
                room_id: self.room_id.clone(),
                event_id: event_id.clone(),
                sender: event.sender.clone(),
                from: self.from.clone(),
                room_version: None,
                outcome,
                before: None,
                pdu: pdu.clone(),
            };
            commit.append(self.stream(), record);
        }
        Ok(judged)
    }
}
