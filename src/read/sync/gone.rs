//! Tells a client that starts over about rooms that its user is no longer in. Such a client comes
//! from a future that a restore undid, or from the server from which this one was imported, and
//! would keep those rooms forever.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ruma::{OwnedRoomId, RoomId};
use serde_json::json;

use crate::{
    events::{ClientEvent, EventForm, to_raw},
    view::{View, token::Token},
};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Membership;

/// The earlier position of a client that starts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndonePosition {
    /// The position that it named.
    pub token: Token,
    /// The last record before it that still exists.
    pub after: Offset,
}

/// The rooms that the user left after `from`, or that were taken from them, each with the record
/// that caused it.
pub(super) fn rooms(
    view: &View<'_>,
    from: UndonePosition,
) -> Result<BTreeMap<OwnedRoomId, Offset>, ReadError> {
    let (user_id, at) = (view.user_id(), view.at());
    let UndonePosition { token, after } = from;
    let mut gone = BTreeMap::new();
    for part in view.state.memberships.of(user_id, at) {
        let ended = matches!(part.membership, Membership::Leave | Membership::Ban);
        if ended && part.offset > after && !knew_at_source(view, token, part.offset)? {
            gone.insert(part.room_id, part.offset);
        }
    }
    let undone = view.state.undone.known_at(user_id, token.epoch, token.offset);
    for part in undone.into_iter().filter(|part| part.said <= at) {
        let now = view.state.memberships.in_room(user_id, &part.room_id, at);
        let ended =
            now.is_none_or(|now| matches!(now.membership, Membership::Leave | Membership::Ban));
        if ended {
            gone.entry(part.room_id).or_insert(part.said);
        }
    }
    Ok(gone)
}

/// Whether a client with a position at the source of an import had heard there of the event in this
/// record.
fn knew_at_source(view: &View<'_>, token: Token, offset: Offset) -> Result<bool, ReadError> {
    if token.epoch != Token::AT_SOURCE {
        return Ok(false);
    }
    let number = view.events.number_at_source(offset)?;
    Ok(number.is_some_and(|number| u64::try_from(number).unwrap_or(0) <= token.offset.get()))
}

/// The event that tells a client that the user is not in the room, in the format of a sync. If a
/// restore or a purge left none, the event exists in no room and no log; it is created for the
/// client, which needs one. The same content has the same id.
pub(super) fn leave(
    view: &View<'_>,
    room_id: &RoomId,
    because: Offset,
) -> Result<ClientEvent, ReadError> {
    let user_id = view.user_id();
    if let Some(room) = view.state.rooms.get(room_id)
        && let Some(event) = view.events.get(because)?
    {
        return view.client_event(&room, &event, &EventForm::SYNC);
    }
    let words = format!("logcabin gone {room_id} {user_id} {because}");
    let hash = blake3::hash(words.as_bytes());
    let event = json!({
        "type": "m.room.member",
        "state_key": user_id,
        "sender": user_id,
        "event_id": format!("${}", URL_SAFE_NO_PAD.encode(hash.as_bytes())),
        "origin_server_ts": view.events.time_of(because)?.unwrap_or_default(),
        "content": { "membership": "leave" },
    });
    Ok(to_raw(&event).into())
}
