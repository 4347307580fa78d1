//! Delayed events (MSC4140): scheduled now and sent later, unless restarted or cancelled.
//!
//! The schedule is decided on the stream of the user's delayed events. Sending is decided on the
//! room's stream and depends on the other one. The event and the end of its delay are one batch, so
//! it is sent exactly once or not at all.

use ruma::{OwnedRoomId, OwnedUserId};
use serde_json::value::RawValue;

use super::{Commit, Proposal, Refusal, not_in_it, send::SendEvent};
use logcabin_record::{
    Command, Stream,
    command::{DelayedFinish, DelayedOutcome, DelayedRestart, DelayedSchedule, Transaction},
};
use logcabin_state::{AccountStatus, DelayedEvent};

/// The error code of an event that is given up because another user has set the state that it was
/// to set.
pub const CANCELLED_BY_STATE_UPDATE: &str = "M_CANCELLED_BY_STATE_UPDATE";

/// Schedule an event.
#[derive(Clone, Debug)]
pub struct Schedule {
    pub delay_id: String,
    /// The sender.
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
    pub event_type: String,
    /// The event's state key, for a state event.
    pub state_key: Option<String>,
    /// The event's content: a JSON object.
    pub content: Box<RawValue>,
    /// The delay, in milliseconds.
    pub delay_ms: u64,
    /// When the delay began, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// The client's transaction, if the endpoint has one.
    pub transaction: Option<Transaction>,
    /// How many scheduled events the user may have.
    pub most: usize,
}

impl Proposal for Schedule {
    /// The id. If the transaction has scheduled an event before, the id of that one.
    type Outcome = String;

    fn stream(&self) -> Stream {
        Stream::delayed(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<String, Refusal> {
        if let Some(delay_id) = self.scheduled_before(commit)? {
            return Ok(delay_id);
        }
        commit.rests_on(Stream::user(&self.user_id));
        let state = &commit.env.state;
        if state.accounts.is_deactivated(&self.user_id) {
            return Err(Refusal::UserDeactivated);
        }
        if state.rooms.get(&self.room_id).is_none() {
            return Err(not_in_it());
        }
        let (scheduled, next_due_ms) = state.delayed.scheduled(&self.user_id);
        if scheduled >= self.most {
            let wait_ms = next_due_ms.unwrap_or(self.since_ms).saturating_sub(self.since_ms);
            return Err(Refusal::TooManyDelayed { wait_ms });
        }
        commit.append(
            self.stream(),
            DelayedSchedule {
                delay_id: self.delay_id.clone(),
                user_id: self.user_id.clone(),
                room_id: self.room_id.clone(),
                event_type: self.event_type.clone(),
                state_key: self.state_key.clone(),
                content: self.content.clone(),
                delay_ms: self.delay_ms,
                since_ms: self.since_ms,
                transaction: self.transaction.clone(),
            },
        );
        Ok(self.delay_id.clone())
    }
}

impl Schedule {
    fn scheduled_before(&self, commit: &Commit<'_>) -> Result<Option<String>, Refusal> {
        let Some(transaction) = &self.transaction else { return Ok(None) };
        commit.done_by(transaction, |command| match command {
            Command::DelayedSchedule(body) if body.transaction.as_ref() == Some(transaction) => {
                Some(body.delay_id)
            }
            _ => None,
        })
    }
}

/// How a delayed event had ended before it was to be changed; `None` if it had not ended, and was
/// changed.
pub type PreviousOutcome = Option<DelayedOutcome>;

/// The delayed event as it stands, or what has become of it.
fn find(
    commit: &Commit<'_>,
    delay_id: &str,
) -> Result<Result<DelayedEvent, DelayedOutcome>, Refusal> {
    let event = commit.env.state.delayed.get(delay_id);
    let event =
        event.ok_or_else(|| Refusal::NotFound("There is no such delayed event.".to_owned()))?;
    Ok(match &event.finished {
        Some(finished) => Err(finished.outcome.clone()),
        None => Ok(DelayedEvent::clone(&event)),
    })
}

/// Restart the delay of a delayed event.
#[derive(Clone, Debug)]
pub struct Restart {
    pub delay_id: String,
    pub user_id: OwnedUserId,
    /// When the delay begins again, in milliseconds since the Unix epoch.
    pub since_ms: u64,
}

impl Proposal for Restart {
    type Outcome = PreviousOutcome;

    fn stream(&self) -> Stream {
        Stream::delayed(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<PreviousOutcome, Refusal> {
        if let Err(outcome) = find(commit, &self.delay_id)? {
            return Ok(Some(outcome));
        }
        let (delay_id, since_ms) = (self.delay_id.clone(), self.since_ms);
        commit.append(self.stream(), DelayedRestart { delay_id, since_ms });
        Ok(None)
    }
}

/// Give up a delayed event.
#[derive(Clone, Debug)]
pub struct GiveUp {
    pub delay_id: String,
    pub user_id: OwnedUserId,
    /// The reason: [`DelayedOutcome::Cancel`], or the error that prevents sending. An error counts
    /// only while the event is due.
    pub outcome: DelayedOutcome,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Proposal for GiveUp {
    type Outcome = PreviousOutcome;

    fn stream(&self) -> Stream {
        Stream::delayed(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<PreviousOutcome, Refusal> {
        let event = match find(commit, &self.delay_id)? {
            Ok(event) => event,
            Err(outcome) => return Ok(Some(outcome)),
        };
        let by_action = self.outcome == DelayedOutcome::Cancel;
        if by_action || event.due_ms() <= self.ts {
            commit.finish_delayed(&event, self.outcome.clone(), by_action, self.ts);
        }
        Ok(None)
    }
}

/// Send a delayed event.
#[derive(Clone, Debug)]
pub struct SendDelayed {
    pub delay_id: String,
    pub user_id: OwnedUserId,
    pub event: SendEvent,
    /// Whether a client asked for it to be sent now; otherwise it is sent only if it is due.
    pub by_action: bool,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Proposal for SendDelayed {
    type Outcome = PreviousOutcome;

    fn stream(&self) -> Stream {
        self.event.stream()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<PreviousOutcome, Refusal> {
        // Before the delay is read: if it changes meanwhile, this is decided again.
        commit.rests_on(Stream::delayed(&self.user_id));
        let delayed = match find(commit, &self.delay_id)? {
            Ok(delayed) => delayed,
            Err(outcome) => return Ok(Some(outcome)),
        };
        if !self.by_action && delayed.due_ms() > self.ts {
            return Ok(None);
        }
        // The schedule was made while they still might; what it sends would be sent now.
        match commit.env.state.accounts.standing(&self.user_id).unwrap_or_default() {
            AccountStatus { deactivated: Some(_), .. } => return Err(Refusal::UserDeactivated),
            AccountStatus { locked: true, .. } => return Err(Refusal::UserLocked),
            AccountStatus { suspended: true, .. } => return Err(Refusal::UserSuspended),
            AccountStatus { waiting: Some(_), .. } => return Err(Refusal::AwaitsApproval),
            AccountStatus { shadow_banned: true, .. } => {
                return Err(Refusal::Forbidden("This cannot be sent.".to_owned()));
            }
            _ => {}
        }
        commit.delay_id = Some(self.delay_id.clone());
        let sent = self.event.decide(commit);
        commit.delay_id = None;
        let outcome = DelayedOutcome::Send { event_id: sent? };
        commit.finish_delayed(&delayed, outcome, self.by_action, self.ts);
        Ok(None)
    }
}

impl Commit<'_> {
    /// Adds the end of a delay.
    fn finish_delayed(
        &mut self,
        event: &DelayedEvent,
        outcome: DelayedOutcome,
        by_action: bool,
        ts: u64,
    ) {
        let delay_id = event.delay_id.clone();
        let finish = DelayedFinish { delay_id, outcome, by_action, ts };
        self.append(Stream::delayed(&event.user_id), finish);
    }

    /// Cancels everything that a user has scheduled.
    pub(super) fn cancel_delayed_of(&mut self, user_id: &ruma::UserId, ts: u64) {
        self.rests_on(Stream::delayed(user_id));
        for event in self.env.state.delayed.of(user_id) {
            if event.finished.is_none() {
                self.finish_delayed(&event, DelayedOutcome::Cancel, true, ts);
            }
        }
    }

    /// Gives up delayed events that would set a state which another user has just set. Their
    /// senders could not know of that.
    pub(super) fn give_up_delayed(
        &mut self,
        events: impl IntoIterator<Item = std::sync::Arc<DelayedEvent>>,
        sender: &ruma::UserId,
        ts: u64,
    ) {
        for event in events {
            if event.user_id == sender {
                continue;
            }
            self.rests_on(Stream::delayed(&event.user_id));
            if self.has_finished(&event.delay_id) {
                continue;
            }
            let outcome = DelayedOutcome::Error {
                errcode: CANCELLED_BY_STATE_UPDATE.to_owned(),
                error: "Another user has updated the same state meanwhile.".to_owned(),
            };
            self.finish_delayed(&event, outcome, false, ts);
        }
    }

    /// Whether a delayed event is no longer scheduled, perhaps because of this commit itself.
    fn has_finished(&self, delay_id: &str) -> bool {
        let event = self.env.state.delayed.get(delay_id);
        event.is_none_or(|event| event.finished.is_some())
            || self.batch.records.iter().any(|record| {
                let command = Command::decode(record.kind, record.version, &record.payload);
                matches!(command, Ok(Command::DelayedFinish(body)) if body.delay_id == delay_id)
            })
    }
}
