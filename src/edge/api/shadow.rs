//! The answers to users who are shadow-banned, to what is not done.
//!
//! What Synapse does not do is not done here: messages, state and redactions, invites, upgrades of
//! rooms, and typing. Nor are other changes of others' memberships, and what the profile, the
//! presence and the room directory would show to others. They can still join and leave rooms, make
//! rooms of their own, and write to devices.

use std::collections::BTreeMap;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use bytes::Bytes;
use ruma::{
    RoomId, RoomVersionId,
    room_version_rules::{EventIdFormatVersion, RoomIdFormatVersion},
};
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::{screening::was_sent, server::Server};
use crate::http::{Instead, Reply, Shadow, Shadowable, query_parameter};
use logcabin_record::Offset;

/// What is done instead of a request; none if its user is not shadow-banned, or it is harmless.
pub(super) fn instead(app: &Server, request: &Shadowable<'_>) -> Option<Instead> {
    let standing = app.engine.state().accounts.standing(&request.session.user_id)?;
    if !standing.shadow_banned {
        return None;
    }
    let answer = match request.how {
        Shadow::Done => return None,
        Shadow::Alone => return alone(request.body),
        Shadow::Silently => return without(request.body, &["reason"]),
        Shadow::State if is_own_leave(request) => {
            return Some(Instead::Body(LEAVE.into()));
        }
        // The ordinary refusal comes.
        _ if is_of_room_of_others(app, request) => return None,
        // Before the user was shadow-banned: the answer is the same.
        Shadow::Event if was_sent(app, request.session, request.uri, request.args) => return None,
        Shadow::Nothing => json!({}),
        Shadow::Delayed => json!({ "delay_id": invented(app, request) }),
        Shadow::Event | Shadow::State => match is_delayed(request) {
            true => json!({ "delay_id": invented(app, request) }),
            false => json!({ "event_id": event_id(app, request) }),
        },
        Shadow::Replacement => json!({ "replacement_room": room_id(app, request) }),
    };
    Some(Instead::Answer(Reply::json(answer.to_string())))
}

/// All that a leave says.
const LEAVE: &str = r#"{"membership":"leave"}"#;

/// Whether a request is about a room that its user is not in.
fn is_of_room_of_others(app: &Server, request: &Shadowable<'_>) -> bool {
    let room_id = request.args.first().and_then(|id| <&RoomId>::try_from(&**id).ok());
    room_id.is_some_and(|room_id| {
        let room = app.engine.state().rooms.get(room_id);
        room.is_none_or(|room| !room.is_joined(&request.session.user_id, Offset::MAX))
    })
}

/// A room of their own, as it was asked for, that nobody learns of.
fn alone(body: &Bytes) -> Option<Instead> {
    let mut room: Map<String, Value> = serde_json::from_slice(body).ok()?;
    // It decides who may join.
    let is_public = room.remove("visibility") == Some("public".into());
    if is_public && !room.contains_key("preset") {
        room.insert("preset".to_owned(), "public_chat".into());
    }
    for name in ["invite", "invite_3pid", "room_alias_name"] {
        room.remove(name);
    }
    if let Some(state) = room.get_mut("initial_state").and_then(Value::as_array_mut) {
        state.retain(|event| event["type"] != "m.room.member");
    }
    serde_json::to_vec(&room).ok().map(|room| Instead::Body(room.into()))
}

/// The same body without these members.
fn without(body: &Bytes, members: &[&str]) -> Option<Instead> {
    let mut kept: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(body).ok()?;
    kept.retain(|name, _| !members.contains(&&**name));
    serde_json::to_vec(&kept).ok().map(|kept| Instead::Body(kept.into()))
}

fn is_delayed(request: &Shadowable<'_>) -> bool {
    matches!(query_parameter(request.uri, "org.matrix.msc4140.delay"), Ok(Some(_)))
}

/// Whether a state event makes its sender leave the room.
fn is_own_leave(request: &Shadowable<'_>) -> bool {
    #[derive(Deserialize)]
    struct Content {
        membership: Option<Value>,
    }
    let is_own = matches!(request.args, [_, kind, key]
        if kind == "m.room.member" && **key == *request.session.user_id.as_str());
    let content = serde_json::from_slice::<Content>(request.body);
    is_own
        && !is_delayed(request)
        && content.is_ok_and(|content| content.membership == Some("leave".into()))
}

/// A hash of the request that nobody can compute without this server's key. A request that is
/// repeated gets the same answer, also from another node and after a restart.
fn hash(app: &Server, request: &Shadowable<'_>) -> [u8; 32] {
    let session = request.session;
    // What is sent with a transaction id is sent once, whatever is in it and however it is written.
    let is_transaction = request.args.len() == 3 && request.how == Shadow::Event;
    let body = if is_transaction { blake3::hash(b"") } else { blake3::hash(request.body) };
    let args = request.args.join("\n");
    let said = format!("{} {} {args} {body}", session.user_id, session.session);
    *blake3::hash(app.signing.signer.mac("shadow", &said).as_bytes()).as_bytes()
}

/// Random letters, as in ids that this server makes.
fn invented(app: &Server, request: &Shadowable<'_>) -> String {
    let letters = hash(app, request).map(|byte| char::from(b'a' + byte % 26));
    letters.iter().take(18).collect()
}

/// An event id of the kind that the room's version has.
fn event_id(app: &Server, request: &Shadowable<'_>) -> String {
    let room = request.args.first().and_then(|id| <&RoomId>::try_from(&**id).ok());
    let room = room.and_then(|room_id| app.engine.state().rooms.get(room_id));
    let hash = hash(app, request);
    match room.map(|room| room.rules.event_id_format) {
        Some(EventIdFormatVersion::V1) => {
            format!("${}:{}", invented(app, request), app.config.server.name)
        }
        Some(EventIdFormatVersion::V2) => format!("${}", STANDARD_NO_PAD.encode(hash)),
        _ => format!("${}", URL_SAFE_NO_PAD.encode(hash)),
    }
}

/// A room id of the kind that the wanted version has.
fn room_id(app: &Server, request: &Shadowable<'_>) -> String {
    let body: Map<String, Value> = serde_json::from_slice(request.body).unwrap_or_default();
    let version = body.get("new_version").and_then(Value::as_str).map(RoomVersionId::try_from);
    let rules = version.and_then(Result::ok).and_then(|version| version.rules());
    match rules {
        Some(rules) if rules.room_id_format == RoomIdFormatVersion::V2 => {
            format!("!{}", URL_SAFE_NO_PAD.encode(hash(app, request)))
        }
        _ => format!("!{}:{}", invented(app, request), app.config.server.name),
    }
}
