//! Filters: which events a client wants (client-server API, "Filtering").

use ruma::{
    OwnedRoomId, OwnedUserId, RoomId, UserId,
    api::client::filter::{Filter, LazyLoadOptions, RoomEventFilter, UrlFilter},
};

use crate::events::StoredEvent;

/// A filter on events, whatever kind of filter it was in the request.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    types: Option<Vec<String>>,
    not_types: Vec<String>,
    senders: Option<Vec<OwnedUserId>>,
    not_senders: Vec<OwnedUserId>,
    rooms: RoomSelection,
    contains_url: Option<bool>,
    /// The most events that are wanted, if the filter says.
    pub limit: Option<u64>,
    /// Whether member events are wanted only for those who sent the events returned.
    pub lazy_load_members: bool,
}

/// Which rooms are wanted.
#[derive(Clone, Debug, Default)]
pub struct RoomSelection {
    rooms: Option<Vec<OwnedRoomId>>,
    not_rooms: Vec<OwnedRoomId>,
}

impl RoomSelection {
    /// A selection of `rooms` (none: all) without `not_rooms`, which wins.
    #[must_use]
    pub const fn new(rooms: Option<Vec<OwnedRoomId>>, not_rooms: Vec<OwnedRoomId>) -> Self {
        Self { rooms, not_rooms }
    }

    /// Whether this room is wanted.
    #[must_use]
    pub fn includes(&self, room_id: &RoomId) -> bool {
        let excluded = self.not_rooms.iter().any(|id| id == room_id);
        !excluded && self.rooms.as_ref().is_none_or(|rooms| rooms.iter().any(|id| id == room_id))
    }
}

impl EventFilter {
    /// Whether the filter wants this event.
    #[must_use]
    pub fn matches(&self, event: &StoredEvent) -> bool {
        if self.is_open() {
            return true;
        }
        self.wants_type(&event.event_type.to_string())
            && self.senders.as_ref().is_none_or(|senders| senders.contains(&event.sender))
            && !self.not_senders.contains(&event.sender)
            && self.rooms.includes(&event.room_id)
            && self.contains_url.is_none_or(|wanted| has_url(event) == wanted)
    }

    /// Whether the filter wants events of this type, as far as the type decides.
    #[must_use]
    pub fn wants_type(&self, event_type: &str) -> bool {
        let any = |patterns: &[String]| patterns.iter().any(|p| wildcard(p, event_type));
        !any(&self.not_types) && self.types.as_ref().is_none_or(|types| any(types))
    }

    /// Whether the filter wants events of this sender, as far as the sender decides.
    #[must_use]
    pub fn wants_sender(&self, sender: &UserId) -> bool {
        !self.not_senders.iter().any(|id| id == sender)
            && self.senders.as_ref().is_none_or(|senders| senders.iter().any(|id| id == sender))
    }

    /// A filter that wants nothing.
    #[must_use]
    pub fn nothing() -> Self {
        Self { types: Some(Vec::new()), ..Self::default() }
    }

    /// Whether the filter wants anything of this room.
    #[must_use]
    pub fn wants_room(&self, room_id: &RoomId) -> bool {
        self.rooms.includes(room_id)
    }

    const fn is_open(&self) -> bool {
        self.types.is_none()
            && self.not_types.is_empty()
            && self.senders.is_none()
            && self.not_senders.is_empty()
            && self.rooms.rooms.is_none()
            && self.rooms.not_rooms.is_empty()
            && self.contains_url.is_none()
    }
}

impl From<RoomEventFilter> for EventFilter {
    fn from(filter: RoomEventFilter) -> Self {
        Self {
            types: filter.types,
            not_types: filter.not_types,
            senders: filter.senders,
            not_senders: filter.not_senders,
            rooms: RoomSelection::new(filter.rooms, filter.not_rooms),
            contains_url: filter.url_filter.map(|url| url == UrlFilter::EventsWithUrl),
            limit: filter.limit.map(u64::from),
            lazy_load_members: matches!(filter.lazy_load_options, LazyLoadOptions::Enabled { .. }),
        }
    }
}

impl From<Filter> for EventFilter {
    fn from(filter: Filter) -> Self {
        Self {
            types: filter.types,
            not_types: filter.not_types,
            senders: filter.senders,
            not_senders: filter.not_senders,
            limit: filter.limit.map(u64::from),
            ..Self::default()
        }
    }
}

fn has_url(event: &StoredEvent) -> bool {
    event
        .content_as::<serde_json::Map<String, serde_json::Value>>()
        .is_ok_and(|content| content.contains_key("url"))
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
    use super::wildcard;

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
}
