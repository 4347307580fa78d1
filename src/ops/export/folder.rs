//! The directory of an export: unfinished until its manifest is in place.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, BufWriter, Read, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use super::{
    ExportError, at,
    manifest::{self, Entry, Manifest, Missing},
};
use logcabin_base::disk;
use logcabin_media::store;
use logcabin_record::{
    Offset,
    command::{FileHash, ServerIdentity},
};

/// The temporary name of the manifest. While this file exists, the export is unfinished.
pub(super) const UNFINISHED: &str = "manifest.json.unfinished";

/// The files of an export besides those with lines.
const PARTS: [&str; 3] = ["log", "media", "rooms"];

const NOTICE: &str = "An export was started here and has not finished. The same command starts it \
                      over; or delete this directory.\n";

/// An export directory that is being written.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    directories: BTreeSet<PathBuf>,
    files: Vec<Entry>,
    missing: Vec<Missing>,
    /// Locked while it is written.
    unfinished: File,
}

impl Folder {
    /// Starts an export in a directory that is missing, empty, or contains an unfinished export,
    /// which is removed.
    pub(super) fn begin(root: &Path) -> Result<Self, ExportError> {
        let marker = root.join(UNFINISHED);
        let is_resumed = marker.is_file();
        if let Some(found) = strangers(root, is_resumed).map_err(at(root))? {
            return Err(ExportError::NotEmpty { dir: root.to_owned(), found });
        }
        disk::make_private_dir(root).map_err(at(root))?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let mut unfinished = options.open(&marker).map_err(at(&marker))?;
        match unfinished.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ExportError::Busy(root.to_owned())),
            Err(TryLockError::Error(error)) => return Err(at(&marker)(error)),
        }
        let mut begin = || {
            unfinished.set_len(0)?;
            unfinished.write_all(NOTICE.as_bytes())?;
            unfinished.sync_all()?;
            File::open(root)?.sync_all()?;
            for left in fs::read_dir(root)? {
                let left = left?;
                match left.file_type()?.is_dir() {
                    true => fs::remove_dir_all(left.path())?,
                    false if left.file_name() != UNFINISHED => fs::remove_file(left.path())?,
                    false => {}
                }
            }
            Ok(())
        };
        begin().map_err(at(root))?;
        Ok(Self {
            root: root.to_owned(),
            directories: BTreeSet::from([root.to_owned()]),
            files: Vec::new(),
            missing: Vec::new(),
            unfinished,
        })
    }

    /// Starts a file of lines.
    pub(super) fn lines(&mut self, name: &str) -> Result<Lines, ExportError> {
        let path = self.root.join(name);
        if let Some(parent) = path.parent() {
            self.make(parent)?;
        }
        Lines::create(path, name)
    }

    /// Adds a complete file of lines.
    pub(super) fn add(&mut self, lines: Lines) -> Result<(), ExportError> {
        let entry = lines.finish()?;
        self.files.push(entry);
        Ok(())
    }

    /// Copies an uploaded file of a data directory, under its hash. A missing or damaged file is
    /// noted as missing.
    pub(super) fn copy_media(
        &mut self,
        data_dir: &Path,
        hash: &FileHash,
        size: u64,
    ) -> Result<(), ExportError> {
        let to = store::place(Path::new("media"), hash);
        let name = to.to_string_lossy().into_owned();
        let (from, to) = (store::place(&store::directory(data_dir), hash), self.root.join(to));
        if let Some(parent) = to.parent() {
            self.make(parent)?;
        }
        let mut source = match File::open(&from) {
            Ok(source) => source,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.missing.push(Missing { path: name, reason: "it is missing".to_owned() });
                return Ok(());
            }
            Err(error) => return Err(at(&from)(error)),
        };
        let (bytes, found) = copy(&mut source, &to).map_err(at(&to))?;
        let blake3 = found.to_hex().to_string();
        if bytes != size || FileHash::from(found) != *hash {
            fs::remove_file(&to).map_err(at(&to))?;
            let reason = format!("it is damaged: {bytes} bytes whose blake3 is {blake3}");
            self.missing.push(Missing { path: name, reason });
            return Ok(());
        }
        self.files.push(Entry { path: name, bytes, blake3, lines: None, first: None });
        Ok(())
    }

    /// Rewrites a file of lines: `change` returns the replacement of each.
    pub(super) fn rewrite(
        &mut self,
        index: usize,
        mut change: impl FnMut(&[u8]) -> Result<Vec<u8>, ExportError>,
    ) -> Result<(), ExportError> {
        let Some(entry) = self.files.get(index).cloned() else { return Ok(()) };
        let path = self.root.join(&entry.path);
        let text = fs::read(&path).map_err(at(&path))?;
        let mut lines = Lines::create(path.with_extension("new"), &entry.path)?;
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            lines.write(&change(line)?)?;
        }
        let written = lines.path.clone();
        let renewed = Entry { first: entry.first, ..lines.finish()? };
        fs::rename(&written, &path).map_err(at(&path))?;
        if let Some(entry) = self.files.get_mut(index) {
            *entry = renewed;
        }
        Ok(())
    }

    /// The files so far.
    pub(super) fn files(&self) -> &[Entry] {
        &self.files
    }

    /// Makes everything durable, then signs the manifest and puts it in place, which completes the
    /// export.
    pub(super) fn finish(
        mut self,
        mut manifest: Manifest,
        identity: &ServerIdentity,
    ) -> Result<Manifest, ExportError> {
        for directory in &self.directories {
            File::open(directory).and_then(|file| file.sync_all()).map_err(at(directory))?;
        }
        manifest.files = std::mem::take(&mut self.files);
        manifest.missing = std::mem::take(&mut self.missing);
        let text = manifest.sign(identity)?;
        let (marker, path) = (self.root.join(UNFINISHED), self.root.join(manifest::FILE));
        let mut write = || {
            use io::Seek as _;
            self.unfinished.set_len(0)?;
            self.unfinished.rewind()?;
            self.unfinished.write_all(&text)?;
            self.unfinished.sync_all()?;
            disk::put_in_place(&marker, &path)
        };
        write().map_err(at(&path))?;
        Ok(manifest)
    }

    fn make(&mut self, directory: &Path) -> Result<(), ExportError> {
        let mut missing = Vec::new();
        for above in directory.ancestors().take_while(|above| *above != self.root) {
            if self.directories.contains(above) {
                break;
            }
            missing.push(above.to_owned());
        }
        for directory in missing.into_iter().rev() {
            let made = DirBuilder::new().mode(0o700).recursive(true).create(&directory);
            made.map_err(at(&directory))?;
            self.directories.insert(directory);
        }
        Ok(())
    }
}

/// An entry of the directory that is not from an unfinished export.
fn strangers(root: &Path, is_resumed: bool) -> io::Result<Option<String>> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_dir = entry.file_type()?.is_dir();
        let ours = match is_dir {
            true => PARTS.contains(&&*name),
            false => name == UNFINISHED || name.ends_with(".ndjson"),
        };
        if !(is_resumed && ours) {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// Copies a file durably; returns its length and hash.
pub(super) fn copy(from: &mut impl Read, to: &Path) -> io::Result<(u64, blake3::Hash)> {
    let mut out =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    let (mut hasher, mut bytes, mut buffer) = (blake3::Hasher::new(), 0, vec![0; 256 * 1024]);
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        out.write_all(&buffer[..read])?;
        bytes += read as u64;
    }
    out.sync_all()?;
    Ok((bytes, hasher.finalize()))
}

/// A file of lines that is being written.
#[derive(Debug)]
pub(super) struct Lines {
    path: PathBuf,
    name: String,
    out: BufWriter<File>,
    hasher: blake3::Hasher,
    bytes: u64,
    lines: u64,
    first: Option<Offset>,
}

impl Lines {
    fn create(path: PathBuf, name: &str) -> Result<Self, ExportError> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path);
        let out = BufWriter::with_capacity(256 * 1024, file.map_err(at(&path))?);
        let (name, hasher) = (name.to_owned(), blake3::Hasher::new());
        Ok(Self { path, name, out, hasher, bytes: 0, lines: 0, first: None })
    }

    /// Sets the record of the first line.
    pub(super) fn begins_with(&mut self, first: Offset) {
        self.first = Some(first);
    }

    /// Its length so far.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a line, which ends with a line feed.
    pub(super) fn write(&mut self, line: &[u8]) -> Result<(), ExportError> {
        self.hasher.update(line);
        self.bytes += line.len() as u64;
        self.lines += 1;
        self.out.write_all(line).map_err(at(&self.path))
    }

    /// Adds a value as a line.
    pub(super) fn value(&mut self, value: &impl serde::Serialize) -> Result<(), ExportError> {
        let text = serde_json::to_string(value);
        let text = text.map_err(|error| at(&self.path)(error.into()))?;
        // JSON from users may contain insignificant line breaks.
        let mut line = text.replace(['\n', '\r'], " ");
        line.push('\n');
        self.write(line.as_bytes())
    }

    fn finish(self) -> Result<Entry, ExportError> {
        let Self { path, name, out, hasher, bytes, lines, first } = self;
        let file = out.into_inner().map_err(|error| at(&path)(error.into_error()))?;
        file.sync_all().map_err(at(&path))?;
        let blake3 = hasher.finalize().to_hex().to_string();
        Ok(Entry { path: name, bytes, blake3, lines: Some(lines), first })
    }
}
