//! Verifying backups: every byte of every file that they list.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::File,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::BackupError;
use crate::source::{Manifest, Source, SourceError};
use logcabin_log::{archive::ArchiveReader, erase::Audit, verify::Checker};
use logcabin_media::store;
use logcabin_record::{
    Chain, Command, Epoch, Offset,
    command::{BackupMoment, FileHash, ServerIdentity},
};

/// The results of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BackupCheck {
    pub intact: bool,
    /// Each backup that was checked, the oldest first.
    pub moments: Vec<CheckedBackup>,
}

/// The result for one backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckedBackup {
    pub manifest: PathBuf,
    /// The server's name; empty if the manifest cannot be read, as are the following.
    pub server_name: String,
    /// Its epoch and last record.
    #[serde(flatten)]
    pub moment: Option<BackupMoment>,
    /// When its last record was written, in milliseconds since the Unix epoch.
    pub record_ms: u64,
    /// When the backup was made, in milliseconds since the Unix epoch.
    pub made_ms: u64,
    /// The number of uploaded files.
    pub files: u64,
    /// The total size of its files.
    pub bytes: u64,
    /// Whether it is a prefix of the log that it was compared with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_prefix: Option<bool>,
    pub faults: Vec<String>,
}

/// Checks the backups in `dir`, or only the one that ends at `offset`: the signature of the
/// manifest, the hash of every file, the chain of the records, whether each can be decoded, whether
/// missing payloads were erased, and whether the signing server is that of the log. With `of`, also
/// whether each is a prefix of that log. Blocks. `on_progress` is called with each record.
///
/// # Errors
/// When there is no backup, or the log to compare with cannot be read.
pub fn check(
    dir: &Path,
    offset: Option<Offset>,
    of: Option<&Source>,
    on_progress: impl FnMut(Offset),
) -> Result<BackupCheck, BackupError> {
    let ends_there = |path: &PathBuf| {
        let end = path.file_stem().and_then(|stem| stem.to_str()?.split_once('-')?.1.parse().ok());
        offset.is_none_or(|offset| end == Some(offset.get()))
    };
    let manifests: Vec<_> = Manifest::list(dir)?.into_iter().filter(ends_there).collect();
    if manifests.is_empty() {
        return Err(BackupError::None { dir: dir.to_owned(), offset });
    }
    let mut hashes = Hashes::default();
    let (mut moments, mut readable) = (Vec::new(), Vec::new());
    for path in manifests {
        let mut moment = CheckedBackup {
            manifest: path.clone(),
            server_name: String::new(),
            moment: None,
            record_ms: 0,
            made_ms: 0,
            files: 0,
            bytes: 0,
            is_prefix: None,
            faults: Vec::new(),
        };
        match Manifest::read(&path) {
            Ok(manifest) => {
                moment.server_name.clone_from(&manifest.server_name);
                moment.moment = Some(manifest.moment());
                (moment.record_ms, moment.made_ms) = (manifest.record_ms, manifest.made_ms);
                moment.files = manifest.media.files;
                let segments = manifest.segments.iter().map(|segment| segment.bytes);
                moment.bytes = segments.sum::<u64>() + manifest.media.bytes;
                check_files(dir, &manifest, &mut hashes, &mut moment.faults);
                readable.push((moments.len(), manifest));
            }
            Err(error) => moment.faults.push(error.to_string()),
        }
        moments.push(moment);
    }
    let manifests: Vec<_> = readable.iter().map(|(_, manifest)| manifest).collect();
    let found = check_records(dir, &manifests, on_progress);
    for ((index, manifest), found) in readable.iter().zip(found) {
        let Some(moment) = moments.get_mut(*index) else { continue };
        moment.faults.extend(found.err());
        let Some(of) = of else { continue };
        let ours = chain_at(of, manifest.offset)?;
        let is_prefix = ours == Some(manifest.chain.0);
        moment.is_prefix = Some(is_prefix);
        if !is_prefix {
            let at = manifest.offset;
            moment.faults.push(match ours {
                Some(_) => format!("record {at} of the log differs"),
                None => format!("the log has no record {at}"),
            });
        }
    }
    let intact = moments.iter().all(|moment| moment.faults.is_empty());
    Ok(BackupCheck { intact, moments })
}

fn chain_at(source: &Source, offset: Offset) -> Result<Option<Chain>, BackupError> {
    let mut chain = None;
    source.fetch(&[offset], |record| {
        chain = Some(record.chain);
        Ok::<_, SourceError>(())
    })?;
    Ok(chain)
}

/// Each file is read once, however many backups share it.
#[derive(Default)]
struct Hashes(BTreeMap<PathBuf, Result<(u64, FileHash), String>>);

impl Hashes {
    /// What is wrong with a file that should have this length and hash.
    fn fault(&mut self, path: PathBuf, bytes: u64, hash: &FileHash) -> Option<String> {
        let found = match self.0.entry(path) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let hashed = hash_of(new.key());
                new.insert(hashed)
            }
        };
        match found {
            Ok((_, found)) if found != hash => Some("its bytes do not match its hash".to_owned()),
            Ok((length, _)) if *length != bytes => {
                Some(format!("it has {length} bytes, not {bytes}"))
            }
            Ok(_) => None,
            Err(error) => Some(error.clone()),
        }
    }
}

fn hash_of(path: &Path) -> Result<(u64, FileHash), String> {
    let read = || {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(file)?;
        Ok::<_, std::io::Error>((length, FileHash::from(hasher.finalize())))
    };
    read().map_err(|error| error.to_string())
}

fn check_files(dir: &Path, manifest: &Manifest, hashes: &mut Hashes, faults: &mut Vec<String>) {
    if !manifest.is_signed() {
        faults.push("the manifest's signature is not that of its server's key".to_owned());
    }
    for segment in &manifest.segments {
        let path = segment.path(dir);
        if let Some(fault) = hashes.fault(path.clone(), segment.bytes, &segment.blake3) {
            faults.push(format!("{}: {fault}", path.display()));
        }
    }
    match manifest.media.read(dir) {
        Ok(files) => {
            if files.len() as u64 != manifest.media.files
                || files.values().sum::<u64>() != manifest.media.bytes
            {
                faults.push("the list of uploaded files is not the one of the manifest".to_owned());
            }
            let root = dir.join("media");
            for (hash, bytes) in files {
                let path = store::place(&root, &hash);
                if let Some(fault) = hashes.fault(path.clone(), bytes, &hash) {
                    faults.push(format!("{}: {fault}", path.display()));
                }
            }
        }
        Err(error) => faults.push(error.to_string()),
    }
}

/// Checks the records of these backups, and returns the fault of each, if there is one. A segment
/// that several start with is read once.
fn check_records(
    dir: &Path,
    manifests: &[&Manifest],
    mut on_progress: impl FnMut(Offset),
) -> Vec<Result<(), String>> {
    let mut found: Vec<_> = manifests.iter().map(|_| Ok(())).collect();
    // Groups of backups with the same segments so far, the number of those, and their result.
    let mut groups = vec![((0..manifests.len()).collect::<Vec<_>>(), 0, Walk::default())];
    while let Some((group, depth, walk)) = groups.pop() {
        let mut by_next: BTreeMap<PathBuf, Vec<usize>> = BTreeMap::new();
        for index in group {
            match manifests[index].segments.get(depth) {
                Some(next) => by_next.entry(next.path(dir)).or_default().push(index),
                None => found[index] = walk.end(manifests[index]),
            }
        }
        let mut walk = Some(walk);
        while let Some((path, group)) = by_next.pop_first() {
            // The last one continues with the checker, the others need a copy of it.
            let on = if by_next.is_empty() { walk.take() } else { walk.clone() };
            let mut on = on.unwrap_or_default();
            match on.read(path, &mut on_progress) {
                Ok(()) => groups.push((group, depth + 1, on)),
                Err(fault) => group.into_iter().for_each(|index| found[index] = Err(fault.clone())),
            }
        }
    }
    found
}

/// The result of the first segments of a backup.
#[derive(Clone, Default)]
struct Walk {
    checker: Option<Checker>,
    audit: Audit,
    /// The server's name, the id of its key and the public key, from the first record.
    server: Option<[String; 3]>,
    /// The last record: its offset, epoch and chain value, and how many records of its batch are
    /// missing.
    last: Option<(Offset, Epoch, Chain, u32)>,
}

impl Walk {
    /// Reads one more segment.
    fn read(&mut self, path: PathBuf, mut on_progress: impl FnMut(Offset)) -> Result<(), String> {
        let mut records = ArchiveReader::segment(path, self.checker.take());
        for record in records.by_ref() {
            let record = record.map_err(|error| error.to_string())?;
            self.audit.note(&record);
            let unreadable = |error| format!("record {}: {error}", record.offset());
            let command = record.command().map_err(unreadable)?;
            if record.offset() == Offset::new(1)
                && let Some(Command::ServerIdentity(identity)) = command
            {
                let ServerIdentity { server_name, key_id, public_key, .. } = identity;
                self.server = Some([server_name, key_id, public_key]);
            }
            on_progress(record.offset());
            let header = &record.header;
            self.last = Some((record.offset(), header.epoch, record.chain, header.batch_remaining));
        }
        if let Some(torn) = records.torn() {
            return Err(format!("{} is incomplete", torn.path.display()));
        }
        self.checker = records.into_checker();
        Ok(())
    }

    /// Whether a backup that ends here agrees with its manifest.
    fn end(&self, manifest: &Manifest) -> Result<(), String> {
        let Manifest { server_name, public_key, offset, epoch, chain, .. } = manifest;
        let Some([name, key_id, key]) = &self.server else {
            return Err("the log does not begin with the identity of a server".to_owned());
        };
        if (name, key) != (server_name, public_key) {
            return Err("the log is not that of the server that signed".to_owned());
        }
        // The signature does not cover the id of its own key.
        let mut signed_by = manifest.signatures.get(name).into_iter().flat_map(BTreeMap::keys);
        if !signed_by.all(|id| id == key_id) {
            return Err("the signature names another key than the log".to_owned());
        }
        self.audit.finish().map_err(|error| error.to_string())?;
        if self.last != Some((*offset, *epoch, chain.0, 0)) {
            return Err("the records do not end as the manifest says".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MediaEntry;
    use crate::source::manifest::tests::identity;

    #[test]
    fn a_signature_that_names_another_key_than_the_log_is_refused() {
        let identity = identity();
        let manifest = Manifest {
            format: 1,
            version: "0.0.0".to_owned(),
            server_name: identity.server_name.clone(),
            public_key: identity.public_key.clone(),
            epoch: Epoch(0),
            offset: Offset::new(9),
            chain: FileHash([9; 32]),
            record_ms: 1,
            made_ms: 2,
            segments: Vec::new(),
            media: MediaEntry { list: FileHash([0; 32]), files: 0, bytes: 0 },
            signatures: BTreeMap::new(),
        };
        let signed = manifest.sign(&identity).unwrap();
        let ServerIdentity { server_name, key_id, public_key, .. } = identity;
        let walk = Walk {
            server: Some([server_name, key_id, public_key]),
            last: Some((Offset::new(9), Epoch(0), [9; 32], 0)),
            ..Walk::default()
        };
        assert_eq!(walk.end(&signed), Ok(()));
        let mut renamed = signed;
        for keys in renamed.signatures.values_mut() {
            *keys = keys.values().map(|of| ("ed25519:b".to_owned(), of.clone())).collect();
        }
        // The signature itself is valid.
        assert!(renamed.is_signed());
        assert!(walk.end(&renamed).is_err());
    }
}
