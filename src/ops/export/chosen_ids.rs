//! Checks the ids of events in rooms of versions 1 and 2, where servers choose them: no two events
//! of one room may have the same id, because no server takes the second one either. Events of two
//! rooms may: a homeserver can send both at the same moment.

use std::collections::HashMap;

use ruma::{OwnedRoomId, RoomId, RoomVersionId};
use serde_json::value::RawValue;

use logcabin_record::{
    Command, Offset, Record,
    command::{RoomEvent, RoomPdu},
    lax_object::LaxObject,
};
use logcabin_state::State;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the event {event_id} has the id of another one, in record {earlier}")]
pub(super) struct DuplicateId {
    event_id: String,
    earlier: Offset,
}

/// The events so far, by their records.
#[derive(Default)]
pub(super) struct ChosenIds(HashMap<Offset, Event>);

struct Event {
    room_id: OwnedRoomId,
    event_id: String,
    /// Its reference hash, if it has one.
    hash: Option<String>,
}

impl ChosenIds {
    /// Notes the event of the next record, if it has one; `state` is that before the record.
    pub(super) fn note(&mut self, state: &State, record: &Record) -> Result<(), DuplicateId> {
        let (room_id, event_id, pdu) = match record.command() {
            Ok(Some(Command::RoomEvent(RoomEvent { room_id, event_id, pdu, .. }))) => {
                (room_id, event_id, pdu)
            }
            Ok(Some(Command::RoomPdu(RoomPdu { room_id, event_id, pdu, .. }))) => {
                (room_id, event_id, pdu)
            }
            _ => return Ok(()),
        };
        if event_id.server_name().is_none() {
            return Ok(());
        }
        let earlier = state.events.candidates(&event_id);
        let is_held = |room_id: &RoomId, at: Offset| {
            let room = state.rooms.get(room_id);
            room.is_some_and(|room| room.holds(at))
        };
        let event = Event { room_id, event_id: event_id.to_string(), hash: hash(&pdu) };
        self.add(record.offset(), event, earlier, is_held)
    }

    fn add(
        &mut self,
        at: Offset,
        event: Event,
        earlier: impl IntoIterator<Item = Offset>,
        is_held: impl Fn(&RoomId, Offset) -> bool,
    ) -> Result<(), DuplicateId> {
        for earlier in earlier {
            // An event that expired, or whose room was purged, no longer has its id.
            if let Some(first) = self.0.get(&earlier)
                && first.event_id == event.event_id
                && is_held(&first.room_id, earlier)
                && first.room_id == event.room_id
                && first.hash != event.hash
            {
                return Err(DuplicateId { event_id: event.event_id, earlier });
            }
        }
        self.0.insert(at, event);
        Ok(())
    }
}

/// The reference hash of an event, which versions 1 and 2 compute in the same way.
fn hash(pdu: &RawValue) -> Option<String> {
    let rules = RoomVersionId::V1.rules()?;
    LaxObject::parse(pdu.get()).ok()?.reference_hash(&rules).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_event_that_claims_an_id_is_refused() {
        let event = |room: &str, text: &str| {
            let pdu = format!(
                r#"{{"type":"m.room.message","sender":"@u:a.example","room_id":"{room}","depth":1,"origin_server_ts":1,"prev_events":[],"auth_events":[],"event_id":"$a:a.example","content":{{"body":"{text}"}},"hashes":{{"sha256":"{text}"}}}}"#
            );
            let pdu = RawValue::from_string(pdu).expect("JSON");
            Event {
                room_id: room.try_into().expect("an id"),
                event_id: "$a:a.example".to_owned(),
                hash: hash(&pdu),
            }
        };
        let (one, other) = ("!one:a.example", "!other:a.example");
        let [first, second, third] = [1, 2, 3].map(Offset::new);
        let mut ids = ChosenIds::default();
        assert_eq!(ids.add(first, event(one, "x"), [], |_, _| true), Ok(()));
        // The same one, as when an outlier gets its place.
        assert_eq!(ids.add(second, event(one, "x"), [first], |_, _| true), Ok(()));
        let refused = ids.add(third, event(one, "y"), [first, second], |_, _| true);
        assert!(refused.is_err_and(|why| why.earlier == first));
        assert_eq!(ids.add(third, event(one, "y"), [first, second], |_, _| false), Ok(()));
        assert_eq!(ids.add(third, event(other, "y"), [first, second], |_, _| true), Ok(()));
    }
}
