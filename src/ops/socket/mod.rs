//! The admin socket of a running server: its protocol, and the client. The server's side and the
//! acts are in `admin`.
//!
//! # Protocol
//!
//! A client sends a request, one line of text; the server answers it; then the next one may follow.
//!
//! | request | answer |
//! |---|---|
//! | `end` | `D`, then the offset of the last durable record as `u64` |
//! | `records FROM` | the records from offset FROM to the last durable one |
//! | `records FROM TO` | the records from FROM to TO |
//! | `records FROM follow` | the records from FROM, then each new one as it becomes durable |
//! | `act JSON` | carries out an act: `A`, a `u32` length, and the JSON of what was done |
//!
//! Records are sent **as an archive segment** (`log_format.md`, "Archive segments"): magic, first
//! offset, the chain value before it, an entry for each record, and a seal, which distinguishes a
//! complete answer from a truncated one. So a client verifies chain and hashes itself, and the
//! answer to `records 1` can be stored as an archive. A client that follows gets its seal when the
//! server stops; it ends the answer by closing the connection.
//!
//! In place of a magic, an entry, a `D` or an `A`, an `E` may appear: a `u16` length and a text of
//! that length follow, which says why there is no (more) answer, and the connection ends. Integers
//! are big-endian.

mod client;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

pub use client::{Answer, Client};

use logcabin_log::VerifyError;
use logcabin_record::{Offset, codec::CodecError};

pub(crate) const TAG_END: u8 = b'D';
pub(crate) const TAG_DONE: u8 = b'A';
pub(crate) const TAG_ERROR: u8 = b'E';

/// The longest request. An act names a user, a password, a reason; a notice is the longest.
pub(crate) const REQUEST_BYTES: u64 = 128 * 1024;

/// The longest answer to an act: a page of users.
pub(crate) const DONE_BYTES: usize = 4 * 1024 * 1024;

/// How long a client may take to send a request, and to read its answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of a data directory.
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("admin.sock")
}

/// A line that is not a request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadRequest(String);

/// A client's request.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    End,
    /// The JSON of an act.
    Act(String),
    Records {
        from: Offset,
        to: Offset,
        follow: bool,
    },
}

impl FromStr for Request {
    type Err = BadRequest;

    fn from_str(line: &str) -> Result<Self, BadRequest> {
        if let Some(act) = line.strip_prefix("act ") {
            return Ok(Self::Act(act.to_owned()));
        }
        let refused = || BadRequest(format!("`{line}` is not a request"));
        let offset = |word: &str| word.parse().map(Offset::new).map_err(|_| refused());
        match *line.split_ascii_whitespace().collect::<Vec<_>>() {
            ["end"] => Ok(Self::End),
            ["records", from] => {
                Ok(Self::Records { from: offset(from)?, to: Offset::MAX, follow: false })
            }
            ["records", from, "follow"] => {
                Ok(Self::Records { from: offset(from)?, to: Offset::MAX, follow: true })
            }
            ["records", from, to] => {
                Ok(Self::Records { from: offset(from)?, to: offset(to)?, follow: false })
            }
            _ => Err(refused()),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("end"),
            Self::Act(act) => write!(f, "act {act}"),
            Self::Records { from, follow: true, .. } => write!(f, "records {from} follow"),
            Self::Records { from, to: Offset::MAX, .. } => write!(f, "records {from}"),
            Self::Records { from, to, .. } => write!(f, "records {from} {to}"),
        }
    }
}

/// Why a running server could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The socket failed.
    #[error("the server's admin socket {}: {source}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        source: io::Error,
    },
    /// The server refuses the request.
    #[error("the server answers: {0}")]
    Refused(String),
    /// The answer is invalid.
    #[error("the server's answer is not understood: {0}")]
    Protocol(&'static str),
    /// A record is not intact.
    #[error(transparent)]
    Damaged(#[from] VerifyError),
    /// The bytes of a record cannot be read.
    #[error("record {offset} as the server sent it: {source}")]
    Frame {
        /// The offset that was expected.
        offset: Offset,
        /// The error of the frame.
        source: CodecError,
    },
}
