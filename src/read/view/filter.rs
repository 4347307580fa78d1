//! Filters of clients (client-server API, "Filtering").
//!
//! All endpoints use this implementation. A [`Filter`] is uploaded or given to `/sync`. An
//! [`EventFilter`] is one of its parts, and the filter of `/messages` and others.

use std::{collections::HashSet, hash::Hash, sync::Arc};

use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};

use crate::events::{EventForm, Fields, StoredEvent};
use logcabin_base::{json_error::describe, limits};
use logcabin_record::Offset;
use logcabin_state::{RelatesTo, Room};

/// Text that is not a filter.
#[derive(Debug, thiserror::Error)]
#[error("not a filter: {0}")]
pub struct BadFilter(String);

fn parse<T: DeserializeOwned>(json: &str) -> Result<T, BadFilter> {
    serde_json::from_str(json).map_err(|error| BadFilter(describe(&error, json.as_bytes())))
}

/// A whole filter.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Filter {
    #[serde(deserialize_with = "fields")]
    event_fields: Option<Arc<Fields>>,
    event_format: EventFormat,
    pub presence: EventFilter,
    /// For global account data.
    pub account_data: EventFilter,
    pub room: RoomFilter,
}

/// The part of a filter for rooms.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RoomFilter {
    /// The selected rooms, which applies before all other parts.
    #[serde(flatten)]
    pub selection: RoomSelection,
    /// Whether rooms that were left are included.
    pub include_leave: bool,
    /// For account data of rooms.
    pub account_data: EventFilter,
    /// For typing and receipts.
    pub ephemeral: EventFilter,
    pub state: EventFilter,
    pub timeline: EventFilter,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EventFormat {
    #[default]
    Client,
    Federation,
}

/// A filter of events, whatever part of a request it was.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct EventFilter {
    types: Option<Types>,
    not_types: Types,
    senders: Option<HashSet<OwnedUserId>>,
    not_senders: HashSet<OwnedUserId>,
    #[serde(flatten)]
    rooms: RoomSelection,
    contains_url: Option<bool>,
    /// Only events with a related event by one of these users (MSC3440).
    #[serde(alias = "io.element.relation_senders", deserialize_with = "few")]
    related_by_senders: Option<HashSet<OwnedUserId>>,
    /// Only events with a related event of one of these relation types (MSC3440).
    #[serde(alias = "io.element.relation_types", deserialize_with = "few")]
    related_by_rel_types: Option<HashSet<String>>,
    /// Only events that relate to another by one of these types (MSC3874).
    #[serde(rename = "org.matrix.msc3874.rel_types", deserialize_with = "few")]
    rel_types: Option<HashSet<String>>,
    /// Only events that relate to no other by one of these types (MSC3874).
    #[serde(rename = "org.matrix.msc3874.not_rel_types", deserialize_with = "few")]
    not_rel_types: Option<HashSet<String>>,
    /// The requested number of events, if given. The caller limits it.
    pub limit: Option<u64>,
    /// Whether to include only member events of the senders of returned events.
    #[serde(deserialize_with = "true_or_not")]
    pub lazy_load_members: bool,
    /// Whether to include them even if the client has them.
    #[serde(deserialize_with = "true_or_not")]
    pub include_redundant_members: bool,
    /// Whether unread counts are requested by thread (only for `/sync`).
    pub unread_thread_notifications: bool,
}

/// How many patterns are matched in about the time that examining an event takes otherwise.
const PATTERNS_PER_LOOK: usize = 10;

/// The selected rooms.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct RoomSelection {
    rooms: Option<HashSet<OwnedRoomId>>,
    not_rooms: HashSet<OwnedRoomId>,
}

/// Event types, some of them patterns.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Vec<String>")]
struct Types {
    exact: HashSet<String>,
    patterns: Vec<String>,
}

impl Filter {
    /// Parses a filter from JSON.
    pub fn parse(json: &str) -> Result<Self, BadFilter> {
        parse(json)
    }

    /// The requested format of room events, among variants of `form`.
    pub fn form(&self, form: &EventForm) -> EventForm {
        EventForm {
            federation: self.event_format == EventFormat::Federation,
            fields: self.event_fields.clone(),
            ..form.clone()
        }
    }
}

impl RoomSelection {
    /// Whether this room is selected.
    pub fn includes(&self, room_id: &RoomId) -> bool {
        !self.not_rooms.contains(room_id)
            && self.rooms.as_ref().is_none_or(|rooms| rooms.contains(room_id))
    }

    fn is_open(&self) -> bool {
        self.rooms.is_none() && self.not_rooms.is_empty()
    }
}

impl EventFilter {
    /// Parses a filter from JSON.
    pub fn parse(json: &str) -> Result<Self, BadFilter> {
        parse(json)
    }

    /// A filter for everything not sent by these users.
    pub(crate) fn without_senders(senders: impl IntoIterator<Item = OwnedUserId>) -> Self {
        Self { not_senders: senders.into_iter().collect(), ..Self::default() }
    }

    /// The cost of applying it to an event, in examined events: one with many patterns takes
    /// longer.
    pub fn looks(&self) -> usize {
        let types = [self.types.as_ref(), Some(&self.not_types)].into_iter().flatten();
        1 + types.map(|types| types.patterns.len()).sum::<usize>() / PATTERNS_PER_LOOK
    }

    /// The same filter, only for events of this type.
    #[must_use]
    pub fn of_type(self, event_type: &str) -> Self {
        let exact = HashSet::from([event_type.to_owned()]);
        Self { types: Some(Types { exact, ..Types::default() }), ..self }
    }

    /// Whether the filter matches this event of `room` as of `at`. A redacted event has no `url`,
    /// and relates to nothing.
    pub fn matches(&self, room: &Room, event: &StoredEvent, at: Offset) -> bool {
        if self.is_open() {
            return true;
        }
        self.wants(&event.event_type.to_string(), Some(&event.sender))
            && self.rooms.includes(&event.room_id)
            && self.contains_url.is_none_or(|wanted| has_url(room, event, at) == wanted)
            && self.wants_relation(room, event, at)
            && self.wants_related(room, event.offset, at)
    }

    /// Whether the filter matches this type and sender. A filter that lists senders does not match
    /// something without a sender.
    pub fn wants(&self, event_type: &str, sender: Option<&UserId>) -> bool {
        self.wants_type(event_type)
            && self
                .senders
                .as_ref()
                .is_none_or(|senders| sender.is_some_and(|sender| senders.contains(sender)))
            && !sender.is_some_and(|sender| self.not_senders.contains(sender))
    }

    /// Whether the filter can match events of this type.
    pub(crate) fn wants_type(&self, event_type: &str) -> bool {
        !self.not_types.include(event_type)
            && self.types.as_ref().is_none_or(|types| types.include(event_type))
    }

    /// Whether the filter can match events of this sender.
    pub(crate) fn wants_sender(&self, sender: &UserId) -> bool {
        !self.not_senders.iter().any(|id| id == sender)
            && self.senders.as_ref().is_none_or(|senders| senders.iter().any(|id| id == sender))
    }

    /// A filter that matches nothing.
    pub fn nothing() -> Self {
        Self { types: Some(Types::default()), ..Self::default() }
    }

    /// Whether the filter can match anything in this room.
    pub fn wants_room(&self, room_id: &RoomId) -> bool {
        self.rooms.includes(room_id)
    }

    /// Whether the event itself relates to another as requested.
    fn wants_relation(&self, room: &Room, event: &StoredEvent, at: Offset) -> bool {
        if self.rel_types.is_none() && self.not_rel_types.is_none() {
            return true;
        }
        let is_whole = room.redaction_of(event.offset, at).is_none();
        let relation = is_whole.then(|| RelatesTo::of(&event.content)).flatten();
        let is_of = |types: &HashSet<String>| {
            relation.as_ref().is_some_and(|relation| types.contains(&*relation.rel_type))
        };
        self.rel_types.as_ref().is_none_or(is_of) && !self.not_rel_types.as_ref().is_some_and(is_of)
    }

    /// Whether the event at `offset` has a related event as requested. If both senders and types
    /// are given, one related event must match both.
    fn wants_related(&self, room: &Room, offset: Offset, at: Offset) -> bool {
        let (senders, rel_types) = (&self.related_by_senders, &self.related_by_rel_types);
        if senders.is_none() && rel_types.is_none() {
            return true;
        }
        room.is_related(offset, rel_types.as_ref(), senders.as_ref(), at)
    }

    fn is_open(&self) -> bool {
        self.types.is_none()
            && self.not_types.is_empty()
            && self.senders.is_none()
            && self.not_senders.is_empty()
            && self.rooms.is_open()
            && self.contains_url.is_none()
            && self.related_by_senders.is_none()
            && self.related_by_rel_types.is_none()
            && self.rel_types.is_none()
            && self.not_rel_types.is_none()
    }
}

fn has_url(room: &Room, event: &StoredEvent, at: Offset) -> bool {
    // Every version's redaction removes `url`.
    room.redaction_of(event.offset, at).is_none()
        && event
            .content_as::<serde_json::Map<String, serde_json::Value>>()
            .is_ok_and(|content| content.contains_key("url"))
}

impl Types {
    fn include(&self, event_type: &str) -> bool {
        self.exact.contains(event_type)
            || self.patterns.iter().any(|pattern| wildcard(pattern, event_type))
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.patterns.is_empty()
    }
}

impl TryFrom<Vec<String>> for Types {
    type Error = String;

    fn try_from(all: Vec<String>) -> Result<Self, String> {
        let (patterns, exact): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|one| one.contains('*'));
        if patterns.len() > limits::FILTER_PATTERNS {
            return Err(format!("more than {} types with a `*`", limits::FILTER_PATTERNS));
        }
        if patterns.iter().any(|pattern| pattern.len() > limits::EVENT_FIELD_BYTES) {
            return Err(format!("a type of more than {} bytes", limits::EVENT_FIELD_BYTES));
        }
        Ok(Self { exact: exact.into_iter().collect(), patterns })
    }
}

fn fields<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Fields>>, D::Error> {
    let Some(paths) = Option::<Vec<String>>::deserialize(deserializer)? else { return Ok(None) };
    if paths.len() > limits::FILTER_FIELDS {
        let most = limits::FILTER_FIELDS;
        return Err(serde::de::Error::custom(format!("more than {most} fields of events")));
    }
    Ok(Some(Arc::new(Fields::new(&paths))))
}

/// A set that is limited, because each event is checked for all of its elements.
fn few<'de, D, T>(deserializer: D) -> Result<Option<HashSet<T>>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Eq + Hash,
{
    let given = Option::<HashSet<T>>::deserialize(deserializer)?;
    if given.as_ref().is_some_and(|given| given.len() > limits::FILTER_RELATED) {
        let most = limits::FILTER_RELATED;
        return Err(serde::de::Error::custom(format!(
            "more than {most} relations or their senders"
        )));
    }
    Ok(given)
}

/// Clients send `null` for members that they do not set.
fn true_or_not<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether `text` matches `pattern`, in which `*` stands for any sequence of characters.
fn wildcard(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_match_any_sequence() {
        for (pattern, text, matches) in [
            ("m.room.message", "m.room.message", true),
            ("m.room.message", "m.room.messages", false),
            ("m.room.*", "m.room.member", true),
            ("m.room.*", "m.room.", true),
            ("m.room.*", "m.roo", false),
            ("*", "", true),
            ("*.member", "m.room.member", true),
            ("m.*.m*r", "m.room.member", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a**b", "a b", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(wildcard(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn invalid_filters_are_refused() {
        let many = |count: usize, one: &str| {
            let list = vec![one; count];
            serde_json::json!({ "event_fields": list, "room": { "timeline": { "types": list } } })
        };
        let related = |count: usize| {
            let types: Vec<_> = (0..count).map(|number| number.to_string()).collect();
            serde_json::json!({ "room": { "timeline": { "related_by_rel_types": types } } })
        };
        for bad in [
            r#"{"room":3}"#.to_owned(),
            r#"{"room":{"timeline":{"limit":-1}}}"#.to_owned(),
            r#"{"room":{"timeline":{"limit":1.5}}}"#.to_owned(),
            r#"{"room":{"timeline":{"types":"m.room.message"}}}"#.to_owned(),
            r#"{"room":{"state":{"senders":["ann"]}}}"#.to_owned(),
            r#"{"room":{"rooms":["room"]}}"#.to_owned(),
            r#"{"room":{"state":{"contains_url":"yes"}}}"#.to_owned(),
            r#"{"room":{"state":{"lazy_load_members":1}}}"#.to_owned(),
            r#"{"presence":{"not_types":[1]}}"#.to_owned(),
            r#"{"event_format":"other"}"#.to_owned(),
            r#"{"event_fields":[1]}"#.to_owned(),
            r#"{"event_fields":"type"}"#.to_owned(),
            many(limits::FILTER_PATTERNS + 1, "a*").to_string(),
            many(limits::FILTER_FIELDS + 1, "a").to_string(),
            related(limits::FILTER_RELATED + 1).to_string(),
            format!(r#"{{"room":{{"state":{{"types":["*{}"]}}}}}}"#, "x".repeat(255)),
        ] {
            assert!(Filter::parse(&bad).is_err(), "{bad}");
        }
        for good in [
            "{}".to_owned(),
            r#"{"anything":1,"room":{"more":[],"timeline":{"more":{},"limit":0}}}"#.to_owned(),
            r#"{"event_fields":null,"room":{"rooms":null,"state":{"types":null,"limit":null,
                "lazy_load_members":null}}}"#
                .to_owned(),
            r#"{"room":{"timeline":{"limit":9007199254740991}}}"#.to_owned(),
            many(limits::FILTER_PATTERNS, "a*").to_string(),
            related(limits::FILTER_RELATED).to_string(),
        ] {
            assert!(Filter::parse(&good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_list_of_senders_does_not_match_something_without_a_sender() {
        let ann = <&UserId>::try_from("@ann:x").unwrap();
        for (filter, of_ann, of_nobody) in [
            ("{}", true, true),
            (r#"{"senders":[]}"#, false, false),
            (r#"{"senders":["@ann:x"]}"#, true, false),
            (r#"{"senders":["@ann:x"],"not_senders":["@ann:x"]}"#, false, false),
            (r#"{"not_senders":["@ann:x"]}"#, false, true),
        ] {
            let filter = EventFilter::parse(filter).unwrap();
            assert_eq!(filter.wants("m.presence", Some(ann)), of_ann);
            assert_eq!(filter.wants("m.presence", None), of_nobody);
        }
    }
}
