//! How far a node has followed the stream, and which of its own records that is.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use async_nats::jetstream::stream;
use serde::{Deserialize, Serialize};

use super::NatsError;
use crate::store::{CLUSTER_FILE, SledLog};
use logcabin_base::{clock::random_letters, disk};
use logcabin_record::Offset;

/// A message of the stream, and the last record that it and those before it resulted in.
///
/// The file may be behind the log: the messages after it are then recognised by their records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// The name of the stream.
    pub(crate) stream: String,
    /// When the stream was created, as its server says: a stream of the same name that was created
    /// later is another one.
    pub(crate) created: String,
    /// The sequence of the message; 0 before the first one.
    pub(crate) sequence: u64,
    /// The hash of the message, in hex.
    pub(crate) hash: String,
    /// The last record.
    pub(crate) offset: Offset,
}

impl Position {
    /// The position of the log that a stream begins with, or of an older copy of it.
    pub(super) fn first(info: &stream::Info, offset: Offset) -> Self {
        Self {
            stream: info.config.name.clone(),
            created: info.created.to_string(),
            offset,
            ..Self::default()
        }
    }

    /// Whether a node at this position has nothing of the log yet.
    pub(super) fn is_new(&self) -> bool {
        self.sequence == 0 && self.offset == Offset::ZERO
    }

    /// The position that is noted for `log`.
    pub(super) fn of(log: &SledLog) -> Result<Option<Self>, NatsError> {
        let dir = log.dir();
        Self::read(dir).map_err(|source| NatsError::Position { path: path(dir), source })
    }

    /// Notes the position for `log`.
    pub(super) fn note(&self, log: &SledLog) -> Result<(), NatsError> {
        let dir = log.dir();
        self.write(dir).map_err(|source| NatsError::Position { path: path(dir), source })
    }

    /// Makes the log in `log_dir` one that follows no stream.
    pub(super) fn forget(log_dir: &Path) -> io::Result<()> {
        fs::remove_file(path(log_dir))?;
        fs::File::open(log_dir)?.sync_all()
    }

    /// The position that is noted in `log_dir`; `None` if its log never followed a stream.
    pub(crate) fn read(log_dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(path(log_dir)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write(&self, log_dir: &Path) -> io::Result<()> {
        disk::write_whole(&path(log_dir), &serde_json::to_vec(self)?)
    }
}

/// The id of the node that has its log in `log_dir`: the same across restarts.
pub(crate) fn node_id(log_dir: &Path) -> io::Result<String> {
    let path = log_dir.join("node.id");
    match fs::read_to_string(&path) {
        Ok(id) => Ok(id),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = random_letters(24);
            disk::write_whole(&path, id.as_bytes())?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

/// The file in which the position is noted.
pub(crate) fn path(log_dir: &Path) -> PathBuf {
    log_dir.join(CLUSTER_FILE)
}
