//! Which records concern a service (application service API, "Registration"), judged as of each
//! record: the members at that time decide, not the present ones.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use ruma::{
    DeviceId, OwnedDeviceId, OwnedRoomId, OwnedUserId, RoomId, UserId, events::TimelineEventType,
};
use serde::Serialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{Service, any};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_read::{
    events::{EventRef, StoredEvent, to_raw},
    view,
};
use logcabin_record::{
    Command, Offset, Record,
    command::{PresenceSet, Receipt, RoomEvent, ToDeviceSend},
};
use logcabin_state::{Membership, State, presence::UserPresence};

/// What concerns a service, found record by record.
#[derive(Debug)]
pub(crate) struct Interest {
    service: Arc<Service>,
    /// How many of the service's users are joined to a room, as of the last record that was read.
    /// Rooms that were not looked up yet are missing.
    joined: HashMap<OwnedRoomId, usize>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct ServiceContent {
    pub(super) events: Vec<EventRef>,
    /// Ephemeral events, in order.
    pub(super) passing: Vec<Ephemeral>,
    pub(super) to_device: Vec<ToDevice>,
    /// Users whose devices changed.
    pub(super) devices_changed: Vec<OwnedUserId>,
    /// Users who no longer share a room with the service.
    pub(super) devices_left: Vec<OwnedUserId>,
    /// Devices whose number of keys changed.
    pub(super) key_counts: Vec<(OwnedUserId, OwnedDeviceId)>,
    /// The size of the records in which it was found, in bytes.
    pub(super) bytes: usize,
}

/// An ephemeral event.
#[derive(Debug)]
pub(crate) enum Ephemeral {
    /// An event as it is sent.
    Event(Box<RawValue>),
    /// The typing users of this room changed.
    Typing(OwnedRoomId),
}

/// A message to a device.
#[derive(Debug)]
pub(crate) struct ToDevice {
    pub(super) offset: Offset,
    pub(super) user_id: OwnedUserId,
    pub(super) device_id: OwnedDeviceId,
    pub(super) message: Box<RawValue>,
}

/// The same as it is sent. Its content is written as it is.
#[derive(Serialize)]
struct Message<'a> {
    #[serde(rename = "type")]
    event_type: &'a str,
    sender: &'a UserId,
    content: &'a RawValue,
    to_user_id: &'a UserId,
    to_device_id: &'a DeviceId,
}

impl ServiceContent {
    fn len(&self) -> usize {
        self.events.len()
            + self.passing.len()
            + self.to_device.len()
            + self.devices_changed.len()
            + self.devices_left.len()
            + self.key_counts.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= limits::DELIVERY_ITEMS || self.bytes >= limits::DELIVERY_BYTES
    }
}

impl Interest {
    pub(super) fn of(service: Arc<Service>) -> Self {
        Self { service, joined: HashMap::new() }
    }

    /// Forgets what was learned from earlier records.
    pub(super) fn restart(&mut self) {
        self.joined.clear();
    }

    /// Adds what a record means to the service. Returns whether it means anything.
    pub(super) fn read(
        &mut self,
        state: &State,
        record: &Record,
        found: &mut ServiceContent,
    ) -> Result<bool, ReadError> {
        let (before, offset) = (found.len(), record.offset());
        let (passes, encrypts) = (self.service.ephemeral, self.service.encryption);
        // Before the payload is parsed: most records are of other kinds.
        let wanted = match &*record.header.kind {
            "room.event" => true,
            "room.receipt" | "room.typing" | "presence.set" => passes,
            "to_device.send" => passes || encrypts,
            "keys.upload" | "keys.claim" | "keys.drop" | "keys.cross_sign" | "keys.sign"
            | "device.remove" | "device.login" => encrypts,
            _ => false,
        };
        if !wanted {
            return Ok(false);
        }
        // What was applied could be decoded, and can be again.
        match record.command().ok().flatten() {
            Some(Command::RoomEvent(body)) => self.event(state, offset, body, found),
            Some(Command::RoomReceipt(body)) if self.wants_room(state, &body.room_id, offset) => {
                found.passing.extend(self.receipts(&body.room_id, &body.receipts));
            }
            // Continued typing is not a change.
            Some(Command::RoomTyping(body))
                if body.since.is_none() && self.wants_room(state, &body.room_id, offset) =>
            {
                let same = |passing: &Ephemeral| match passing {
                    Ephemeral::Typing(room_id) => *room_id == body.room_id,
                    Ephemeral::Event(_) => false,
                };
                if !found.passing.iter().any(same) {
                    found.passing.push(Ephemeral::Typing(body.room_id));
                }
            }
            Some(Command::PresenceSet(body)) if self.meets(state, &body.user_id, offset) => {
                let event = presence(offset, body, record.header.time_ms);
                found.passing.push(Ephemeral::Event(event));
            }
            Some(Command::ToDeviceSend(body)) => self.to_device(offset, body, found),
            Some(Command::KeysUpload(body)) => {
                if body.device_keys.is_some() {
                    self.devices(state, offset, body.user_id.clone(), found);
                }
                if self.service.owns_user(&body.user_id) {
                    key_counts(found, body.user_id, body.device_id);
                }
            }
            Some(Command::KeysClaim(body)) if self.service.owns_user(&body.user_id) => {
                key_counts(found, body.user_id, body.device_id);
            }
            Some(Command::KeysDrop(_)) => {
                for (user_id, devices) in state.keys.devices() {
                    if self.service.owns_user(&user_id) {
                        for device_id in devices {
                            key_counts(found, user_id.clone(), device_id);
                        }
                    }
                    self.devices(state, offset, user_id, found);
                }
            }
            Some(Command::KeysCrossSign(body)) => self.devices(state, offset, body.user_id, found),
            Some(Command::KeysSign(body)) if body.by == body.user_id => {
                self.devices(state, offset, body.user_id, found);
            }
            // A new device has no keys: the service learns of it, and uploads some.
            Some(Command::DeviceLogin(body)) if self.service.owns_user(&body.user_id) => {
                key_counts(found, body.user_id, body.device_id);
            }
            Some(Command::DeviceRemove(body)) => self.devices(state, offset, body.user_id, found),
            _ => {}
        }
        let is_more = found.len() > before;
        if is_more {
            found.bytes = found.bytes.saturating_add(record.header.payload_len as usize);
        }
        Ok(is_more)
    }

    fn event(
        &mut self,
        state: &State,
        offset: Offset,
        body: RoomEvent,
        found: &mut ServiceContent,
    ) {
        let Ok(event) = StoredEvent::new(offset, body) else { return };
        let target = match (&event.event_type, &event.state_key) {
            (TimelineEventType::RoomMember, Some(user_id)) => {
                <&UserId>::try_from(&**user_id).ok().map(ToOwned::to_owned)
            }
            _ => None,
        };
        if let Some(target) = &target {
            self.moved(state, &event.room_id, target, offset);
        }
        let own = |user_id: &UserId| self.service.owns_user(user_id);
        let concerns = own(&event.sender) || target.as_deref().is_some_and(own);
        if !concerns && !self.wants_room(state, &event.room_id, offset) {
            return;
        }
        if self.service.encryption
            && let Some(user_id) = target
        {
            match member(state, &event.room_id, &user_id, offset) {
                Some(Membership::Join) => self.devices(state, offset, user_id, found),
                Some(Membership::Leave | Membership::Ban)
                    if !self.meets(state, &user_id, offset) =>
                {
                    found.devices_left.push(user_id);
                }
                _ => {}
            }
        }
        found.events.push(Arc::new(event));
    }

    /// Updates the count of the service's users in a room, if it is known.
    fn moved(&mut self, state: &State, room_id: &RoomId, user_id: &UserId, offset: Offset) {
        if !self.joined.contains_key(room_id) || !self.service.owns_user(user_id) {
            return;
        }
        let is_joined = |at: Offset| member(state, room_id, user_id, at) == Some(Membership::Join);
        let (before, after) = (is_joined(offset.prev()), is_joined(offset));
        if let Some(joined) = self.joined.get_mut(room_id) {
            match (before, after) {
                (false, true) => *joined += 1,
                (true, false) => *joined = joined.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Whether the service receives the events of this room.
    fn wants_room(&mut self, state: &State, room_id: &RoomId, at: Offset) -> bool {
        self.service.owns_room(room_id)
            || self.is_there(state, room_id, at)
            || (!self.service.aliases.is_empty() && {
                let aliases = state.aliases.of_room(room_id, at);
                aliases.iter().any(|alias| any(&self.service.aliases, alias.as_str()))
            })
    }

    /// Whether one of the service's users is joined.
    fn is_there(&mut self, state: &State, room_id: &RoomId, at: Offset) -> bool {
        if let Some(joined) = self.joined.get(room_id) {
            return *joined > 0;
        }
        let Some(room) = state.rooms.get(room_id) else { return false };
        let members = room.members(Membership::Join, at);
        let own = members.iter().filter(|(user_id, _)| self.service.owns_user(user_id)).count();
        if self.joined.len() >= limits::DELIVERY_ROOMS {
            self.joined.clear();
        }
        self.joined.insert(room_id.to_owned(), own);
        own > 0
    }

    /// Whether it is one of the service's users, or shares a room with the service.
    fn meets(&mut self, state: &State, user_id: &UserId, at: Offset) -> bool {
        self.service.owns_user(user_id) || {
            let parts = state.memberships.of(user_id, at).into_iter();
            let mut joined = parts.filter(|part| part.membership == Membership::Join);
            joined.any(|part| self.wants_room(state, &part.room_id, at))
        }
    }

    fn devices(
        &mut self,
        state: &State,
        at: Offset,
        user_id: OwnedUserId,
        found: &mut ServiceContent,
    ) {
        if self.meets(state, &user_id, at) && !found.devices_changed.contains(&user_id) {
            found.devices_changed.push(user_id);
        }
    }

    fn to_device(&self, offset: Offset, body: ToDeviceSend, found: &mut ServiceContent) {
        let own = |(user_id, _): &(OwnedUserId, _)| self.service.owns_user(user_id);
        for (user_id, devices) in body.messages.into_iter().filter(own) {
            for (device_id, content) in devices {
                let message = to_raw(&Message {
                    event_type: &body.event_type,
                    sender: &body.sender,
                    content: &content,
                    to_user_id: &user_id,
                    to_device_id: &device_id,
                });
                let user_id = user_id.clone();
                found.to_device.push(ToDevice { offset, user_id, device_id, message });
            }
        }
    }

    /// The `m.receipt` events for receipts that moved together: more than one if a user has both an
    /// unthreaded and a threaded receipt for the same event, because one such event cannot express
    /// that.
    fn receipts(&self, room_id: &RoomId, receipts: &[Receipt]) -> Vec<Ephemeral> {
        type Content = BTreeMap<String, Map<String, Value>>;
        let mut contents: Vec<Content> = Vec::new();
        for receipt in receipts {
            let Receipt { user_id, receipt_type, event_id, thread_id, ts } = receipt;
            if receipt_type == "m.read.private" && !self.service.owns_user(user_id) {
                continue;
            }
            let mut data = json!({ "ts": ts });
            if let Some(thread_id) = thread_id {
                data["thread_id"] = thread_id.as_str().into();
            }
            let event_id = event_id.as_str();
            let is_free = |content: &Content| {
                let of_event = content.get(event_id).and_then(|of| of.get(receipt_type));
                of_event.is_none_or(|of_type| of_type.get(user_id.as_str()).is_none())
            };
            let content = match contents.iter_mut().position(|content| is_free(content)) {
                Some(index) => &mut contents[index],
                None => {
                    contents.push(Content::new());
                    let last = contents.len() - 1;
                    &mut contents[last]
                }
            };
            let of_event = content.entry(event_id.to_owned()).or_default();
            let of_type = of_event.entry(receipt_type.clone()).or_insert_with(|| json!({}));
            of_type[user_id.as_str()] = data;
        }
        let event = |content: Content| {
            let event = json!({ "type": "m.receipt", "room_id": room_id, "content": content });
            Ephemeral::Event(to_raw(&event))
        };
        contents.into_iter().map(event).collect()
    }
}

fn member(state: &State, room_id: &RoomId, user_id: &UserId, at: Offset) -> Option<Membership> {
    let room = state.rooms.get(room_id)?;
    room.membership(user_id, at).map(|(_, membership)| membership)
}

fn key_counts(found: &mut ServiceContent, user_id: OwnedUserId, device_id: OwnedDeviceId) {
    let device = (user_id, device_id);
    if !found.key_counts.contains(&device) {
        found.key_counts.push(device);
    }
}

fn presence(offset: Offset, body: PresenceSet, time_ms: u64) -> Box<RawValue> {
    let PresenceSet { user_id, presence, status_msg, currently_active, last_active_ms } = body;
    let shown = UserPresence { offset, presence, status_msg, currently_active, last_active_ms };
    view::presence::event(&user_id, &shown, time_ms)
}
