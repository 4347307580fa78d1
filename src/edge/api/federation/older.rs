//! The first versions of endpoints that have a second one (server-server API, "Joining Rooms",
//! "Leaving Rooms (Rejecting Invites)", "Inviting to a room"): homeservers use them that are as old
//! as rooms of versions 1 and 2. Their answers come in pairs with a status.

use ruma::{
    OwnedEventId, OwnedRoomId, RoomVersionId, api::federation::authentication::ServerSignatures,
};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use super::{invites, memberships};
use crate::{
    api::{answer::json as answered, server::Server},
    http::{ApiError, Cx, Homeserver, Json, endpoint},
};

endpoint! {
    /// A join.
    pub(super) struct SendJoin = PUT "/_matrix/federation/v1/send_join/{room_id}/{event_id}";
    for ServerSignatures;
    { room_id: OwnedRoomId = path, event_id: OwnedEventId = path, pdu: Box<RawValue> = json }
}

endpoint! {
    /// A leave.
    pub(super) struct SendLeave = PUT "/_matrix/federation/v1/send_leave/{room_id}/{event_id}";
    for ServerSignatures;
    { room_id: OwnedRoomId = path, event_id: OwnedEventId = path, pdu: Box<RawValue> = json }
}

endpoint! {
    /// An invite, which names the room's version only in its stripped state.
    pub(super) struct Invite = PUT "/_matrix/federation/v1/invite/{room_id}/{event_id}";
    for ServerSignatures;
    { room_id: OwnedRoomId = path, event_id: OwnedEventId = path, pdu: Box<RawValue> = json }
}

fn pair(answer: impl Serialize) -> Result<Json, ApiError> {
    answered(&(200, answer))
}

pub(super) async fn send_join(
    cx: Cx<Server, Homeserver>,
    request: SendJoin,
) -> Result<Json, ApiError> {
    let SendJoin { room_id, event_id, pdu } = request;
    pair(memberships::join(&cx, &room_id, &event_id, &pdu, false).await?)
}

pub(super) async fn send_leave(
    cx: Cx<Server, Homeserver>,
    request: SendLeave,
) -> Result<Json, ApiError> {
    let SendLeave { room_id, event_id, pdu } = request;
    memberships::leave(&cx, &room_id, &event_id, &pdu).await?;
    pair(json!({}))
}

pub(super) async fn invite(cx: Cx<Server, Homeserver>, request: Invite) -> Result<Json, ApiError> {
    let Invite { room_id, event_id, pdu } = request;
    let stripped = shown(&pdu);
    let known = cx.app.engine.state().rooms.get(&room_id).filter(|room| room.is_begun());
    let version = known.map_or_else(|| version_in(&stripped), |room| room.version.clone());
    let event = invites::take(&cx, room_id, event_id, version, &pdu, stripped).await?;
    pair(json!({ "event": event }))
}

/// The state of the room that an invite shows.
fn shown(pdu: &RawValue) -> Vec<Box<RawValue>> {
    #[derive(Default, Deserialize)]
    struct Unsigned {
        #[serde(default)]
        invite_room_state: Vec<Box<RawValue>>,
    }
    #[derive(Deserialize)]
    struct Event {
        #[serde(default)]
        unsigned: Unsigned,
    }
    serde_json::from_str::<Event>(pdu.get())
        .map(|event| event.unsigned.invite_room_state)
        .unwrap_or_default()
}

/// The version of a room by the state that is shown of it: 1 or 2, for later ones have no such
/// invites.
fn version_in(stripped: &[Box<RawValue>]) -> RoomVersionId {
    #[derive(Deserialize)]
    struct Create {
        #[serde(rename = "type")]
        event_type: String,
        content: Content,
    }
    #[derive(Deserialize)]
    struct Content {
        room_version: RoomVersionId,
    }
    let version = stripped.iter().find_map(|event| {
        let create: Create = serde_json::from_str(event.get()).ok()?;
        (create.event_type == "m.room.create").then_some(create.content.room_version)
    });
    version.filter(|version| *version == RoomVersionId::V2).unwrap_or(RoomVersionId::V1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(value: &serde_json::Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(value).expect("JSON")
    }

    #[test]
    fn the_version_of_a_room_is_that_of_its_first_event_if_it_is_old() {
        let create = |content: serde_json::Value| {
            raw(&json!({ "type": "m.room.create", "state_key": "", "content": content }))
        };
        let name = raw(&json!({ "type": "m.room.name", "content": { "room_version": "2" } }));
        assert_eq!(version_in(&[]), RoomVersionId::V1);
        assert_eq!(version_in(&[create(json!({}))]), RoomVersionId::V1);
        assert_eq!(version_in(&[name, create(json!({}))]), RoomVersionId::V1);
        for (said, taken) in [("1", RoomVersionId::V1), ("2", RoomVersionId::V2)] {
            assert_eq!(version_in(&[create(json!({ "room_version": said }))]), taken);
        }
        assert_eq!(version_in(&[create(json!({ "room_version": "10" }))]), RoomVersionId::V1);
        let event = json!({ "unsigned": { "invite_room_state": [{ "type": "m.room.name" }] } });
        assert_eq!(shown(&raw(&event)).len(), 1);
        assert!(shown(&raw(&json!({ "unsigned": 7 }))).is_empty());
    }
}
