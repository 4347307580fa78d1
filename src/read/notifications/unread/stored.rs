//! Stores the counts on disk, so that after a restart only new events are counted.
//!
//! The counts are in one file, disposable like a snapshot: a line of JSON ([`Header`]), then the
//! counts in the binary format of `postcard`. It contains offsets and names of users and rooms, but
//! no content. A file that is damaged, of another version or of another log is ignored, and the
//! counts are computed again.

use std::{fs::DirBuilder, io, os::unix::fs::DirBuilderExt as _, path::Path};

use ruma::{OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};

use super::{CacheEntry, Counts, Entries, Memo, Unread};
use logcabin_base::disk;
use logcabin_log::{Log, ReadError};
use logcabin_record::{Offset, hex};
use logcabin_state::State;

/// The version of the file format.
const FORMAT: u32 = 2;

/// The first line of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    /// The version of the file format.
    counts: u32,
    /// The version of logcabin that wrote it; another one may evaluate events differently.
    version: String,
    /// A record at or after everything counted.
    offset: Offset,
    /// The chain value of that record, in hex, which identifies the log.
    chain: String,
    /// The blake3 of the rest, in hex.
    blake3: String,
}

/// The counts of a user in a room.
#[derive(Serialize, Deserialize)]
struct StoredCounts {
    user_id: OwnedUserId,
    room_id: OwnedRoomId,
    joined: Offset,
    from: Offset,
    to: Offset,
    wrote: Offset,
    entries: Entries,
}

/// Why the counts cannot be written or used.
#[derive(Debug, thiserror::Error)]
pub enum CountsError {
    #[error("the file of unread counts: {0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The file is of another version or log.
    #[error("the file of unread counts {0}")]
    Unusable(&'static str),
}

impl Unread {
    /// Writes the counts of present members to `path`, atomically. `state` is the state of `log` or
    /// of its beginning. Blocks.
    pub fn write(&self, path: &Path, log: &dyn Log, state: &State) -> Result<(), CountsError> {
        let offset = state.applied();
        let Some(last) = log.get(offset)? else { return Ok(()) };
        let generation = state.generation();
        let counted = self.0.iter().filter_map(|((user_id, room_id), kept)| {
            let room = state.rooms.get(&room_id)?;
            // Counts that are being computed now are computed again after a restart.
            let memo = kept.memo.try_lock()?;
            let is_there = room.joined_since(&user_id, offset) == Some(memo.joined);
            (is_there && memo.generation == generation && memo.to <= offset).then(|| StoredCounts {
                user_id,
                room_id,
                joined: memo.joined,
                from: memo.from,
                to: memo.to,
                wrote: memo.wrote,
                entries: memo.entries.clone(),
            })
        });
        let counted: Vec<_> = counted.collect();
        if counted.is_empty() {
            return Ok(());
        }
        let body = postcard::to_stdvec(&counted).map_err(io::Error::other)?;
        let header = Header {
            counts: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            offset,
            chain: hex(&last.chain),
            blake3: blake3::hash(&body).to_hex().to_string(),
        };
        let mut file = serde_json::to_vec(&header).map_err(io::Error::other)?;
        file.push(b'\n');
        file.extend_from_slice(&body);
        if let Some(dir) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        }
        Ok(disk::write_whole(path, &file)?)
    }

    /// Loads the counts at `path`, if they are of `log`, for projections of this `generation`.
    /// Returns their number. Blocks.
    ///
    /// # Errors
    /// When the file is damaged, unreadable, or of another version or log. A missing one is fine.
    pub fn read(&self, path: &Path, log: &dyn Log, generation: u64) -> Result<usize, CountsError> {
        let file = match std::fs::read(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let damaged = || CountsError::Unusable("is damaged");
        let end = file.iter().position(|byte| *byte == b'\n').ok_or_else(damaged)?;
        let (header, body) = file.split_at(end);
        let header: Header = serde_json::from_slice(header).map_err(|_| damaged())?;
        if header.counts != FORMAT || header.version != env!("CARGO_PKG_VERSION") {
            return Err(CountsError::Unusable("is of another version"));
        }
        let last = log.get(header.offset)?;
        if last.is_none_or(|last| hex(&last.chain) != header.chain) {
            return Err(CountsError::Unusable("is of another log"));
        }
        let body = body.get(1..).unwrap_or_default();
        if blake3::hash(body).to_hex().as_str() != header.blake3 {
            return Err(damaged());
        }
        let counted: Vec<StoredCounts> = postcard::from_bytes(body).map_err(|_| damaged())?;
        let count = counted.len();
        for StoredCounts { user_id, room_id, joined, from, to, wrote, entries } in counted {
            let mut counts = Counts::default();
            entries.iter().for_each(|entry| counts.add(&entry));
            let memo = Memo { joined, generation, from, to, entries, counts, wrote };
            self.0.insert((user_id, room_id), CacheEntry::new(memo));
        }
        Ok(count)
    }
}

/// The last record that the file at `path` takes into account: it contains nothing that was erased
/// up to there. Zero if the file does not say, `None` if there is none.
pub fn written_at(path: &Path) -> Option<Offset> {
    use io::BufRead as _;
    let file = std::fs::File::open(path).ok()?;
    let mut line = String::new();
    // A header is short. A file without one is not used and may be deleted.
    io::BufReader::new(io::Read::take(file, 4096)).read_line(&mut line).ok();
    let header = serde_json::from_str::<Header>(&line);
    Some(header.map_or(Offset::ZERO, |header| header.offset))
}
