//! What lists say about a report.

use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, events::StateEventType};
use serde::{Deserialize, Serialize};

use crate::admin::context::ActContext;
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset};
use logcabin_state::reports::Report;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSummary {
    /// The number of its record.
    pub id: Offset,
    /// When it was made, in milliseconds since the Unix epoch.
    pub received_ts: u64,
    pub user_id: OwnedUserId,
    /// The room that is reported, or the room of the event.
    pub room_id: Option<OwnedRoomId>,
    /// The event that is reported.
    pub event_id: Option<OwnedEventId>,
    /// The user who is reported, if it is one.
    pub target_user_id: Option<OwnedUserId>,
    pub reason: Option<String>,
    /// How bad it is: from -100, the worst, to 0.
    pub score: Option<i8>,
    /// Who sent the event.
    pub sender: Option<OwnedUserId>,
    /// The name of the room.
    pub name: Option<String>,
    /// The main alias of the room.
    pub(crate) canonical_alias: Option<String>,
}

impl ReportSummary {
    /// The reported user, or who sent the reported event.
    pub fn about(&self) -> Option<&OwnedUserId> {
        self.target_user_id.as_ref().or(self.sender.as_ref())
    }
}

pub(super) fn summary(
    context: &ActContext,
    id: Offset,
    report: Report,
) -> Result<ReportSummary, ReadError> {
    let (state, events) = (context.engine.state(), context.engine.events());
    let (reason, score) = match events.command(id)? {
        Some(Command::ReportCreate(body)) => (body.reason, body.score),
        _ => (None, None),
    };
    let event = report.event_id.as_ref().map(|event_id| events.find(&state, event_id));
    let sender = event.transpose()?.flatten().map(|event| event.sender.clone());
    let text = |room_id: &RoomId, kind: StateEventType, field: &str| match state.rooms.get(room_id)
    {
        Some(room) => events.state_text(&room, &kind, field, Offset::MAX),
        None => Ok(None),
    };
    let room_id = report.room_id.as_deref();
    let name = room_id.map(|room_id| text(room_id, StateEventType::RoomName, "name"));
    let alias = room_id.map(|room_id| text(room_id, StateEventType::RoomCanonicalAlias, "alias"));
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
