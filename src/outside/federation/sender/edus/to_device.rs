//! `m.direct_to_device`: messages to devices (server-server API, "Send-to-device messaging").

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedServerName, OwnedUserId, ServerName, UserId};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Edu, edu};
use logcabin_base::limits;
use logcabin_record::{Offset, command::ToDeviceSend};
use logcabin_state::State;

pub(super) fn concerned(letter: &ToDeviceSend) -> BTreeSet<OwnedServerName> {
    let users = letter.outside.iter().flat_map(|outside| outside.messages.keys());
    users.map(|user_id| user_id.server_name().to_owned()).collect()
}

#[derive(Serialize)]
struct Content<'a> {
    sender: &'a UserId,
    #[serde(rename = "type")]
    event_type: &'a str,
    message_id: &'a str,
    messages: &'a BTreeMap<OwnedUserId, BTreeMap<String, Box<RawValue>>>,
}

pub(super) fn edus(letter: ToDeviceSend, server: &ServerName) -> Vec<Edu> {
    let Some(mut outside) = letter.outside else { return Vec::new() };
    outside.messages.retain(|user_id, _| user_id.server_name() == server);
    let content = Content {
        sender: &letter.sender,
        event_type: &letter.event_type,
        message_id: &outside.message_id,
        messages: &outside.messages,
    };
    vec![edu("m.direct_to_device", &content)]
}

/// The messages that a homeserver missed, up to a limit. Further ones are found after these are
/// delivered.
pub(super) fn missed(state: &State, server: &ServerName, since: Offset) -> Vec<Offset> {
    state.to_device.waiting_outside(server, since, limits::DESTINATION_EVENTS + 1)
}
