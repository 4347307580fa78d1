//! The admin socket of a running server: its protocol, and the side of the client. The side of the
//! server is in `admin`, with what an act may be.
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
//! | `act JSON` | does what the JSON of an act says: `A`, a `u32` length, and the JSON of what was done |
//!
//! Records are sent **as an archive segment** (`log_format.md`, "Archive segments"): magic, first
//! offset, chain value before it, an entry for each record, and a seal, which tells a complete
//! answer from one that was cut off. So a client verifies chain and hashes itself, and what
//! `records 1` answers can be stored as it is for an archive. One that follows gets its seal when
//! the server stops; it ends the answer itself by closing the connection.
//!
//! Wherever a magic, an entry, a `D` or an `A` may stand, an `E` may stand instead: a `u16` length
//! and that much text follow, saying why there is no (more) answer, and the connection ends.
//! Integers are big-endian.

mod client;

use std::{
    fmt, io,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

pub use client::{Answer, Client};

use crate::{
    log::VerifyError,
    record::{Offset, codec::CodecError},
};

pub(crate) const TAG_END: u8 = b'D';
pub(crate) const TAG_DONE: u8 = b'A';
pub(crate) const TAG_ERROR: u8 = b'E';

/// No request is longer. An act names a user, a password, a reason; a notice is the longest.
pub(crate) const REQUEST_BYTES: u64 = 128 * 1024;

/// No answer to an act is longer: a page of users is the largest.
pub(crate) const DONE_BYTES: usize = 4 * 1024 * 1024;

/// How long a client may take over a request, and over reading what it was sent.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The socket of a data directory.
#[must_use]
pub fn socket_path(data_dir: &Path) -> PathBuf {
    data_dir.join("admin.sock")
}

/// A line that is not a request.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct BadRequest(String);

/// What a client asks for.
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
