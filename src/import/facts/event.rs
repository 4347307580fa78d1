//! An event, and how the source judged it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Json, StateGroup};

/// An event that the source has, as it wrote it.
#[derive(Clone, Debug, Serialize)]
pub struct Event {
    pub event_id: String,
    pub room_id: String,
    pub sender: String,
    pub event_type: String,
    pub state_key: Option<String>,
    /// Where it stands in the order in which the source got to know its events. Unique; below zero
    /// for events that were fetched from the past.
    pub stream: i64,
    /// Where it stood at first, if it was an outlier then and found its place later.
    pub first_stream: Option<i64>,
    pub depth: i64,
    /// Its own time, `origin_server_ts`.
    pub origin_ms: i64,
    pub received_ms: Option<i64>,
    pub judged: Judged,
    /// Where the source keeps the state with the event: after it, or before it if it was rejected.
    pub group: Option<StateGroup>,
    /// From which state `group` was made by one event, if it was. If that is the group of the event
    /// before it in the room, nothing else happened between them.
    pub group_from: Option<StateGroup>,
    /// The version of the room, if the source knows it.
    pub room_version: Option<String>,
    /// The format of [`Event::json`]: 1 for rooms of version 1 and 2, with pairs of event ids and
    /// hashes; 2 for version 3; 3 for versions 4 and later. `0` if the source does not say.
    pub format: i64,
    /// The name that the client gave it, and its device: for a day after it was sent.
    pub transaction_id: Option<String>,
    pub device_id: Option<String>,
    /// What the source noted of it for itself.
    pub metadata: Metadata,
    /// The event with its signatures, and with `unsigned`, as text that was JSON when the source
    /// wrote it. [`Event::parts`] reads it.
    pub json: String,
}

/// What became of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// It is in the room's history, at its place.
    Timeline,
    /// It is in the room's history, and came from the past.
    Backfilled,
    /// It is needed to judge others, and its place in the room is not known. With `out_of_band` it
    /// is an invite, a knock, or the end of one, in a room that this server was not in.
    Outlier { out_of_band: bool },
    /// It is valid by its own predecessors, and was not by the room's state when it came.
    SoftFailed,
    /// It is not valid. `outlier` if its place is not known either.
    Rejected { reason: String, outlier: bool },
}

/// Marks that Synapse keeps with an event. Those that are unknown are passed by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    pub outlier: bool,
    pub soft_failed: bool,
    pub out_of_band_membership: bool,
    /// A server in whose name the event is sent on: that of a user who joined by way of this
    /// server.
    pub send_on_behalf_of: Option<String>,
    /// Whether it goes to other servers. Absent means yes.
    pub proactively_send: Option<bool>,
    pub redacted: bool,
    /// Whether a redaction is still to be compared with its event's sender.
    pub recheck_redaction: bool,
    pub txn_id: Option<String>,
    pub device_id: Option<String>,
    pub delay_id: Option<String>,
    pub policy_server_spammy: bool,
}

/// The text of an event taken apart.
#[derive(Debug)]
pub struct EventParts {
    /// The event in federation format, with `hashes` and `signatures`, without `unsigned`: its
    /// members in the order of their names, each as the source wrote it. In rooms of version 1 and
    /// 2 it has its `event_id`.
    pub pdu: String,
    /// `unsigned.invite_room_state` or `unsigned.knock_room_state`, one array.
    pub stripped: Option<Json>,
}

/// Members that Synapse wrote beside those of the event. It leaves them out when it hashes.
pub(crate) const BESIDE: [&str; 4] = ["age_ts", "destinations", "outlier", "unsigned"];

impl Event {
    /// Reads the text. The error is a sentence without its full stop.
    ///
    /// It takes most of the time of an event, and may run on any thread.
    pub fn parts(&self) -> Result<EventParts, String> {
        let mut members: BTreeMap<String, &RawValue> =
            serde_json::from_str(&self.json).map_err(|error| {
                format!("the event is no JSON object, at column {}", error.column())
            })?;
        let stripped = members.get("unsigned").and_then(|unsigned| stripped(unsigned));
        for member in BESIDE {
            members.remove(member);
        }
        // In rooms of version 12 and later, the event that creates the room does not name it.
        let unnamed = self.event_type == "m.room.create" && !members.contains_key("room_id");
        for (member, known) in [
            ("room_id", (!unnamed).then_some(&self.room_id)),
            ("sender", Some(&self.sender)),
            ("type", Some(&self.event_type)),
            ("state_key", self.state_key.as_ref()),
        ] {
            let said = members.get(member).map(|text| serde_json::from_str::<String>(text.get()));
            match (said, known) {
                (None, None) => {}
                (Some(Ok(said)), Some(known)) if said == *known => {}
                _ => return Err(format!("the event's `{member}` is not that of its row")),
            }
        }
        let pdu = serde_json::to_string(&members).map_err(|error| error.to_string())?;
        Ok(EventParts { pdu, stripped })
    }
}

/// The stripped state that came with an invite or a knock.
fn stripped(unsigned: &RawValue) -> Option<Json> {
    #[derive(Deserialize)]
    struct Unsigned {
        #[serde(default)]
        invite_room_state: Option<Json>,
        #[serde(default)]
        knock_room_state: Option<Json>,
    }
    let unsigned: Unsigned = serde_json::from_str(unsigned.get()).ok()?;
    let found = unsigned.invite_room_state.or(unsigned.knock_room_state)?;
    found.get().starts_with('[').then_some(found)
}

/// JSON from a text, or the reason why it is none, as a sentence without its full stop.
pub fn json(text: String) -> Result<Json, String> {
    RawValue::from_string(text).map_err(|error| format!("it is no JSON: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{Event, Judged, Metadata};

    fn event(event_type: &str, state_key: Option<&str>, json: &str) -> Event {
        Event {
            event_id: "$e".to_owned(),
            room_id: "!r:a".to_owned(),
            sender: "@u:a".to_owned(),
            event_type: event_type.to_owned(),
            state_key: state_key.map(str::to_owned),
            stream: 1,
            first_stream: None,
            depth: 1,
            origin_ms: 1,
            received_ms: None,
            judged: Judged::Timeline,
            group: None,
            group_from: None,
            room_version: None,
            format: 3,
            transaction_id: None,
            device_id: None,
            metadata: Metadata::default(),
            json: json.to_owned(),
        }
    }

    #[test]
    fn an_event_loses_what_is_not_part_of_it_and_keeps_its_numbers_as_written() {
        let event = event(
            "m.room.member",
            Some("@u:a"),
            r#"{"room_id":"!r:a","sender":"@u:a","type":"m.room.member","state_key":"@u:a","age_ts":5,
                "content":{"n":1.50},"unsigned":{"age":1,"invite_room_state":[{"type":"t"}]}}"#,
        );
        let parts = event.parts().expect("it is an event");
        assert_eq!(
            parts.pdu,
            r#"{"content":{"n":1.50},"room_id":"!r:a","sender":"@u:a","state_key":"@u:a","type":"m.room.member"}"#
        );
        assert_eq!(parts.stripped.expect("stripped state").get(), r#"[{"type":"t"}]"#);
    }

    #[test]
    fn an_event_that_is_not_that_of_its_row_is_refused() {
        let text = r#"{"room_id":"!other:a","sender":"@u:a","type":"m.x"}"#;
        let why = event("m.x", None, text).parts().expect_err("another room");
        assert!(why.contains("room_id"), "{why}");
        let why = event("m.x", None, "{").parts().expect_err("half an object");
        assert!(why.contains("no JSON object"), "{why}");
        let text = r#"{"sender":"@u:a","type":"m.room.create","state_key":""}"#;
        let created = event("m.room.create", Some(""), text).parts();
        assert!(created.is_ok(), "a room of version 12 is not named by its first event");
    }
}
