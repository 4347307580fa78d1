//! Why a user's count of unread notifications in a room is what it is: the read position, and each
//! event that counts, with the push rule that notifies.

use std::{collections::BTreeSet, sync::Arc};

use ruma::{UserId, events::StateEventType};
use serde_json::json;

use super::{History, HistoryError, SourceError, audit::Bodies, moment::Time, step::Step, words};
use crate::{
    base::limits,
    log::{Log, ReadError},
    read::{
        events::EventStore,
        notifications::{Judge, Unread},
    },
    record::Offset,
    state::Room,
};

/// About how many bytes of parsed events are kept.
const EVENT_CACHE_BYTES: u64 = 16 << 20;

/// Each event that counts, the oldest first, with the count before and after it.
///
/// # Errors
/// When the source cannot be read.
pub(super) fn unread(
    history: &History<'_>,
    room: &Room,
    user_id: &UserId,
) -> Result<Vec<Step>, HistoryError> {
    let at = history.end();
    let bodies = Arc::new(Bodies::default());
    for chunk in needed(history, room, user_id).chunks(1024) {
        history.source().fetch(chunk, |record| {
            bodies.add(record);
            Ok::<_, HistoryError>(())
        })?;
    }
    let read = |error: ReadError| HistoryError::from(SourceError::from(error));
    let events = EventStore::new(Arc::clone(&bodies) as Arc<dyn Log>, EVENT_CACHE_BYTES);
    let judge = Judge { state: history.state(), events: &events, user_id, room };
    let counted = Unread::default().events(judge, Offset::ZERO, at).map_err(read)?;
    let mut steps = Vec::new();
    for (unread, before) in counted.into_iter().zip(0_u64..) {
        let Some(record) = bodies.get(unread.offset).map_err(read)? else { continue };
        let Some(event) = events.get(unread.offset).map_err(read)? else { continue };
        let outcome = judge.outcome(&event).map_err(read)?;
        let rule = outcome.map(|outcome| outcome.rule_id.clone()).unwrap_or_default();
        let thread = judge.thread(&event).map_err(read)?;
        let how = if unread.highlight { "counts and is highlighted" } else { "counts" };
        let place = match thread {
            crate::state::reads::Thread::Main => String::new(),
            crate::state::reads::Thread::Root(root) => format!(" in the thread of record {root}"),
        };
        let said = words::of_record(&record);
        let origin = &record.header.origin;
        steps.push(Step {
            offset: unread.offset,
            time: Time(record.header.time_ms).to_string(),
            kind: record.header.kind.to_string(),
            who: said.who,
            text: format!("{how}{place} by the rule `{rule}`: {}", said.text),
            user: origin.user.to_string(),
            device: origin.device.to_string(),
            request: origin.request.to_string(),
            before: Some(json!(before)),
            after: Some(json!(before + 1)),
        });
    }
    Ok(steps)
}

/// The records that are looked at.
fn needed(history: &History<'_>, room: &Room, user_id: &UserId) -> Vec<Offset> {
    let at = history.end();
    let mut needed = BTreeSet::new();
    let newest = room.before_last(limits::UNREAD_EVENTS, at);
    needed.extend(room.events_forward(newest, at, usize::MAX));
    for event_type in [StateEventType::RoomCreate, StateEventType::RoomPowerLevels] {
        needed.extend(room.state_events_of(&event_type, "", at));
    }
    needed.extend(room.state_events_of(&StateEventType::RoomMember, user_id.as_str(), at));
    if let Some(account) = history.state().accounts.get(user_id) {
        for name in ["m.push_rules", "m.ignored_user_list"] {
            let data = account.read();
            let changes = data.account_data.get(&(None, name.to_owned()));
            needed.extend(changes.into_iter().flat_map(|set| set.changes().map(|(at, ())| at)));
        }
    }
    needed.into_iter().collect()
}
