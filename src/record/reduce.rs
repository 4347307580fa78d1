//! What is left of erased payloads: nothing, or a reduced payload.

use std::collections::BTreeMap;

use bytes::Bytes;
use ruma::RoomVersionId;
use serde_json::value::RawValue;

use super::{
    command::{Erased, Kind},
    lax_object::LaxObject,
};

/// Why a payload cannot be reduced.
#[derive(Debug, thiserror::Error)]
pub enum ReduceError {
    /// This version does not know the room version.
    #[error("room version `{0}` is not known to this version of logcabin")]
    RoomVersion(String),
    /// The payload does not fit its kind.
    #[error("it is not a payload of its kind: {0}")]
    Payload(String),
    /// Payloads of the kind are not reduced.
    #[error("a `{0}` cannot be reduced")]
    Kind(String),
}

/// What is left of the payload of an erased record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remains {
    /// Nothing: a later record repeats its content, or undid all its consequences.
    Nothing,
    /// The result of [`reduced`].
    Part,
    /// Everything: records of this kind are not erased.
    Everything,
}

/// What is left of payloads of this `kind`.
fn erased(kind: &str) -> Erased {
    Kind::named(kind).map_or(Erased::Never, |of| of.erased)
}

/// What is left of an erased record of this `kind`. [`Command::holds`] says whose data it contains.
///
/// Nothing may be left only if, from the erasure on, the projections are the same without the
/// record. So a user's data (names, account data, keys in backups, addresses) leaves nothing only
/// once a `user.deactivate` with `erase`, a `user.erase` or a `room.purge` has removed it from the
/// projections, and read markers only once there is a newer one.
///
/// [`Command::holds`]: super::Command::holds
pub fn remains(kind: &str) -> Remains {
    match erased(kind) {
        Erased::Never => Remains::Everything,
        Erased::All => Remains::Nothing,
        Erased::Event | Erased::Members { .. } => Remains::Part,
    }
}

/// The payload of a `room.event` with its PDU redacted by the rules of `room_version`; a payload of
/// another kind without personal texts and keys (`log_format.md`, "Reduced payloads"). Reducing a
/// reduced payload changes nothing.
///
/// # Errors
/// When the room version of an event is missing or unknown, or `payload` does not fit this `kind`.
pub fn reduced(
    kind: &str,
    payload: &[u8],
    room_version: Option<&RoomVersionId>,
) -> Result<Bytes, ReduceError> {
    let bad = |error: &dyn std::fmt::Display| ReduceError::Payload(error.to_string());
    // All other members of the payload stay as they are, whichever version wrote them.
    let read = || -> Result<BTreeMap<String, Box<RawValue>>, _> {
        serde_json::from_slice(payload).map_err(|error| bad(&error))
    };
    let members = match erased(kind) {
        Erased::Never | Erased::All => return Err(ReduceError::Kind(kind.to_owned())),
        Erased::Members { emptied, gone, required } => {
            let mut members = read()?;
            if let Some(absent) = required.filter(|name| !members.contains_key(*name)) {
                return Err(bad(&format_args!("it has no `{absent}`")));
            }
            for name in emptied {
                if let Some(member) = members.get_mut(*name) {
                    *member =
                        RawValue::from_string("{}".to_owned()).map_err(|error| bad(&error))?;
                }
            }
            members.retain(|name, _| !gone.contains(&name.as_str()));
            members
        }
        Erased::Event => {
            let mut members = read()?;
            let version = room_version.ok_or_else(|| bad(&"its room's version is not given"))?;
            let rules =
                version.rules().ok_or_else(|| ReduceError::RoomVersion(version.to_string()))?;
            let pdu = members.get("pdu").ok_or_else(|| bad(&"it has no PDU"))?;
            let pdu = LaxObject::parse(pdu.get()).map_err(|error| bad(&error))?;
            let pdu = pdu.redacted(&rules.redaction).map_err(|error| bad(&error))?;
            members.insert("pdu".to_owned(), pdu.to_raw().map_err(|error| bad(&error))?);
            members
        }
    };
    serde_json::to_vec(&members).map(Bytes::from).map_err(|error| bad(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Command,
        command::{KINDS, RoomEvent},
    };

    fn event() -> RoomEvent {
        let pdu = r#"{"auth_events":[],"content":{"body":"a secret","msgtype":"m.text"},"depth":7,"hashes":{"sha256":"x"},"origin_server_ts":5,"prev_events":[],"room_id":"!r:example.org","sender":"@ann:example.org","signatures":{},"type":"m.room.message","unsigned":{"note":"a secret"}}"#;
        RoomEvent {
            room_id: "!r:example.org".try_into().unwrap(),
            event_id: "$e".try_into().unwrap(),
            room_version: None,
            transaction: None,
            redacts: None,
            delay_id: None,
            received: None,
            pdu: RawValue::from_string(pdu.to_owned()).unwrap(),
        }
    }

    #[test]
    fn a_reduced_event_is_an_event_without_its_content() {
        let payload = Command::from(event()).encode();
        let once = reduced("room.event", &payload, Some(&RoomVersionId::V10)).unwrap();
        assert_eq!(
            once,
            r#"{"event_id":"$e","pdu":{"auth_events":[],"content":{},"depth":7,"hashes":{"sha256":"x"},"origin_server_ts":5,"prev_events":[],"room_id":"!r:example.org","sender":"@ann:example.org","signatures":{},"type":"m.room.message"},"room_id":"!r:example.org"}"#
        );
        assert_eq!(reduced("room.event", &once, Some(&RoomVersionId::V10)).unwrap(), once);
        assert!(matches!(Command::decode("room.event", 1, &once), Ok(Command::RoomEvent(_))));
    }

    #[test]
    fn invalid_events_are_not_reduced() {
        let payload = Command::from(event()).encode();
        let unknown = RoomVersionId::try_from("org.example.v99").unwrap();
        assert!(matches!(
            reduced("room.event", &payload, Some(&unknown)),
            Err(ReduceError::RoomVersion(_))
        ));
        for payload in ["", "{}", "[]", r#"{"pdu":1}"#, r#"{"pdu":{"type":5}}"#] {
            let error =
                reduced("room.event", payload.as_bytes(), Some(&RoomVersionId::V10)).unwrap_err();
            assert!(matches!(error, ReduceError::Payload(_)), "{payload}");
        }
    }

    #[test]
    fn a_reduced_schedule_is_one_without_its_content() {
        let payload = br#"{"content":{"body":"a secret"},"delay_id":"d","delay_ms":5,"room_id":"!r:example.org","since_ms":7,"type":"m.room.message","user_id":"@ann:example.org"}"#;
        let once = reduced("delayed.schedule", payload, Some(&RoomVersionId::V10)).unwrap();
        assert_eq!(
            once,
            r#"{"content":{},"delay_id":"d","delay_ms":5,"room_id":"!r:example.org","since_ms":7,"type":"m.room.message","user_id":"@ann:example.org"}"#
        );
        assert_eq!(reduced("delayed.schedule", &once, Some(&RoomVersionId::V10)).unwrap(), once);
        let decoded = Command::decode("delayed.schedule", 1, &once);
        assert!(matches!(decoded, Ok(Command::DelayedSchedule(_))));
        let other = reduced("delayed.finish", payload, Some(&RoomVersionId::V10)).unwrap_err();
        assert!(matches!(other, ReduceError::Kind(_)));
        let error = reduced("delayed.schedule", b"{}", Some(&RoomVersionId::V10)).unwrap_err();
        assert!(matches!(error, ReduceError::Payload(_)));
    }

    #[test]
    fn reduced_payloads_are_still_commands_and_hold_no_words() {
        for (kind, payload, left) in [
            (
                "to_device.send",
                r#"{"messages":{"@a:b":{"X":{"body":"a secret"}}},"sender":"@b:b","type":"t"}"#,
                r#"{"messages":{},"sender":"@b:b","type":"t"}"#,
            ),
            (
                "media.upload",
                r#"{"content_type":"text/secret","hash":"HASH","media_id":"m","name":"a secret","size":3,"user_id":"@a:b"}"#,
                r#"{"hash":"HASH","media_id":"m","size":3,"user_id":"@a:b"}"#,
            ),
            (
                "device.login",
                r#"{"device_id":"X","display_name":"a secret","tokens":{"access":"HASH"},"user_id":"@a:b"}"#,
                r#"{"device_id":"X","tokens":{"access":"HASH"},"user_id":"@a:b"}"#,
            ),
            (
                "device.dehydrate",
                r#"{"device_data":{"k":"a secret"},"device_id":"X","display_name":"a secret","user_id":"@a:b"}"#,
                r#"{"device_data":{},"device_id":"X","user_id":"@a:b"}"#,
            ),
        ] {
            let hash = "ab".repeat(32);
            let (payload, left) = (payload.replace("HASH", &hash), left.replace("HASH", &hash));
            let once = reduced(kind, payload.as_bytes(), None).unwrap();
            assert_eq!(once, left, "{kind}");
            assert_eq!(reduced(kind, &once, None).unwrap(), once);
            Command::decode(kind, 1, &once).unwrap();
        }
    }

    #[test]
    fn kinds_are_reduced_if_and_only_if_a_part_of_them_remains() {
        for kind in KINDS {
            let is_part = reduced(kind.name, b"[]", None);
            let refused = matches!(is_part, Err(ReduceError::Kind(_)));
            assert_eq!(refused, remains(kind.name) != Remains::Part, "{}", kind.name);
            assert!(!kind.ephemeral || remains(kind.name) == Remains::Nothing, "{}", kind.name);
        }
        assert_eq!(remains("server.identity"), Remains::Everything);
        assert_eq!(remains("log.erase"), Remains::Everything);
        assert_eq!(remains("never.there"), Remains::Everything);
    }
}
