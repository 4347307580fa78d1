//! What a record makes of one key of a room's state.

use serde_json::Value;

use super::HistoryError;
use crate::source::Source;
use logcabin_record::{Offset, mask};

/// What a record makes of a key.
#[derive(Debug)]
pub(super) enum KeyHolder {
    /// Nothing: the holder of the key remains the same.
    Same,
    /// The record's event is for the key, but state resolution has another one hold it.
    Lost,
    /// No event holds the key any more.
    Nobody,
    /// This event holds it now.
    By {
        event_id: String,
        sender: String,
        /// Its content; null if it was erased.
        content: Value,
    },
}

/// What a record of the room with this payload makes of a key.
pub(super) fn held(
    source: &Source,
    payload: &Value,
    event_type: &str,
    state_key: &str,
) -> Result<KeyHolder, HistoryError> {
    let received = &payload["received"];
    let pdu = &payload["pdu"];
    let own = pdu["type"] == event_type && pdu["state_key"] == state_key;
    let takes_effect = &received["resolved"]["takes_effect"];
    let by = |payload: &Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (event_id, sender) = (text(&payload["event_id"]), text(&payload["pdu"]["sender"]));
        KeyHolder::By { event_id, sender, content: payload["pdu"]["content"].clone() }
    };
    if own && takes_effect.as_bool().unwrap_or(true) {
        return Ok(by(payload));
    }
    // A join from outside has changes of its own; otherwise, they are those of state resolution.
    let changes = [&payload["changes"], &received["resolved"]["changes"]];
    let changes = changes.into_iter().filter_map(Value::as_array).flatten();
    let mut changes =
        changes.filter(|change| change["type"] == event_type && change["state_key"] == state_key);
    let Some(change) = changes.next() else {
        return Ok(if own { KeyHolder::Lost } else { KeyHolder::Same });
    };
    let Some(offset) = change["event"].as_u64().map(Offset::new) else {
        return Ok(KeyHolder::Nobody);
    };
    // Nothing is known of an erased one.
    let mut found = by(&Value::Null);
    source.fetch(&[offset], |record| {
        if let Some(payload) = mask::payload(&record) {
            found = by(&payload);
        }
        Ok::<_, HistoryError>(())
    })?;
    Ok(found)
}
