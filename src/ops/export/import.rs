//! Creating a data directory from the export of a server.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder, File},
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use super::{
    Entry, ExportScope, Manifest, chosen_ids::ChosenIds, folder, folder::UNFINISHED, hex, line,
    manifest, manifest::ManifestError,
};
use crate::{
    history::progress::Progress,
    restore::{OfflineWriter, WriteError},
};
use logcabin_base::{clock::Clock, disk};
use logcabin_log::{
    VerifyError,
    erase::{self, Audit, Targets},
    store::{self, DEFAULT_CACHE_BYTES, OpenError, Store, importing_dir},
    verify::Checker,
};
use logcabin_record::{Chain, Command, Epoch, Record, command::ServerRestore};
use logcabin_snapshot::shutdown_digest::ShutdownDigest;
use logcabin_state::State;

/// The longest line: a record with the largest payload, twice.
const LINE_BYTES: u64 = 1024 * 1024;

/// The result of [`import_server`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// The export's manifest.
    pub manifest: Manifest,
    /// The number of records.
    pub records: u64,
    /// The last chain value.
    pub chain: Chain,
    /// The number of erased or reduced payloads.
    pub erased: u64,
    /// The number of uploaded files.
    pub files: u64,
    /// The digest of the resulting state, in hex.
    pub digest: String,
    /// Whether it was compared with the exported digest: another version of logcabin may compute
    /// another one.
    pub compared: bool,
    /// The epoch that the import starts, in a record of its own after the exported ones; none if
    /// the exported epoch continues.
    pub new_epoch: Option<Epoch>,
}

/// Why an export was not imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error(
        "{} is an incomplete export; run the same export command again",
        .0.display()
    )]
    Unfinished(PathBuf),
    /// There is no valid manifest.
    #[error("{}: {reason}", .path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        reason: String,
    },
    /// A line is damaged.
    #[error("{}, line {line}: {reason}", .path.display())]
    Line {
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        reason: String,
    },
    /// A file is damaged or missing.
    #[error("{}: {reason}", .path.display())]
    File { path: PathBuf, reason: String },
    /// The data directory is not empty.
    #[error(
        "{} is not empty (there is `{found}`); name a new directory, nothing is overwritten",
        .dir.display()
    )]
    NotEmpty {
        dir: PathBuf,
        /// An entry in it.
        found: String,
    },
    /// The data directory is not usable.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log cannot be written.
    #[error("writing the new log failed: {0}")]
    Write(String),
    /// The resulting state differs from that of the exporting server.
    #[error(
        "the records add up to the state {found}, and the exporting server had {expected}; nothing was imported"
    )]
    Digest {
        /// The resulting digest.
        found: String,
        /// The digest in the manifest.
        expected: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl From<WriteError> for ImportError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Apply(error) => Self::Write(error.to_string()),
            WriteError::Write(reason) => Self::Write(reason),
        }
    }
}

pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> ImportError + '_ {
    move |source| ImportError::Io { path: path.to_owned(), source }
}

/// Creates a data directory from the export in `src`, with the same records, and so the same chain,
/// state and tokens. If the server was running during the export, or with `new_epoch`, a further
/// record starts a new epoch: clients may know positions after the export. `data_dir` must be empty
/// or missing, or contain an interrupted import, which is started over. The whole export is checked
/// before anything is written (an error names file and line), and the log appears once it is
/// complete. Blocks.
pub fn import_server(
    src: &Path,
    data_dir: &Path,
    new_epoch: bool,
) -> Result<Imported, ImportError> {
    let manifest = read_manifest(src)?;
    if manifest.holds != ExportScope::Server {
        let reason = "this is the export of one user, not of a server".to_owned();
        return Err(ImportError::Manifest { path: src.join(manifest::FILE), reason });
    }
    must_be_free(data_dir)?;
    let export = Export { src, manifest: &manifest };
    let checked = export.check()?;

    let lock = store::lock_data_dir(data_dir)?;
    must_be_free(data_dir)?;
    let partial = importing_dir(data_dir);
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(at(&partial))?;
    }
    // From here on, no server starts in the directory until the log is complete.
    disk::make_private_dir(&partial).map_err(at(&partial))?;
    let files = export.copy_media(data_dir)?;
    let new_epoch = new_epoch || manifest.running;
    let (state, imported) = export.write(&partial, checked, files, new_epoch)?;
    let log = store::log_dir(data_dir);
    fs::rename(&partial, &log).map_err(at(&log))?;
    File::open(data_dir).and_then(|dir| dir.sync_all()).map_err(at(data_dir))?;
    // For `verify`; nothing depends on it.
    let _ = ShutdownDigest::write(data_dir, &state);
    drop(lock);
    Ok(imported)
}

/// Checks every byte of the export in `src`, of a server or a user, and writes nothing. An error
/// names file and line. Blocks.
pub fn check_export(src: &Path) -> Result<Manifest, ImportError> {
    let manifest = read_manifest(src)?;
    let export = Export { src, manifest: &manifest };
    match manifest.holds {
        ExportScope::Server => drop(export.check()?),
        ExportScope::User => export.check_files()?,
    }
    Ok(manifest)
}

pub(super) fn read_manifest(src: &Path) -> Result<Manifest, ImportError> {
    let path = src.join(manifest::FILE);
    let manifest = match Manifest::read(src) {
        Ok(manifest) => manifest,
        Err(ManifestError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            if src.join(UNFINISHED).exists() {
                return Err(ImportError::Unfinished(src.to_owned()));
            }
            return Err(at(&path)(error));
        }
        Err(error) => return Err(ImportError::Manifest { path, reason: error.to_string() }),
    };
    Ok(manifest)
}

/// Refuses a data directory that contains more than an interrupted import.
fn must_be_free(data_dir: &Path) -> Result<(), ImportError> {
    let entries = match fs::read_dir(data_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(data_dir)(error)),
    };
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(at(data_dir))?;
        names.insert(entry.file_name().to_string_lossy().into_owned());
    }
    let importing = importing_dir(data_dir);
    let importing = importing.file_name().unwrap_or_default().to_string_lossy();
    let is_resumed = names.contains(&*importing);
    names.remove("lock");
    if is_resumed {
        names.remove(&*importing);
        names.remove("media");
    }
    match names.into_iter().next() {
        Some(found) => Err(ImportError::NotEmpty { dir: data_dir.to_owned(), found }),
        None => Ok(()),
    }
}

/// An export that is being read.
struct Export<'a> {
    src: &'a Path,
    manifest: &'a Manifest,
}

/// The results of checking an export.
struct ExportCheck {
    targets: Targets,
    gone: u64,
}

impl Export<'_> {
    /// Checks every byte of it.
    fn check(&self) -> Result<ExportCheck, ImportError> {
        let (mut audit, mut targets) = (Audit::default(), Targets::default());
        let mut identity = None;
        let checker = self.each_record(|record, place| {
            audit.note(record);
            if let Some(erasure) = erase::erasure(record) {
                targets.add(&erasure);
            }
            let command = record.command().map_err(|error| place(&error))?;
            if let Some(Command::ServerIdentity(body)) = command {
                identity = Some(body);
            }
            Ok(())
        })?;
        audit.finish().map_err(|error| self.fault(&error))?;
        let (last, chain) = (checker.last(), hex(checker.chain()));
        checker.finish().map_err(|error| self.fault(&error))?;
        let path = self.src.join(manifest::FILE);
        let wrong = |reason: &str| ImportError::Manifest { path, reason: reason.to_owned() };
        let Manifest { server_name, key_id, public_key, .. } = self.manifest;
        if last != self.manifest.last || chain != self.manifest.chain {
            return Err(wrong("the files do not end with the record that it names"));
        }
        if !identity.is_some_and(|of| {
            (&of.server_name, &of.key_id, &of.public_key) == (server_name, key_id, public_key)
        }) {
            return Err(wrong("it is signed with another key than that of the server in the log"));
        }
        self.check_files()?;
        Ok(ExportCheck { targets, gone: audit.gone() })
    }

    /// Checks every file without records.
    fn check_files(&self) -> Result<(), ImportError> {
        for entry in self.manifest.files.iter().filter(|entry| entry.first.is_none()) {
            let path = self.src.join(&entry.path);
            let mut hasher = blake3::Hasher::new();
            let file = File::open(&path).map_err(|error| gone_or(&path, error))?;
            hasher.update_reader(file).map_err(at(&path))?;
            same(&path, entry, hasher.count(), &hasher.finalize())?;
        }
        Ok(())
    }

    /// Calls its argument with every checked record, and a function that reports an error at it.
    fn each_record(
        &self,
        mut take: impl FnMut(
            &Record,
            &dyn Fn(&dyn std::fmt::Display) -> ImportError,
        ) -> Result<(), ImportError>,
    ) -> Result<Checker, ImportError> {
        let mut checker = Checker::from_start();
        let mut progress = Progress::begin(self.manifest.last);
        for entry in self.manifest.files.iter().filter(|entry| entry.first.is_some()) {
            let path = self.src.join(&entry.path);
            let file = File::open(&path).map_err(|error| gone_or(&path, error))?;
            let mut reader = BufReader::with_capacity(256 * 1024, file);
            let (mut hasher, mut text, mut number) = (blake3::Hasher::new(), Vec::new(), 0);
            loop {
                text.clear();
                let read = reader.by_ref().take(LINE_BYTES).read_until(b'\n', &mut text);
                if read.map_err(at(&path))? == 0 {
                    break;
                }
                number += 1;
                hasher.update(&text);
                let place = |reason: &dyn std::fmt::Display| ImportError::Line {
                    path: path.clone(),
                    line: number,
                    reason: reason.to_string(),
                };
                let record = line::read(&text).map_err(|error| place(&error))?;
                checker.check(&record).map_err(|error| place(&error))?;
                take(&record, &place)?;
                progress.at(record.offset());
            }
            if entry.lines.is_some_and(|lines| number < lines) {
                let reason = "the file ends here, but more lines should follow".to_owned();
                return Err(ImportError::Line { path, line: number, reason });
            }
            same(&path, entry, hasher.count(), &hasher.finalize())?;
        }
        Ok(checker)
    }

    /// Where a fault of the log is in the files.
    fn fault(&self, error: &VerifyError) -> ImportError {
        let VerifyError { offset, fault } = error;
        let entries = self.manifest.files.iter().filter_map(|entry| Some((entry, entry.first?)));
        let holder = entries.take_while(|(_, first)| first <= offset).last();
        let reason = fault.to_string();
        match holder {
            Some((entry, first)) => ImportError::Line {
                path: self.src.join(&entry.path),
                line: offset.get() - first.get() + 1,
                reason,
            },
            None => ImportError::File { path: self.src.to_owned(), reason },
        }
    }

    /// Copies the uploaded files into the store of the server.
    fn copy_media(&self, data_dir: &Path) -> Result<u64, ImportError> {
        let mut files = 0;
        let mut directories = BTreeSet::new();
        for entry in self.manifest.files.iter().filter(|entry| entry.path.starts_with("media/")) {
            let (from, to) = (self.src.join(&entry.path), data_dir.join(&entry.path));
            let parents = to.ancestors().skip(1).take_while(|path| *path != data_dir);
            directories.extend(parents.map(Path::to_owned));
            if let Some(parent) = to.parent() {
                let made = DirBuilder::new().mode(0o700).recursive(true).create(parent);
                made.map_err(at(parent))?;
            }
            let mut source = File::open(&from).map_err(|error| gone_or(&from, error))?;
            let (bytes, hash) = folder::copy(&mut source, &to).map_err(at(&to))?;
            same(&from, entry, bytes, &hash)?;
            files += 1;
        }
        for directory in directories {
            File::open(&directory).and_then(|file| file.sync_all()).map_err(at(&directory))?;
        }
        Ok(files)
    }

    /// Writes the records to a new store in `dir`, and compares the resulting digest.
    fn write(
        &self,
        dir: &Path,
        checked: ExportCheck,
        files: u64,
        new_epoch: bool,
    ) -> Result<(State, Imported), ImportError> {
        let store = Store::open(dir, DEFAULT_CACHE_BYTES)?;
        let state = State::default();
        let mut writing = OfflineWriter::begin(Some(&store), &checked.targets, &state);
        let mut chosen_ids = ChosenIds::default();
        let checker = self.each_record(|record, place| {
            chosen_ids.note(&state, record).map_err(|claimed| place(&claimed))?;
            writing.put(record.clone()).map_err(|error| match error {
                WriteError::Apply(error) => place(&error),
                WriteError::Write(reason) => ImportError::Write(reason),
            })
        })?;
        let records = writing.records;
        let digest = state.digest().to_hex().to_string();
        let compared = self.manifest.version == env!("CARGO_PKG_VERSION");
        if compared && self.manifest.state_digest.as_ref().is_some_and(|of| *of != digest) {
            let expected = self.manifest.state_digest.clone().unwrap_or_default();
            return Err(ImportError::Digest { found: digest, expected });
        }
        if new_epoch {
            let last = writing.tip().offset;
            let restore = ServerRestore { source: "export".to_owned(), last, undone: None };
            let epoch = Epoch(writing.tip().epoch.0.saturating_add(1));
            writing.begin_epoch(epoch, restore, Clock::system().now_ms())?;
        }
        let epoch = writing.tip().epoch;
        writing.finish()?;
        let imported = Imported {
            manifest: self.manifest.clone(),
            records,
            chain: *checker.chain(),
            erased: checked.gone,
            files,
            digest,
            compared: compared && self.manifest.state_digest.is_some(),
            new_epoch: new_epoch.then_some(epoch),
        };
        Ok((state, imported))
    }
}

pub(super) fn gone_or(path: &Path, error: io::Error) -> ImportError {
    match error.kind() {
        io::ErrorKind::NotFound => ImportError::File {
            path: path.to_owned(),
            reason: "the manifest names it, but it is missing".to_owned(),
        },
        _ => at(path)(error),
    }
}

fn same(path: &Path, entry: &Entry, bytes: u64, hash: &blake3::Hash) -> Result<(), ImportError> {
    if bytes == entry.bytes && hash.to_hex().as_str() == entry.blake3 {
        return Ok(());
    }
    let reason = format!(
        "it is damaged: {bytes} bytes with blake3 {}, and the manifest says {} bytes with {}",
        hash.to_hex(),
        entry.bytes,
        entry.blake3
    );
    Err(ImportError::File { path: path.to_owned(), reason })
}
