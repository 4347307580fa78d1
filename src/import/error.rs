//! Why an import cannot begin, or go on.

use std::path::PathBuf;

use super::facts::SourceError;

/// Why an import cannot begin, or go on. What was imported so far stays usable by the next try.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A file of the other server, or one of this one.
    #[error("cannot {what} {}: {source}", .path.display())]
    File { what: &'static str, path: PathBuf, source: std::io::Error },
    /// A file is there, and does not say what it must.
    #[error("{}: {why}", .path.display())]
    Settings { path: PathBuf, why: String },
    /// It must not go on as things are: the sentence says what to do.
    #[error("{0}")]
    Refused(String),
}
