//! The formats of an event for clients, and redaction. [`crate::view`] decides what goes into
//! `unsigned` for a particular viewer.

use std::sync::{Arc, LazyLock, OnceLock};

use ruma::{
    CanonicalJsonObject, DeviceId, EventId, MilliSecondsSinceUnixEpoch, OwnedEventId, RoomId,
    UserId,
    events::{StateEventType, TimelineEventType},
};
use serde::{
    Deserialize, Serialize, Serializer,
    ser::{Error as _, SerializeStruct as _},
};
use serde_json::value::RawValue;

use super::{EventRef, EventStore, Fields, StoredEvent};
use logcabin_base::planted::{self, Fault};
use logcabin_log::ReadError;
use logcabin_record::{Offset, lax_object::LaxObject};
use logcabin_state::Room;

/// The viewer of an event, and the offset of the view.
#[derive(Clone, Copy, Debug)]
pub struct Viewer<'a> {
    pub user_id: &'a UserId,
    pub device_id: &'a DeviceId,
    /// The session, which decides whether a transaction id is the viewer's own.
    pub session: Offset,
    /// The offset of the view.
    pub at: Offset,
    /// The time, for `age`.
    pub now_ms: u64,
}

/// The requested format of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventForm {
    /// The stored event as servers exchange it, with nothing added, instead of the client format.
    pub federation: bool,
    /// Whether the client format has `room_id`.
    pub room_id: bool,
    /// Whether the client format includes bundled aggregations (client-server API, "Aggregations of
    /// child events").
    pub bundled: bool,
    /// Whether redacted events are shown as they were sent, as far as they are kept (MSC2815).
    pub unredacted: bool,
    /// The requested fields; `None` for all.
    pub fields: Option<Arc<Fields>>,
}

impl EventForm {
    /// For endpoints that return single events or pages of history.
    pub const FULL: Self =
        Self { federation: false, room_id: true, bundled: true, unredacted: false, fields: None };
    /// For endpoints that return a room's state, and for `/sync`.
    pub const STATE: Self = Self { bundled: false, ..Self::FULL };
    /// For parts of a response that name the room themselves.
    pub const SYNC: Self = Self { room_id: false, bundled: false, ..Self::FULL };

    /// This format, with or without bundled aggregations.
    pub fn bundled(&self, bundled: bool) -> Self {
        Self { bundled, ..self.clone() }
    }

    /// Reduces `event`, which is in this format apart from the fields, to the requested fields.
    pub(crate) fn with_wanted_fields(&self, event: ClientEvent) -> ClientEvent {
        let Some(fields) = &self.fields else { return event };
        match serde_json::from_str(event.get()) {
            Ok(event) => to_raw(&fields.of(&event)).into(),
            // It was created as an object.
            Err(_) => event,
        }
    }
}

/// The part of the client format that is the same for every viewer.
#[derive(Serialize)]
struct ForEveryone<'a> {
    #[serde(rename = "type")]
    event_type: &'a TimelineEventType,
    content: &'a RawValue,
    event_id: &'a EventId,
    sender: &'a UserId,
    origin_server_ts: MilliSecondsSinceUnixEpoch,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redacts: Option<&'a EventId>,
    /// The last member, so that it can be cut off.
    room_id: &'a RoomId,
}

/// That part as JSON, up to the point where more members can follow. It is serialized once, because
/// a message goes to everyone in its room.
#[derive(Debug, Default)]
pub struct Shared(OnceLock<SharedJson>);

#[derive(Debug)]
struct SharedJson {
    text: Box<str>,
    /// The position of the room id.
    room_id: usize,
}

impl Clone for Shared {
    /// A copy starts empty: events are only copied to be changed.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Shared {
    fn of<'e>(room: &Room, event: &'e StoredEvent, with_room_id: bool) -> &'e str {
        let made = event.shared.0.get_or_init(|| {
            let with_redacts = content_with_redacts(room, event);
            let whole = to_raw(&ForEveryone {
                event_type: &event.event_type,
                content: with_redacts.as_deref().unwrap_or(&event.content),
                event_id: &event.event_id,
                sender: &event.sender,
                origin_server_ts: event.origin_server_ts,
                state_key: event.state_key.as_deref(),
                redacts: event.redacts.as_deref(),
                room_id: &event.room_id,
            });
            let whole = whole.get();
            let text = whole.strip_suffix('}').unwrap_or(whole);
            SharedJson {
                text: text.into(),
                room_id: text.rfind(",\"room_id\":").unwrap_or(text.len()),
            }
        });
        if with_room_id { &made.text } else { &made.text[..made.room_id] }
    }
}

/// The additions of the server to an event.
#[derive(Default, Serialize)]
pub struct Unsigned<'a> {
    pub age: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction_id: Option<&'a str>,
    #[serde(rename = "org.matrix.msc4140.delay_id", skip_serializing_if = "Option::is_none")]
    pub delay_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub membership: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev_content: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prev_sender: Option<&'a UserId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaces_state: Option<&'a EventId>,
    /// What clients read before there was `redacted_because`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redacted_by: Option<OwnedEventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redacted_because: Option<ClientEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub invite_room_state: Option<Vec<Box<RawValue>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knock_room_state: Option<Vec<Box<RawValue>>>,
    #[serde(rename = "m.relations", skip_serializing_if = "Option::is_none")]
    pub relations: Option<Relations>,
}

/// Bundled aggregations of an event.
#[derive(Debug, Default, Serialize)]
pub struct Relations {
    #[serde(rename = "m.replace", skip_serializing_if = "Option::is_none")]
    pub(crate) replace: Option<ClientEvent>,
    #[serde(rename = "m.thread", skip_serializing_if = "Option::is_none")]
    pub(crate) thread: Option<Thread>,
    #[serde(rename = "m.reference", skip_serializing_if = "Option::is_none")]
    pub(crate) reference: Option<References>,
}

/// The thread that begins with an event.
#[derive(Debug, Serialize)]
pub struct Thread {
    pub(crate) latest_event: ClientEvent,
    pub(crate) count: usize,
    pub(crate) current_user_participated: bool,
}

/// The events that refer to an event.
#[derive(Debug, Serialize)]
pub struct References {
    pub(crate) chunk: Vec<Reference>,
}

#[derive(Debug, Serialize)]
pub struct Reference {
    pub(crate) event_id: OwnedEventId,
}

/// The client format of `event`, which has been redacted if necessary.
pub fn client_event(
    room: &Room,
    event: &StoredEvent,
    form: &EventForm,
    unsigned: &Unsigned<'_>,
) -> ClientEvent {
    let shared = Shared::of(room, event, form.room_id);
    let mut json = Vec::with_capacity(shared.len() + UNSIGNED_BYTES);
    json.extend_from_slice(shared.as_bytes());
    json.extend_from_slice(b",\"unsigned\":");
    // Strings, numbers and parsed JSON always serialize.
    serde_json::to_writer(&mut json, unsigned).expect("client data serialises");
    json.push(b'}');
    ClientEvent(String::from_utf8(json).expect("JSON is text"))
}

/// Space for `unsigned` with its name: slightly more than most events need.
const UNSIGNED_BYTES: usize = 128;

/// An event in the client format, as JSON that is copied into responses unchanged.
///
/// Not a [`RawValue`], which can only be created by parsing or copying known JSON. That took longer
/// than everything else in a response.
#[derive(Clone, Debug)]
pub struct ClientEvent(String);

impl ClientEvent {
    pub fn get(&self) -> &str {
        &self.0
    }
}

impl From<Box<RawValue>> for ClientEvent {
    fn from(json: Box<RawValue>) -> Self {
        Self(Box::<str>::from(json).into())
    }
}

impl Serialize for ClientEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if *TAKES_JSON {
            return write_json(&self.0, serializer);
        }
        let parsed: &RawValue = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        parsed.serialize(serializer)
    }
}

/// Writes `json` in the way that serde_json writes its own raw values.
fn write_json<S: Serializer>(json: &str, serializer: S) -> Result<S::Ok, S::Error> {
    const TOKEN: &str = "$serde_json::private::RawValue";
    let mut raw = serializer.serialize_struct(TOKEN, 1)?;
    raw.serialize_field(TOKEN, json)?;
    raw.end()
}

/// Whether [`write_json`] works with this serde_json, which does not promise it.
static TAKES_JSON: LazyLock<bool> = LazyLock::new(|| {
    struct Json(&'static str);
    impl Serialize for Json {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            write_json(self.0, serializer)
        }
    }
    let json = r#"{"a":[1,"b"]}"#;
    serde_json::to_string(&Json(json)).is_ok_and(|written| written == json)
});

impl EventStore {
    /// A text in the content of the state event of this type (with an empty key) as of `at`; `None`
    /// if it is missing, empty, not a text, or redacted.
    pub fn state_text(
        &self,
        room: &Room,
        event_type: &StateEventType,
        field: &str,
        at: Offset,
    ) -> Result<Option<String>, ReadError> {
        let Some(offset) = room.state_event(event_type, "", at) else { return Ok(None) };
        let event = self.get(offset)?.map(|event| as_shown(room, event, at));
        let content = event.and_then(|event| event.content_as::<serde_json::Value>().ok());
        let text = content.and_then(|content| content[field].as_str().map(ToOwned::to_owned));
        Ok(text.filter(|text| !text.is_empty()))
    }
}

/// `event` as shown as of `at`, without redacted parts.
pub fn as_shown(room: &Room, event: EventRef, at: Offset) -> EventRef {
    match room.redaction_of(event.offset, at) {
        Some(_) if !planted::has(Fault::RedactedShown) => redacted(room, &event),
        _ => event,
    }
}

/// The content of a redaction in a room whose version has `redacts` outside of the content: newer
/// clients look for it inside (room version 11, "Moving the `redacts` property").
fn content_with_redacts(room: &Room, event: &StoredEvent) -> Option<Box<RawValue>> {
    if event.event_type != TimelineEventType::RoomRedaction
        || room.rules.redaction.content_field_redacts
    {
        return None;
    }
    let redacts = event.redacts.as_deref()?;
    let mut content: serde_json::Map<String, serde_json::Value> = event.content_as().ok()?;
    content.insert("redacts".to_owned(), redacts.as_str().into());
    Some(to_raw(&content))
}

/// How long ago the event was sent, in milliseconds.
pub fn age(event: &StoredEvent, now_ms: u64) -> i64 {
    let sent = i64::try_from(u64::from(event.origin_server_ts.get())).unwrap_or(i64::MAX);
    i64::try_from(now_ms).unwrap_or(i64::MAX).saturating_sub(sent)
}

/// The event after redaction by the rules of its room version.
pub fn redacted(room: &Room, event: &EventRef) -> EventRef {
    #[derive(Deserialize)]
    struct Content {
        content: Box<RawValue>,
    }
    let rules = &room.rules.redaction;
    let strip = || -> Option<StoredEvent> {
        let pdu = LaxObject::parse(event.pdu.get()).ok()?.redacted(rules).ok()?;
        let pdu = pdu.to_raw().ok()?;
        let Content { content } = serde_json::from_str(pdu.get()).ok()?;
        Some(StoredEvent {
            content,
            // If it stays in the content, clients also keep getting it beside the content.
            redacts: event.redacts.clone().filter(|_| rules.keep_room_redaction_redacts),
            transaction: None,
            pdu,
            ..StoredEvent::clone(event)
        })
    };
    // Every stored event can be redacted. If one could not, none of its
    // content may be shown.
    let stripped = strip().unwrap_or_else(|| StoredEvent {
        content: to_raw(&CanonicalJsonObject::new()),
        ..StoredEvent::clone(event)
    });
    EventRef::new(stripped)
}

pub fn to_raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    // Strings, numbers and parsed JSON always serialize.
    serde_json::value::to_raw_value(value).expect("client data serialises")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_json_is_written_unchanged() {
        assert!(*TAKES_JSON, "serde_json has another way for raw values: events are parsed again");
        let json =
            r#"{"type":"m.room.message","content":{"body":"a \"b\" ü"},"unsigned":{"age":-1}}"#;
        let events = [ClientEvent(json.to_owned()), ClientEvent("1".to_owned())];
        assert_eq!(serde_json::to_string(&events).unwrap(), format!("[{json},1]"));
        assert_eq!(serde_json::to_value(&events).unwrap()[0]["unsigned"]["age"], -1);
    }
}
