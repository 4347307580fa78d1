//! Connections on the disk, so that they outlive their place in memory, and a restart.
//!
//! A file has the connections of one session: the blake3 hash of the rest, then a version, then what
//! each client had for certain when it was written, in the binary format of `postcard`. It contains
//! offsets, and names of users and lists, but no content. A file is disposable: without it, or if it
//! is damaged, the client starts over. So nothing here waits for the disk.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    client_rooms::StoredRooms,
    connection::{Addition, ClientState},
};
use logcabin_base::{clock::millis, disk, limits};
use logcabin_record::Offset;

/// The version of the format.
const FORMAT: u32 = 1;

/// The directory with the files of all sessions.
#[derive(Debug)]
pub(super) struct ConnectionFiles {
    dir: PathBuf,
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
        Self { dir: directory(data_dir) }
    }

    fn path(&self, session: Offset) -> PathBuf {
        self.dir.join(session.to_string())
    }

    /// Writes the connections of a session.
    pub(super) fn write(
        &self,
        session: Offset,
        connections: &[StoredConnection],
    ) -> io::Result<()> {
        let body = postcard::to_stdvec(&(FORMAT, connections)).map_err(io::Error::other)?;
        disk::make_private_dir(&self.dir)?;
        let path = self.path(session);
        let partial = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&partial)?;
        file.write_all(blake3::hash(&body).as_bytes())?;
        file.write_all(&body)?;
        fs::rename(partial, path)
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

    /// Removes files of clients that stay away, and the oldest ones beyond the limit for all.
    pub(super) fn sweep(&self, now_ms: u64) -> io::Result<()> {
        let mut files = Vec::new();
        for path in disk::entries(&self.dir)? {
            let Ok(metadata) = fs::metadata(&path) else { continue };
            let written_ms = u64::try_from(metadata.mtime()).unwrap_or_default() * 1000;
            files.push((written_ms, metadata.len(), path));
        }
        files.sort_unstable_by_key(|(written, ..)| std::cmp::Reverse(*written));
        let (oldest, mut bytes) = (now_ms.saturating_sub(millis(limits::SLIDING_FILES_AGE)), 0_u64);
        for (written, length, path) in files {
            bytes += length;
            if written < oldest || bytes > limits::SLIDING_FILES_BYTES {
                fs::remove_file(path)?;
            }
        }
        Ok(())
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
