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
use logcabin_record::{Offset, command::ImportSource};
use logcabin_state::{Membership, imports::Import};

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
    let mut ended = view.state.memberships.of(user_id, at);
    ended.retain(|part| {
        part.offset > after && matches!(part.membership, Membership::Leave | Membership::Ban)
    });
    let mut offsets: Vec<_> = ended.iter().map(|part| part.offset).collect();
    offsets.sort_unstable();
    let known = known_at_source(view, token, &offsets)?;
    let new = ended.into_iter().filter(|part| part.offset > known);
    let mut gone: BTreeMap<_, _> = new.map(|part| (part.room_id, part.offset)).collect();
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

/// The last of these events of which a client with a position at the source of an import had heard
/// there; [`Offset::ZERO`] if it heard of none. A user may have left very many rooms: few of the
/// events are read.
fn known_at_source(view: &View<'_>, token: Token, offsets: &[Offset]) -> Result<Offset, ReadError> {
    let imports = &view.state.imports;
    let import = imports.newest(ImportSource::Synapse).filter(|_| token.epoch == Token::AT_SOURCE);
    let Some(Import { begun, ended: Some(ended), .. }) = import else { return Ok(Offset::ZERO) };
    let next = |after, to| {
        let first = offsets.partition_point(|offset| *offset <= after);
        offsets.get(first).copied().filter(|offset| *offset <= to)
    };
    let number = i64::try_from(token.offset.get()).unwrap_or(i64::MAX);
    view.events.last_numbered((begun, ended), number, &next)
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
