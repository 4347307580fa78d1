//! What state resolution decided when an event came, and by which rules.

pub mod explain;
mod explain_v1;
mod reference;

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
};

use ruma::RoomId;
use serde::Serialize;

use self::explain::{Contender, Dispute, explain};
use super::{History, HistoryError, audit::Bodies, moment::Time, step::Step};
use crate::source::SourceError;
use logcabin_log::Log;
use logcabin_read::events::EventStore;
use logcabin_record::{Command, Offset};
use logcabin_state::Room;

/// About how many bytes of parsed events are kept.
const EVENT_CACHE_BYTES: u64 = 16 << 20;

/// What state resolution decided when an event came, about the value or, for an event, about
/// everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resolution {
    /// The keys for which the branches had different events.
    pub disputes: Vec<Dispute>,
    /// Why they are not explained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unexplained: Option<String>,
}

impl Resolution {
    fn unexplained(why: impl ToString) -> Self {
        Self { disputes: Vec::new(), unexplained: Some(why.to_string()) }
    }

    /// In words, a line for each event.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(why) = &self.unexplained {
            lines.push(format!("state resolution decided, which is not explained: {why}"));
        }
        for dispute in &self.disputes {
            let key = match &*dispute.state_key {
                "" => dispute.event_type.clone(),
                state_key => format!("{} of {state_key}", dispute.event_type),
            };
            lines.push(format!("state resolution about {key}, in this order:"));
            for event in &dispute.events {
                let Contender { event_id, record, sender, origin_server_ts, fate } = event;
                let (time, fate) = (Time(*origin_server_ts), fate.words());
                lines.push(format!("  {event_id} by {sender} at {time}, record {record}: {fate}"));
            }
        }
        lines
    }
}

/// Explains what state resolution decided in the newest `most` of the steps that are marked as
/// disputed: of the key, if one is given.
pub(super) fn explain_steps(
    history: &History<'_>,
    steps: &mut [Step],
    key: Option<(&str, &str)>,
    most: usize,
) -> Result<(), HistoryError> {
    let ends = ends(history, steps)?;
    let mut events: Option<(Arc<Room>, EventStore)> = None;
    for (number, step) in steps.iter_mut().rev().filter(|step| step.disputed.is_some()).enumerate()
    {
        let Some(room_id) = &step.disputed else { continue };
        if number >= most {
            let why = "no more is explained at once: ask for the event, or for an earlier moment";
            step.resolution = Some(Resolution::unexplained(why));
            continue;
        }
        let is_same = events.as_ref().is_some_and(|(room, _)| room.id == **room_id);
        if !is_same {
            let Ok(id) = <&RoomId>::try_from(room_id.as_str()) else { continue };
            let Some(room) = history.state().rooms.get(id) else { continue };
            let log = match history.source().own_log() {
                Some(log) => Arc::clone(log),
                None => fetched(history, &room, &ends)?,
            };
            events = Some((room, EventStore::new(log, EVENT_CACHE_BYTES)));
        }
        let Some((room, events)) = &events else { continue };
        let read = |error| HistoryError::from(SourceError::from(error));
        let Some(event) = events.get(step.offset).map_err(read)? else { continue };
        step.resolution = Some(match explain(history.state(), events, room, &event) {
            Ok(mut disputes) => {
                if let Some((event_type, state_key)) = key {
                    let is_it =
                        |of: &Dispute| (&*of.event_type, &*of.state_key) == (event_type, state_key);
                    disputes.retain(is_it);
                }
                Resolution { disputes, unexplained: None }
            }
            Err(why) => Resolution::unexplained(why),
        });
    }
    Ok(())
}

/// Where the branches of these steps may end, and the steps themselves.
fn ends(history: &History<'_>, steps: &[Step]) -> Result<HashSet<Offset>, HistoryError> {
    let disputed = steps.iter().filter(|step| step.disputed.is_some()).map(|step| step.offset);
    let disputed: Vec<_> = disputed.collect();
    let mut ends: HashSet<_> = disputed.iter().copied().collect();
    history.source().fetch(&disputed, |record| {
        if let Ok(Some(Command::RoomEvent(body))) = record.command() {
            let tips = body.received.into_iter().flat_map(|received| received.extremities);
            ends.extend(tips.flat_map(|tip| history.state().events.candidates(&tip.event_id)));
        }
        Ok::<_, HistoryError>(())
    })?;
    Ok(ends)
}

/// The events that state resolution may look at, from a source where each look would cost much:
/// those of the room's state, those where branches end, and those by which other states are known.
fn fetched(
    history: &History<'_>,
    room: &Room,
    ends: &HashSet<Offset>,
) -> Result<Arc<dyn Log>, HistoryError> {
    let bodies = Arc::new(Bodies::default());
    let mut all: BTreeSet<Offset> = room.asides().into_iter().collect();
    all.extend(room.events_forward(Offset::ZERO, history.end(), usize::MAX));
    let all: Vec<_> = all.into_iter().collect();
    for chunk in all.chunks(1024) {
        history.source().fetch(chunk, |record| {
            let is_needed = match record.command() {
                Ok(Some(Command::RoomEvent(body))) => {
                    let has_state = body.received.is_some_and(|of| of.before.is_some());
                    has_state
                        || ends.contains(&record.offset())
                        || body.pdu.get().contains("\"state_key\"")
                }
                Ok(Some(Command::RoomPdu(_))) => true,
                _ => false,
            };
            if is_needed {
                bodies.add(record);
            }
            Ok::<_, HistoryError>(())
        })?;
    }
    Ok(bodies)
}
