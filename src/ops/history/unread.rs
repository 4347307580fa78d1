//! Why a user's count of unread notifications in a room is what it is: the read position, and each
//! event that counts, with the push rule that notifies.

use std::{collections::BTreeSet, sync::Arc};

use ruma::{UserId, events::StateEventType};
use serde_json::{Value, json};

use super::{
    History, HistoryError, SourceError, audit::Bodies, describe, moment::Time, step::Step,
};
use logcabin_base::limits;
use logcabin_log::{Log, ReadError};
use logcabin_read::{
    events::EventStore,
    notifications::{Judge, Unread},
};
use logcabin_record::{Offset, Record};
use logcabin_state::{Room, reads::Thread};

/// About how many bytes of parsed events are kept.
const EVENT_CACHE_BYTES: u64 = 16 << 20;

/// The user's last message, which marks what came before it in its conversation as read, and then
/// each event that counts, the oldest first, with the count before and after it: of these the last
/// `most`. At most [`limits::UNREAD_EVENTS`] events are looked at.
pub(super) fn unread(
    history: &History<'_>,
    room: &Room,
    user_id: &UserId,
    most: usize,
) -> Result<Vec<Step>, HistoryError> {
    let at = history.end();
    let log = match history.source().own_log() {
        Some(log) => Arc::clone(log),
        None => fetched(history, room, user_id)?,
    };
    let read = |error: ReadError| HistoryError::from(SourceError::from(error));
    let events = EventStore::new(Arc::clone(&log), EVENT_CACHE_BYTES);
    let judge = Judge { state: history.state(), events: &events, user_id, room };
    let mut steps = Vec::new();
    if let Some(record) = last_message(&*log, judge, at).map_err(read)? {
        let said = describe::of_record(&record).text;
        let text = format!("reads up to here in this conversation by writing: {said}");
        steps.push(step(&record, text, None));
    }
    let counted = Unread::default().events(judge, Offset::ZERO, at).map_err(read)?;
    let passed = counted.len().saturating_sub(most);
    for (unread, before) in counted.into_iter().zip(0_u64..).skip(passed) {
        let Some(record) = log.get(unread.offset).map_err(read)? else { continue };
        let Some(event) = events.get(unread.offset).map_err(read)? else { continue };
        let outcome = judge.outcome(&event).map_err(read)?;
        let rule = outcome.map(|outcome| outcome.rule_id.clone()).unwrap_or_default();
        let thread = judge.thread(&event).map_err(read)?;
        let how = if unread.highlight { "counts and is highlighted" } else { "counts" };
        let place = match thread {
            Thread::Main => String::new(),
            Thread::Root(root) => format!(" in the thread of record {root}"),
        };
        let said = describe::of_record(&record).text;
        let text = format!("{how}{place} by the rule `{rule}`: {said}");
        steps.push(step(&record, text, Some(before)));
    }
    Ok(steps)
}

/// A step that counts one more than `before`, if anything.
fn step(record: &Record, text: String, before: Option<u64>) -> Step {
    let origin = &record.header.origin;
    let count = |count: u64| -> Value { json!(count) };
    Step {
        offset: record.offset(),
        time: Time(record.happened_ms()).to_string(),
        kind: record.header.kind.to_string(),
        who: describe::of_record(record).who,
        text,
        user: origin.user.to_string(),
        device: origin.device.to_string(),
        request: origin.request.to_string(),
        before: before.map(count),
        after: before.map(|before| count(before + 1)),
        resolution: None,
        disputed: None,
    }
}

/// The user's last message in the room, if it is among the events that may count.
fn last_message(log: &dyn Log, judge: Judge<'_>, at: Offset) -> Result<Option<Record>, ReadError> {
    let Some(joined) = judge.room.joined_since(judge.user_id, at) else { return Ok(None) };
    let after = judge.room.before_last(limits::UNREAD_EVENTS, at).max(joined);
    for offset in judge.room.events_backward(at, after, limits::UNREAD_EVENTS) {
        let Some(event) = judge.events.get(offset)? else { continue };
        if event.sender == judge.user_id && event.state_key.is_none() {
            return log.get(offset);
        }
    }
    Ok(None)
}

/// The records that are looked at, from a source where each look would cost much.
fn fetched(
    history: &History<'_>,
    room: &Room,
    user_id: &UserId,
) -> Result<Arc<dyn Log>, HistoryError> {
    let bodies = Arc::new(Bodies::default());
    for chunk in needed(history, room, user_id).chunks(1024) {
        history.source().fetch(chunk, |record| {
            bodies.add(record);
            Ok::<_, HistoryError>(())
        })?;
    }
    Ok(bodies)
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
