//! Full-text search: an index of messages, room names and topics that follows the log.
//!
//! The index is a projection on disk that does not delay writes: a thread of its own takes new
//! records from the log in batches. It remembers the record up to which it is complete and
//! continues from there after a restart. It is rebuilt when it is missing, damaged, of another
//! version or of another log. A search waits until the index has reached the head at that moment
//! ([`Search::reach`]).
//!
//! The index holds words with the offsets of their events, and each version of an edited text. The
//! view decides which of them a user may see, and which is the newest for them. Redacted content is
//! not found after the redaction. It leaves the files with the next purge: at once, or, if the last
//! purge took long, after ten times as long as that.
//!
//! Without the feature `search` there is no index: [`Search`] is then a stand-in, and each search
//! answers that it was left out.

#![cfg_attr(all(feature = "search", not(test)), warn(unused_crate_dependencies))]

#[cfg(feature = "search")]
mod follow;
#[cfg(feature = "search")]
mod index;
#[cfg(not(feature = "search"))]
mod left_out;

use std::collections::HashSet;

use ruma::{OwnedEventId, events::TimelineEventType};
use serde_json::Value;

#[cfg(feature = "search")]
pub use self::follow::{Search, Snapshot};
#[cfg(not(feature = "search"))]
pub use self::left_out::{Search, Snapshot};
use logcabin_read::events::StoredEvent;
use logcabin_record::Offset;

/// The directory of the index in the data directory.
const DIRECTORY: &str = "search";

/// Why a search finds nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SearchError {
    /// The index could not be read. It is being rebuilt.
    #[error("the search index cannot be read: {0}")]
    Unreadable(String),
    /// This program has no index.
    #[error("this program was built without the feature `search`")]
    LeftOut,
}

/// The part of an event that a text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// `content.body` of a message.
    Body,
    /// `content.name` of a room's name.
    Name,
    /// `content.topic` of a room's topic.
    Topic,
}

/// The order of hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The best first; equals by newest first.
    #[default]
    Rank,
    /// The newest first.
    Recent,
}

/// A position in the order of hits: the higher, the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HitPosition {
    /// The relevance of the hit, in thousandths; 0 if the order ignores it.
    pub rank: u32,
    pub event: Offset,
}

/// A text that contains all search words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hit {
    pub place: HitPosition,
    /// The event that contains the text: [`HitPosition::event`] or an edit of it.
    pub version: Offset,
    /// The `created` of its room.
    pub room: Offset,
    /// The relevance, in thousandths, in either order.
    pub rank: u32,
}

#[derive(Debug)]
pub struct Query<'a> {
    /// The terms that a text must all contain: see `text::sought`.
    pub terms: &'a [String],
    /// The parts of events to search.
    pub keys: &'a [Key],
    /// The `created` of the rooms to search.
    pub rooms: &'a HashSet<Offset>,
    pub order: Order,
    /// Only hits after this position.
    pub after: Option<HitPosition>,
    /// Only texts up to and including this offset.
    pub until: Offset,
    /// The most hits.
    pub most: usize,
    /// How many matching texts are examined, in all rooms together; others are not found.
    pub looks: usize,
}

/// The searchable text of an event.
#[derive(Debug, PartialEq, Eq)]
pub struct Text {
    /// The part of the event.
    pub(crate) key: Key,
    pub text: String,
    /// The event that this edits.
    pub edits: Option<OwnedEventId>,
}

impl Text {
    /// The text of `event`; `None` if it has none.
    pub fn of(event: &StoredEvent) -> Option<Self> {
        let content: Value = event.content_as().ok()?;
        let text = |path: &str| content.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let said = |key: Key, path: &str| Some(Self { key, text: text(path)?, edits: None });
        match (&event.event_type, event.state_key.as_deref()) {
            (TimelineEventType::RoomMessage, None) => match (edits(&content), text(NEW_BODY)) {
                (Some(original), Some(text)) => {
                    Some(Self { key: Key::Body, text, edits: Some(original) })
                }
                _ => said(Key::Body, "/body"),
            },
            (TimelineEventType::RoomName, Some("")) => said(Key::Name, "/name"),
            (TimelineEventType::RoomTopic, Some("")) => said(Key::Topic, "/topic"),
            _ => None,
        }
    }
}

const NEW_BODY: &str = "/m.new_content/body";

/// The event that a message with this content replaces.
fn edits(content: &Value) -> Option<OwnedEventId> {
    let relation =
        content.get("m.relates_to").filter(|relation| relation["rel_type"] == "m.replace")?;
    relation["event_id"].as_str()?.try_into().ok()
}
