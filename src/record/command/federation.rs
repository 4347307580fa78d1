//! Commands about other homeservers.

use std::collections::BTreeMap;

use ruma::{OwnedEventId, OwnedRoomId, OwnedServerName, OwnedUserId, RoomVersionId};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    kind::{Content, Erased},
    values::Secret,
};
use crate::{Holds, Offset};
use logcabin_base::limits;

/// Payload of `peer.keys`. It supersedes earlier ones of the same homeserver, and has what is still
/// needed of them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerKeys {
    pub server_name: OwnedServerName,
    /// The keys that it signs with, by their ids, in unpadded base64.
    pub keys: BTreeMap<String, String>,
    /// The keys that it used to sign events with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub old: BTreeMap<String, OldKey>,
    /// Until when `keys` are valid, in milliseconds since the Unix epoch.
    pub valid_until_ms: u64,
    /// What it published, with its signature.
    pub document: Box<RawValue>,
}

/// Payload of `server.key`. From then on, the server signs requests and events for other
/// homeservers with this key. The one before it is published as expired.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerKey {
    /// Its id, `ed25519:<version>`.
    pub key_id: String,
    /// The private key: PKCS#8 DER in unpadded base64.
    pub private_key: Secret,
    /// The public key in unpadded base64.
    pub public_key: String,
}

impl Content for ServerKey {}

/// Payload of `server.old_key`. The key is published as expired.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerOldKey {
    /// Its id, `ed25519:<version>`.
    pub key_id: String,
    /// The public key in unpadded base64.
    pub public_key: String,
    /// When it was last valid, in milliseconds since the Unix epoch.
    pub expired_ms: u64,
}

impl Content for ServerOldKey {}

/// A key that is no longer in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OldKey {
    /// The public key in unpadded base64.
    pub key: String,
    /// When it was last valid, in milliseconds since the Unix epoch.
    pub expired_ms: u64,
}

impl Content for PeerKeys {
    const ERASED: Erased = Erased::All;
}

/// Payload of `peer.reached`: how far deliveries to other homeservers have come. It supersedes what
/// was recorded of the same ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerReached {
    pub servers: Vec<Reached>,
}

impl Content for PeerReached {
    const ERASED: Erased = Erased::All;
}

/// Payload of `peer.devices`: what is known about the devices of a user of another homeserver. With
/// a list, it supersedes all earlier ones of the user.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerDevices {
    pub user_id: OwnedUserId,
    /// Whether the homeserver has said that the user's devices or keys changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// For a record that says no such thing: the last one that did. What is superseded is erased,
    /// and that there was a change must outlive it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Offset>,
    /// The user's devices. Without them, those that are known are out of date.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list: Option<DeviceList>,
}

/// The devices and cross-signing keys of a user of another homeserver.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceList {
    /// The homeserver's number for the last change in it; none if the homeserver gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_id: Option<u64>,
    /// The keys of each device, by its id.
    pub devices: BTreeMap<String, Box<RawValue>>,
    /// The user's master key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master_key: Option<Box<RawValue>>,
    /// The user's self-signing key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_signing_key: Option<Box<RawValue>>,
}

impl DeviceList {
    /// Its size in a record, in bytes.
    pub fn bytes(&self) -> usize {
        let Self { stream_id: _, devices, master_key, self_signing_key } = self;
        let devices = devices.iter().map(|(id, keys)| 2 * id.len() + keys.get().len() + 8);
        let keys = [master_key, self_signing_key].into_iter().flatten();
        devices.sum::<usize>() + keys.map(|key| key.get().len()).sum::<usize>()
    }

    /// Whether it has the same keys as `other`, byte for byte. Their `stream_id`s may differ.
    pub fn is_same(&self, other: &Self) -> bool {
        fn text(key: &Option<Box<RawValue>>) -> Option<&str> {
            key.as_deref().map(RawValue::get)
        }
        fn texts(of: &DeviceList) -> impl Iterator<Item = (&String, &str)> {
            of.devices.iter().map(|(id, keys)| (id, keys.get()))
        }
        texts(self).eq(texts(other))
            && text(&self.master_key) == text(&other.master_key)
            && text(&self.self_signing_key) == text(&other.self_signing_key)
    }
}

impl Content for PeerDevices {
    const ERASED: Erased = Erased::All;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.user_id)
    }
}

/// How far deliveries to a homeserver have come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    pub server_name: OwnedServerName,
    /// Everything for it up to this record was delivered or set aside.
    pub up_to: Offset,
    /// Set if the last attempt to reach it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failing: Option<Failing>,
    /// What will never be sent to it.
    #[serde(default, skip_serializing_if = "SetAside::is_empty")]
    pub set_aside: SetAside,
}

/// What is never sent to a homeserver, so that it does not block what comes after it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// How many items there were.
    pub count: u64,
    /// The newest of them, newest last.
    pub newest: Vec<SetAsideItem>,
}

impl SetAside {
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds an item. Only the newest [`limits::SET_ASIDE_KEPT`] are kept.
    pub fn add(&mut self, item: SetAsideItem) {
        self.count = self.count.saturating_add(1);
        self.newest.push(item);
        let surplus = self.newest.len().saturating_sub(limits::SET_ASIDE_KEPT);
        self.newest.drain(..surplus);
    }
}

/// An event or an EDU that is never sent to a homeserver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAsideItem {
    /// The record that it comes from; none for an EDU that is not sent again anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<Offset>,
    /// The type of an EDU, or `event`.
    pub item: String,
    /// When it was set aside, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The status with which the homeserver refused it; none if this homeserver cannot send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Why: what the homeserver said, or what is wrong with it.
    pub reason: String,
}

impl SetAsideItem {
    /// Why it was set aside, in words.
    pub fn why(&self) -> String {
        match self.status {
            Some(status) => format!("refused with status {status}: {}", self.reason),
            None => format!("cannot be sent: {}", self.reason),
        }
    }
}

/// A homeserver cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// Since when, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// When it is tried again, in milliseconds since the Unix epoch.
    pub again_ms: u64,
    /// Why it could not be reached.
    pub error: String,
}

/// How an event of another homeserver came into a room, and what that did to the room.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Received {
    /// The homeserver that sent it, which need not be that of the sender.
    pub from: OwnedServerName,
    /// Whether this homeserver sends it on to the others in the room: it was sent only to this one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub relayed: bool,
    /// The forward extremities of the room afterwards, besides this event if it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extremities: Vec<Extremity>,
    /// Whether it is not a forward extremity itself: the room has too many.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// Events that it comes after and that this homeserver does not have: the room's history has a
    /// gap before it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<OwnedEventId>,
    /// The state before it. Left out if that is the room's state as of the record before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<StateBefore>,
    /// What it did to the room's state, if that is not what such an event does in a room without
    /// branches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolved: Option<Resolved>,
    /// For an invite or a knock from outside the room: the stripped state of the room.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stripped: Vec<Box<RawValue>>,
}

impl Received {
    /// An event that `from` sent, with everything else empty.
    pub const fn new(from: OwnedServerName) -> Self {
        Self {
            from,
            relayed: false,
            extremities: Vec::new(),
            beside: false,
            missing: Vec::new(),
            before: None,
            resolved: None,
            stripped: Vec::new(),
        }
    }
}

/// An event that no other event of the room comes after.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extremity {
    pub event_id: OwnedEventId,
    pub depth: u64,
}

/// The state of a room before an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateBefore {
    /// The state that it is based on.
    #[serde(flatten)]
    pub base: StateBase,
    /// Its differences from `base`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<StateChange>,
    /// How many records lead from it to a state of the room: 0 if the base is one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub links: u64,
}

impl StateBefore {
    pub const fn same_as(base: StateBase) -> Self {
        Self { base, changes: Vec::new(), links: 0 }
    }
}

/// A state that is known from earlier records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateBase {
    /// The room's as of this offset.
    At(Offset),
    /// That after the event at this offset.
    After(Offset),
    /// That before the event at this offset.
    Before(Offset),
    /// The state that the previous record of the same event describes. This many such records
    /// precede this one in its batch, for changes that do not fit into one.
    Part(u64),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How state resolution changed the room's state after an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resolved {
    /// For a state event: whether it holds its key now.
    pub takes_effect: bool,
    /// What else changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<StateChange>,
    /// The keys for which the branches had different events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conflicts: Vec<Conflict>,
}

/// A change of a room's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateChange {
    #[serde(rename = "type")]
    pub event_type: String,
    pub state_key: String,
    /// The event that holds this key now, if any does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<Offset>,
    /// For a member event: its `membership`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<String>,
    /// For a retention event, if the change is one of the room's current state: the lifetimes that
    /// it sets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime: Option<SaidLifetime>,
}

/// The lifetimes of events that the state of a room sets, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SaidLifetime {
    /// At most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_ms: Option<u64>,
    /// At least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_ms: Option<u64>,
}

/// A key for which the branches of a room had different events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflict {
    #[serde(rename = "type")]
    pub event_type: String,
    pub state_key: String,
    /// The events, in the order of their ids.
    pub events: Vec<OwnedEventId>,
    /// The one that holds the key afterwards, if any does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winner: Option<OwnedEventId>,
}

/// Payload of `room.pdu`: an event of another homeserver that is not in the room's timeline.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RoomPdu {
    pub room_id: OwnedRoomId,
    /// The event's id: the reference hash of `pdu`.
    pub event_id: OwnedEventId,
    pub sender: OwnedUserId,
    /// The homeserver that sent it, which need not be that of the sender.
    pub from: OwnedServerName,
    /// The room's version; only with its `m.room.create` event, which makes the room known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_version: Option<RoomVersionId>,
    /// Why it is not in the timeline.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The state before it, if that is known. Without it, an event that is not an outlier has the
    /// room's state as of the record before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<StateBefore>,
    /// The event in federation format, as canonical JSON.
    pub pdu: Box<RawValue>,
}

/// Payload of `room.state`: what changed in the state of a room while no user of this homeserver
/// was in it, recorded before one joins; or what an event that follows in the same batch changes,
/// if that is too much for its record; or, at the end of an import, what changed after the last
/// event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomState {
    pub room_id: OwnedRoomId,
    /// The homeserver that sent it.
    pub from: OwnedServerName,
    pub changes: Vec<StateChange>,
    /// The joins in that state which could not be verified, because there are no keys of the
    /// users' homeservers. They replace those of an earlier entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unverified: Option<BTreeMap<OwnedUserId, OwnedEventId>>,
}

impl Content for RoomState {}

/// Payload of `room.gap`: events were found that belong into a gap of a room's history, or the gap
/// was given up for some time. The events are in records of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomGap {
    pub room_id: OwnedRoomId,
    /// The event before which the gap is.
    pub gap: Offset,
    /// The homeserver that sent the events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<OwnedServerName>,
    /// The events, newest first. They come before those that were in the gap already.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Filled>,
    /// What is still missing: events that those in the gap come after. If there are none, the gap
    /// is closed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<OwnedEventId>,
    /// The size of what was recorded for this, in bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Until when nobody is asked for the rest, in milliseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub given_up_until_ms: Option<u64>,
}

impl Content for RoomGap {}

/// An event in a gap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// The record that has it.
    pub event: Offset,
    pub event_id: OwnedEventId,
    /// Its time by its server's clock, in milliseconds since the Unix epoch.
    pub ts: u64,
    /// For a change of the history visibility: the visibility before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub visibility: Option<String>,
    /// The event that it redacts, if that takes effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacts: Option<Offset>,
    /// The event that redacts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redacted_by: Option<Offset>,
}

/// Why an event is not in the timeline (server-server API, "Checks performed on receipt of a PDU").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It is known because others name it among their `auth_events`; its place in the room is not.
    Outlier,
    /// The room's current state does not allow it.
    SoftFailed {
        /// The rule that it breaks.
        reason: String,
    },
    /// It was not allowed where it was sent.
    Rejected {
        /// The rule that it breaks.
        reason: String,
    },
}

impl Content for RoomPdu {
    const ERASED: Erased = Erased::Event;

    fn holds(&self) -> Holds<'_> {
        Holds::Of(&self.sender)
    }
}
