//! Files in a cluster: each node has a copy of every file on its own disk, and fetches those that
//! were uploaded to other nodes.

use std::{collections::BTreeSet, io, sync::Arc, time::Duration};

use bytes::BytesMut;
use futures_util::{StreamExt as _, stream};
use tokio::io::AsyncReadExt as _;
use tracing::{info, warn};

use super::{FileError, Media};
use logcabin_base::{limits, shutdown::Shutdown, threads};
use logcabin_engine::Lagged;
use logcabin_media::shared_store::SharedStore;
use logcabin_record::{
    Command,
    command::{Body as _, FileHash, MediaUpload},
};
use logcabin_state::Effect;

/// How many files are fetched at once in the background.
const AT_ONCE: usize = 4;

/// The pause after a file could not be fetched in the background.
const PAUSE: Duration = Duration::from_secs(5);

/// How often the shared store is searched for files that nothing names.
const SWEEP: Duration = Duration::from_secs(3600);

impl Media {
    /// Makes this file one that all nodes can serve.
    pub(super) async fn share(&self, hash: &FileHash) -> io::Result<()> {
        match &self.shared_store {
            Some(shared_store) => shared_store.put(hash, &self.store.path(hash)).await,
            None => Ok(()),
        }
    }

    /// Fetches a file that this node does not have. Returns whether it has it now.
    pub(super) async fn fetch(&self, hash: FileHash) -> io::Result<bool> {
        let Some(shared_store) = &self.shared_store else { return Ok(false) };
        // Others that ask for the same file wait for it.
        let _one = self.fetching[usize::from(hash.0[0] & 15)].lock().await;
        if self.has(hash).await {
            return Ok(true);
        }
        let Some(mut contents) = shared_store.fetch(&hash).await? else { return Ok(false) };
        let mut receiving = self.store.receive(None).await?;
        loop {
            let mut piece = BytesMut::with_capacity(limits::MEDIA_PIECE_BYTES);
            if contents.read_buf(&mut piece).await? == 0 {
                break;
            }
            receiving.write(piece.freeze()).await?;
        }
        let held = receiving.finish().await?;
        if held.hash == hash {
            return Ok(true);
        }
        let named = |hash: &FileHash| self.engine.state().media.names(hash);
        self.store.discard(held, named)?;
        Err(io::Error::other("the file of the cluster is damaged"))
    }

    /// Fetches a file if this node does not have it and others may.
    pub async fn fetch_if_missing(&self, hash: FileHash) -> Result<(), FileError> {
        if self.shared_store.is_none() || self.has(hash).await {
            return Ok(());
        }
        self.fetch(hash).await.map(|_| ()).map_err(FileError::NotAtHand)
    }

    async fn has(&self, hash: FileHash) -> bool {
        let path = self.store.path(&hash);
        threads::spawn_blocking(move || path.exists()).await.unwrap_or(false)
    }
}

/// Fetches every file that a record names, now and in future, until the server stops.
pub async fn fetch_all(media: Arc<Media>, shutdown: Shutdown) {
    let mut records = media.engine.follow(media.engine.head().offset().next());
    let there = media.engine.state().media.all();
    let hashes: BTreeSet<_> = there.into_iter().map(|(_, stored)| stored.hash).collect();
    let first = stream::iter(hashes).map(|hash| keep_fetching(&media, hash));
    tokio::select! {
        () = first.buffer_unordered(AT_ONCE).for_each(|()| async {}) => {}
        () = shutdown.given() => return,
    }
    loop {
        let record = tokio::select! {
            record = records.next() => record,
            () = shutdown.given() => return,
        };
        let Some(Ok(record)) = record else { return };
        if &*record.header.kind == MediaUpload::KIND.name
            && let Ok(Some(Command::MediaUpload(upload))) = record.command()
        {
            tokio::select! {
                () = keep_fetching(&media, upload.hash) => {}
                () = shutdown.given() => return,
            }
        }
    }
}

/// Fetches a file, again and again while something names it.
async fn keep_fetching(media: &Media, hash: FileHash) {
    let mut warned = false;
    while media.engine.state().media.names(&hash) {
        match media.fetch(hash).await {
            Ok(true) => return,
            // It was never shared, for example because it was lost before.
            Ok(false) => return,
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    warn!(%error, %hash, "a file of another node cannot be fetched; retrying");
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Removes files from the shared store that nothing names any more, until the server stops. One
/// node does this at a time.
pub async fn sweep(media: Arc<Media>, shared_store: Arc<dyn SharedStore>, shutdown: Shutdown) {
    let mut work = media.engine.head().work();
    let unnamed = |effect: &Effect| match effect {
        Effect::Unnamed(hash) => Some(*hash),
        _ => None,
    };
    remove(&media, &*shared_store, media.engine.state().media.lately_unnamed()).await;
    loop {
        match shared_store.older(media.settings.orphan_seconds).await {
            Ok(older) => remove(&media, &*shared_store, older).await,
            Err(error) => warn!(%error, "the files of the cluster cannot be listed"),
        }
        let mut next = std::pin::pin!(tokio::time::sleep(SWEEP));
        loop {
            tokio::select! {
                () = &mut next => break,
                files = work.next(unnamed) => match files {
                    Ok(files) => remove(&media, &*shared_store, files).await,
                    // The list shows them.
                    Err(Lagged) => break,
                },
                () = shutdown.given() => return,
            }
        }
    }
}

async fn remove(media: &Media, shared_store: &dyn SharedStore, files: Vec<FileHash>) {
    let mut removed = 0;
    for hash in files.into_iter().filter(|hash| !media.engine.state().media.names(hash)) {
        match shared_store.remove(&hash).await {
            Ok(()) => removed += 1,
            Err(error) => warn!(%error, %hash, "a file could not be removed from the cluster"),
        }
    }
    if removed > 0 {
        info!(files = removed, "removed files from the cluster that nothing names");
    }
}
