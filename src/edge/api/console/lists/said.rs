//! The newest messages of a room, as its members read them, for whoever moderates.

use maud::{Markup, html};
use ruma::{MxcUri, events::TimelineEventType};
use serde_json::Value;

use super::wording::otherwise;
use crate::{
    api::{
        console::{
            parts::{at_second, lines, record, short, table, user},
            pictures::{is_here, picture},
        },
        server::Server,
    },
    http::ApiError,
};
use logcabin_read::events::StoredEvent;
use logcabin_record::Offset;
use logcabin_state::Room;

/// How many messages are shown, and among how many of the newest events they are looked for.
const SHOWN: usize = 30;
const LOOK: usize = 200;

/// How many characters of a message are shown; its record has the rest.
const CHARS: usize = 2000;

/// The newest messages that are not encrypted, the newest first.
pub(super) fn newest(app: &Server, room: &Room, is_encrypted: bool) -> Result<Markup, ApiError> {
    let events = app.engine.events();
    let offsets = room.events_backward(Offset::MAX, Offset::ZERO, LOOK);
    let mut rows = Vec::new();
    for some in offsets.chunks(SHOWN) {
        for event in events.get_all(some)? {
            let is_message = event.state_key.is_none()
                && event.event_type != TimelineEventType::RoomEncrypted
                && event.event_type != TimelineEventType::RoomRedaction
                && event.event_type != TimelineEventType::Reaction;
            if is_message && rows.len() < SHOWN && !events.is_over(room, &event) {
                rows.push(vec![
                    html! { (at_second(event.time_ms)) },
                    user(event.sender.as_str()),
                    html! { div { (said(app, room, &event)?) } },
                    record(event.offset),
                ]);
            }
        }
        if rows.len() >= SHOWN {
            break;
        }
    }
    let none = if is_encrypted { "" } else { "Nothing was said lately." };
    let columns = ["Time", "Who", "What", "Record"];
    Ok(html! {
        @if is_encrypted {
            p {
                "The room is encrypted: only its members know what is said. "
                (room.count_messages(Offset::MAX)) " messages and other events that are not state "
                "are here."
            }
        }
        @if !rows.is_empty() || !is_encrypted { (table(&columns, &rows, none)) }
    })
}

/// A message in words, with its picture if this server has it.
pub(super) fn said(app: &Server, room: &Room, event: &StoredEvent) -> Result<Markup, ApiError> {
    if let Some(redaction) = room.redaction_of(event.offset, Offset::MAX) {
        let by = app.engine.events().redacting(&app.engine.state(), redaction)?;
        return Ok(html! {
            span.note {
                "Redacted"
                @if let Some(by) = by { " by " (user(by.sender.as_str())) }
                ", record " (record(redaction))
            }
        });
    }
    let content: Value = event.content_as().unwrap_or_default();
    let text = in_words(&content);
    let address = content["url"].as_str().map(<&MxcUri>::from);
    let is_picture = content["msgtype"] == "m.image" || event.event_type.to_string() == "m.sticker";
    Ok(html! {
        @match text {
            Some(text) => bdi.said { (lines_of(text)) },
            None => span.note { bdi { (short(&event.event_type.to_string())) } },
        }
        @for (words, other) in otherwise(&content) {
            span.note { (words) " " } bdi.said { (lines_of(&other)) }
        }
        @if let Some(address) = address.filter(|address| is_picture && is_here(app, address)) {
            (picture(address, text.unwrap_or("Picture")))
        }
    })
}

/// What a message that is not redacted says, for a line.
pub(super) fn in_a_line(event: &StoredEvent) -> String {
    let content: Value = event.content_as().unwrap_or_default();
    in_words(&content).map_or_else(|| event.event_type.to_string(), ToOwned::to_owned)
}

/// What a content says; of a member event, what became of the member.
fn in_words(content: &Value) -> Option<&str> {
    content["body"].as_str().or_else(|| content["membership"].as_str())
}

/// The beginning of a text, in its lines.
fn lines_of(text: &str) -> String {
    let mut begun: String = text.chars().take(CHARS).collect();
    if begun.len() < text.len() {
        begun.push('…');
    }
    lines(&begun)
}
