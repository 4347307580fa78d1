//! The form of an event that clients get, with its `unsigned` part for the one who looks.

use ruma::{
    CanonicalJsonObject, DeviceId, EventId, MilliSecondsSinceUnixEpoch, RoomId, UserId,
    canonical_json::RedactedBecause,
    events::{StateEventType, TimelineEventType},
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{EventRef, EventStore, StoredEvent};
use crate::{
    log::ReadError,
    record::Offset,
    state::{Room, rooms::Membership},
};

/// Who looks at an event, and as of when.
#[derive(Clone, Copy, Debug)]
pub struct Viewer<'a> {
    /// The user.
    pub user_id: &'a UserId,
    /// The device.
    pub device_id: &'a DeviceId,
    /// The session, which decides whether a transaction id is the viewer's own.
    pub session: Offset,
    /// As of which offset.
    pub at: Offset,
    /// The time, for `age`.
    pub now_ms: u64,
}

/// Which form of events is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientForm {
    /// With `room_id`: from endpoints that return single events or lists.
    #[default]
    Full,
    /// Without `room_id`: inside a room's part of a sync.
    Sync,
}

#[derive(Serialize)]
struct ClientEvent<'a> {
    #[serde(rename = "type")]
    event_type: &'a TimelineEventType,
    content: &'a RawValue,
    event_id: &'a EventId,
    sender: &'a UserId,
    origin_server_ts: MilliSecondsSinceUnixEpoch,
    #[serde(skip_serializing_if = "Option::is_none")]
    state_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    room_id: Option<&'a RoomId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redacts: Option<&'a EventId>,
    unsigned: Unsigned<'a>,
}

#[derive(Default, Serialize)]
struct Unsigned<'a> {
    age: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    transaction_id: Option<&'a str>,
    #[serde(rename = "org.matrix.msc4140.delay_id", skip_serializing_if = "Option::is_none")]
    delay_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    membership: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_content: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prev_sender: Option<&'a UserId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replaces_state: Option<&'a EventId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    redacted_because: Option<Box<RawValue>>,
}

impl EventStore {
    /// `event` as the viewer is to get it: redacted if it was, with the `unsigned` data of a
    /// client event.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn client_form(
        &self,
        room: &Room,
        event: &EventRef,
        viewer: Viewer<'_>,
        form: ClientForm,
    ) -> Result<Box<RawValue>, ReadError> {
        self.form(room, event, viewer, form, true)
    }

    /// As [`EventStore::client_form`]; `with_cause` adds the redaction of a redacted event. The
    /// redaction of that redaction is left out: a chain of them has no end.
    fn form(
        &self,
        room: &Room,
        event: &EventRef,
        viewer: Viewer<'_>,
        form: ClientForm,
        with_cause: bool,
    ) -> Result<Box<RawValue>, ReadError> {
        let redaction = match room.redaction_of(event.offset, viewer.at) {
            Some(offset) => self.get(offset)?,
            None => None,
        };
        let redacted = redaction.as_ref().map(|_| redacted(room, event));
        let shown = redacted.as_ref().unwrap_or(event);

        let mut unsigned = Unsigned {
            age: age(shown, viewer.now_ms),
            transaction_id: shown
                .transaction
                .as_ref()
                .filter(|transaction| transaction.session == viewer.session)
                .map(|transaction| transaction.id.as_str()),
            delay_id: shown.delay_id.as_deref().filter(|_| shown.sender == viewer.user_id),
            membership: room
                .membership(viewer.user_id, shown.offset)
                .map_or(Some(Membership::Leave.as_str()), |(_, is)| Some(is.as_str())),
            ..Unsigned::default()
        };
        let previous = match &shown.state_key {
            Some(state_key) => {
                let event_type = shown.event_type.to_string().into();
                match room.state_before(&event_type, state_key, shown.offset) {
                    Some(offset) => self.get(offset)?,
                    None => None,
                }
            }
            None => None,
        };
        let previous = previous.map(|previous| as_shown(room, previous, viewer.at));
        if let Some(previous) = &previous {
            unsigned.prev_content = Some(&previous.content);
            unsigned.prev_sender = Some(&previous.sender);
            unsigned.replaces_state = Some(&previous.event_id);
        }
        if let Some(redaction) = redaction.as_ref().filter(|_| with_cause) {
            unsigned.redacted_because = Some(self.form(room, redaction, viewer, form, false)?);
        }
        let with_redacts = content_with_redacts(room, shown);
        let client = ClientEvent {
            event_type: &shown.event_type,
            content: with_redacts.as_deref().unwrap_or(&shown.content),
            event_id: &shown.event_id,
            sender: &shown.sender,
            origin_server_ts: shown.origin_server_ts,
            state_key: shown.state_key.as_deref(),
            room_id: (form == ClientForm::Full).then_some(&*shown.room_id),
            redacts: shown.redacts.as_deref(),
            unsigned,
        };
        Ok(to_raw(&client))
    }
}

impl EventStore {
    /// A text in the content of the room's state of this type (with an empty key) as of `at`, as it is
    /// to be shown: none where it is missing, empty, not a text, or redacted.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub(crate) fn state_text(
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

/// `event` as it is to be shown as of `at`: without what a redaction took away.
pub(crate) fn as_shown(room: &Room, event: EventRef, at: Offset) -> EventRef {
    match room.redaction_of(event.offset, at) {
        Some(_) => redacted(room, &event),
        None => event,
    }
}

/// The content of a redaction in a room whose version keeps `redacts` outside of it: newer clients
/// look for it inside (room version 11, "Moving the `redacts` property").
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

fn age(event: &StoredEvent, now_ms: u64) -> i64 {
    let sent = i64::try_from(u64::from(event.origin_server_ts.get())).unwrap_or(i64::MAX);
    i64::try_from(now_ms).unwrap_or(i64::MAX).saturating_sub(sent)
}

/// The event with what its room version's redaction rules take away gone.
fn redacted(room: &Room, event: &EventRef) -> EventRef {
    let strip = || -> Option<StoredEvent> {
        let pdu: CanonicalJsonObject = serde_json::from_str(event.pdu.get()).ok()?;
        let because: Option<RedactedBecause> = None;
        let pdu = ruma::canonical_json::redact(pdu, &room.rules.redaction, because).ok()?;
        let content = to_raw(pdu.get("content")?);
        Some(StoredEvent {
            content,
            redacts: None,
            transaction: None,
            pdu: to_raw(&pdu),
            ..StoredEvent::clone(event)
        })
    };
    // Every stored event is canonical JSON and can be redacted; were one not, nothing of its
    // content may be shown.
    let stripped = strip().unwrap_or_else(|| StoredEvent {
        content: to_raw(&CanonicalJsonObject::new()),
        ..StoredEvent::clone(event)
    });
    EventRef::new(stripped)
}

/// `value` as raw JSON.
pub(crate) fn to_raw<T: Serialize + ?Sized>(value: &T) -> Box<RawValue> {
    // Strings, numbers and JSON that was parsed before: it serialises.
    serde_json::value::to_raw_value(value).expect("client data serialises")
}
