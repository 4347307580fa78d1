//! Reports of users to administrators.

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId};

use super::{Commit, Proposal, Refusal};
use logcabin_base::limits;
use logcabin_record::{
    Offset, Stream,
    command::{ReportCreate, ReportRemove},
};

/// Report something. The caller checks whether the reporter may see an event.
#[derive(Clone, Debug)]
pub struct Report {
    pub reporter: OwnedUserId,
    pub subject: Subject,
    pub reason: Option<String>,
    /// The severity: from -100, the worst, to 0.
    pub score: Option<i8>,
}

/// The subject of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An event; the reporter must be in its room.
    Event(OwnedRoomId, OwnedEventId),
    /// A room; anyone may report it.
    Room(OwnedRoomId),
    /// A user; anyone may report them.
    User(OwnedUserId),
}

impl Proposal for Report {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.reporter)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if self.reason.as_ref().is_some_and(|r| r.len() > limits::REPORT_REASON_BYTES) {
            return Err(Refusal::TooLarge("The reason is too long.".to_owned()));
        }
        if self.score.is_some_and(|score| !(-100..=0).contains(&score)) {
            return Err(Refusal::InvalidParam("The score is from -100 to 0.".to_owned()));
        }
        let (state, events) = (&commit.env.state, &commit.env.events);
        commit.env.quotas.report(state, &self.reporter)?;
        let mut body = ReportCreate {
            reporter: self.reporter.clone(),
            room_id: None,
            event_id: None,
            user_id: None,
            reason: self.reason.clone(),
            score: self.score,
        };
        match &self.subject {
            Subject::Event(room_id, event_id) => {
                let room = state.rooms.get(room_id);
                let event = events.find_shown(state, event_id)?;
                let here = room.is_some_and(|room| room.is_joined(&self.reporter, Offset::MAX))
                    && event.is_some_and(|event| event.room_id == *room_id);
                if !here {
                    let why = "There is no such event, or you are not in its room.";
                    return Err(Refusal::NotFound(why.to_owned()));
                }
                body.room_id = Some(room_id.clone());
                body.event_id = Some(event_id.clone());
            }
            Subject::Room(room_id) => {
                if state.rooms.get(room_id).is_none() {
                    return Err(Refusal::NotFound("There is no such room.".to_owned()));
                }
                body.room_id = Some(room_id.clone());
            }
            Subject::User(user_id) => {
                if !state.accounts.contains(user_id) {
                    return Err(Refusal::NotFound("There is no such user.".to_owned()));
                }
                body.user_id = Some(user_id.clone());
            }
        }
        commit.append(self.stream(), body);
        Ok(())
    }
}

/// Close a report.
#[derive(Clone, Debug)]
pub struct RemoveReport {
    /// The record of the report.
    pub report: Offset,
}

impl Proposal for RemoveReport {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::reports()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if commit.env.state.reports.get(self.report).is_none() {
            return Err(Refusal::NotFound("There is no such report.".to_owned()));
        }
        commit.append(self.stream(), ReportRemove { report: self.report });
        Ok(())
    }
}
