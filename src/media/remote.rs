//! Copies of files of other homeservers: a cache on disk, which may be deleted at any time.
//!
//! ```text
//! DATA_DIR/media/remote/ab/cd/abcd…     files, named by the hash of their address
//! DATA_DIR/media/remote/about/ab/abcd…  metadata of each; its mtime is the time of the last use
//! DATA_DIR/media/remote/incoming/…      files being received
//! DATA_DIR/media/remote/thumbnails/…    their thumbnails
//! ```
//!
//! The directory is its own index, so copies survive a restart, and their metadata takes no memory.
//! The total size is bounded; the least recently used copies are deleted first.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use parking_lot::Mutex;
use ruma::{MxcUri, OwnedMxcUri};
use serde::{Deserialize, Serialize};

use super::{
    FileLocation, IncomingFile, Store,
    store::{entries, if_there, remove_if_there},
};
use logcabin_base::threads;
use logcabin_record::command::FileHash;

const ABOUT: &str = "about";

/// The interval at which uses are recorded.
const NOTED: Duration = Duration::from_secs(60);

/// The age at which a file without metadata is deleted: a crash interrupted it.
const ORPHAN: Duration = Duration::from_secs(3600);

/// The metadata of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteFile {
    pub address: OwnedMxcUri,
    /// Its blake3 hash.
    pub hash: FileHash,
    /// Its length in bytes.
    pub size: u64,
    /// Its type, according to its homeserver.
    pub content_type: Option<String>,
    /// Its name, according to its homeserver.
    pub name: Option<String>,
    /// When it was fetched, in milliseconds since the Unix epoch.
    pub fetched_ms: u64,
}

/// The copies of files of other homeservers.
#[derive(Debug)]
pub struct RemoteFiles {
    store: Arc<Store>,
    about: PathBuf,
    /// The maximum total size in bytes.
    most: u64,
    /// The total size of the copies in bytes, once counted. It is locked while the copies are
    /// examined, so only blocking code waits for it.
    kept: Mutex<Option<u64>>,
    /// The size of the copies being received, in bytes. It grows only while `kept` is locked.
    arriving: AtomicU64,
}

/// A copy that may be deleted.
struct CachedFile {
    used: SystemTime,
    bytes: u64,
    name: FileHash,
}

impl RemoteFiles {
    /// Opens the copies beside the files of `store`. Deletes those that were being received when
    /// the server last stopped.
    pub fn open(store: &Store, most: u64) -> io::Result<Self> {
        let store = store.open_remote()?;
        let about = store.root().join(ABOUT);
        let (store, kept, arriving) = (Arc::new(store), Mutex::default(), AtomicU64::new(0));
        Ok(Self { store, about, most, kept, arriving })
    }

    /// The path of the copy.
    pub fn place(&self, file: &RemoteFile) -> FileLocation {
        let (store, name) = (Arc::clone(&self.store), name(&file.address));
        FileLocation { store, name, hash: file.hash, size: file.size }
    }

    /// The metadata of the copy of the file at this address, if there is one. Does not count as a
    /// use. Blocks.
    pub fn look(&self, address: &MxcUri) -> Option<RemoteFile> {
        let name = name(address);
        let known = fs::read(self.about(&name)).ok()?;
        let known = serde_json::from_slice::<RemoteFile>(&known).ok();
        let known = known.filter(|known| known.address == *address)?;
        let about = fs::metadata(self.store.path(&name)).ok()?;
        (about.len() == known.size).then_some(known)
    }

    /// Like [`Self::look`], but counts as a use. Blocks.
    pub fn get(&self, address: &MxcUri) -> Option<RemoteFile> {
        let known = self.look(address)?;
        let noting = || -> io::Result<()> {
            let file = File::open(self.about(&name(address)))?;
            let now = SystemTime::now();
            let last = file.metadata()?.modified()?;
            // The clock may have been set back.
            if now.duration_since(last).is_ok_and(|since| since < NOTED) {
                return Ok(());
            }
            file.set_modified(now)
        };
        // On failure, the copy is only deleted sooner.
        let _ = noting();
        Some(known)
    }

    /// Starts to receive a copy of `length` bytes, if the length is known.
    ///
    /// # Errors
    /// When it cannot be written, or the disk would not leave enough space for the log
    /// ([`io::ErrorKind::StorageFull`]).
    pub async fn receive(self: &Arc<Self>, length: Option<u64>) -> io::Result<IncomingCopy> {
        let receiving = self.store.receive(length).await?;
        let room = Room { files: Arc::clone(self), bytes: 0 };
        Ok(IncomingCopy { receiving, room })
    }

    /// Deletes the copy of the file at this address, with its thumbnails. Returns whether there was
    /// one. Blocks.
    pub fn forget(&self, address: &MxcUri) -> io::Result<bool> {
        let mut kept = self.kept.lock();
        let name = name(address);
        let bytes = self.bytes(&name);
        let was_there = self.delete(&name)?;
        *kept = kept.map(|kept| kept.saturating_sub(bytes));
        Ok(was_there)
    }

    /// Deletes the copies that were last used before a time. Returns how many. Blocks.
    pub fn purge(&self, before: SystemTime) -> io::Result<u64> {
        let mut kept = self.kept.lock();
        let (mut left, mut deleted) = (0, 0);
        for copy in self.all()? {
            if copy.used < before {
                deleted += u64::from(self.delete(&copy.name)?);
            } else {
                left += copy.bytes;
            }
        }
        *kept = Some(left);
        Ok(deleted)
    }

    /// Deletes remains of copies, and then copies until the rest are within the limit. Blocks.
    pub fn sweep(&self) -> io::Result<()> {
        self.store.sweep(|name| self.about(name).exists(), ORPHAN)?;
        let mut kept = self.kept.lock();
        let most = self.most.saturating_sub(self.arriving.load(Ordering::Relaxed));
        *kept = Some(self.shrink(most)?);
        Ok(())
    }

    fn about(&self, name: &FileHash) -> PathBuf {
        let name = name.to_string();
        self.about.join(&name[..2]).join(name)
    }

    /// The size of the copy of this name, with its thumbnails.
    fn bytes(&self, name: &FileHash) -> u64 {
        let length = |path| fs::metadata(path).map_or(0, |about| about.len());
        length(self.about(name)) + length(self.store.path(name))
    }

    fn all(&self) -> io::Result<Vec<CachedFile>> {
        let mut all = Vec::new();
        for directory in entries(&self.about)? {
            for path in entries(&directory)? {
                let name = path.file_name().and_then(|name| FileHash::from_hex(name.to_str()?));
                let (Some(name), Some(about)) = (name, if_there(fs::metadata(&path))?) else {
                    continue;
                };
                all.push(CachedFile { used: about.modified()?, bytes: self.bytes(&name), name });
            }
        }
        Ok(all)
    }

    fn delete(&self, name: &FileHash) -> io::Result<bool> {
        let was_known = remove_if_there(&self.about(name))?;
        let was_there = self.store.remove(name, |_| false)?;
        Ok(was_known || was_there)
    }

    /// Deletes copies until the rest have at most this many bytes. Returns their size.
    fn shrink(&self, most: u64) -> io::Result<u64> {
        let mut all = self.all()?;
        let mut bytes = all.iter().map(|copy| copy.bytes).sum();
        all.sort_unstable_by_key(|copy| copy.used);
        for copy in all {
            if bytes <= most {
                break;
            }
            self.delete(&copy.name)?;
            bytes -= copy.bytes;
        }
        Ok(bytes)
    }

    /// Makes room for this many more bytes. Blocks.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut kept = self.kept.lock();
        if !self.add(*kept, bytes) {
            let arriving = self.arriving.load(Ordering::Relaxed);
            let left = self.most.checked_sub(arriving.saturating_add(bytes));
            let Some(left) = left else { return Err(io::ErrorKind::QuotaExceeded.into()) };
            // Somewhat more than needed, so that not every piece scans all copies.
            *kept = Some(self.shrink(left - left / 8)?);
            self.arriving.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Adds arriving bytes, if there is room for them. `kept` is locked.
    fn add(&self, kept: Option<u64>, bytes: u64) -> bool {
        let arriving = self.arriving.load(Ordering::Relaxed);
        let all = kept.map(|kept| kept.saturating_add(arriving).saturating_add(bytes));
        let fits = all.is_some_and(|all| all <= self.most);
        if fits {
            self.arriving.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }
}

/// The name of the copy of the file at this address.
fn name(address: &MxcUri) -> FileHash {
    blake3::hash(address.as_str().as_bytes()).into()
}

/// The space reserved for a copy being received.
#[derive(Debug)]
struct Room {
    files: Arc<RemoteFiles>,
    bytes: u64,
}

impl Room {
    async fn add(&mut self, bytes: u64) -> io::Result<()> {
        let files = &self.files;
        let has_room = files.kept.try_lock().is_some_and(|kept| files.add(*kept, bytes));
        if !has_room {
            let files = Arc::clone(files);
            let making = threads::spawn_blocking(move || files.make_room(bytes));
            making.await.map_err(io::Error::other)??;
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.files.arriving.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A copy being received. Its partial file is deleted when this is dropped.
#[derive(Debug)]
pub struct IncomingCopy {
    receiving: IncomingFile,
    room: Room,
}

impl IncomingCopy {
    /// Adds the next piece.
    ///
    /// # Errors
    /// When it cannot be written; [`io::ErrorKind::QuotaExceeded`] if other copies being received
    /// take the space for it.
    pub async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        self.room.add(piece.len() as u64).await?;
        self.receiving.write(piece).await
    }

    /// Moves the complete copy into place. `file` is its metadata, except for the hash and length.
    /// Returns the whole metadata. If `hash` is given and the copy has another one, the copy is
    /// deleted before anybody can read it.
    ///
    /// # Errors
    /// When it cannot be written, or has another hash.
    pub async fn finish(
        self,
        mut file: RemoteFile,
        hash: Option<FileHash>,
    ) -> io::Result<RemoteFile> {
        let Self { receiving, mut room } = self;
        let name = name(&file.address);
        let before = {
            let files = Arc::clone(&room.files);
            threads::spawn_blocking(move || files.bytes(&name)).await.map_err(io::Error::other)?
        };
        (file.hash, file.size) = receiving.finish_as(name).await?;
        if hash.is_some_and(|hash| hash != file.hash) {
            let (files, address) = (Arc::clone(&room.files), file.address.clone());
            let forgetting = threads::spawn_blocking(move || files.forget(&address));
            forgetting.await.map_err(io::Error::other)??;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the copy is damaged"));
        }
        let json = serde_json::to_vec(&file)?;
        room.add(json.len() as u64).await?;
        let writing = threads::spawn_blocking(move || {
            let files = &room.files;
            files.store.put(&files.about(&name), &json)?;
            let mut kept = files.kept.lock();
            *kept = kept.map(|kept| (kept + room.bytes).saturating_sub(before));
            drop(kept);
            Ok(file)
        });
        writing.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Download;

    fn open(directory: &std::path::Path, most: u64) -> Arc<RemoteFiles> {
        let store = Store::open(directory, 0, 1 << 20).unwrap();
        Arc::new(RemoteFiles::open(&store, most).unwrap())
    }

    fn address(id: &str) -> OwnedMxcUri {
        format!("mxc://other.example/{id}").into()
    }

    fn known(id: &str) -> RemoteFile {
        RemoteFile {
            address: address(id),
            hash: FileHash([0; 32]),
            size: 0,
            content_type: Some("image/png".to_owned()),
            name: None,
            fetched_ms: 7,
        }
    }

    async fn add(files: &Arc<RemoteFiles>, id: &str, length: usize) -> io::Result<RemoteFile> {
        let mut arriving = files.receive(None).await?;
        for piece in vec![length as u8; length].chunks(100) {
            arriving.write(Bytes::copy_from_slice(piece)).await?;
        }
        arriving.finish(known(id), None).await
    }

    /// Makes the copy look as if it was last used this many hours ago.
    fn age(files: &RemoteFiles, id: &str, hours: u64) {
        let file = File::open(files.about(&name(&address(id)))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(hours * 3600)).unwrap();
    }

    fn there(files: &RemoteFiles) -> Vec<char> {
        ('a'..='z').filter(|id| files.look(&address(&id.to_string())).is_some()).collect()
    }

    #[tokio::test]
    async fn a_copy_survives_a_restart_and_is_gone_when_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let files = open(directory.path(), 10_000);
        assert_eq!(files.get(&address("a")), None);
        let added = add(&files, "a", 1000).await.unwrap();
        let half = files.receive(None).await.unwrap();
        drop(files);
        std::mem::forget(half);
        let files = open(directory.path(), 10_000);
        assert_eq!(files.get(&address("a")), Some(added.clone()));
        let download = Download::open(&files.place(&added)).unwrap();
        download.verify().unwrap();
        assert_eq!(entries(&files.store.root().join("incoming")).unwrap().len(), 0);
        assert!(files.forget(&address("a")).unwrap());
        assert!(!files.forget(&address("a")).unwrap());
        assert_eq!(files.get(&address("a")), None);
        assert!(!files.store.path(&name(&address("a"))).exists());
    }

    #[tokio::test]
    async fn a_copy_with_another_hash_than_expected_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let files = open(directory.path(), 10_000);
        let arrives = async |hash| {
            let mut arriving = files.receive(None).await.unwrap();
            arriving.write(Bytes::from_static(b"a file")).await.unwrap();
            arriving.finish(known("a"), Some(hash)).await
        };
        let error = arrives(FileHash([7; 32])).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        assert_eq!(files.get(&address("a")), None);
        assert!(!files.store.path(&name(&address("a"))).exists());
        let hash = FileHash(*blake3::hash(b"a file").as_bytes());
        assert_eq!(arrives(hash).await.unwrap().hash, hash);
        assert!(files.get(&address("a")).is_some());
    }

    #[tokio::test]
    async fn copies_stay_within_their_limit_and_the_least_used_go_first() {
        let directory = tempfile::tempdir().unwrap();
        let files = open(directory.path(), 4_500);
        for (id, hours) in [("a", 3), ("b", 4), ("c", 2)] {
            add(&files, id, 1000).await.unwrap();
            age(&files, id, hours);
        }
        assert!(files.get(&address("b")).is_some());
        add(&files, "d", 1000).await.unwrap();
        // "b" was oldest, but was used since.
        assert_eq!(there(&files), ['b', 'c', 'd']);
        let bytes = |files: &RemoteFiles| files.all().unwrap().iter().map(|of| of.bytes).sum();
        let kept: u64 = bytes(&files);
        assert_eq!(*files.kept.lock(), Some(kept));
        // A copy that cannot fit deletes no others and leaves nothing behind, even after a restart.
        for files in [Arc::clone(&files), open(directory.path(), 4_500)] {
            let error = add(&files, "e", 5000).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
            assert_eq!(files.arriving.load(Ordering::Relaxed), 0);
            assert!(bytes(&files) <= 4_500);
        }
        // The same file twice counts once.
        for _ in 0..2 {
            add(&files, "f", 500).await.unwrap();
        }
        let kept: u64 = bytes(&files);
        assert_eq!(*files.kept.lock(), Some(kept));
        // A lower limit deletes the excess.
        let smaller = open(directory.path(), 600);
        smaller.sweep().unwrap();
        assert!(bytes(&smaller) <= 600);
    }

    #[tokio::test]
    async fn a_purge_goes_by_the_last_use_and_deletes_thumbnails_too() {
        let directory = tempfile::tempdir().unwrap();
        let files = open(directory.path(), 10_000);
        for (id, hours) in [("a", 1), ("b", 3)] {
            add(&files, id, 1000).await.unwrap();
            age(&files, id, hours);
        }
        let old = name(&address("b"));
        files.store.keep_thumbnail(&old, "small", b"small").unwrap();
        let before = SystemTime::now() - Duration::from_secs(2 * 3600);
        assert_eq!(files.purge(before).unwrap(), 1);
        assert_eq!(there(&files), ['a']);
        assert!(!files.store.thumbnail(&old, "small").exists());
        assert_eq!(files.purge(SystemTime::now()).unwrap(), 1);
        assert_eq!((there(&files), *files.kept.lock()), (Vec::new(), Some(0)));
    }

    #[tokio::test]
    async fn a_damaged_copy_counts_as_missing() {
        let directory = tempfile::tempdir().unwrap();
        let files = open(directory.path(), 10_000);
        let added = add(&files, "a", 1000).await.unwrap();
        let place = files.place(&added);
        fs::write(files.store.path(&place.name), vec![0; 1000]).unwrap();
        let download = Download::open(&place).unwrap();
        let error = download.verify().unwrap_err();
        download.report(&error);
        assert_eq!(files.get(&address("a")), None);
        add(&files, "a", 1000).await.unwrap();
        fs::write(files.about(&place.name), b"{").unwrap();
        assert_eq!(files.get(&address("a")), None);
    }
}
