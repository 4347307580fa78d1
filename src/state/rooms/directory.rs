//! The public directory, and the lists of application services' networks.

use std::sync::Arc;

use ruma::RoomId;

use super::{Room, Rooms};
use logcabin_record::{
    Offset,
    command::{RoomNetwork, RoomVisibility},
};

impl Room {
    /// Whether the public directory lists the room.
    pub fn is_public(&self) -> bool {
        self.inner.read().public.latest().copied().unwrap_or(false)
    }

    /// Whether the public directory listed the room as of `at`.
    pub fn was_public(&self, at: Offset) -> bool {
        self.inner.read().public.at(at).is_some_and(|(_, public)| *public)
    }

    /// When the room entered and left the public directory, up to and including `at`.
    pub fn public_changes(&self, at: Offset) -> Vec<Offset> {
        let inner = self.inner.read();
        inner.public.between(Offset::ZERO, at).map(|(offset, _)| offset).collect()
    }
}

impl Rooms {
    /// The rooms in the public directory, ordered by id.
    pub fn public(&self) -> Vec<Arc<Room>> {
        self.public.read().iter().filter_map(|room_id| self.get(room_id)).collect()
    }

    /// The rooms in an application service's list of a network, ordered by id.
    pub fn of_network(&self, service: &str, network_id: &str) -> Vec<Arc<Room>> {
        let networks = self.networks.read();
        let rooms = networks.get(&(service.to_owned(), network_id.to_owned())).into_iter();
        rooms.flatten().filter_map(|room_id| self.get(room_id)).collect()
    }

    /// The networks that list this room: the application service and its id of the network.
    pub fn networks_of(&self, room_id: &RoomId) -> Vec<(String, String)> {
        let networks = self.networks.read();
        let listing = networks.iter().filter(|(_, rooms)| rooms.contains(room_id));
        listing.map(|(network, _)| network.clone()).collect()
    }

    /// The rooms in the public directory or in the list of a network, ordered by id.
    pub fn of_all_networks(&self) -> Vec<Arc<Room>> {
        let mut listed = self.public.read().clone();
        listed.extend(self.networks.read().values().flatten().cloned());
        listed.iter().filter_map(|room_id| self.get(room_id)).collect()
    }

    pub(crate) fn set_visibility(&self, offset: Offset, body: &RoomVisibility) {
        if let Some(room) = self.get(&body.room_id) {
            room.inner.write().public.push(offset, body.public);
            let mut public = self.public.write();
            if body.public {
                public.insert(body.room_id.clone());
            } else {
                public.remove(&body.room_id);
            }
        }
    }

    pub(crate) fn set_network(&self, body: RoomNetwork) {
        let RoomNetwork { room_id, service, network_id, listed } = body;
        let (mut networks, network) = (self.networks.write(), (service, network_id));
        if listed {
            networks.entry(network).or_default().insert(room_id);
        } else if let Some(rooms) = networks.get_mut(&network) {
            rooms.remove(&room_id);
            if rooms.is_empty() {
                networks.remove(&network);
            }
        }
    }
}
