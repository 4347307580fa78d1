//! `m.device_list_update` and `m.signing_key_update`: devices and cross-signing keys of this
//! server's users (server-server API, "Device Management").
//!
//! Changes of a user's devices are numbered by their records: each EDU has the record of its change
//! as `stream_id`, and that of the previous change as `prev_id`, for every homeserver. A homeserver
//! that missed a change notices the gap, and fetches the list.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{
    OwnedServerName, OwnedUserId, ServerName, UserId, events::room::member::MembershipState,
};
use serde_json::{Value, json};

use super::{Edu, edu};
use crate::federation::sender::Sender;
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_log::ReadError;
use logcabin_read::{
    events::EventRef,
    keyring::{Keyring, public_key},
};
use logcabin_record::{Command, Offset};
use logcabin_state::{Membership, Room, State};

/// A change of a user's devices or keys.
struct Change<'a> {
    of: &'a UserId,
    /// The devices, and possibly the master key, that changed.
    devices: Vec<String>,
    /// The cross-signing keys changed.
    keys: bool,
}

fn change(command: &Command) -> Option<Change<'_>> {
    Some(match command {
        Command::KeysUpload(body) if body.device_keys.is_some() => {
            Change { of: &body.user_id, devices: vec![body.device_id.to_string()], keys: false }
        }
        Command::DeviceRemove(body) => {
            let devices = body.devices.iter().map(ToString::to_string).collect();
            Change { of: &body.user_id, devices, keys: false }
        }
        Command::KeysCrossSign(body) => {
            let keys = body.master_key.is_some() || body.self_signing_key.is_some();
            Change { of: &body.user_id, devices: Vec::new(), keys }
        }
        Command::KeysSign(body) if body.by == body.user_id => {
            let devices = body.signatures.keys().cloned().collect();
            Change { of: &body.user_id, devices, keys: true }
        }
        _ => return None,
    })
}

/// The devices that a user of this server has, with keys or without.
fn devices_of(state: &State, user_id: &UserId) -> BTreeSet<String> {
    let account = state.accounts.get(user_id);
    let devices = account.map(|account| {
        account.read().active_devices().map(|(device_id, _)| device_id.to_string()).collect()
    });
    devices.unwrap_or_default()
}

/// Keys without additional members, which do not concern other homeservers.
fn without_unsigned(mut keys: Value) -> Value {
    if let Some(keys) = keys.as_object_mut() {
        keys.remove("unsigned");
    }
    keys
}

/// The numbers of a change: its own, and the previous one.
#[derive(Clone, Copy)]
struct Numbers {
    id: Offset,
    before: Option<Offset>,
}

impl Sender {
    /// The homeservers that receive a change of a user's devices or keys.
    pub(super) fn told_of_devices(
        &self,
        state: &State,
        offset: Offset,
        command: &Command,
    ) -> BTreeSet<OwnedServerName> {
        match change(command).filter(|_| !planted::has(Fault::DevicesNotTold)) {
            Some(change) if change.keys || state.keys.told(change.of, offset).1 => {
                self.servers_with(state, change.of)
            }
            _ => BTreeSet::new(),
        }
    }

    /// The other homeservers with users who share a room with this one.
    fn servers_with(&self, state: &State, user_id: &UserId) -> BTreeSet<OwnedServerName> {
        let mut servers = BTreeSet::new();
        for part in state.memberships.of(user_id, Offset::MAX) {
            let room = Some(part).filter(|part| part.membership == Membership::Join);
            if let Some(room) = room.and_then(|part| state.rooms.get(&part.room_id)) {
                servers.extend(self.servers_of(&room).iter().cloned());
            }
        }
        servers
    }

    /// The user of this server who enters a room by this event.
    pub(super) fn who_joins(&self, room: &Room, event: &EventRef) -> Option<OwnedUserId> {
        let (user_id, membership) = event.membership()?;
        let before = room.membership(user_id, event.offset.prev());
        let is_new = before.is_none_or(|(_, membership)| membership != Membership::Join);
        let is_own = user_id.server_name() == self.client.own_name();
        (is_own && is_new && membership == MembershipState::Join).then(|| user_id.to_owned())
    }

    /// The homeservers that have shared a room with the user since this event, but shared none
    /// before.
    pub(in super::super) fn new_to(
        &self,
        state: &State,
        room: &Room,
        event: &EventRef,
    ) -> BTreeSet<OwnedServerName> {
        let Some(user_id) = self.who_joins(room, event) else { return BTreeSet::new() };
        if state.keys.get(&user_id).is_none() && devices_of(state, &user_id).is_empty() {
            return BTreeSet::new();
        }
        let mut servers: BTreeSet<_> = self.servers_of(room).iter().cloned().collect();
        for part in state.memberships.of(&user_id, Offset::MAX) {
            let is_before = part.membership == Membership::Join && part.offset < event.offset;
            if !servers.is_empty()
                && is_before
                && part.room_id != room.id
                && let Some(other) = state.rooms.get(&part.room_id)
            {
                let known = self.servers_of(&other);
                servers.retain(|server| !known.contains(server));
            }
        }
        servers
    }

    /// The EDUs about a user who joins a room by this event, for a homeserver that shared none with
    /// them before: all devices.
    pub(in super::super) fn edus_of_join(
        &self,
        state: &State,
        server: &ServerName,
        room: &Room,
        event: &EventRef,
    ) -> Result<Vec<Edu>, ReadError> {
        let Some(user_id) = self.who_joins(room, event) else { return Ok(Vec::new()) };
        if !self.new_to(state, room, event).contains(server) {
            return Ok(Vec::new());
        }
        let (last, _) = state.keys.told(&user_id, Offset::MAX);
        // Without a change that others were told of, the join is the first one.
        let numbers = Numbers { id: last.unwrap_or(event.offset), before: None };
        let keyring = Keyring::of(state, self.engine.events(), &user_id)?;
        let mut devices = devices_of(state, &user_id);
        devices.extend(keyring.devices(self.engine.events())?.into_iter().map(|(id, _)| id));
        self.device_edus(state, &user_id, &keyring, devices.into_iter().collect(), numbers)
    }

    /// The EDUs about a change of a user's devices or keys: the current values.
    pub(super) fn edus_of_devices(
        &self,
        state: &State,
        offset: Offset,
        command: &Command,
    ) -> Result<Vec<Edu>, ReadError> {
        let Some(Change { of, mut devices, keys }) = change(command) else { return Ok(Vec::new()) };
        let (before, is_told) = state.keys.told(of, offset);
        let keyring = Keyring::of(state, self.engine.events(), of)?;
        let master = keyring.master.as_ref().and_then(public_key).map(|(_, public)| public);
        let is_of_master = |name: &String| Some(name) == master.as_ref();
        let keys = keys && (devices.is_empty() || devices.iter().any(is_of_master));
        devices.retain(|name| !is_of_master(name));
        let mut edus = Vec::new();
        if is_told {
            let numbers = Numbers { id: offset, before };
            edus = self.device_edus(state, of, &keyring, devices, numbers)?;
        }
        if keys {
            edus.push(self.keys_edu(of, &keyring)?);
        }
        Ok(edus)
    }

    /// EDUs for the changes between these numbers. If there are too many, they make the homeserver
    /// fetch the list.
    fn device_edus(
        &self,
        state: &State,
        of: &UserId,
        keyring: &Keyring,
        mut devices: Vec<String>,
        Numbers { id, mut before }: Numbers,
    ) -> Result<Vec<Edu>, ReadError> {
        if devices.len() > limits::DEVICES_TOLD {
            devices.truncate(1);
            before = None;
        }
        let events = self.engine.events();
        let known: BTreeMap<_, _> = keyring.devices(events)?.into_iter().collect();
        let there = devices_of(state, of);
        let mut edus = Vec::with_capacity(devices.len());
        for device_id in devices {
            let previous: Vec<_> = before.map(Offset::get).into_iter().collect();
            let mut content = json!({
                "user_id": of,
                "device_id": device_id,
                "stream_id": id.get(),
                "prev_id": previous,
            });
            match known.get(&device_id) {
                Some(keys) => {
                    let mut keys = without_unsigned(keys.clone());
                    keyring.add_signatures(events, None, &device_id, &mut keys)?;
                    content["keys"] = keys;
                }
                // A device may have no keys yet.
                None if there.contains(&device_id) => {}
                None => content["deleted"] = true.into(),
            }
            edus.push(edu("m.device_list_update", &content));
            before = Some(id);
        }
        Ok(edus)
    }

    fn keys_edu(&self, of: &UserId, keyring: &Keyring) -> Result<Edu, ReadError> {
        let mut content = json!({ "user_id": of });
        for (name, key) in
            [("master_key", &keyring.master), ("self_signing_key", &keyring.self_signing)]
        {
            let Some(key) = key.clone() else { continue };
            let mut key = without_unsigned(key);
            if let Some((_, public)) = public_key(&key) {
                keyring.add_signatures(self.engine.events(), None, &public, &mut key)?;
            }
            content[name] = key;
        }
        Ok(edu("m.signing_key_update", &content))
    }

    /// The changes after `since` for a homeserver. If a user has more than a few, only the last
    /// one, by which the homeserver notices that it missed the others.
    pub(super) fn missed_devices(
        &self,
        state: &State,
        server: &ServerName,
        since: Offset,
    ) -> BTreeSet<Offset> {
        // A homeserver that never received anything has asked for what it needs.
        if since == Offset::ZERO {
            return BTreeSet::new();
        }
        let mut by_user: BTreeMap<OwnedUserId, Vec<Offset>> = BTreeMap::new();
        for (user_id, offset) in state.keys.changed_since(since) {
            if user_id.server_name() == self.client.own_name() {
                by_user.entry(user_id).or_default().push(offset);
            }
        }
        let mut missed = BTreeSet::new();
        for (user_id, changes) in by_user {
            if !self.servers_with(state, &user_id).contains(server) {
                continue;
            }
            let few = changes.len() <= limits::DEVICE_CHANGES_TOLD;
            match state.keys.told(&user_id, Offset::MAX).0.filter(|last| *last > since && !few) {
                Some(last) => drop(missed.insert(last)),
                None => missed.extend(changes.iter().rev().take(limits::DEVICE_CHANGES_TOLD)),
            }
        }
        missed
    }

    /// The homeservers that are to receive the changes after `first`, each with the last one.
    pub(super) fn last_devices(
        &self,
        state: &State,
        first: Offset,
    ) -> Vec<(OwnedServerName, Offset)> {
        let changed: BTreeMap<_, _> = state.keys.changed_since(first).into_iter().collect();
        let own = changed.iter().filter(|(of, _)| of.server_name() == self.client.own_name());
        let mut rooms = BTreeMap::new();
        for (user_id, offset) in own {
            for part in state.memberships.of(user_id, Offset::MAX) {
                if part.membership == Membership::Join {
                    let last = rooms.entry(part.room_id).or_insert(*offset);
                    *last = (*last).max(*offset);
                }
            }
        }
        let mut servers: BTreeMap<OwnedServerName, Offset> = BTreeMap::new();
        for (room_id, offset) in rooms {
            let Some(room) = state.rooms.get(&room_id) else { continue };
            for server in self.servers_of(&room).iter() {
                match servers.get_mut(server) {
                    Some(last) => *last = offset.max(*last),
                    None => drop(servers.insert(server.clone(), offset)),
                }
            }
        }
        servers.into_iter().collect()
    }

    /// The joins after `since` of users of this server whose devices may be new to homeservers in
    /// the room.
    pub(in super::super) fn missed_joins(&self, room: &Room, since: Offset) -> Vec<Offset> {
        let changed = room.members_changed(since, Offset::MAX).into_iter();
        let own = changed.filter(|user_id| user_id.server_name() == self.client.own_name());
        let joins = own.filter_map(|user_id| match room.membership(&user_id, Offset::MAX)? {
            (offset, Membership::Join) if offset > since => Some(offset),
            _ => None,
        });
        joins.collect()
    }
}
