//! Purges the history of a room, as an administrator ordered.
//!
//! Events are removed in pieces, the oldest first, so that a room of any size is purged while
//! others are served. If the server stops meanwhile, it goes on after the next start with those
//! that are left.

use std::sync::Arc;

use ruma::OwnedRoomId;

use crate::orders::{OrderError, Running, recorded};
use logcabin_base::{
    background::Pace,
    progress::{self, Work},
    threads,
};
use logcabin_decide::{
    erasure::AT_ONCE,
    history_purge::{FinishHistoryPurge, RemoveHistory},
    is_local,
};
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::{Offset, command::RoomPurgeHistoryFinish};
use logcabin_state::HistoryPurge;

/// Continues the purges that the end of the server interrupted.
pub fn resume(engine: &Arc<Engine>) {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        for purge in engine.state().history_purges.under_way() {
            let room_id = purge.room_id.clone();
            if let Err(error) = go_on(&engine, purge).await {
                tracing::warn!(%room_id, %error, "the purge of a room's history could not continue");
            }
        }
    });
}

/// Does the rest of a purge, in the name of whoever ordered it.
pub async fn go_on(engine: &Arc<Engine>, purge: HistoryPurge) -> Result<(), OrderError> {
    let Some(_running) = Running::begin(&purge.id) else { return Ok(()) };
    let HistoryPurge { id, begun, room_id, before, keep_local, .. } = purge;
    let order = engine.log().get(begun)?.ok_or(ReadError::Missing(begun))?;
    let origin = order.header.origin.clone();
    let work = Work::about(progress::HISTORY, room_id.as_str(), 0, before.get());
    let mut after = Offset::ZERO;
    while let Some(piece) = piece(engine, &room_id, (after, before), keep_local).await? {
        after = piece.last;
        if !piece.events.is_empty() {
            let (id, room_id) = (id.clone(), room_id.clone());
            let remove = RemoveHistory { id, room_id, events: piece.events };
            recorded(engine, &origin, remove).await??;
        }
        work.at(after.get());
    }
    let finish = FinishHistoryPurge(RoomPurgeHistoryFinish { id, room_id });
    recorded(engine, &origin, finish).await??;
    Ok(())
}

/// Some of the room's messages.
struct Piece {
    /// Those that are removed.
    events: Vec<Offset>,
    /// The last that was looked at.
    last: Offset,
}

/// The next piece between two records, both of which it does not contain; `None` at the end.
async fn piece(
    engine: &Arc<Engine>,
    room_id: &OwnedRoomId,
    (after, before): (Offset, Offset),
    keep_local: bool,
) -> Result<Option<Piece>, ReadError> {
    let (engine, room_id) = (Arc::clone(engine), room_id.clone());
    let looking = threads::spawn_blocking(move || {
        let Some(room) = engine.state().rooms.get(&room_id) else { return Ok(None) };
        let mut events = room.messages_between(after, before, AT_ONCE);
        let Some(last) = events.last().copied() else { return Ok(None) };
        if keep_local {
            // Reading all of a room must not slow others down.
            let mut pace = Pace::begin();
            let server = &engine.env().server;
            let read = engine.events().get_all(&events)?.into_iter();
            let others = read.filter(|event| !is_local(server, &event.sender));
            events = others.map(|event| event.offset).collect();
            pace.rest();
        }
        Ok(Some(Piece { events, last }))
    });
    match looking.await {
        Ok(found) => found,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}
