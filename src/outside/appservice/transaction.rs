//! The body of a transaction (application service API, "Pushing events").

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;
use ruma::{OwnedDeviceId, OwnedUserId, UserId, events::TimelineEventType};
use serde_json::{Value, json, value::RawValue};

use super::{
    Service,
    interest::{Ephemeral, ServiceContent},
};
use logcabin_base::limits;
use logcabin_decide::Env;
use logcabin_log::ReadError;
use logcabin_read::events::{
    self, ClientEvent, EventForm, EventRef, Unsigned, age, as_shown, to_raw,
};
use logcabin_record::Offset;
use logcabin_state::{Membership, Room, keys::DeviceKeys};

/// A transaction, the same at each attempt.
#[derive(Debug)]
pub struct Parcel {
    pub(super) body: Bytes,
    /// The devices with messages in it, each with its last message.
    pub(super) received: Vec<(OwnedUserId, OwnedDeviceId, Offset)>,
}

/// Builds a transaction as of `up_to`. It is the same at each attempt, except for typing users and
/// key counts, which are as of `now_ms`.
pub(super) fn pack(
    env: &Env,
    service: &Service,
    found: ServiceContent,
    up_to: Offset,
    now_ms: u64,
) -> Result<Parcel, ReadError> {
    let time_ms = env.events.time_of(up_to)?.unwrap_or(now_ms);
    // Raw, like events: they are not parsed for it.
    let mut body: BTreeMap<String, Box<RawValue>> = BTreeMap::new();
    let mut events = Vec::with_capacity(found.events.len());
    for event in found.events {
        events.extend(client_event(env, service, event, up_to, time_ms)?);
    }
    body.insert("events".to_owned(), to_raw(&events));
    let mut put = |name: &str, old: &str, value: Box<RawValue>, both: bool| {
        if both {
            body.insert(format!("{old}.{name}"), value.clone());
        }
        body.insert(name.to_owned(), value);
    };
    if !found.passing.is_empty() {
        let passing = found.passing.into_iter().map(|passing| match passing {
            Ephemeral::Event(event) => event,
            Ephemeral::Typing(room_id) => {
                let all = BTreeSet::new();
                let typists = |room: Arc<Room>| room.typists(now_ms, limits::TYPISTS, &all).0;
                let user_ids = env.state.rooms.get(&room_id).map(typists).unwrap_or_default();
                let content = json!({ "user_ids": user_ids });
                to_raw(&json!({ "type": "m.typing", "room_id": room_id, "content": content }))
            }
        });
        put("ephemeral", MSC2409, to_raw(&passing.collect::<Vec<_>>()), service.old_ephemeral_name);
    }
    let mut received: BTreeMap<(OwnedUserId, OwnedDeviceId), Offset> = BTreeMap::new();
    if !found.to_device.is_empty() {
        let messages = found.to_device.into_iter().map(|to| {
            received.insert((to.user_id, to.device_id), to.offset);
            to.message
        });
        // Services that receive them know only this name; the other is the future one.
        put("to_device", MSC2409, to_raw(&messages.collect::<Vec<_>>()), true);
    }
    let mut devices: Vec<_> = received.keys().cloned().collect();
    devices.extend(found.key_counts);
    devices.sort_unstable();
    devices.dedup();
    if service.encryption && !devices.is_empty() {
        let (mut counts, mut fallback) = (ByDevice::new(), ByDevice::new());
        for (user_id, device_id) in devices {
            let count = |keys: &DeviceKeys| (json!(keys.counts()), json!(keys.unused_fallback()));
            let left = env.state.keys.of_device(&user_id, &device_id, count);
            let (left, unused) = left.unwrap_or_else(|| count(&DeviceKeys::default()));
            counts.entry(user_id.clone()).or_default().insert(device_id.clone(), left);
            fallback.entry(user_id).or_default().insert(device_id, unused);
        }
        put("device_one_time_keys_count", MSC3202, to_raw(&counts), true);
        put("device_unused_fallback_key_types", MSC3202, to_raw(&fallback), true);
    }
    if !found.devices_changed.is_empty() || !found.devices_left.is_empty() {
        let lists = json!({ "changed": found.devices_changed, "left": found.devices_left });
        put("device_lists", MSC3202, to_raw(&lists), true);
    }
    let received =
        received.into_iter().map(|((user, device), offset)| (user, device, offset)).collect();
    let body = Box::<str>::from(to_raw(&body)).into_boxed_bytes().into();
    Ok(Parcel { body, received })
}

type ByDevice = BTreeMap<OwnedUserId, BTreeMap<OwnedDeviceId, Value>>;

/// The prefix of members that these proposals add.
const MSC2409: &str = "de.sorunome.msc2409";
const MSC3202: &str = "org.matrix.msc3202";

/// An event in the form for services: with the replaced content, and for the service's own
/// invitations with the stripped state.
fn client_event(
    env: &Env,
    service: &Service,
    event: EventRef,
    at: Offset,
    time_ms: u64,
) -> Result<Option<ClientEvent>, ReadError> {
    let Some(room) = env.state.rooms.get(&event.room_id) else { return Ok(None) };
    let shown = as_shown(&room, event, at);
    let mut unsigned = Unsigned { age: age(&shown, time_ms).max(0), ..Unsigned::default() };
    let previous = previous(env, &room, &shown, at)?;
    if let Some(previous) = &previous {
        unsigned.prev_content = Some(&previous.content);
        unsigned.prev_sender = Some(&previous.sender);
        unsigned.replaces_state = Some(&previous.event_id);
    }
    if shown.event_type == TimelineEventType::RoomMember
        && let Some(user_id) = shown.state_key.as_deref()
        && let Ok(user_id) = <&UserId>::try_from(user_id)
        && service.owns_user(user_id)
    {
        let stripped = || env.events.stripped_state(&room, &shown, at);
        match room.membership(user_id, shown.offset).map(|(_, is)| is) {
            Some(Membership::Invite) => unsigned.invite_room_state = Some(stripped()?),
            Some(Membership::Knock) => unsigned.knock_room_state = Some(stripped()?),
            _ => {}
        }
    }
    Ok(Some(events::client_event(&room, &shown, &EventForm::STATE, &unsigned)))
}

fn previous(
    env: &Env,
    room: &Room,
    event: &EventRef,
    at: Offset,
) -> Result<Option<EventRef>, ReadError> {
    let Some(state_key) = &event.state_key else { return Ok(None) };
    let event_type = event.event_type.to_string().into();
    let Some(offset) = room.state_before(&event_type, state_key, event.offset) else {
        return Ok(None);
    };
    Ok(env.events.get(offset)?.map(|previous| as_shown(room, previous, at)))
}
