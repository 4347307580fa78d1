//! Facts about rooms, apart from their events.

use serde::Serialize;

/// The number of a state of a room, in the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct StateGroup(pub i64);

/// An event that holds a key of a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StateEntry {
    pub event_type: String,
    pub state_key: String,
    pub event_id: String,
}

/// A state, as what it adds to another one.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StateStep {
    /// Without it, `entries` are the whole state.
    pub from: Option<StateGroup>,
    /// In the order of type and key.
    pub entries: Vec<StateEntry>,
}

/// A room of which the source has events.
#[derive(Clone, Debug, Serialize)]
pub struct Room {
    pub room_id: String,
    /// Without it, the source does not know, and events of the room cannot be read.
    pub version: Option<String>,
    pub creator: Option<String>,
    /// The source joined it and has not been told of all its members yet. It cannot come along.
    pub partial: bool,
    /// Whether a user of this server is in it.
    pub joined: bool,
    /// The place in [`Section::Events`](super::Section::Events) of the first event that the source
    /// still has of it, other than from the past.
    pub began: Option<i64>,
}

/// A change of a room's current state.
#[derive(Clone, Debug, Serialize)]
pub struct StateDelta {
    /// The place in [`Section::Events`](super::Section::Events) of the first event of the batch
    /// that brought it. Synapse writes a batch of events of a room at once: the event may be a
    /// later one of the same room. The delta is told after the event at this place.
    pub stream: i64,
    pub room_id: String,
    pub event_type: String,
    pub state_key: String,
    /// Without it the key is gone: nobody of this server is in the room any more, or a resolution
    /// of the state took it away.
    pub event_id: Option<String>,
    /// What held the key before.
    pub previous: Option<String>,
}

/// An event that others name as their predecessor, and that is not here. One fact for each event
/// that names it.
#[derive(Clone, Debug, Serialize)]
pub struct BackwardExtremity {
    pub room_id: String,
    /// The missing event.
    pub event_id: String,
    /// The event that is here and names it, if there is one.
    pub before: Option<String>,
}

/// A place in a room's history before which events are missing.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineGap {
    pub room_id: String,
    /// The place of the event after it.
    pub stream: i64,
}

/// An event that no other names as its predecessor.
#[derive(Clone, Debug, Serialize)]
pub struct ForwardExtremity {
    pub room_id: String,
    pub event_id: String,
}

/// An entry of a room's state now.
#[derive(Clone, Debug, Serialize)]
pub struct CurrentState {
    pub room_id: String,
    pub event_type: String,
    pub state_key: String,
    pub event_id: String,
    /// Of a member event.
    pub membership: Option<String>,
}

/// The newest membership of a user of this server in a room.
#[derive(Clone, Debug, Serialize)]
pub struct Membership {
    pub room_id: String,
    pub user_id: String,
    pub event_id: String,
    pub membership: String,
    pub forgotten: bool,
}

/// A redaction, and the event that it is about.
#[derive(Clone, Debug, Serialize)]
pub struct Redaction {
    pub event_id: String,
    pub redacts: String,
    /// The content of the redacted event is gone from the source, too: its event is told as reduced
    /// by the rules of its room's version.
    pub carried_out: bool,
    pub received_ms: Option<i64>,
}

/// A ban, or a kick, that redacts what a user has sent in a room.
#[derive(Clone, Debug, Serialize)]
pub struct BanRedaction {
    pub room_id: String,
    pub user_id: String,
    /// The membership that says it.
    pub event_id: String,
    /// The place in [`Section::Events`](super::Section::Events) of the event that ended it.
    pub until: Option<i64>,
}

/// A name of a room.
#[derive(Clone, Debug, Serialize)]
pub struct Alias {
    pub alias: String,
    pub room_id: String,
    pub creator: Option<String>,
}

/// A room that the directory lists.
#[derive(Clone, Debug, Serialize)]
pub struct Published {
    pub room_id: String,
    /// In the list of an application service: its id and the id of its network.
    pub network: Option<(String, String)>,
}

/// A room that nobody may join.
#[derive(Clone, Debug, Serialize)]
pub struct RoomBlock {
    pub room_id: String,
    /// The administrator who did it.
    pub by: String,
}

/// How long a room says that its events live.
#[derive(Clone, Debug, Serialize)]
pub struct RoomRetention {
    pub room_id: String,
    pub event_id: String,
    pub min_ms: Option<i64>,
    pub max_ms: Option<i64>,
}
