//! Where the nodes of a cluster find each other's files.

use std::{fmt, io, path::Path, pin::Pin};

use futures_util::future::BoxFuture;
use tokio::io::AsyncRead;

use logcabin_record::command::FileHash;

/// The contents of a file, as they arrive.
pub type Contents = Pin<Box<dyn AsyncRead + Send>>;

/// A store of files that all nodes reach. Each node keeps copies on its own disk, too.
pub trait SharedStore: Send + Sync + fmt::Debug {
    /// Stores the file at `path`. Afterwards, every node can fetch it.
    fn put<'a>(&'a self, hash: &'a FileHash, path: &'a Path) -> BoxFuture<'a, io::Result<()>>;

    /// The file with this hash; `None` if it is not there.
    fn fetch<'a>(&'a self, hash: &'a FileHash) -> BoxFuture<'a, io::Result<Option<Contents>>>;

    /// Removes the file with this hash, if it is there.
    fn remove<'a>(&'a self, hash: &'a FileHash) -> BoxFuture<'a, io::Result<()>>;

    /// The files that are older than `age_seconds`.
    fn older(&self, age_seconds: u64) -> BoxFuture<'_, io::Result<Vec<FileHash>>>;
}
