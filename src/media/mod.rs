//! Uploaded files: where their bytes lie, the thumbnails that are made of them, and what previews
//! of pages are made of.
//!
//! Which media id names which file is in the log (`media.upload`), and only a file that a record
//! names is ever served. The bytes lie beside the log under their own hash, durable before the
//! record is appended.

pub mod download;
pub mod network;
pub mod page;
pub mod picture;
pub mod store;
pub mod webp;

pub use download::{Download, DownloadError};
pub use store::{Held, Receiving, Store};
