//! EDUs for other homeservers (server-server API, "EDUs"), one file for each kind.
//!
//! An EDU is either durable or transient. A durable one is built from a record when it is sent, and
//! after an absence the projections supply it again: [`Sender::missed_edus`]. A transient one is
//! built when its record is, and dropped if the homeserver is unreachable.

mod device_lists;
pub(super) mod presence;
mod receipts;
mod to_device;
mod typing;

use std::collections::BTreeSet;

use ruma::{OwnedServerName, RoomId, ServerName};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Sender;
use logcabin_base::planted::{self, Fault};
use logcabin_log::ReadError;
use logcabin_read::{events::to_raw, servers::admits};
use logcabin_record::{
    Command, Offset,
    command::{
        Body as _, DeviceRemove, KeysCrossSign, KeysSign, KeysUpload, PresenceSet, Receipt,
        RoomEvent, RoomReceipt, RoomTyping, ToDeviceSend,
    },
};
use logcabin_state::{Room, State};

/// An EDU as it is sent.
pub(super) type Edu = Box<RawValue>;

/// JSON in the content is written as it is: what is not allowed in it is found before it is sent.
fn edu(edu_type: &str, content: &impl Serialize) -> Edu {
    #[derive(Serialize)]
    struct EduJson<'a, C> {
        edu_type: &'a str,
        content: &'a C,
    }
    to_raw(&EduJson { edu_type, content })
}

/// Whether records of this kind may concern other homeservers.
pub(super) fn may_concern(kind: &str) -> bool {
    [
        RoomEvent::KIND.name,
        ToDeviceSend::KIND.name,
        RoomReceipt::KIND.name,
        RoomTyping::KIND.name,
        PresenceSet::KIND.name,
        KeysUpload::KIND.name,
        KeysCrossSign::KIND.name,
        KeysSign::KIND.name,
        DeviceRemove::KIND.name,
    ]
    .contains(&kind)
}

impl Sender {
    /// The homeservers that receive durable EDUs of a record.
    pub(super) fn concerned(
        &self,
        state: &State,
        offset: Offset,
        command: &Command,
    ) -> BTreeSet<OwnedServerName> {
        match command {
            Command::ToDeviceSend(letter) => to_device::concerned(letter),
            Command::RoomReceipt(body) => {
                let own = self.client.own_name();
                let concerns = |of: &Receipt| receipts::concerns_others(of, own);
                match body.receipts.iter().any(concerns) {
                    true if !planted::has(Fault::ReceiptNotTold) => {
                        self.admitted_to(state, &body.room_id)
                    }
                    _ => BTreeSet::new(),
                }
            }
            _ => self.told_of_devices(state, offset, command),
        }
    }

    /// The durable EDUs of a record for such a homeserver.
    pub(super) fn edus(
        &self,
        state: &State,
        server: &ServerName,
        offset: Offset,
        command: Command,
    ) -> Result<Vec<Edu>, ReadError> {
        Ok(match command {
            Command::ToDeviceSend(letter) => to_device::edus(letter, server),
            // It may have left the room since.
            Command::RoomReceipt(body)
                if self.admitted_to(state, &body.room_id).contains(server) =>
            {
                receipts::edus(body, self.client.own_name())
            }
            Command::RoomReceipt(_) => Vec::new(),
            _ => self.edus_of_devices(state, offset, &command)?,
        })
    }

    /// The records after `since` whose durable EDUs a homeserver is to receive, except those of
    /// rooms.
    pub(super) fn missed_edus(
        &self,
        state: &State,
        server: &ServerName,
        since: Offset,
    ) -> BTreeSet<Offset> {
        if planted::has(Fault::MissedEduForgotten) {
            return BTreeSet::new();
        }
        let mut missed: BTreeSet<_> = to_device::missed(state, server, since).into_iter().collect();
        missed.extend(self.missed_devices(state, server, since));
        missed
    }

    /// The same for the receipts of a room.
    pub(super) fn missed_receipts(&self, room: &Room, since: Offset) -> Vec<Offset> {
        receipts::missed(room, self.client.own_name(), since)
    }

    /// The homeservers that may have missed such EDUs since this server began to deliver them, each
    /// with the last record of theirs. `first` is the earliest record that one of them has missed.
    pub(super) fn last_edus(&self, state: &State, first: Offset) -> Vec<(OwnedServerName, Offset)> {
        let mut last = state.to_device.outside();
        last.extend(self.last_devices(state, first));
        last
    }

    /// The transient EDUs of a record: their homeservers, key and content. An EDU replaces the
    /// previous one with the same key.
    pub(super) fn transient(
        &self,
        state: &State,
        command: &Command,
    ) -> Vec<(OwnedServerName, String, Edu)> {
        let (own, now_ms) = (self.client.own_name(), self.engine.clock().now_ms());
        let (servers, (key, edu)) = match command {
            Command::RoomTyping(body) if body.user_id.server_name() == own => {
                (self.admitted_to(state, &body.room_id), typing::transient(body, now_ms))
            }
            Command::PresenceSet(said) if said.user_id.server_name() == own => {
                (self.servers_that_see(state, &said.user_id), presence::transient(said, now_ms))
            }
            _ => return Vec::new(),
        };
        servers.into_iter().map(|server| (server, key.clone(), edu.clone())).collect()
    }

    /// The other homeservers with users in a room, except those that its access control list
    /// denies.
    fn admitted_to(&self, state: &State, room_id: &RoomId) -> BTreeSet<OwnedServerName> {
        let Some(room) = state.rooms.get(room_id) else { return BTreeSet::new() };
        let events = self.engine.events();
        let mut servers: BTreeSet<_> = self.servers_of(&room).iter().cloned().collect();
        servers.retain(|server| admits(events, &room, server).unwrap_or_default());
        servers
    }
}
