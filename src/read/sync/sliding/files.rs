//! Connections on the disk, so that they outlive their place in memory, and a restart.
//!
//! A file has the connections of one session: the blake3 hash of the rest, then a version, then
//! what each client had when it was written, in the binary format of `postcard`. It contains
//! offsets, and names of users and lists, but no content. A file is disposable: without it, or if
//! it is damaged, the client starts over. So nothing is made durable.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashSet},
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use tracing::{debug, warn};

use super::{
    client_rooms::StoredRooms,
    connection::{Addition, ClientState},
};
use logcabin_base::{background::lock_at_length, clock::millis, disk, limits};
use logcabin_record::Offset;

/// The version of the format.
const FORMAT: u32 = 1;

/// The directory with the files of all sessions.
#[derive(Debug)]
pub(super) struct ConnectionFiles {
    dir: PathBuf,
    written: Mutex<Written>,
}

#[derive(Debug, Default)]
struct Written {
    /// The bytes written since old files were removed last.
    bytes: u64,
    /// The last file could not be written.
    fails: bool,
}

/// The only writer of the files.
pub(super) struct Writer<'a> {
    files: &'a ConnectionFiles,
    written: MutexGuard<'a, Written>,
}

/// One connection of a session.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredConnection {
    pub(super) name: Box<str>,
    pub(super) id: u64,
    /// What its client had for certain, if that was anything.
    pub(super) has: Option<StoredState>,
    /// What it had if the last response arrived, if that was not certain.
    pub(super) last: Option<StoredState>,
}

/// What a client has ([`ClientState`]).
#[derive(Serialize, Deserialize)]
pub(super) struct StoredState {
    pub(super) ticket: u64,
    pub(super) at: Offset,
    pub(super) fingerprint: u64,
    pub(super) counts: BTreeMap<String, usize>,
    pub(super) account_data: Offset,
    pub(super) rooms: StoredRooms,
}

impl ConnectionFiles {
    /// The files in `data_dir`, which need not exist.
    pub(super) fn of(data_dir: &Path) -> Self {
        Self { dir: directory(data_dir), written: Mutex::default() }
    }

    fn path(&self, session: Offset) -> PathBuf {
        self.dir.join(session.to_string())
    }

    /// Waits until nobody else writes.
    pub(super) fn writer(&self) -> Writer<'_> {
        Writer { files: self, written: lock_at_length(&self.written) }
    }

    /// The connections of a session, if there is a file that can be used.
    pub(super) fn read(&self, session: Offset) -> Option<Vec<StoredConnection>> {
        let file = fs::read(self.path(session)).ok()?;
        let (hash, body) = file.split_first_chunk::<{ blake3::OUT_LEN }>()?;
        if blake3::hash(body) != *hash {
            return None;
        }
        let (format, rest) = postcard::take_from_bytes::<u32>(body).ok()?;
        if format != FORMAT {
            return None;
        }
        let stored: Vec<StoredConnection> = postcard::from_bytes(rest).ok()?;
        let names: HashSet<_> = stored.iter().map(|connection| &connection.name).collect();
        let is_plausible =
            names.len() == stored.len() && names.len() <= limits::SLIDING_CONNECTIONS;
        is_plausible.then_some(stored)
    }

    /// Removes the files of sessions that are not live, those of clients that stay away, and the
    /// oldest ones beyond the limit for all.
    pub(super) fn sweep(&self, now_ms: u64, live: &HashSet<Offset>) {
        let mut writer = self.writer();
        writer.begin();
        let mut files = Vec::new();
        for path in disk::entries(&self.dir).unwrap_or_default() {
            let Ok(metadata) = fs::metadata(&path).inspect_err(not_swept) else { continue };
            let name = path.file_name().and_then(|name| name.to_str());
            let session = name.and_then(|name| name.parse().ok()).map(Offset::new);
            let is_live = session.is_some_and(|session| live.contains(&session));
            let written_ms = u64::try_from(metadata.mtime()).unwrap_or_default() * 1000;
            files.push((is_live, written_ms, metadata.len(), path));
        }
        files.sort_unstable_by_key(|(_, written_ms, ..)| Reverse(*written_ms));
        let oldest_ms = now_ms.saturating_sub(millis(limits::SLIDING_FILES_AGE));
        let mut bytes = 0_u64;
        for (is_live, written_ms, length, path) in files {
            if is_live && written_ms >= oldest_ms && bytes + length <= limits::SLIDING_FILES_BYTES {
                bytes += length;
            } else if let Err(error) = fs::remove_file(path) {
                not_swept(&error);
            }
        }
    }
}

fn not_swept(error: &io::Error) {
    debug!(%error, "a file of a client's connections is not removed");
}

impl Writer<'_> {
    /// Begins to count how much is written.
    pub(super) fn begin(&mut self) {
        self.written.bytes = 0;
    }

    /// Writes the connections of a session. Returns whether the file has them then.
    pub(super) fn write(&mut self, session: Offset, connections: &[StoredConnection]) -> bool {
        let written = self.try_write(session, connections);
        match &written {
            Ok(bytes) => self.written.bytes += bytes,
            // One line is enough for a full disk.
            Err(error) if !self.written.fails => {
                warn!(%error, "connections of clients cannot be kept in files; they may start over");
            }
            Err(_) => {}
        }
        self.written.fails = written.is_err();
        written.is_ok()
    }

    fn try_write(&self, session: Offset, connections: &[StoredConnection]) -> io::Result<u64> {
        let body = postcard::to_stdvec(&(FORMAT, connections)).map_err(io::Error::other)?;
        let path = self.files.path(session);
        if self.written.bytes + body.len() as u64 > limits::SLIDING_FILES_BYTES {
            return Err(io::Error::other("too much was written in an hour"));
        }
        if body.len() > limits::SLIDING_FILE_BYTES {
            // An earlier file would not be of use either.
            return match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(0),
            };
        }
        disk::make_private_dir(&self.files.dir)?;
        let partial = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(blake3::hash(&body).as_bytes())?;
        file.write_all(&body)?;
        fs::rename(partial, path)?;
        Ok(body.len() as u64)
    }
}

/// Where the files are.
pub(super) fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("sliding")
}

impl From<&ClientState> for StoredState {
    fn from(has: &ClientState) -> Self {
        Self {
            ticket: has.ticket,
            at: has.at,
            fingerprint: has.fingerprint,
            counts: has.counts.clone(),
            account_data: has.account_data,
            rooms: has.rooms.stored(),
        }
    }
}

impl StoredState {
    /// The response that would have brought all of it at once, with its ticket; none if this cannot
    /// have been stored.
    pub(super) fn into_addition(self) -> Option<(u64, Addition)> {
        let Self { ticket, at, fingerprint, counts, account_data, rooms } = self;
        let (rooms, asked_bytes) = (rooms.into_changes()?, 0);
        Some((ticket, Addition { at, fingerprint, asked_bytes, counts, account_data, rooms }))
    }
}
