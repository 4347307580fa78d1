//! Uploaded files: where they are stored, their thumbnails, and the data for URL previews.
//!
//! The log records which media id names which file (`media.upload`), and only files that a record
//! names are served. A file is stored beside the log under its own hash, and is durable before the
//! record is appended. Files of other homeservers are copies beside them, which no record names.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

use std::{
    fs::DirBuilder,
    io,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

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

use logcabin_base::owner::{Claim, Claimant, Sharing, is_elsewhere};
use logcabin_config::{Config, MediaDir};
use logcabin_record::command::FileHash;

/// The setting that names the directory of the files.
const SETTING: &str = "media.dir";

/// Opens the files of the configuration, and the copies of those of other homeservers. `log`
/// identifies the log, whose records name the files for which `named` is true.
///
/// # Errors
/// Also when the directory is another server's.
pub fn open(
    config: &Config,
    log: Option<String>,
    named: &dyn Fn(&FileHash) -> bool,
) -> io::Result<(Arc<Store>, Arc<remote::RemoteFiles>)> {
    let data_dir = &config.server.data_dir;
    // Before anything in it is changed: opening it deletes uploads in progress.
    let claims = claim(config, log, named)?;
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
    Ok((Arc::new(store.held_by(claims)), Arc::new(remote)))
}

/// Locks the directory of the files, if it is outside of the data directory. The nodes of a cluster
/// share it, and each has a place of its own in it.
fn claim(
    config: &Config,
    log: Option<String>,
    named: &dyn Fn(&FileHash) -> bool,
) -> io::Result<Vec<Claim>> {
    let data_dir = &config.server.data_dir;
    let root = match &config.media.dir {
        MediaDir::Auto => store::directory(data_dir),
        MediaDir::Path(path) => path.clone(),
    };
    if !is_elsewhere(&root, data_dir) {
        return Ok(Vec::new());
    }
    let shared = config.media.dir != MediaDir::Auto && !config.log.servers.is_empty();
    let sharing = if shared { Sharing::Nodes } else { Sharing::Alone };
    let mut claims = vec![take(&root, data_dir, log.clone(), sharing, named)?];
    if shared {
        let node = place_of_node(&root, &config.log.node_name(&config.server));
        claims.push(take(&node, data_dir, log, Sharing::Alone, named)?);
    }
    Ok(claims)
}

fn take(
    dir: &Path,
    data_dir: &Path,
    log: Option<String>,
    sharing: Sharing,
    named: &dyn Fn(&FileHash) -> bool,
) -> io::Result<Claim> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let claimant = Claimant::new(data_dir, log, SETTING)?.sharing(sharing);
    let mut claim = Claim::begin(dir, claimant).map_err(io::Error::other)?;
    if claim.must_fit() && !store::fits(dir, named)? {
        return Err(io::Error::other(claim.misfit()));
    }
    claim.settle(None).map_err(io::Error::other)?;
    Ok(claim)
}

/// The directory by which a node holds its place in a directory that the nodes share.
fn place_of_node(shared: &Path, node: &str) -> PathBuf {
    shared.join("nodes").join(node)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn config(data_dir: &Path, shared: &Path) -> Config {
        fs::create_dir_all(data_dir.join("log")).unwrap();
        let mut config = Config::default();
        config.server.data_dir = data_dir.to_owned();
        config.media.dir = MediaDir::Path(shared.to_owned());
        config.log.min_free_bytes = 0;
        config
    }

    fn opened(config: &Config, log: &str) -> io::Result<Arc<Store>> {
        Ok(open(config, Some(log.to_owned()), &|_| false)?.0)
    }

    #[test]
    fn a_copy_with_the_same_directory_leaves_uploads_in_progress_alone() {
        let parent = tempfile::tempdir().unwrap();
        let shared = parent.path().join("shared");
        let live = config(&parent.path().join("live"), &shared);
        let copy = config(&parent.path().join("copy"), &shared);
        let store = opened(&live, "log").unwrap();
        let incoming = shared.join("incoming").join(live.log.node_name(&live.server));
        fs::write(incoming.join("upload"), "half").unwrap();
        let error = opened(&copy, "log").unwrap_err().to_string();
        assert!(error.contains("`media.dir`") && error.contains("live"), "{error}");
        drop(store);
        // Nor does it while the other one is stopped.
        assert!(opened(&copy, "log").is_err());
        assert!(incoming.join("upload").exists());
        opened(&live, "log").unwrap();
        assert!(!incoming.join("upload").exists());
    }

    #[test]
    fn a_directory_without_an_owner_is_taken_if_its_files_are_named() {
        let parent = tempfile::tempdir().unwrap();
        let shared = parent.path().join("shared");
        let config = config(&parent.path().join("data"), &shared);
        let hash = FileHash::from(blake3::hash(b"file"));
        let file = store::place(&shared, &hash);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "file").unwrap();
        let error = opened(&config, "log").unwrap_err().to_string();
        assert!(error.contains("does not belong to this log"), "{error}");
        open(&config, Some("log".to_owned()), &|named| *named == hash).unwrap();
        // From then on it is known.
        opened(&config, "log").unwrap();
    }
}
