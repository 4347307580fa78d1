//! Uploaded files: where they are stored, their thumbnails, and the data for URL previews.
//!
//! The log records which media id names which file (`media.upload`), and only files that a record
//! names are served. A file is stored beside the log under its own hash, and is durable before the
//! record is appended.

pub(crate) mod depot;
pub mod download;
pub mod page;
pub mod picture;
pub mod store;
pub mod webp;

pub use download::{Download, DownloadError};
pub use store::{Held, Receiving, Store};
