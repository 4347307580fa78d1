//! Uploaded files: where they are stored, their thumbnails, and the data for URL previews.
//!
//! The log records which media id names which file (`media.upload`), and only files that a record
//! names are served. A file is stored beside the log under its own hash, and is durable before the
//! record is appended. Files of other homeservers are copies beside them, which no record names.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::{io, sync::Arc};

mod chunk_filter;
pub mod download;
pub mod page;
pub mod picture;
pub mod remote;
pub mod shared_store;
pub mod store;
pub mod webp;

pub use download::{Download, DownloadError, FileLocation};
pub use store::{IncomingFile, PinnedFile, Store};

use logcabin_config::{Config, MediaDir};

/// Opens the files of the configuration, and the copies of those of other homeservers.
pub fn open(config: &Config) -> io::Result<(Arc<Store>, Arc<remote::RemoteFiles>)> {
    let data_dir = &config.server.data_dir;
    // Files never use the space that the log needs.
    let min_free_bytes = config.log.min_free_bytes.saturating_mul(2);
    let thumbnail_bytes = config.media.thumbnail_bytes;
    let store = match &config.media.dir {
        MediaDir::Auto => Store::open(data_dir, min_free_bytes, thumbnail_bytes)?,
        MediaDir::Path(shared) => {
            let shared = (&**shared, &*config.log.node_name(&config.server));
            Store::open_shared(data_dir, shared, min_free_bytes, thumbnail_bytes)?
        }
    };
    let remote = remote::RemoteFiles::open(&store, config.media.remote_cache_bytes)?;
    Ok((Arc::new(store), Arc::new(remote)))
}
