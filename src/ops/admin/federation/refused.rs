//! Events of other homeservers that were rejected or soft-failed, and why.

use ruma::{OwnedEventId, OwnedRoomId, OwnedServerName, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::{background::at_length, limits};
use logcabin_log::ReadError;
use logcabin_record::{
    Command, Offset,
    command::{Outcome, RoomPdu},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListRefusedEvents {
    /// How many of the newest to skip.
    #[serde(default)]
    pub from: usize,
    /// How many to list.
    pub limit: usize,
}

/// Refused events, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedEvents {
    pub events: Vec<RefusedEvent>,
    /// Whether there are older ones.
    pub and_more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedEvent {
    pub record: Offset,
    /// When it arrived, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    pub room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
    pub sender: OwnedUserId,
    /// The homeserver that sent it.
    pub from: OwnedServerName,
    #[serde(flatten)]
    pub(crate) outcome: Outcome,
}

impl RefusedEvent {
    /// Its outcome, and the reason.
    pub fn why(&self) -> (&'static str, &str) {
        match &self.outcome {
            Outcome::Outlier => ("an outlier", ""),
            Outcome::SoftFailed { reason } => ("soft-failed", reason),
            Outcome::Rejected { reason } => ("rejected", reason),
        }
    }
}

impl Act for ListRefusedEvents {
    const NAME: &'static str = "list-refused-events";
    const DONE: &'static str = "refused-events";
    type Done = RefusedEvents;

    async fn perform(
        self,
        context: &ActContext,
        _: Attribution,
    ) -> Result<RefusedEvents, ActError> {
        Ok(at_length(|| list(context, self.from, self.limit))?)
    }
}

/// Up to `limit` of the newest after the first `from`.
pub fn list(context: &ActContext, from: usize, limit: usize) -> Result<RefusedEvents, ReadError> {
    let limit = limit.min(limits::DESTINATION_ROWS);
    let most = from.saturating_add(limit).saturating_add(1).min(limits::REFUSED_EVENTS);
    let mut newest: Vec<Offset> = Vec::new();
    for room in context.engine.state().rooms.all() {
        newest.extend(room.refused(most));
        if newest.len() > 4 * most {
            cut(&mut newest, most);
        }
    }
    cut(&mut newest, most);
    let and_more = newest.len() > from.saturating_add(limit);
    let mut events = Vec::new();
    for offset in newest.into_iter().skip(from).take(limit) {
        let Some(record) = context.engine.log().get(offset)? else { continue };
        let time_ms = record.happened_ms();
        let Ok(Some(Command::RoomPdu(pdu))) = record.command() else { continue };
        let RoomPdu { room_id, event_id, sender, from, outcome, .. } = pdu;
        events.push(RefusedEvent {
            record: offset,
            time_ms,
            room_id,
            event_id,
            sender,
            from,
            outcome,
        });
    }
    Ok(RefusedEvents { events, and_more })
}

/// Keeps the newest.
fn cut(offsets: &mut Vec<Offset>, most: usize) {
    offsets.sort_unstable_by(|one, other| other.cmp(one));
    offsets.truncate(most);
}
