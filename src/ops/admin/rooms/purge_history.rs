//! Purge the history of a room up to an event or a time: messages go, state stays.

use std::sync::Arc;

use ruma::{EventId, OwnedRoomId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::{background::at_length, clock::random_letters};
use logcabin_decide::history_purge::BeginHistoryPurge;
use logcabin_record::{Offset, command::RoomPurgeHistory};
use logcabin_service::{
    erasure::{self, history},
    orders::OrderError,
};
use logcabin_state::{HistoryPurge, Room};

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// Exactly one of `event`, `before_ms` and `days` is given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PurgeHistory {
    pub room: String,
    /// What was sent before this event goes.
    #[serde(default)]
    pub event: Option<String>,
    /// What was sent until this time goes, in milliseconds since the Unix epoch.
    #[serde(default)]
    pub before_ms: Option<u64>,
    /// What is older than this many days goes.
    #[serde(default)]
    pub days: Option<u64>,
    /// Whether what users of this homeserver sent stays.
    pub keep_local: bool,
    /// Whether to answer only at the end.
    pub wait: bool,
}

/// How far such a purge has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryPurgeStatus {
    pub id: String,
    pub room_id: OwnedRoomId,
    pub complete: bool,
    /// The number of events that were removed.
    pub removed: u64,
}

impl Act for PurgeHistory {
    const NAME: &'static str = "purge-history";
    const DONE: &'static str = "history-purged";
    type Done = HistoryPurgeStatus;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Purge a room's history",
        fields: &[
            Field::new("room", "Room", Kind::Text),
            Field::new("days", "What is older than this many days", Kind::NumberIfAny),
            Field::new("event", "Or what was sent before this event", Kind::TextIfAny),
            Field::new("keep_local", "Keep what users of this server sent", Kind::Flag),
            Field::new("wait", "Wait", Kind::Fixed("false")),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let (room, before) = at_length(|| self.plan(context))?;
        let (id, room_id) = (random_letters(16), room.id.clone());
        drop(room);
        let keep_local = self.keep_local;
        let order = RoomPurgeHistory { id: id.clone(), room_id, before, keep_local };
        context.propose(by, BeginHistoryPurge(order)).await.map_err(ActError::of_room)?;
        let gone = || ActError::invalid("This purge is not known any more.");
        let purge = context.engine.state().history_purges.get(&id).ok_or_else(gone)?;
        let engine = Arc::clone(&context.engine);
        let work = tokio::spawn(async move {
            let done = history::go_on(&engine, purge).await;
            if let Err(error) = &done {
                tracing::warn!(%error, "the purge of a room's history resumes at the next start");
            }
            done
        });
        if self.wait {
            work.await.map_err(ActError::invalid)?.map_err(|error| match error {
                OrderError::Propose(error) => ActError::Propose(error),
                OrderError::Read(error) => ActError::Read(error),
            })?;
        }
        history_purge_status(context, &id).ok_or_else(gone)
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (room, before) = at_length(|| self.plan(context))?;
        let count = room.count_messages(before);
        if count == 0 {
            return Ok(Vec::new());
        }
        let (at_most, but) = match self.keep_local {
            true => ("at most ", ", but for those of this server's users"),
            false => ("", ""),
        };
        Ok(vec![
            format!("{at_most}{count} message(s) are removed from {}{but}", room.id),
            "the state of the room stays, and other homeservers keep what they have".to_owned(),
        ])
    }
}

impl PurgeHistory {
    /// The room, and the first record that stays.
    fn plan(&self, context: &ActContext) -> Result<(Arc<Room>, Offset), ActError> {
        let room = context.room(&self.room)?;
        let engine = &context.engine;
        let until_ms = match (&self.event, self.before_ms, self.days) {
            (Some(event), None, None) => {
                let no_event = || ActError::Invalid(format!("There is no event `{event}` here."));
                let event_id = <&EventId>::try_from(&**event).map_err(|_| no_event())?;
                let found = engine.events().find_shown(&engine.state(), event_id)?;
                let found = found.filter(|found| found.room_id == room.id).ok_or_else(no_event)?;
                return Ok((room, found.offset));
            }
            (None, Some(before_ms), None) => before_ms,
            (None, None, Some(days)) => {
                engine.clock().now_ms().saturating_sub(days.saturating_mul(DAY_MS))
            }
            _ => return Err(ActError::invalid("Give an event, a time, or a number of days.")),
        };
        if until_ms > engine.clock().now_ms() {
            return Err(ActError::invalid("The time is in the future."));
        }
        Ok((room, erasure::last_until(engine, until_ms)?.next()))
    }
}

/// How far the purge of this id has come, if it is known.
pub fn history_purge_status(context: &ActContext, id: &str) -> Option<HistoryPurgeStatus> {
    context.engine.state().history_purges.get(id).map(status)
}

fn status(purge: HistoryPurge) -> HistoryPurgeStatus {
    let HistoryPurge { id, room_id, removed, ended, .. } = purge;
    HistoryPurgeStatus { id, room_id, complete: ended.is_some(), removed }
}
