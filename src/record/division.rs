//! Changes of a room's state that do not fit into the record of one event, in parts that do.

use ruma::room_version_rules::RoomVersionRules;
use serde_json::value::RawValue;

use crate::{command::StateChange, lax_object::LaxObject};

/// How many bytes a change, or a description of one, takes in a record.
pub fn recorded(change: &impl serde::Serialize) -> usize {
    serde_json::to_string(change).map_or(0, |text| text.len() + 1)
}

/// How many bytes changes take in a record.
pub fn bytes(changes: &[StateChange]) -> usize {
    changes.iter().map(recorded).sum()
}

/// An event without its content: nobody reads it where it only describes a state.
pub fn bare(pdu: &RawValue, rules: &RoomVersionRules) -> Box<RawValue> {
    let redacted = LaxObject::parse(pdu.get()).and_then(|event| event.redacted(&rules.redaction));
    let redacted = redacted.ok().and_then(|event| event.to_raw().ok());
    redacted.unwrap_or_else(|| pdu.to_owned())
}

/// The changes in parts of at most `most` bytes each.
pub fn parts(changes: Vec<StateChange>, most: usize) -> Vec<Vec<StateChange>> {
    let mut parts: Vec<Vec<StateChange>> = Vec::new();
    let mut left = 0;
    for change in changes {
        let bytes = recorded(&change);
        match parts.last_mut().filter(|_| bytes <= left) {
            Some(part) => part.push(change),
            None => {
                parts.push(vec![change]);
                left = most;
            }
        }
        left = left.saturating_sub(bytes);
    }
    parts
}
