//! Reads the newest records when the disk is full.
//!
//! sled writes while it opens a database. If there is no space for that, a copy of the databases is
//! opened in a directory for temporary files. The copy is unlinked once it is open, and takes no
//! writes. As soon as there is space, the databases themselves are opened instead.

use std::{
    env,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{OpenError, Store};
use logcabin_base::{clock::random_bytes, disk};

/// The free space that opening a database needs: sled writes less than one of its segments of 16
/// MiB.
pub(super) const ROOM_TO_OPEN: u64 = 17 * 1024 * 1024;

/// How much temporary space is left to others.
const LEFT: u64 = 64 * 1024 * 1024;

const CHUNK: usize = 64 * 1024;

/// Opens copies of the databases in `dirs`, each with its number.
pub(super) fn open(
    dirs: &[(u64, PathBuf)],
    cache_bytes: u64,
) -> Result<Vec<(u64, Arc<Store>)>, OpenError> {
    let Some((_, first)) = dirs.first() else { return Ok(Vec::new()) };
    let no_room = || OpenError::Full { path: first.clone(), room: ROOM_TO_OPEN };
    let mut bytes = LEFT;
    for (_, dir) in dirs {
        bytes = bytes.saturating_add(size(dir).map_err(|_| no_room())?);
    }
    let places = [env::temp_dir(), PathBuf::from("/dev/shm")];
    let has_room = |place: &&PathBuf| disk::free_bytes(place).is_ok_and(|free| free >= bytes);
    let place = places.iter().find(has_room).ok_or_else(no_room)?;
    let failed = |source| OpenError::Io { path: place.clone(), source };
    let copies = TemporaryCopies::begin(place).map_err(failed)?;
    let mut stores = Vec::new();
    for (number, dir) in dirs {
        let to = copies.0.join(number.to_string());
        copy(dir, &to).map_err(failed)?;
        let mut store = Store::open(&to, cache_bytes)?;
        store.dir.clone_from(dir);
        stores.push((*number, Arc::new(store)));
    }
    tracing::warn!(
        place = %place.display(),
        "the log's disk is full; reading the newest records from a temporary copy and refusing writes until there is space"
    );
    Ok(stores)
}

/// A directory that is removed when this is dropped. sled uses paths only while it opens.
struct TemporaryCopies(PathBuf);

impl TemporaryCopies {
    fn begin(place: &Path) -> io::Result<Self> {
        let dir = place.join(format!("logcabin-{:032x}", u128::from_be_bytes(random_bytes())));
        // It must not be one that somebody else created.
        DirBuilder::new().mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }
}

impl Drop for TemporaryCopies {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(%error, dir = %self.0.display(), "a temporary copy cannot be removed");
        }
    }
}

/// The files of a database.
fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let is_of_database = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name == "db" || name == "conf" || name.as_encoded_bytes().starts_with(b"snap.")
    };
    let mut files = disk::entries(dir)?;
    files.retain(|path| path.is_file() && is_of_database(path));
    Ok(files)
}

fn size(dir: &Path) -> io::Result<u64> {
    files(dir)?.iter().map(|path| Ok(disk::bytes_of(&fs::metadata(path)?))).sum()
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(to)?;
    for path in files(from)? {
        let mut source = File::open(&path)?;
        let mut options = OpenOptions::new();
        let to = to.join(path.file_name().unwrap_or_default());
        let mut target = options.write(true).create_new(true).mode(0o600).open(to)?;
        let mut chunk = vec![0; CHUNK];
        loop {
            let read = source.read(&mut chunk)?;
            let Some(bytes) = chunk.get(..read).filter(|bytes| !bytes.is_empty()) else { break };
            // Most of a new database has never been written to.
            if bytes.iter().all(|byte| *byte == 0) {
                target.seek(SeekFrom::Current(read.try_into().unwrap_or(i64::MAX)))?;
            } else {
                target.write_all(bytes)?;
            }
        }
        target.set_len(source.metadata()?.len())?;
    }
    Ok(())
}
