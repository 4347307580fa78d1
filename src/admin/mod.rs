//! Administration from the same machine: the log of a running server to read, and what its operator does
//! with accounts.
//!
//! The store lets one process in at a time, so a server that runs hands out its records itself, and does
//! what is asked of it, over a Unix socket in its data directory (mode 0600, in a directory of mode 0700).
//! What may be asked is the list [`Act`]; it is carried out in one place ([`office`]), by the running
//! server or, while there is none, by the command line itself.
//!
//! # Protocol
//!
//! A client sends a request, one line of text; the server answers it; then the next may follow.
//!
//! | request | answer |
//! |---|---|
//! | `end` | `D`, then the offset of the last durable record as `u64` |
//! | `records FROM` | the records from offset FROM to the last durable one |
//! | `records FROM TO` | the records from FROM to TO |
//! | `records FROM follow` | the records from FROM, then each new one as it becomes durable |
//! | `act JSON` | does what the JSON of an [`Act`] says: `A`, a `u32` length, and the JSON of what was [`Done`] |
//!
//! Records are sent **as an archive segment** (`log_format.md`, "Archive segments"): magic, first
//! offset, chain value before it, an entry for each record, and a seal, which tells a complete answer
//! from one that was cut off. So a client verifies chain and hashes itself, and what `records 1`
//! answers can be stored as it is for an archive. One that follows gets its seal when the server
//! stops; it ends the answer itself by closing the connection.
//!
//! Wherever a magic, an entry, a `D` or an `A` may stand, an `E` may stand instead: a `u16` length and that
//! much text follow, saying why there is no (more) answer, and the connection ends. Integers are
//! big-endian.

mod acts;
mod client;
mod effect;
mod erasure;
mod media;
mod notices;
pub(crate) mod office;
mod reports;
mod rooms;
mod serve;
pub(crate) mod shutdown;
pub(crate) mod users;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

pub use acts::{
    Act, Done, ExternalId, Filter, MediaOf, MediaSummary, MediaUsage, NewRoom, ReportDetails,
    ReportSummary, RoomDetails, RoomOrder, RoomSummary, RoomsWanted, ShutdownStatus, TokenSummary,
    UserDetails, UserDevice, UserSummary, UserThreepid,
};
pub use client::{Answer, Client};
pub use erasure::{Receipt, ReceiptRow, RoomPurged, UserErased};
pub(crate) use serve::serve;
pub use serve::serve_until;

use crate::{
    log::{ReadError, VerifyError},
    record::{Offset, codec::CodecError},
};

const TAG_END: u8 = b'D';
const TAG_DONE: u8 = b'A';
const TAG_ERROR: u8 = b'E';

/// No request is longer. An act names a user, a password, a reason; a notice is the longest.
const REQUEST_BYTES: u64 = 128 * 1024;

/// No answer to an act is longer: a page of users is the largest.
const DONE_BYTES: usize = 4 * 1024 * 1024;

/// How long a client may take over a request, and over reading what it was sent.
const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of a data directory.
#[must_use]
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("admin.sock")
}

/// Why a connection ends before the client has hung up.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The client is told.
    #[error("{0}")]
    Refused(String),
    /// The client does not listen.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<CodecError> for Failure {
    fn from(error: CodecError) -> Self {
        Self::Refused(error.to_string())
    }
}

/// What a client asks for.
#[derive(Clone, Debug)]
enum Request {
    End,
    Act(Box<Act>),
    Records { from: Offset, to: Offset, follow: bool },
}

impl FromStr for Request {
    type Err = Failure;

    fn from_str(line: &str) -> Result<Self, Failure> {
        if let Some(act) = line.strip_prefix("act ") {
            // Not the line itself: it may hold a password.
            let refused = |error| Failure::Refused(format!("this is not an act: {error}"));
            return serde_json::from_str(act).map(|act| Self::Act(Box::new(act))).map_err(refused);
        }
        let refused = || Failure::Refused(format!("`{line}` is not a request"));
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
            Self::Act(act) => {
                write!(f, "act {}", serde_json::to_string(act).map_err(|_| fmt::Error)?)
            }
            Self::Records { from, follow: true, .. } => write!(f, "records {from} follow"),
            Self::Records { from, to: Offset::MAX, .. } => write!(f, "records {from}"),
            Self::Records { from, to, .. } => write!(f, "records {from} {to}"),
        }
    }
}

/// Why a running server could not be read.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The socket failed.
    #[error("the server's admin socket {}: {source}", .path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The server does not answer the request.
    #[error("the server answers: {0}")]
    Refused(String),
    /// What came is not an answer.
    #[error("the server's answer is not understood: {0}")]
    Protocol(&'static str),
    /// A record is not intact.
    #[error(transparent)]
    Damaged(#[from] VerifyError),
    /// The bytes of a record cannot be read.
    #[error("record {offset} as the server sent it: {source}")]
    Frame {
        /// Which record should have come.
        offset: Offset,
        /// What is wrong.
        source: CodecError,
    },
}
