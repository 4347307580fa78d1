//! Purges: removing a room from the server, with everything in it.

use std::{collections::BTreeSet, sync::Arc};

use ruma::{OwnedRoomId, RoomId};

use logcabin_base::{
    background::Pace,
    progress::{self, Work},
    threads,
};
use logcabin_decide::{
    erasure::files_in,
    purge::{PurgeRoom, is_said_of},
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::{Log, ReadError};
use logcabin_record::{Offset, Origin, Stream};
use logcabin_state::{Membership, media::Item};

/// How many records are read at a time.
const RECORDS: usize = 1024;

/// What a purge removes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Purge {
    /// The number of events.
    pub events: u64,
    /// The bytes of their payloads.
    pub bytes: u64,
    /// The number of joined users.
    pub joined: u64,
    /// The room's aliases.
    pub aliases: Vec<String>,
    /// The ids of files to which only the room refers.
    pub media_ids: Vec<String>,
    /// The bytes of those files.
    pub media_bytes: u64,
    /// Records about the room: reports, and the reasons for blocks and shutdowns.
    pub said: Vec<Offset>,
    /// The last record that was scanned.
    pub looked: Offset,
}

/// Why a room was not purged.
#[derive(Debug, thiserror::Error)]
pub enum PurgeError {
    /// There is no such room.
    #[error("there is no room `{0}`")]
    NoRoom(OwnedRoomId),
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The proposal was refused, or the log takes no writes.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// What a purge would remove. Scans the whole log for other references to its files.
///
/// # Errors
/// When there is no such room or the log cannot be read.
pub async fn look(engine: &Engine, room_id: &RoomId) -> Result<Purge, PurgeError> {
    let no_room = || PurgeError::NoRoom(room_id.to_owned());
    let room = engine.state().rooms.get(room_id).ok_or_else(no_room)?;
    let end = engine.state().applied();
    let events = room.events_forward(Offset::ZERO, end, usize::MAX);
    let joined = room.members(Membership::Join, end).len() as u64;
    let aliases = engine.state().aliases.of_room(room_id, end);
    let mut purge = Purge {
        events: events.len() as u64,
        joined,
        looked: end,
        aliases: aliases.into_iter().map(|alias| alias.to_string()).collect(),
        ..Purge::default()
    };
    let log = Arc::clone(engine.log());
    let address = format!("mxc://{}/", engine.env().server.name);
    let stream = Stream::room(room_id);
    let looked_for = room_id.to_owned();
    let looking = threads::spawn_blocking(move || -> Result<_, ReadError> {
        let (mut bytes, mut named) = (0, BTreeSet::new());
        for offset in events {
            let record = log.get(offset)?.ok_or(ReadError::Missing(offset))?;
            bytes += record.payload.bytes().map_or(0, |payload| payload.len() as u64);
            named.extend(files_in(&record, &address));
        }
        let said = look_elsewhere(&*log, end, &looked_for, &stream, &address, &mut named)?;
        Ok((bytes, named, said))
    });
    let (bytes, named, said) = match looking.await {
        Ok(found) => found?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    (purge.bytes, purge.said) = (bytes, said);
    for media_id in named {
        if let Some(Item::Stored(stored)) = engine.state().media.get(&media_id) {
            purge.media_bytes += stored.size;
            purge.media_ids.push(media_id);
        }
    }
    Ok(purge)
}

/// Purges a room without joined users. Once this resolves, nothing of the room is visible any more;
/// the next sweep erases its payloads from the disk. Returns what was removed, except for reports
/// and references that were added during the scan.
///
/// # Errors
/// When there is no such room, somebody is joined to it, or the log cannot be read or takes no
/// writes.
pub async fn purge(
    engine: &Engine,
    origin: Origin,
    room_id: &RoomId,
    reason: Option<String>,
) -> Result<Purge, PurgeError> {
    let purge = look(engine, room_id).await?;
    let (media_ids, said) = (purge.media_ids.clone(), purge.said.clone());
    let (room_id, looked) = (room_id.to_owned(), purge.looked);
    let proposal = PurgeRoom { room_id, media_ids, said, looked, reason };
    engine.propose(origin, proposal).await?.into_inner();
    Ok(purge)
}

/// Scans the records up to `end`: retains of `files` those to which only the room's `stream`
/// refers. Returns the records about the room.
fn look_elsewhere(
    log: &dyn Log,
    end: Offset,
    room_id: &RoomId,
    stream: &Stream,
    address: &str,
    files: &mut BTreeSet<String>,
) -> Result<Vec<Offset>, ReadError> {
    let mut said = Vec::new();
    let mut from = Offset::new(1);
    // Reading the whole log must not slow others down.
    let mut pace = Pace::begin();
    let work = Work::about(progress::SEARCH_FOR_ROOM, room_id.as_str(), 0, end.get());
    while from <= end {
        let records = log.read(from, RECORDS)?;
        let Some(last) = records.last() else { return Err(ReadError::Missing(from)) };
        work.at(last.offset().get());
        from = last.offset().next();
        for record in &records {
            if !files.is_empty() && record.header.stream != *stream {
                for file in files_in(record, address) {
                    files.remove(&file);
                }
            }
            if is_said_of(record, room_id) {
                said.push(record.offset());
            }
        }
        pace.rest();
    }
    Ok(said)
}
