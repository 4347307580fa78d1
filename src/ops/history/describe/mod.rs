//! Records as text: a file for each family of commands.

mod account;
mod contact;
mod device;
mod federation;
mod keys;
mod media;
mod oauth;
mod push;
mod room;
mod server;

use ruma::{OwnedEventId, events::TimelineEventType};
use serde_json::Value;

use logcabin_read::events::StoredEvent;
use logcabin_record::{Offset, Payload, Record, each_command};
use logcabin_state::Membership;

/// One record for a reader: who did what, and in which room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Who did it; `server` for what the server does by itself.
    pub who: String,
    /// The room, if it concerns one.
    pub room: Option<String>,
    /// What it does, as text.
    pub text: String,
}

/// The text for `record`. An unreadable record is described as such.
pub fn of_record(record: &Record) -> Description {
    let origin = &record.header.origin.user;
    let import = record.header.origin.import();
    let who = match (&**origin, import) {
        (_, Some(import)) => import.source.title().to_owned(),
        ("", _) => "server".to_owned(),
        ("admin", _) => format!("admin ({})", record.header.origin.device),
        (user, _) => user.to_owned(),
    };
    let room = record.header.stream.room_id().map(ToString::to_string);
    let (who, text) = match record.command() {
        Ok(Some(command)) => {
            let (said, mut text) =
                each_command!(command, body => body.describe(record, who.clone()));
            if origin.as_ref() == "admin" && said != who {
                // The text names the user whom the record concerns, who need not be the one who
                // acted.
                text = format!("{text} (done by {who})");
            }
            if let Some(import) = import {
                text = format!("{text} ({import})");
            }
            let who = said;
            let erased = matches!(record.payload, Payload::Reduced(_));
            (who, if erased { text + " (its content was erased)" } else { text })
        }
        Ok(None) => (who, "(the payload was erased)".to_owned()),
        Err(error) => (who, format!("({error})")),
    };
    Description { who, room, text }
}

/// The acting user, and the text.
type ActorAndText = (String, String);

/// The payload of a command.
trait Describe {
    /// `who` is the user in the record's origin.
    fn describe(self, record: &Record, who: String) -> ActorAndText;
}

fn joined(ids: Vec<String>) -> String {
    ids.join(", ")
}

fn because(reason: Option<String>) -> String {
    reason.map_or_else(String::new, |reason| format!(": {reason}"))
}

/// The context of an event.
#[derive(Clone, Copy, Debug, Default)]
pub struct Context {
    /// The membership before a member event.
    pub before: Option<Membership>,
    /// The record of the event that it refers to: redacts, replaces, reacts to.
    pub about: Option<Offset>,
}

/// The event that `event` refers to: redacts, replaces, reacts to.
pub fn about(event: &StoredEvent) -> Option<OwnedEventId> {
    let content: Value = event.content_as().unwrap_or_default();
    let related = content.pointer("/m.relates_to/event_id").and_then(Value::as_str);
    event.redacts.clone().or_else(|| related?.try_into().ok())
}

/// The text for `event`, without the sender.
pub fn of_event(event: &StoredEvent, context: Context) -> String {
    let about = |id: Option<&str>| match context.about {
        Some(offset) => format!("record {offset}"),
        None => id.unwrap_or("an event").to_owned(),
    };
    let content: Value = event.content_as().unwrap_or_default();
    let text = |key: &str| content.get(key).and_then(Value::as_str);
    match (&event.event_type, event.state_key.as_deref()) {
        (TimelineEventType::RoomMessage, None) => message(&content, about(None)),
        (TimelineEventType::RoomEncrypted, None) => "(an encrypted message)".to_owned(),
        (TimelineEventType::RoomMember, Some(target)) => {
            member(event, target, &content, context.before)
        }
        (TimelineEventType::RoomRedaction, None) => {
            let target = about(event.redacts.as_ref().map(|id| id.as_str()));
            format!("redacted {target}{}", reason(&content))
        }
        (TimelineEventType::Reaction, None) => {
            let key = content.pointer("/m.relates_to/key").and_then(Value::as_str);
            format!("reacted {} to {}", key.unwrap_or_default(), about(None))
        }
        (TimelineEventType::RoomCreate, Some(_)) => {
            let version = text("room_version").unwrap_or("1");
            format!("created the room, version {version}")
        }
        (TimelineEventType::RoomName, Some(_)) => set("the name", text("name")),
        (TimelineEventType::RoomTopic, Some(_)) => set("the topic", text("topic")),
        (TimelineEventType::RoomCanonicalAlias, Some(_)) => set("the main alias", text("alias")),
        (TimelineEventType::RoomAvatar, Some(_)) => set("the avatar", text("url")),
        (TimelineEventType::RoomJoinRules, Some(_)) => set("the join rule", text("join_rule")),
        (TimelineEventType::RoomGuestAccess, Some(_)) => set("guest access", text("guest_access")),
        (TimelineEventType::RoomHistoryVisibility, Some(_)) => {
            set("history visibility", text("history_visibility"))
        }
        (TimelineEventType::RoomPowerLevels, Some(_)) => "set the power levels".to_owned(),
        (TimelineEventType::RoomEncryption, Some(_)) => "turned encryption on".to_owned(),
        (TimelineEventType::RoomTombstone, Some(_)) => {
            set("the successor of the room", text("replacement_room"))
        }
        (other, Some("")) => format!("set {other} to {}", event.content.get()),
        (other, Some(key)) => format!("set {other} of {key} to {}", event.content.get()),
        (other, None) => format!("sent {other} {}", event.content.get()),
    }
}

fn set(what: &str, value: Option<&str>) -> String {
    match value {
        Some(value) if !value.is_empty() => format!("set {what} to {value}"),
        _ => format!("removed {what}"),
    }
}

fn message(content: &Value, about: String) -> String {
    let text = |from: &Value, key: &str| from.get(key).and_then(Value::as_str).map(str::to_owned);
    let relation = content.pointer("/m.relates_to/rel_type").and_then(Value::as_str);
    if relation == Some("m.replace") {
        let new = content.get("m.new_content").unwrap_or(content);
        return format!("(edits {about}) {}", text(new, "body").unwrap_or_default());
    }
    let body = text(content, "body").unwrap_or_default();
    match content.get("msgtype").and_then(Value::as_str) {
        Some("m.text") => body,
        Some("m.notice") => format!("(notice) {body}"),
        Some("m.emote") => format!("* {body}"),
        Some(kind @ ("m.image" | "m.file" | "m.audio" | "m.video" | "m.location")) => {
            format!("({}) {body}", kind.trim_start_matches("m."))
        }
        Some(other) => format!("({other}) {body}"),
        None => "(an empty message)".to_owned(),
    }
}

fn member(
    event: &StoredEvent,
    target: &str,
    content: &Value,
    before: Option<Membership>,
) -> String {
    let own = event.sender.as_str() == target;
    let now = content.get("membership").and_then(Value::as_str).unwrap_or_default();
    let does = match (now, before) {
        ("join", Some(Membership::Join)) => {
            let name = content.get("displayname").and_then(Value::as_str);
            return name.map_or_else(
                || "no longer has a display name".to_owned(),
                |name| format!("is shown as {name}"),
            );
        }
        ("join", Some(Membership::Invite)) => "accepted the invitation".to_owned(),
        ("join", _) => "joined".to_owned(),
        ("invite", _) => format!("invited {target}"),
        ("knock", _) => "knocked".to_owned(),
        ("ban", _) => format!("banned {target}"),
        ("leave", Some(Membership::Invite)) if own => "declined the invitation".to_owned(),
        ("leave", Some(Membership::Knock)) if own => "withdrew the knock".to_owned(),
        ("leave", _) if own => "left".to_owned(),
        ("leave", Some(Membership::Ban)) => format!("unbanned {target}"),
        ("leave", Some(Membership::Invite)) => format!("withdrew the invitation of {target}"),
        ("leave", Some(Membership::Knock)) => format!("rejected the knock of {target}"),
        ("leave", Some(Membership::Join)) => format!("kicked {target}"),
        ("leave", _) => format!("removed {target}"),
        (other, _) => format!("set the membership of {target} to {other}"),
    };
    does + &reason(content)
}

fn reason(content: &Value) -> String {
    let given = content.get("reason").and_then(Value::as_str);
    given.map_or_else(String::new, |reason| format!(" (reason: {reason})"))
}

/// A string as it is, other values as JSON.
pub(super) fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
