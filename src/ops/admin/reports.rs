//! What users have reported, for those who run the server to deal with.

use ruma::{RoomId, events::StateEventType};

use super::{
    acts::{Done, ReportDetails, ReportSummary},
    office::{ActError, Office},
};
use crate::{
    decide::{moderation::Because, report::RemoveReport},
    log::ReadError,
    record::{Command, Offset, Origin},
    state::reports::Report,
};

impl Office {
    /// The report of this number.
    pub(crate) fn report(&self, id: Offset) -> Result<ReportDetails, ActError> {
        let report = self.engine.state().reports.get(id).ok_or(ActError::NoReport(id))?;
        let event_id = report.event_id.clone();
        let summary = self.report_summary(id, report)?;
        let (state, events) = (self.engine.state(), self.engine.events());
        let event = event_id.map(|event_id| events.find(&state, &event_id)).transpose()?.flatten();
        let event_json = event.and_then(|event| serde_json::from_str(event.pdu.get()).ok());
        Ok(ReportDetails { summary, event_json })
    }

    /// The open reports that `wanted` lets through, the newest first.
    pub(crate) fn reports(
        &self,
        wanted: impl Fn(&Report) -> bool,
    ) -> Result<Vec<ReportSummary>, ReadError> {
        let all = self.engine.state().reports.all().into_iter().rev();
        let wanted = all.filter(|(_, report)| wanted(report));
        wanted.map(|(id, report)| self.report_summary(id, report)).collect()
    }

    fn report_summary(&self, id: Offset, report: Report) -> Result<ReportSummary, ReadError> {
        let (state, events) = (self.engine.state(), self.engine.events());
        let (reason, score) = match events.command(id)? {
            Some(Command::ReportCreate(body)) => (body.reason, body.score),
            _ => (None, None),
        };
        let event = report.event_id.as_ref().map(|event_id| events.find(&state, event_id));
        let sender = event.transpose()?.flatten().map(|event| event.sender.clone());
        let text =
            |room_id: &RoomId, kind: StateEventType, field: &str| match state.rooms.get(room_id) {
                Some(room) => events.state_text(&room, &kind, field, Offset::MAX),
                None => Ok(None),
            };
        let room_id = report.room_id.as_deref();
        let name = room_id.map(|room_id| text(room_id, StateEventType::RoomName, "name"));
        let alias =
            room_id.map(|room_id| text(room_id, StateEventType::RoomCanonicalAlias, "alias"));
        Ok(ReportSummary {
            id,
            received_ts: report.time_ms,
            user_id: report.reporter,
            name: name.transpose()?.flatten(),
            canonical_alias: alias.transpose()?.flatten(),
            room_id: report.room_id,
            event_id: report.event_id,
            target_user_id: report.user_id,
            reason,
            score,
            sender,
        })
    }

    pub(super) async fn remove_report(
        &self,
        id: Offset,
        origin: Origin,
        reason: Option<String>,
    ) -> Result<Done, ActError> {
        if self.engine.state().reports.get(id).is_none() {
            return Err(ActError::NoReport(id));
        }
        let of = RemoveReport { report: id };
        let removed = self.engine.propose(origin, Because { of, reason }).await;
        removed.map_err(ActError::Rejected)?.into_inner();
        Ok(Done::ReportRemoved { id })
    }
}
