//! What other homeservers are told that is no event (server-server API, "EDUs"), one file for each
//! sort.
//!
//! An EDU either must arrive or passes. One that must arrive is made of a record when it is sent,
//! and whom it concerns is found again from what is kept of it: [`Sender::missed_edus`]. One that
//! passes is made when its record is, and dropped if the homeserver cannot be reached.

mod to_device;

use std::collections::BTreeSet;

use ruma::{OwnedServerName, ServerName};
use serde::Serialize;
use serde_json::{json, value::RawValue};

use super::Sender;
use crate::{
    read::events::to_raw,
    record::{
        Command, Offset,
        command::{Body as _, RoomEvent, ToDeviceSend},
    },
    state::State,
};

/// An EDU as it is sent.
pub(super) type Edu = Box<RawValue>;

fn edu(edu_type: &str, content: &impl Serialize) -> Edu {
    to_raw(&json!({ "edu_type": edu_type, "content": content }))
}

/// Whether records of this kind may concern other homeservers.
pub(super) fn may_concern(kind: &str) -> bool {
    [RoomEvent::KIND.name, ToDeviceSend::KIND.name].contains(&kind)
}

impl Sender {
    /// The homeservers to which a record is told by EDUs that must arrive.
    pub(super) fn concerned(&self, _: &State, command: &Command) -> BTreeSet<OwnedServerName> {
        match command {
            Command::ToDeviceSend(letter) => to_device::concerned(letter),
            _ => BTreeSet::new(),
        }
    }

    /// What such a homeserver is told of the record.
    pub(super) fn edus(&self, _: &State, server: &ServerName, command: Command) -> Vec<Edu> {
        match command {
            Command::ToDeviceSend(letter) => to_device::edus(letter, server),
            _ => Vec::new(),
        }
    }

    /// The records after `since` that a homeserver is to be told by EDUs that must arrive.
    pub(super) fn missed_edus(
        &self,
        state: &State,
        server: &ServerName,
        since: Offset,
    ) -> BTreeSet<Offset> {
        to_device::missed(state, server, since).into_iter().collect()
    }

    /// The homeservers that may have missed such EDUs, each with the last record of that.
    pub(super) fn last_edus(&self, state: &State) -> Vec<(OwnedServerName, Offset)> {
        state.to_device.outside()
    }

    /// What passes with a record: for whom, under which key, and what. An EDU takes the place of
    /// the one before it with the same key.
    #[expect(clippy::unused_self, reason = "there is no such EDU yet")]
    pub(super) fn passing(&self, _: &State, _: &Command) -> Vec<(OwnedServerName, String, Edu)> {
        Vec::new()
    }
}
