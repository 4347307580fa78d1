//! `m.direct_to_device`: messages to devices (server-server API, "Send-to-device messaging").

use std::collections::BTreeSet;

use ruma::{OwnedServerName, ServerName};
use serde_json::json;

use super::{Edu, edu};
use crate::{
    base::limits,
    record::{Offset, command::ToDeviceSend},
    state::State,
};

pub(super) fn concerned(letter: &ToDeviceSend) -> BTreeSet<OwnedServerName> {
    let users = letter.outside.iter().flat_map(|outside| outside.messages.keys());
    users.map(|user_id| user_id.server_name().to_owned()).collect()
}

pub(super) fn edus(letter: ToDeviceSend, server: &ServerName) -> Vec<Edu> {
    let Some(mut outside) = letter.outside else { return Vec::new() };
    outside.messages.retain(|user_id, _| user_id.server_name() == server);
    let content = json!({
        "sender": letter.sender,
        "type": letter.event_type,
        "message_id": outside.message_id,
        "messages": outside.messages,
    });
    vec![edu("m.direct_to_device", &content)]
}

/// The messages that a homeserver missed, up to a limit. Further ones are found after these are
/// delivered.
pub(super) fn missed(state: &State, server: &ServerName, since: Offset) -> Vec<Offset> {
    state.to_device.waiting_outside(server, since, limits::DESTINATION_EVENTS + 1)
}
