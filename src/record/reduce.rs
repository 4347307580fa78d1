//! What stands for the payload of an event, or of what scheduled it, once its content was erased.

use std::collections::BTreeMap;

use bytes::Bytes;
use ruma::{CanonicalJsonObject, RoomVersionId, canonical_json::redact};
use serde_json::value::RawValue;

use super::command::{Body as _, DelayedSchedule, RoomEvent};

/// Why a payload cannot be reduced.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// The room version has no rules here.
    #[error("room version `{0}` is not known to this version of logcabin")]
    RoomVersion(String),
    /// It is not the payload of its kind.
    #[error("it is not an event: {0}")]
    NotAnEvent(String),
    /// Payloads of the kind are not reduced.
    #[error("a `{0}` cannot be reduced")]
    Kind(String),
}

/// The payload of a `room.event` with its PDU as the redaction algorithm of `room_version` leaves it, or
/// of a `delayed.schedule` without its content (`log_format.md`, "Reduced payloads"). Reducing what is
/// reduced changes nothing.
///
/// # Errors
/// When the room version is not known or `payload` is not one of this `kind`.
pub fn reduced(
    kind: &str,
    payload: &[u8],
    room_version: &RoomVersionId,
) -> Result<Bytes, ReduceError> {
    let bad = |error: &dyn std::fmt::Display| ReduceError::NotAnEvent(error.to_string());
    if kind == DelayedSchedule::KIND.name {
        let mut members: BTreeMap<String, Box<RawValue>> =
            serde_json::from_slice(payload).map_err(|error| bad(&error))?;
        let content = members.get_mut("content").ok_or_else(|| bad(&"it has no content"))?;
        *content = RawValue::from_string("{}".to_owned()).map_err(|error| bad(&error))?;
        return serde_json::to_vec(&members).map(Bytes::from).map_err(|error| bad(&error));
    }
    if kind != RoomEvent::KIND.name {
        return Err(ReduceError::Kind(kind.to_owned()));
    }
    let rules =
        room_version.rules().ok_or_else(|| ReduceError::RoomVersion(room_version.to_string()))?;
    // Whatever else is in the payload stays as it stands, whichever version wrote it.
    let mut members: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(payload).map_err(|error| bad(&error))?;
    let pdu = members.get("pdu").ok_or_else(|| bad(&"it has no PDU"))?;
    let pdu: CanonicalJsonObject = serde_json::from_str(pdu.get()).map_err(|error| bad(&error))?;
    let pdu = redact(pdu, &rules.redaction, None).map_err(|error| bad(&error))?;
    let pdu = serde_json::value::to_raw_value(&pdu).map_err(|error| bad(&error))?;
    members.insert("pdu".to_owned(), pdu);
    serde_json::to_vec(&members).map(Bytes::from).map_err(|error| bad(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Command;

    fn event() -> RoomEvent {
        let pdu = r#"{"auth_events":[],"content":{"body":"a secret","msgtype":"m.text"},"depth":7,"hashes":{"sha256":"x"},"origin_server_ts":5,"prev_events":[],"room_id":"!r:example.org","sender":"@ann:example.org","signatures":{},"type":"m.room.message","unsigned":{"note":"a secret"}}"#;
        RoomEvent {
            room_id: "!r:example.org".try_into().unwrap(),
            event_id: "$e".try_into().unwrap(),
            room_version: None,
            transaction: None,
            redacts: None,
            delay_id: None,
            pdu: RawValue::from_string(pdu.to_owned()).unwrap(),
        }
    }

    #[test]
    fn a_reduced_event_is_an_event_without_its_content() {
        let payload = Command::from(event()).encode();
        let once = reduced("room.event", &payload, &RoomVersionId::V10).unwrap();
        assert_eq!(
            once,
            r#"{"event_id":"$e","pdu":{"auth_events":[],"content":{},"depth":7,"hashes":{"sha256":"x"},"origin_server_ts":5,"prev_events":[],"room_id":"!r:example.org","sender":"@ann:example.org","signatures":{},"type":"m.room.message"},"room_id":"!r:example.org"}"#
        );
        assert_eq!(reduced("room.event", &once, &RoomVersionId::V10).unwrap(), once);
        assert!(matches!(Command::decode("room.event", 1, &once), Ok(Command::RoomEvent(_))));
    }

    #[test]
    fn what_is_no_event_is_not_reduced() {
        let payload = Command::from(event()).encode();
        let unknown = RoomVersionId::try_from("org.example.v99").unwrap();
        assert!(matches!(
            reduced("room.event", &payload, &unknown),
            Err(ReduceError::RoomVersion(_))
        ));
        for payload in ["", "{}", "[]", r#"{"pdu":1}"#, r#"{"pdu":{"type":5}}"#] {
            let error = reduced("room.event", payload.as_bytes(), &RoomVersionId::V10).unwrap_err();
            assert!(matches!(error, ReduceError::NotAnEvent(_)), "{payload}");
        }
    }

    #[test]
    fn a_reduced_schedule_is_one_without_its_content() {
        let payload = br#"{"content":{"body":"a secret"},"delay_id":"d","delay_ms":5,"room_id":"!r:example.org","since_ms":7,"type":"m.room.message","user_id":"@ann:example.org"}"#;
        let once = reduced("delayed.schedule", payload, &RoomVersionId::V10).unwrap();
        assert_eq!(
            once,
            r#"{"content":{},"delay_id":"d","delay_ms":5,"room_id":"!r:example.org","since_ms":7,"type":"m.room.message","user_id":"@ann:example.org"}"#
        );
        assert_eq!(reduced("delayed.schedule", &once, &RoomVersionId::V10).unwrap(), once);
        let decoded = Command::decode("delayed.schedule", 1, &once);
        assert!(matches!(decoded, Ok(Command::DelayedSchedule(_))));
        let other = reduced("delayed.finish", payload, &RoomVersionId::V10).unwrap_err();
        assert!(matches!(other, ReduceError::Kind(_)));
        let error = reduced("delayed.schedule", b"{}", &RoomVersionId::V10).unwrap_err();
        assert!(matches!(error, ReduceError::NotAnEvent(_)));
    }
}
