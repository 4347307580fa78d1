//! The contents of a backup.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use logcabin_base::disk;
use logcabin_record::{
    Epoch, Offset,
    command::{BackupMoment, FileHash, ServerIdentity},
    signed_json,
};

/// Why a manifest, or a list that it names, cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// A file or directory failed.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// It is invalid.
    #[error("{}: {reason}", .path.display())]
    Damaged {
        path: PathBuf,
        /// What is invalid.
        reason: String,
    },
    /// There is no key to sign it with.
    #[error("the log holds no server's identity")]
    NoIdentity,
}

impl ManifestError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }

    fn damaged(path: &Path, reason: impl ToString) -> Self {
        Self::Damaged { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// The format of a manifest and its lists.
const FORMAT: u32 = 1;

/// The contents of a backup. The file is one JSON object, signed as Matrix signs JSON
/// (specification, appendix "Signing JSON") with the key of the server, whose public half is in it,
/// too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format: 1.
    pub format: u32,
    /// The version of logcabin that wrote it.
    pub version: String,
    pub server_name: String,
    /// The public key of the signature, in unpadded base64: that of the log's first record.
    pub public_key: String,
    /// The epoch of the last record.
    pub epoch: Epoch,
    /// The last record.
    pub offset: Offset,
    /// The chain value of the last record, in hex.
    pub chain: FileHash,
    /// When the last record was written, in milliseconds since the Unix epoch.
    pub record_ms: u64,
    /// When the backup was started, in milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// The segments of records, in order.
    pub segments: Vec<SegmentEntry>,
    /// The uploaded files.
    pub media: MediaEntry,
    /// The signatures, by server and key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub signatures: BTreeMap<String, BTreeMap<String, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentEntry {
    /// Its file in `segments/`.
    pub file: String,
    /// Its first record.
    pub first: Offset,
    /// Its last record.
    pub last: Offset,
    /// Its length.
    pub bytes: u64,
    /// blake3 of the file, in hex.
    pub blake3: FileHash,
}

impl SegmentEntry {
    /// The number of its records.
    pub fn records(&self) -> u64 {
        self.last.get() - self.first.prev().get()
    }

    pub fn path(&self, dir: &Path) -> PathBuf {
        dir.join("segments").join(&self.file)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaEntry {
    /// Their list: a file in `lists/`, named by its blake3 in hex.
    pub list: FileHash,
    /// Their number.
    pub files: u64,
    /// Their total length.
    pub bytes: u64,
}

impl MediaEntry {
    /// Writes the list of these files, each with its length, unless it exists.
    pub(crate) fn write(
        dir: &Path,
        files: &BTreeMap<FileHash, u64>,
    ) -> Result<Self, ManifestError> {
        let mut text = String::with_capacity(files.len() * 80);
        for (hash, length) in files {
            text += &format!("{hash} {length}\n");
        }
        let list = FileHash::from(blake3::hash(text.as_bytes()));
        let path = Self::path(dir, &list);
        if !path.exists() {
            store(&dir.join("incoming"), &path, text.as_bytes())?;
        }
        Ok(Self { list, files: files.len() as u64, bytes: files.values().sum() })
    }

    fn path(dir: &Path, list: &FileHash) -> PathBuf {
        dir.join("lists").join(list.to_string())
    }

    /// The files, each with its length. Fails if the list does not have the hash in the manifest.
    pub fn read(&self, dir: &Path) -> Result<BTreeMap<FileHash, u64>, ManifestError> {
        let path = Self::path(dir, &self.list);
        let text = fs::read_to_string(&path).map_err(ManifestError::io(&path))?;
        if FileHash::from(blake3::hash(text.as_bytes())) != self.list {
            return Err(ManifestError::damaged(&path, "the list does not match its hash"));
        }
        let parsed = |line: &str| {
            let (hash, length) = line.split_once(' ')?;
            Some((FileHash::from_hex(hash)?, length.parse().ok()?))
        };
        text.lines()
            .map(|line| {
                parsed(line)
                    .ok_or_else(|| ManifestError::damaged(&path, "a line is not understood"))
            })
            .collect()
    }
}

impl Manifest {
    /// The signed manifest of these parts.
    pub(crate) fn sign(mut self, identity: &ServerIdentity) -> Result<Self, ManifestError> {
        self.format = FORMAT;
        let object = signed_json::sign(&self, identity).map_err(|_| ManifestError::NoIdentity)?;
        let value = serde_json::to_value(object).map_err(|_| ManifestError::NoIdentity)?;
        serde_json::from_value(value).map_err(|_| ManifestError::NoIdentity)
    }

    /// Whether the signature is valid for the key in the manifest.
    pub fn is_signed(&self) -> bool {
        signed_json::is_signed(self, &self.server_name, &self.public_key)
    }

    /// The identity of the backup.
    pub const fn moment(&self) -> BackupMoment {
        BackupMoment { epoch: self.epoch, offset: self.offset }
    }

    /// The segments, each with its first record.
    pub fn segments(&self, dir: &Path) -> Vec<(Offset, PathBuf)> {
        self.segments.iter().map(|segment| (segment.first, segment.path(dir))).collect()
    }

    /// The manifests in `dir`, in the order of their epochs and offsets.
    pub fn list(dir: &Path) -> Result<Vec<PathBuf>, ManifestError> {
        let manifests = dir.join("manifests");
        let mut paths = disk::entries(&manifests).map_err(ManifestError::io(&manifests))?;
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        Ok(paths)
    }

    pub fn read(path: &Path) -> Result<Self, ManifestError> {
        let text = fs::read(path).map_err(ManifestError::io(path))?;
        let manifest: Self =
            serde_json::from_slice(&text).map_err(|error| ManifestError::damaged(path, error))?;
        if manifest.format != FORMAT {
            return Err(ManifestError::damaged(path, "a newer version wrote it"));
        }
        // So that every byte of the file counts, even insignificant ones.
        if manifest.text().ok() != Some(text) {
            return Err(ManifestError::damaged(path, "it was changed after it was written"));
        }
        let inside = |name: &str| !name.contains('/') && !name.starts_with('.');
        if !manifest.segments.iter().all(|segment| inside(&segment.file)) {
            return Err(ManifestError::damaged(path, "a segment's name is not the name of a file"));
        }
        if Self::file(&manifest.moment()) != path.file_name().unwrap_or_default().to_string_lossy()
        {
            return Err(ManifestError::damaged(path, "it is the manifest of another moment"));
        }
        Ok(manifest)
    }

    /// The file name of the manifest of a moment, in `manifests/`.
    pub(crate) fn file(moment: &BackupMoment) -> String {
        format!("{:010}-{:020}.json", moment.epoch.0, moment.offset.get())
    }

    /// The path of the manifest of a moment.
    pub(crate) fn path(dir: &Path, moment: &BackupMoment) -> PathBuf {
        dir.join("manifests").join(Self::file(moment))
    }

    fn text(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }

    /// Writes it durably. Returns blake3 of the file.
    pub(crate) fn write(&self, dir: &Path) -> Result<FileHash, ManifestError> {
        let path = Self::path(dir, &self.moment());
        let text = self.text().map_err(|error| ManifestError::io(&path)(error.into()))?;
        store(&dir.join("incoming"), &path, &text)?;
        Ok(blake3::hash(&text).into())
    }
}

/// Writes a file under a temporary name, and renames it once it is durable.
fn store(incoming: &Path, path: &Path, bytes: &[u8]) -> Result<(), ManifestError> {
    let partial = incoming.join(path.file_name().unwrap_or_default());
    disk::write_aside(&partial, path, bytes).map_err(ManifestError::io(path))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use logcabin_record::{
        command::{ServerIdentity, ServerKey},
        server_keys::new_key,
    };

    /// An identity with a new key.
    pub(crate) fn identity() -> ServerIdentity {
        let ServerKey { key_id, private_key, public_key } = new_key().unwrap();
        ServerIdentity { server_name: "test.example".to_owned(), key_id, private_key, public_key }
    }

    fn manifest(identity: &ServerIdentity, dir: &Path) -> Manifest {
        let files = BTreeMap::from([(FileHash([3; 32]), 5), (FileHash([1; 32]), 7)]);
        let media = MediaEntry::write(dir, &files).unwrap();
        assert_eq!((media.files, media.bytes), (2, 12));
        assert_eq!(media.read(dir).unwrap(), files);
        let segment = SegmentEntry {
            file: "00000000000000000001-aa.lcseg".to_owned(),
            first: Offset::new(1),
            last: Offset::new(9),
            bytes: 1000,
            blake3: FileHash([2; 32]),
        };
        Manifest {
            format: FORMAT,
            version: "0.0.0".to_owned(),
            server_name: identity.server_name.clone(),
            public_key: identity.public_key.clone(),
            epoch: Epoch(2),
            offset: Offset::new(9),
            chain: FileHash([9; 32]),
            record_ms: 1_770_000_000_000,
            made_ms: 1_770_000_000_001,
            segments: vec![segment],
            media,
            signatures: BTreeMap::new(),
        }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written_and_any_change_breaks_its_signature() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        for name in ["incoming", "lists", "manifests"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let identity = identity();
        let unsigned = manifest(&identity, dir);
        assert!(!unsigned.is_signed());
        let signed = unsigned.sign(&identity).unwrap();
        assert!(signed.is_signed());
        let hash = signed.write(dir).unwrap();
        let listed = Manifest::list(dir).unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!(Manifest::read(&listed[0]).unwrap(), signed);
        assert_eq!(FileHash::from(blake3::hash(&fs::read(&listed[0]).unwrap())), hash);
        for changed in [
            Manifest { offset: Offset::new(8), ..signed.clone() },
            Manifest { chain: FileHash([8; 32]), ..signed.clone() },
            Manifest { segments: Vec::new(), ..signed.clone() },
            Manifest { signatures: BTreeMap::new(), ..signed.clone() },
            Manifest { server_name: "other.example".to_owned(), ..signed },
        ] {
            assert!(!changed.is_signed(), "{changed:?}");
        }
        // Under the name of another moment, it is refused.
        let other = listed[0].with_file_name(Manifest::file(&BackupMoment {
            epoch: Epoch(2),
            offset: Offset::new(10),
        }));
        fs::rename(&listed[0], &other).unwrap();
        assert!(matches!(Manifest::read(&other), Err(ManifestError::Damaged { .. })));
    }

    #[test]
    fn a_changed_list_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        for name in ["incoming", "lists"] {
            fs::create_dir(dir.join(name)).unwrap();
        }
        let media = MediaEntry::write(dir, &BTreeMap::from([(FileHash([3; 32]), 5)])).unwrap();
        let path = MediaEntry::path(dir, &media.list);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(" 5", " 6")).unwrap();
        assert!(matches!(media.read(dir), Err(ManifestError::Damaged { .. })));
    }
}
