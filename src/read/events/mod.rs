//! Events from the log: read by offset through a bounded cache, and converted to the client format.

mod at_source;
mod client;
mod fields;
mod store;
mod stripped;

use std::sync::Arc;

use ruma::{
    MilliSecondsSinceUnixEpoch, OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, UserId,
    events::{StateEventType, TimelineEventType, room::member::MembershipState},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;

pub use client::{ClientEvent, EventForm, Viewer};
pub use client::{
    Reference, References, Relations, Thread, Unsigned, age, as_shown, client_event, redacted,
    to_raw,
};
pub use fields::Fields;
pub use store::Lifetimes;
pub use store::{Derived, EventStore};
pub(crate) use stripped::strip;

use logcabin_record::{
    Offset,
    command::{Outcome, Received, RoomEvent, RoomPdu, StateBefore, Transaction},
    event_format::Pair,
};

/// An event with the fields that decisions and responses need.
#[derive(Clone, Debug)]
pub struct StoredEvent {
    /// Its offset; [`Offset::ZERO`] while it is being decided.
    pub offset: Offset,
    pub event_id: OwnedEventId,
    pub room_id: OwnedRoomId,
    /// Whether its PDU has a `room_id`. Only create events of versions that derive the room id from
    /// them do not.
    pub names_room: bool,
    pub event_type: TimelineEventType,
    pub sender: OwnedUserId,
    pub state_key: Option<Box<str>>,
    /// When this server got it, or the one from which it was imported, in milliseconds since the
    /// Unix epoch; 0 while it is being decided.
    pub time_ms: u64,
    /// Its time, by the sending server's clock.
    pub origin_server_ts: MilliSecondsSinceUnixEpoch,
    pub content: Box<RawValue>,
    pub depth: u64,
    pub prev_events: Vec<OwnedEventId>,
    pub auth_events: Vec<OwnedEventId>,
    /// The event that it redacts, wherever the room version has it.
    pub redacts: Option<OwnedEventId>,
    pub transaction: Option<Transaction>,
    /// The id of its delay, if it was scheduled.
    pub delay_id: Option<Box<str>>,
    /// For an event of another homeserver in the timeline: how it came here.
    pub received: Option<Box<Received>>,
    /// For an event that is not in the timeline: why, and the state before it.
    pub aside: Option<Box<(Outcome, Option<StateBefore>)>>,
    /// The event in federation format.
    pub pdu: Box<RawValue>,
    /// The part of the client format that is the same for everyone.
    pub shared: client::Shared,
}

/// An event. `N` is how its format names other events.
#[derive(Deserialize)]
struct Pdu<N> {
    #[serde(rename = "type")]
    event_type: TimelineEventType,
    sender: OwnedUserId,
    #[serde(default)]
    room_id: Option<IgnoredAny>,
    #[serde(default)]
    state_key: Option<Box<str>>,
    origin_server_ts: MilliSecondsSinceUnixEpoch,
    content: Box<RawValue>,
    depth: u64,
    #[serde(default = "Vec::new")]
    prev_events: Vec<N>,
    #[serde(default = "Vec::new")]
    auth_events: Vec<N>,
    #[serde(default)]
    redacts: Option<OwnedEventId>,
}

impl Pdu<Pair<OwnedEventId>> {
    /// An event of format 1, which has its id among its members.
    fn with_id(self) -> Pdu<OwnedEventId> {
        let ids = |names: Vec<Pair<OwnedEventId>>| names.into_iter().map(|pair| pair.0).collect();
        Pdu {
            event_type: self.event_type,
            sender: self.sender,
            room_id: self.room_id,
            state_key: self.state_key,
            origin_server_ts: self.origin_server_ts,
            content: self.content,
            depth: self.depth,
            prev_events: ids(self.prev_events),
            auth_events: ids(self.auth_events),
            redacts: self.redacts,
        }
    }
}

#[derive(Deserialize)]
struct RedactionContent {
    #[serde(default)]
    redacts: Option<OwnedEventId>,
}

impl StoredEvent {
    /// The event of a `room.event` record.
    ///
    /// # Errors
    /// When the PDU lacks a field that every PDU has.
    pub fn new(offset: Offset, body: RoomEvent) -> serde_json::Result<Self> {
        // Only events of format 1 name others in pairs.
        let pdu: Pdu<OwnedEventId> = serde_json::from_str(body.pdu.get()).or_else(|error| {
            let paired = serde_json::from_str::<Pdu<Pair<_>>>(body.pdu.get());
            let has_id = body.event_id.server_name().is_some();
            paired.ok().filter(|_| has_id).map(Pdu::with_id).ok_or(error)
        })?;
        let mut redacts = pdu.redacts;
        if redacts.is_none() && pdu.event_type == TimelineEventType::RoomRedaction {
            let content: RedactionContent = serde_json::from_str(pdu.content.get())?;
            redacts = content.redacts;
        }
        Ok(Self {
            offset,
            event_id: body.event_id,
            room_id: body.room_id,
            names_room: pdu.room_id.is_some(),
            event_type: pdu.event_type,
            sender: pdu.sender,
            state_key: pdu.state_key,
            time_ms: 0,
            origin_server_ts: pdu.origin_server_ts,
            content: pdu.content,
            depth: pdu.depth,
            prev_events: pdu.prev_events,
            auth_events: pdu.auth_events,
            redacts,
            transaction: body.transaction,
            delay_id: body.delay_id.map(Into::into),
            received: body.received.map(Box::new),
            aside: None,
            pdu: body.pdu,
            shared: client::Shared::default(),
        })
    }

    /// The event of a `room.pdu` record.
    ///
    /// # Errors
    /// When the PDU lacks a field that every PDU has.
    pub fn of_pdu(offset: Offset, body: RoomPdu) -> serde_json::Result<Self> {
        let RoomPdu { room_id, event_id, outcome, before, pdu, .. } = body;
        let event = RoomEvent::new(room_id, event_id, pdu);
        Ok(Self { aside: Some(Box::new((outcome, before))), ..Self::new(offset, event)? })
    }

    /// The key that it sets, if it is a state event.
    pub fn key(&self) -> Option<(StateEventType, Box<str>)> {
        let state_key = self.state_key.clone()?;
        Some((StateEventType::from(self.event_type.to_string()), state_key))
    }

    /// The user whose membership a member event sets, and to what; `None` for other events.
    pub fn membership(&self) -> Option<(&UserId, MembershipState)> {
        #[derive(Deserialize)]
        struct Content {
            membership: MembershipState,
        }
        if self.event_type != TimelineEventType::RoomMember {
            return None;
        }
        let user_id = self.state_key.as_deref()?.try_into().ok()?;
        Some((user_id, self.content_as::<Content>().ok()?.membership))
    }

    /// When its lifetime began, in milliseconds since the Unix epoch. Fetching old history does not
    /// restart it.
    pub fn lives_since_ms(&self) -> u64 {
        if self.aside.is_none() {
            return self.time_ms;
        }
        self.time_ms.min(self.origin_server_ts.get().into())
    }

    pub fn content_as<'a, T: Deserialize<'a>>(&'a self) -> serde_json::Result<T> {
        serde_json::from_str(self.content.get())
    }

    /// Its approximate size in memory, in bytes.
    fn weight(&self) -> u64 {
        // The client format also contains the content.
        let event = 768 + self.pdu.get().len() + 2 * self.content.get().len();
        let received = self.received.as_ref().map_or(0, |received| {
            let changed = |before: &StateBefore| before.changes.len();
            let resolved = received.resolved.as_ref();
            let of_resolved = resolved.map_or(0, |of| of.changes.len() + 2 * of.conflicts.len());
            let changes = received.before.as_ref().map_or(0, changed) + of_resolved;
            200 * (1 + changes) + 80 * (received.extremities.len() + received.missing.len())
        });
        let aside = self.aside.as_deref().and_then(|(_, before)| before.as_ref());
        (event + received + aside.map_or(0, |before| 200 * (1 + before.changes.len()))) as u64
    }
}

/// The interface for ruma's authorisation rules.
impl ruma::state_res::Event for StoredEvent {
    type Id = OwnedEventId;

    fn event_id(&self) -> &Self::Id {
        &self.event_id
    }

    fn room_id(&self) -> Option<&RoomId> {
        self.names_room.then_some(&self.room_id)
    }

    fn sender(&self) -> &UserId {
        &self.sender
    }

    fn origin_server_ts(&self) -> MilliSecondsSinceUnixEpoch {
        self.origin_server_ts
    }

    fn event_type(&self) -> &TimelineEventType {
        &self.event_type
    }

    fn content(&self) -> &RawValue {
        &self.content
    }

    fn state_key(&self) -> Option<&str> {
        self.state_key.as_deref()
    }

    fn prev_events(&self) -> Box<dyn DoubleEndedIterator<Item = &Self::Id> + '_> {
        Box::new(self.prev_events.iter())
    }

    fn auth_events(&self) -> Box<dyn DoubleEndedIterator<Item = &Self::Id> + '_> {
        Box::new(self.auth_events.iter())
    }

    fn redacts(&self) -> Option<&Self::Id> {
        self.redacts.as_ref()
    }

    fn rejected(&self) -> bool {
        matches!(self.aside.as_deref(), Some((Outcome::Rejected { .. }, _)))
    }
}

/// An event that is shared between the cache and its readers.
pub type EventRef = Arc<StoredEvent>;
