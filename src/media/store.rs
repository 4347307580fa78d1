//! The store of uploaded files: each file once, under the blake3 of its bytes.
//!
//! ```text
//! DATA_DIR/media/ab/cd/abcd…         files, named by their hash
//! DATA_DIR/media/incoming/…          uploads in progress; emptied when the server starts
//! DATA_DIR/media/thumbnails/ab/…     what can be made again: may be deleted at any time
//! DATA_DIR/media/remote/…            copies of files of other homeservers (see `remote`)
//! ```
//!
//! A file is written under a temporary name, synced, and renamed, so that every file in place is
//! complete. If the server was killed in between, a file may exist without a record that names it;
//! [`Store::sweep`] deletes it after a while. A record never exists without its file.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, DirBuilder, File},
    io::{self, Write as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use parking_lot::Mutex;

use super::download::{self, DownloadError};
use logcabin_base::{clock::random_letters, disk, limits, owner::Claim, threads};
use logcabin_record::command::FileHash;

const INCOMING: &str = "incoming";
const THUMBNAILS: &str = "thumbnails";
const REMOTE: &str = "remote";

/// A thumbnail's file ends with the hash of the rest.
const CHECK_BYTES: usize = blake3::OUT_LEN;

/// The directory of the files in a data directory.
pub fn directory(data_dir: &Path) -> PathBuf {
    data_dir.join("media")
}

/// The path of the file with this hash, in the directory of the files.
pub fn place(root: &Path, hash: &FileHash) -> PathBuf {
    let name = hash.to_string();
    root.join(&name[..2]).join(&name[2..4]).join(name)
}

/// Every file in the directory of the files, with the hash that names it.
pub fn files(root: &Path) -> io::Result<Vec<(FileHash, PathBuf)>> {
    let is_part = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 2);
    let mut files = Vec::new();
    for outer in entries(root)?.into_iter().filter(is_part) {
        for inner in entries(&outer)?.into_iter().filter(is_part) {
            // A file with another name does not belong to the store.
            let hash =
                |path: &PathBuf| path.file_name().and_then(|n| FileHash::from_hex(n.to_str()?));
            files
                .extend(entries(&inner)?.into_iter().filter_map(|path| Some((hash(&path)?, path))));
        }
    }
    Ok(files)
}

/// Whether a directory is empty of files, or has one for which `named` is true.
pub(crate) fn fits(root: &Path, named: &dyn Fn(&FileHash) -> bool) -> io::Result<bool> {
    let is_part = |path: &PathBuf| path.file_name().is_some_and(|name| name.len() == 2);
    let mut has_files = false;
    for outer in entries(root)?.into_iter().filter(is_part) {
        for inner in entries(&outer)?.into_iter().filter(is_part) {
            for path in entries(&inner)? {
                let name = path.file_name().and_then(|name| name.to_str());
                let Some(hash) = name.and_then(FileHash::from_hex) else { continue };
                if named(&hash) {
                    return Ok(true);
                }
                has_files = true;
            }
        }
    }
    Ok(!has_files)
}

/// The store of a running server.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    /// The directory of the uploads in progress.
    incoming: PathBuf,
    /// Free space that uploads must leave on the disk for the log.
    min_free_bytes: u64,
    /// How many bytes of thumbnails are kept.
    thumbnail_bytes: u64,
    /// Bytes of the existing thumbnails, once they were counted.
    thumbnails: Mutex<Option<u64>>,
    /// Files that no record may name yet but soon will, each with the number of such records.
    held: Mutex<BTreeMap<FileHash, usize>>,
    /// Files that were already logged as not servable.
    reported: Mutex<BTreeSet<FileHash>>,
    /// Whether the files are copies of those of other homeservers, not named by their hashes.
    has_copies: bool,
    /// Held while directories are created, so that an existing directory is known to be durable.
    directories: Mutex<()>,
    /// The locks of a directory outside of the data directory.
    _claims: Vec<Claim>,
}

/// What a sweep deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files that no record names.
    pub files: u64,
    pub thumbnails: u64,
}

/// The result of looking through the thumbnails.
struct Thumbnails {
    /// How many bytes remain.
    kept: u64,
    /// How many were deleted.
    removed: u64,
}

impl Store {
    /// Opens the store in `data_dir`. Deletes uploads that were in progress when the server last
    /// ended.
    pub fn open(data_dir: &Path, min_free_bytes: u64, thumbnail_bytes: u64) -> io::Result<Self> {
        let incoming = directory(data_dir).join(INCOMING);
        let limits = (min_free_bytes, thumbnail_bytes);
        Self::open_with(directory(data_dir), incoming, limits, false)
    }

    /// Opens the store of copies of files of other homeservers, inside of this one. It may have
    /// as many thumbnails as this one.
    pub(super) fn open_remote(&self) -> io::Result<Self> {
        let root = self.root.join(REMOTE);
        let incoming =
            self.incoming.strip_prefix(&self.root).unwrap_or_else(|_| Path::new(INCOMING));
        let incoming = root.join(incoming);
        Self::open_with(root, incoming, (self.min_free_bytes, self.thumbnail_bytes), true)
    }

    /// The directory of the store.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Opens the store in `shared`, which the servers of a cluster have in common; `data_dir` gets
    /// a link to it. Deletes the uploads that this `node` had in progress.
    ///
    /// # Errors
    /// As [`Store::open`], and when `data_dir` has files of its own.
    pub(crate) fn open_shared(
        data_dir: &Path,
        (shared, node): (&Path, &str),
        min_free_bytes: u64,
        thumbnail_bytes: u64,
    ) -> io::Result<Self> {
        let (link, shared) = (directory(data_dir), std::path::absolute(shared)?);
        match fs::read_link(&link) {
            Ok(to) if to == shared => {}
            Ok(_) => {
                fs::remove_file(&link)?;
                std::os::unix::fs::symlink(&shared, &link)?;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                std::os::unix::fs::symlink(&shared, &link)?;
            }
            // It is a directory: remains, if it was used.
            Err(_) => {
                for part in [INCOMING, THUMBNAILS] {
                    let _ = fs::remove_dir(link.join(part));
                }
                fs::remove_dir(&link).map_err(|error| {
                    let (link, shared) = (link.display(), shared.display());
                    let kind = error.kind();
                    io::Error::new(kind, format!("move the files of {link} to {shared}: {error}"))
                })?;
                std::os::unix::fs::symlink(&shared, &link)?;
            }
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&shared)?;
        let incoming = shared.join(INCOMING).join(node);
        Self::open_with(shared, incoming, (min_free_bytes, thumbnail_bytes), false)
    }

    fn open_with(
        root: PathBuf,
        incoming: PathBuf,
        (min_free_bytes, thumbnail_bytes): (u64, u64),
        has_copies: bool,
    ) -> io::Result<Self> {
        let store = Self {
            root,
            incoming,
            min_free_bytes,
            thumbnail_bytes,
            thumbnails: Mutex::default(),
            held: Mutex::default(),
            reported: Mutex::default(),
            has_copies,
            directories: Mutex::default(),
            _claims: Vec::new(),
        };
        store.make(&store.root.join(THUMBNAILS))?;
        store.make(&store.incoming)?;
        for left in fs::read_dir(&store.incoming)? {
            fs::remove_file(left?.path())?;
        }
        Ok(store)
    }

    /// The store, which holds these locks as long as it exists.
    pub(crate) fn held_by(self, claims: Vec<Claim>) -> Self {
        Self { _claims: claims, ..self }
    }

    /// The path of the file with this name, which is its hash except in a store of copies.
    pub fn path(&self, hash: &FileHash) -> PathBuf {
        place(&self.root, hash)
    }

    /// Logs that a file cannot be served, once for each file. A damaged copy is deleted, so that
    /// the next request fetches it again.
    pub fn report(&self, hash: &FileHash, error: &DownloadError) {
        if self.has_copies {
            let file = self.path(hash);
            tracing::warn!(file = %file.display(), %error, "a copy of a file is damaged");
            if let Err(error) = remove_if_there(&file) {
                tracing::warn!(%error, "a damaged copy of a file could not be deleted");
            }
        } else if self.reported.lock().insert(*hash) {
            tracing::error!(
                file = %self.path(hash).display(),
                %error,
                "an uploaded file cannot be served; `logcabin verify` names all that are lost, and a backup may have them"
            );
        }
    }

    /// Begins to receive a file of `length` bytes, if that is known.
    ///
    /// # Errors
    /// When it cannot be written, or the disk would become too full for the log
    /// ([`io::ErrorKind::StorageFull`]).
    pub async fn receive(self: &Arc<Self>, length: Option<u64>) -> io::Result<IncomingFile> {
        let store = Arc::clone(self);
        let begun = threads::spawn_blocking(move || {
            store.must_have_room(length.unwrap_or(0))?;
            let temporary = Temporary(store.incoming.join(random_letters(24)));
            let file = File::create_new(&temporary.0)?;
            let hasher = blake3::Hasher::new();
            let writing = Writing { store, file, hasher, size: 0, unsynced: 0 };
            Ok(IncomingFile {
                writing: Some(writing),
                temporary,
                waiting: Vec::new(),
                waiting_bytes: 0,
            })
        });
        begun.await.map_err(io::Error::other)?
    }

    /// Deletes a file that was not recorded after all, unless something names it or soon will.
    pub fn discard(
        &self,
        file: PinnedFile,
        named: impl FnOnce(&FileHash) -> bool,
    ) -> io::Result<()> {
        let hash = file.hash;
        drop(file);
        let held = self.held.lock();
        if held.contains_key(&hash) || named(&hash) {
            return Ok(());
        }
        remove_if_there(&self.path(&hash))?;
        Ok(())
    }

    /// The thumbnail with this name of the file with this hash, if it is stored and intact. Blocks.
    pub fn read_thumbnail(&self, hash: &FileHash, name: &str) -> Option<Bytes> {
        let bytes = Bytes::from(fs::read(self.thumbnail(hash, name)).ok()?);
        let (kept, check) = bytes.split_last_chunk::<CHECK_BYTES>()?;
        let is_whole = blake3::hash(kept).as_bytes() == check;
        is_whole.then(|| bytes.slice(..kept.len()))
    }

    /// The path of the thumbnail with this name of the file with this hash.
    pub fn thumbnail(&self, hash: &FileHash, name: &str) -> PathBuf {
        let hash = hash.to_string();
        self.root.join(THUMBNAILS).join(&hash[..2]).join(format!("{hash}-{name}"))
    }

    /// Stores a thumbnail atomically. Older ones are deleted to make room. If there is no room for
    /// it, it is not stored, and the error is [`io::ErrorKind::QuotaExceeded`].
    pub fn keep_thumbnail(&self, hash: &FileHash, name: &str, bytes: &[u8]) -> io::Result<()> {
        let length = (bytes.len() + CHECK_BYTES) as u64;
        let Some(left) = self.thumbnail_bytes.checked_sub(length) else {
            return Err(io::ErrorKind::QuotaExceeded.into());
        };
        self.must_have_room(length)?;
        // Held until it is written, so that two do not use the same space.
        let mut thumbnails = self.thumbnails.lock();
        if thumbnails.is_none_or(|kept| kept > left) {
            // Deletes somewhat more than this one needs, so that not every thumbnail looks through
            // all of them.
            let kept = self.sweep_thumbnails(left - left / 8, |_| true)?.kept;
            *thumbnails = Some(kept);
        }
        let path = self.thumbnail(hash, name);
        let temporary = Temporary(self.incoming.join(random_letters(24)));
        let mut file = File::create_new(&temporary.0)?;
        file.write_all(bytes)?;
        file.write_all(blake3::hash(bytes).as_bytes())?;
        // Otherwise it may be an empty file after a power failure.
        file.sync_data()?;
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        let replaced = fs::metadata(&path).map_or(0, |about| about.len());
        fs::rename(&temporary.0, path)?;
        *thumbnails = thumbnails.map(|kept| (kept + length).saturating_sub(replaced));
        Ok(())
    }

    /// Puts a small file into place at once. It may be damaged after a power failure.
    pub(super) fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let temporary = Temporary(self.incoming.join(random_letters(24)));
        fs::write(&temporary.0, bytes)?;
        if let Some(parent) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        }
        fs::rename(&temporary.0, path)
    }

    /// Deletes files that no record names if they are older than `age`, and the oldest thumbnails
    /// until the rest are within their limit.
    pub fn sweep(&self, named: impl Fn(&FileHash) -> bool, age: Duration) -> io::Result<Swept> {
        let mut swept = Swept::default();
        for (hash, file) in files(&self.root)? {
            if named(&hash) || !is_older(&file, age)? {
                continue;
            }
            // An upload holds its file before it is in place, until a record names it.
            let held = self.held.lock();
            if !held.contains_key(&hash) && !named(&hash) {
                swept.files += u64::from(remove_if_there(&file)?);
            }
        }
        let mut thumbnails = self.thumbnails.lock();
        let Thumbnails { kept, removed } = self.sweep_thumbnails(self.thumbnail_bytes, named)?;
        *thumbnails = Some(kept);
        swept.thumbnails = removed;
        Ok(swept)
    }

    /// Deletes a file that nothing names, with its thumbnails. Returns whether it existed.
    pub fn remove(
        &self,
        hash: &FileHash,
        named: impl FnOnce(&FileHash) -> bool,
    ) -> io::Result<bool> {
        let held = self.held.lock();
        if held.contains_key(hash) || named(hash) {
            return Ok(false);
        }
        let was_there = remove_if_there(&self.path(hash))?;
        let mut thumbnails = self.thumbnails.lock();
        let directory = self.root.join(THUMBNAILS).join(&hash.to_string()[..2]);
        for thumbnail in entries(&directory)? {
            if thumbnail_of(&thumbnail).is_some_and(|of| of == *hash) {
                let length = fs::metadata(&thumbnail).map_or(0, |about| about.len());
                remove_if_there(&thumbnail)?;
                *thumbnails = thumbnails.map(|kept| kept.saturating_sub(length));
            }
        }
        Ok(was_there)
    }

    fn sweep_thumbnails(
        &self,
        most: u64,
        named: impl Fn(&FileHash) -> bool,
    ) -> io::Result<Thumbnails> {
        let mut thumbnails = Vec::new();
        let (mut bytes, mut removed) = (0, 0);
        for directory in entries(&self.root.join(THUMBNAILS))? {
            for thumbnail in entries(&directory)? {
                // Nothing of a deleted file may remain.
                if thumbnail_of(&thumbnail).is_some_and(|of| !named(&of)) {
                    removed += u64::from(remove_if_there(&thumbnail)?);
                    continue;
                }
                let Some(about) = if_there(fs::metadata(&thumbnail))? else { continue };
                bytes += about.len();
                thumbnails.push((about.modified()?, about.len(), thumbnail));
            }
        }
        thumbnails.sort_unstable();
        for (_, length, thumbnail) in thumbnails {
            if bytes <= most {
                break;
            }
            bytes -= length;
            removed += u64::from(remove_if_there(&thumbnail)?);
        }
        Ok(Thumbnails { kept: bytes, removed })
    }

    fn must_have_room(&self, bytes: u64) -> io::Result<()> {
        if disk::free_bytes(&self.root)? < self.min_free_bytes.saturating_add(bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    fn hold(self: &Arc<Self>, hash: FileHash, size: u64) -> PinnedFile {
        *self.held.lock().entry(hash).or_default() += 1;
        PinnedFile { store: Arc::clone(self), hash, size }
    }

    /// Creates a directory and its parents durably.
    pub(super) fn make(&self, directory: &Path) -> io::Result<()> {
        let _making = self.directories.lock();
        let missing: Vec<_> = directory.ancestors().take_while(|path| !path.is_dir()).collect();
        for directory in missing.into_iter().rev() {
            match DirBuilder::new().mode(0o700).create(directory) {
                // Another node of a cluster was faster.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => made?,
            }
            if let Some(parent) = directory.parent().filter(|path| !path.as_os_str().is_empty()) {
                File::open(parent)?.sync_all()?;
            }
        }
        Ok(())
    }
}

/// The entries of a directory, or none if it does not exist. Directories of thumbnails are created
/// with their first file.
pub(super) fn entries(directory: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(directory) {
        // A file among the directories does not belong to the store.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => Ok(Vec::new()),
        entries => match if_there(entries)? {
            Some(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
            None => Ok(Vec::new()),
        },
    }
}

/// `None` for "not found": the file never existed, or was deleted by somebody else.
pub(super) fn if_there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Deletes a file and returns whether it existed.
pub(super) fn remove_if_there(file: &Path) -> io::Result<bool> {
    Ok(if_there(fs::remove_file(file))?.is_some())
}

/// Whether a file exists and is at least this old.
fn is_older(file: &Path, age: Duration) -> io::Result<bool> {
    let Some(about) = if_there(fs::metadata(file))? else { return Ok(false) };
    let modified = about.modified()?;
    Ok(SystemTime::now().duration_since(modified).is_ok_and(|since| since >= age))
}

/// An incoming file. It is deleted when this is dropped.
#[derive(Debug)]
pub struct IncomingFile {
    /// `None` during a write, or after one has failed.
    writing: Option<Writing>,
    temporary: Temporary,
    waiting: Vec<Bytes>,
    waiting_bytes: usize,
}

#[derive(Debug)]
struct Writing {
    store: Arc<Store>,
    file: File,
    hasher: blake3::Hasher,
    size: u64,
    /// How many bytes may not be on disk yet.
    unsynced: usize,
}

/// A file that is deleted unless it was renamed.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It does not exist if it was renamed. If it cannot be deleted, the next start does it.
        let _ = fs::remove_file(&self.0);
    }
}

impl IncomingFile {
    /// Adds the next piece.
    pub async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        self.waiting_bytes += piece.len();
        self.waiting.push(piece);
        if self.waiting_bytes < limits::MEDIA_PIECE_BYTES {
            return Ok(());
        }
        self.write_waiting().await
    }

    async fn write_waiting(&mut self) -> io::Result<()> {
        let pieces = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let mut writing = self.writing.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let written = threads::spawn_blocking(move || {
            let bytes: usize = pieces.iter().map(Bytes::len).sum();
            writing.store.must_have_room(bytes as u64)?;
            for piece in pieces {
                writing.hasher.update(&piece);
                writing.file.write_all(&piece)?;
                writing.size += piece.len() as u64;
                writing.unsynced += piece.len();
            }
            // The log's next sync may have to wait for unsynced data.
            if writing.unsynced >= limits::MEDIA_SYNC_BYTES {
                writing.file.sync_data()?;
                writing.unsynced = 0;
            }
            Ok::<_, io::Error>(writing)
        });
        self.writing = Some(written.await.map_err(io::Error::other)??);
        Ok(())
    }

    /// Renames the complete file to this name in a store of copies. Returns its hash and length.
    pub(super) async fn finish_as(mut self, name: FileHash) -> io::Result<(FileHash, u64)> {
        self.write_waiting().await?;
        let Writing { store, file, hasher, size, .. } =
            self.writing.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let temporary = self.temporary;
        let finished = threads::spawn_blocking(move || {
            // Later, the log's sync might have to wait for it.
            file.sync_data()?;
            let place = store.path(&name);
            store.make(place.parent().ok_or(io::ErrorKind::NotFound)?)?;
            fs::rename(&temporary.0, &place)?;
            Ok((hasher.finalize().into(), size))
        });
        finished.await.map_err(io::Error::other)?
    }

    /// Renames the complete file into place, durably, and holds it until a record names it.
    pub async fn finish(mut self) -> io::Result<PinnedFile> {
        self.write_waiting().await?;
        let Writing { store, file, hasher, size, .. } =
            self.writing.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let temporary = self.temporary;
        let finished = threads::spawn_blocking(move || {
            file.sync_all()?;
            let held = store.hold(hasher.finalize().into(), size);
            let place = store.path(&held.hash);
            let parent = place.parent().ok_or(io::ErrorKind::NotFound)?;
            store.make(parent)?;
            // It replaces an existing file, which is equal or damaged.
            fs::rename(&temporary.0, &place)?;
            File::open(parent)?.sync_all()?;
            Ok(held)
        });
        finished.await.map_err(io::Error::other)?
    }
}

/// A file in its place, which is not deleted while this exists, even if no record names it.
#[derive(Debug)]
pub struct PinnedFile {
    store: Arc<Store>,
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
}

impl Drop for PinnedFile {
    fn drop(&mut self) {
        let mut held = self.store.held.lock();
        if let Some(count) = held.get_mut(&self.hash) {
            *count -= 1;
            if *count == 0 {
                held.remove(&self.hash);
            }
        }
    }
}

/// Checks the file with this hash, which must have `size` bytes.
pub fn verify(data_dir: &Path, hash: &FileHash, size: u64) -> Result<(), String> {
    download::verify(&place(&directory(data_dir), hash), hash, size)
}

/// The file that a thumbnail belongs to, by its name.
fn thumbnail_of(path: &Path) -> Option<FileHash> {
    let (hash, _) = path.file_name()?.to_str()?.split_once('-')?;
    FileHash::from_hex(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY_AGE: Duration = Duration::ZERO;

    fn store(directory: &Path) -> Arc<Store> {
        Arc::new(Store::open(directory, 0, 250).unwrap())
    }

    async fn add(store: &Arc<Store>, content: &'static [u8]) -> PinnedFile {
        let mut receiving = store.receive(None).await.unwrap();
        for piece in content.chunks(3) {
            receiving.write(Bytes::from_static(piece)).await.unwrap();
        }
        receiving.finish().await.unwrap()
    }

    #[tokio::test]
    async fn equal_files_are_stored_once() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let (one, other) = (add(&store, b"hello").await, add(&store, b"hello").await);
        assert_eq!(one.hash, FileHash::from(blake3::hash(b"hello")));
        assert_eq!((one.hash, one.size), (other.hash, 5));
        assert_eq!(files(&store.root).unwrap(), [(one.hash, store.path(&one.hash))]);
        verify(directory.path(), &one.hash, 5).unwrap();
    }

    #[tokio::test]
    async fn an_interrupted_upload_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let mut receiving = store.receive(None).await.unwrap();
        receiving.write(Bytes::from(vec![1; 2 * limits::MEDIA_PIECE_BYTES])).await.unwrap();
        let incoming = store.root.join(INCOMING);
        assert_eq!(entries(&incoming).unwrap().len(), 1);
        drop(receiving);
        assert_eq!(entries(&incoming).unwrap().len(), 0);
        // The leftover of a killed server is deleted at the next start.
        fs::write(incoming.join("left"), "half").unwrap();
        drop(Store::open(directory.path(), 0, 250).unwrap());
        assert_eq!(entries(&incoming).unwrap().len(), 0);
    }

    #[tokio::test]
    async fn a_sweep_spares_files_that_are_named_held_or_new() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let (named, held) = (add(&store, b"named").await, add(&store, b"held").await);
        let lost = add(&store, b"lost").await.hash;
        let named = named.hash;
        let is_named = |hash: &FileHash| *hash == named;
        let sweep = |age| store.sweep(is_named, age).unwrap().files;
        assert_eq!(sweep(Duration::from_secs(3600)), 0);
        assert_eq!(sweep(ANY_AGE), 1);
        assert!(!store.path(&lost).exists());
        assert!(store.path(&named).exists() && store.path(&held.hash).exists());
        drop(held);
        assert_eq!(sweep(ANY_AGE), 1);
    }

    #[tokio::test]
    async fn a_file_can_be_removed_with_or_without_thumbnails() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let (text, picture) = (add(&store, b"text").await.hash, add(&store, b"picture").await.hash);
        store.keep_thumbnail(&picture, "a", b"small").unwrap();
        for hash in [text, picture] {
            assert!(store.remove(&hash, |_| false).unwrap());
            assert!(!store.path(&hash).exists() && !store.thumbnail(&hash, "a").exists());
            // Removing it a second time is not an error.
            assert!(!store.remove(&hash, |_| false).unwrap());
        }
        assert_eq!(store.sweep(|_| false, ANY_AGE).unwrap(), Swept::default());
    }

    #[tokio::test]
    async fn thumbnails_never_exceed_their_limit() {
        let directory = tempfile::tempdir().unwrap();
        let hash = FileHash([3; 32]);
        let kept = |store: &Store| {
            let directory = store.thumbnail(&hash, "").parent().unwrap().to_owned();
            let thumbnails = entries(&directory).unwrap().into_iter();
            thumbnails.map(|path| fs::metadata(path).unwrap().len()).sum::<u64>()
        };
        for _ in 0..2 {
            let store = store(directory.path());
            for number in 0..20 {
                store.keep_thumbnail(&hash, &number.to_string(), &[0; 28]).unwrap();
                assert!(kept(&store) <= 250, "{} bytes", kept(&store));
                assert!(store.thumbnail(&hash, &number.to_string()).exists(), "the newest is kept");
            }
            let too_large = store.keep_thumbnail(&hash, "large", &[0; 219]).unwrap_err();
            assert_eq!(too_large.kind(), io::ErrorKind::QuotaExceeded);
            assert!(kept(&store) > 0, "it took the place of others");
        }
        // A store with a smaller limit deletes the excess.
        let smaller = Store::open(directory.path(), 0, 100).unwrap();
        assert!(smaller.sweep(|_| true, ANY_AGE).unwrap().thumbnails > 0);
        assert!(kept(&smaller) <= 100);
    }

    #[test]
    fn a_damaged_thumbnail_counts_as_missing() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let hash = FileHash([3; 32]);
        assert_eq!(store.read_thumbnail(&hash, "a"), None);
        store.keep_thumbnail(&hash, "a", b"small").unwrap();
        assert_eq!(store.read_thumbnail(&hash, "a").as_deref(), Some(&b"small"[..]));
        let path = store.thumbnail(&hash, "a");
        let good = fs::read(&path).unwrap();
        let mut flipped = good.clone();
        flipped[1] ^= 1;
        for bad in [flipped, good[1..].to_vec(), good[..good.len() - 1].to_vec(), Vec::new()] {
            fs::write(&path, bad).unwrap();
            assert_eq!(store.read_thumbnail(&hash, "a"), None);
        }
    }

    #[tokio::test]
    async fn uploads_leave_room_for_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(directory.path(), u64::MAX / 2, 0).unwrap());
        let error = store.receive(None).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }

    #[tokio::test]
    async fn damage_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let store = store(directory.path());
        let held = add(&store, b"hello").await;
        let check = || verify(directory.path(), &held.hash, 5);
        fs::write(store.path(&held.hash), b"hallo").unwrap();
        assert!(check().unwrap_err().contains("damaged"));
        fs::write(store.path(&held.hash), b"hell").unwrap();
        assert!(check().unwrap_err().contains("4 bytes instead of 5"));
        fs::remove_file(store.path(&held.hash)).unwrap();
        assert!(check().is_err());
        // Uploading the file again repairs it.
        let again = add(&store, b"hello").await;
        assert_eq!(again.hash, held.hash);
        check().unwrap();
    }
}
