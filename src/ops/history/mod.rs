//! Inspecting a log: its records as they arrive, rooms and users as of any moment, the differences
//! between two moments, why a value is what it is, and whether everything is intact.
//!
//! A [`Source`] provides the records, from a data directory, an archive or a running server.
//! Everything else is computed from them by local replay, so every question has the same answer
//! wherever the log is. [`run()`] answers one question, for people or for programs (see
//! [`Output`]); `logcabin history` is its command line. Secrets are masked in every answer.

use std::{io, path::PathBuf};

use ruma::OwnedRoomId;

use logcabin_log::archive::ArchiveError;
use logcabin_record::{CommandError, Offset};
use logcabin_snapshot::shutdown_digest::ShutdownDigestError;
use logcabin_state::ApplyError;

pub mod audit;
pub mod check;
pub mod describe;
pub mod diff;
pub mod du;
mod key_holder;
pub mod moment;
pub mod nearby;
mod paragraphs;
pub mod progress;
pub mod query;
mod render;
pub mod resolution;
pub mod rows;
mod run;
pub mod select;
pub mod step;
pub mod terminal;
mod unread;
mod user_view;
pub mod why;

pub use crate::source::{Source, SourceError};
pub use check::Report;
pub use logcabin_service::observe::Directories;
pub use moment::Moment;
pub use query::History;
pub use render::report as render_report;
pub use run::{Output, Question, TailFilter, Target, run};
pub use terminal::Layout;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The source cannot be opened or read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The archive cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The records cannot be replayed.
    #[error("the log cannot be replayed: {0}")]
    Apply(#[from] ApplyError),
    /// The digest of the last shutdown cannot be read.
    #[error(transparent)]
    ShutdownDigest(#[from] ShutdownDigestError),
    #[error(
        "no room has the name `{0}`, or an id or alias that begins with it; `rooms` lists all rooms"
    )]
    NoRoom(String),
    /// The room or the account was created later.
    #[error("{name} did not exist yet as of record {at}")]
    NotYet {
        /// The room or account.
        name: String,
        /// The moment.
        at: Offset,
    },
    /// The moment is before the end of an import.
    #[error(
        "what the log has of that time was imported later, at {0}: ask as of a record, which \
         `why` and `show` tell the time of, or as of a time after the import"
    )]
    Imported(moment::Time),
    #[error(
        "`{name}` matches the names, ids or aliases of {} rooms: {}",
        .rooms.len(),
        .rooms.iter().take(5).map(|id| id.as_str()).collect::<Vec<_>>().join(", ")
    )]
    ManyRooms { name: String, rooms: Vec<OwnedRoomId> },
    /// These words name no subject.
    #[error(transparent)]
    NotASubject(#[from] why::NotASubject),
    #[error(transparent)]
    NoSuchKind(#[from] select::NoSuchKind),
    #[error("no user has the id or name `{0}`; `users` lists all users")]
    NoUser(String),
    /// A sync's answer has no position.
    #[error("the response has no valid `next_batch`")]
    NoToken,
    #[error("cannot read {}: {source}", .path.display())]
    Input { path: PathBuf, source: io::Error },
    /// A record's command cannot be read.
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("there is no record {offset}; the log ends at {end}")]
    NoRecord { offset: Offset, end: Offset },
    #[error("cannot write the answer: {0}")]
    Write(#[from] io::Error),
}

impl HistoryError {
    /// Whether the reader of the answer has gone (`history tail … | head`).
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Write(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}
