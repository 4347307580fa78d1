//! Repairs unreadable volumes with records from the archive.
//!
//! A volume with damaged blocks is rewritten with its intact blocks, and with the damaged ones from
//! the archive. If the index is damaged, all records come from the archive. The new volume replaces
//! the old one only if its chain matches the rest of the log.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use super::{
    OpenError, Store, StoreError, decode, importing_dir,
    layers::{tail_dir, tails, volumes_dir},
    lock_data_dir, log_dir,
};
use crate::{
    ReadError,
    archive::{ArchiveFallback, Erased, FallbackError, RecordRange},
    fault::VerifyError,
    store::DEFAULT_CACHE_BYTES,
    tip_file,
    verify::Checker,
    volume::{EXTENSION, Packing, Volume, VolumeError, Writer},
};
use logcabin_base::disk;
use logcabin_record::{CHAIN_START, Chain, Offset, Record, codec};

/// A volume that was repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The volume.
    pub path: PathBuf,
    /// The first and the last record of each run that came from the archive.
    pub runs: Vec<(Offset, Offset)>,
}

/// Why a volume cannot be repaired. Volumes repaired earlier stay repaired.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The archive cannot replace the damaged records.
    #[error("{damage}; it cannot be taken from the archive: {reason}")]
    Archive {
        /// What is damaged.
        damage: String,
        /// Why the archive does not help.
        reason: String,
    },
    /// A volume cannot be written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The volume's records contradict the archive.
    #[error("the volume {} cannot be repaired: {reason}", .path.display())]
    Disagreement {
        /// The volume.
        path: PathBuf,
        reason: String,
    },
    #[error("the log's database cannot be read: {0}")]
    Store(String),
}

impl From<StoreError> for RepairError {
    fn from(error: StoreError) -> Self {
        Self::Store(error.to_string())
    }
}

/// Repairs the volumes of a stopped server's log with the archive in `archive`. Blocks.
///
/// # Errors
/// When the log is in use, or the first volume that cannot be repaired.
pub fn repair(data_dir: &Path, archive: &Path) -> Result<Vec<Repaired>, RepairError> {
    let _lock = lock_data_dir(data_dir)?;
    if importing_dir(data_dir).exists() {
        return Err(OpenError::Importing(data_dir.to_owned()).into());
    }
    let log_dir = log_dir(data_dir);
    let dir = volumes_dir(&log_dir);
    let io = |source| OpenError::Io { path: dir.clone(), source };
    disk::remove_unfinished(&dir).map_err(io)?;
    let found = found(&dir)?;
    let damaged: Vec<_> = found.iter().map(VolumeFile::damage).collect();
    if damaged.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let rest = Rest::open(&log_dir)?;
    let fallback = ArchiveFallback::new(archive);
    let (mut repaired, mut end) = (Vec::new(), (Offset::ZERO, CHAIN_START));
    for (number, (volume, damage)) in found.iter().zip(&damaged).enumerate() {
        let Some(damage) = damage else {
            if let Ok(volume) = &volume.opened {
                end = (volume.last, volume.chain);
            }
            continue;
        };
        if volume.first != end.0.next() {
            let reason = format!("it does not follow record {}", end.0);
            return Err(RepairError::Disagreement { path: volume.path.clone(), reason });
        }
        let (last, proof) = volume.end(found.get(number + 1..).unwrap_or_default(), &rest)?;
        let records = |first, last, proof| {
            let newer = |offset| newer(&rest, &found, offset);
            fallback.records(RecordRange { first, last, proof }, Erased::All, newer).map_err(
                |error: FallbackError| RepairError::Archive {
                    damage: damage.what.clone(),
                    reason: error.to_string(),
                },
            )
        };
        let mut writing = Writing::begin(&dir, volume, end.1)?;
        let mut runs: Vec<(Offset, Offset)> = Vec::new();
        match &volume.opened {
            Ok(opened) => {
                for block in 0..opened.blocks() {
                    let (first, last) = opened.records_of(block);
                    if !damage.blocks.contains(&block) {
                        writing.append_all(&read_block(opened, block)?)?;
                        continue;
                    }
                    writing.append_all(&records(first, last, proof)?)?;
                    match runs.last_mut() {
                        Some((_, end)) if end.next() == first => *end = last,
                        _ => runs.push((first, last)),
                    }
                }
            }
            Err(_) => {
                writing.append_all(&records(volume.first, last, proof)?)?;
                runs.push((volume.first, last));
            }
        }
        end = writing.end(last, proof)?;
        repaired.push(Repaired { path: volume.path.clone(), runs });
    }
    Ok(repaired)
}

/// A record that the archive may not have yet, from anywhere in the log; `None` after the last.
fn newer(rest: &Rest, found: &[VolumeFile], offset: Offset) -> Result<Option<Record>, ReadError> {
    if offset > rest.last {
        return Ok(None);
    }
    if let Some(record) = rest.get(offset)? {
        return Ok(Some(record));
    }
    let number = found.partition_point(|volume| volume.first <= offset);
    let volume = number.checked_sub(1).and_then(|number| found.get(number));
    match volume.map(|volume| &volume.opened) {
        Some(Ok(volume)) if offset <= volume.last => {
            let block = volume.block(volume.block_of(offset)).map_err(StoreError::from)?;
            block.get(offset).map(|frame| decode(offset, &frame)).transpose()
        }
        _ => Err(ReadError::Missing(offset)),
    }
}

/// A file that is, or was, a volume.
struct VolumeFile {
    path: PathBuf,
    first: Offset,
    opened: Result<Volume, VolumeError>,
}

/// What is wrong with a volume.
struct Damage {
    what: String,
    /// Its damaged blocks.
    blocks: BTreeSet<usize>,
}

fn found(dir: &Path) -> Result<Vec<VolumeFile>, OpenError> {
    let mut found = Vec::new();
    let entries = disk::entries(dir);
    for path in entries.map_err(|source| OpenError::Io { path: dir.to_owned(), source })? {
        if path.extension().is_none_or(|extension| extension != EXTENSION) {
            continue;
        }
        let opened = Volume::open(path.clone());
        // A volume is named after its first record.
        let named = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        let first = match &opened {
            Ok(volume) => volume.first,
            Err(_) => Offset::new(named.unwrap_or_default()),
        };
        found.push(VolumeFile { path, first, opened });
    }
    found.sort_by_key(|found| found.first);
    // A missing volume is treated like an unreadable one.
    let mut next = Some(Offset::new(1));
    let mut gone = Vec::new();
    for VolumeFile { first, opened, .. } in &found {
        if let Some(missing) = next.filter(|next| next < first) {
            let path = dir.join(format!("{:020}.{EXTENSION}", missing.get()));
            let opened =
                Err(VolumeError::Damaged { path: path.clone(), what: "it is gone".to_owned() });
            gone.push(VolumeFile { path, first: missing, opened });
        }
        next = opened.as_ref().ok().map(|volume| volume.last.next());
    }
    found.extend(gone);
    found.sort_by_key(|found| found.first);
    Ok(found)
}

impl VolumeFile {
    fn damage(&self) -> Option<Damage> {
        let volume = match &self.opened {
            Ok(volume) => volume,
            Err(error) => {
                return Some(Damage { what: error.to_string(), blocks: BTreeSet::new() });
            }
        };
        let (mut blocks, mut what) = (BTreeSet::new(), None);
        let mut checker = Some(Checker::from_chain(volume.first.prev(), volume.before));
        for block in 0..volume.blocks() {
            let checked = read_block(volume, block)
                .map_err(|error| error.to_string())
                .and_then(|records| check(checker.take(), &records).map_err(|e| e.to_string()));
            match checked {
                Ok(checked) => checker = checked,
                Err(reason) => {
                    what.get_or_insert(reason);
                    blocks.insert(block);
                }
            }
        }
        what.map(|what| Damage { what, blocks })
    }

    /// The volume's last record, and a record at or after it with its chain value, according to the
    /// rest of the log.
    fn end(&self, after: &[Self], rest: &Rest) -> Result<(Offset, (Offset, Chain)), RepairError> {
        if let Ok(volume) = &self.opened {
            return Ok((volume.last, (volume.last, volume.chain)));
        }
        let proof = after.iter().find_map(|found| {
            found.opened.as_ref().ok().map(|next| (next.first.prev(), next.before))
        });
        let (last, proof) = match proof {
            Some(proof) => (proof.0, proof),
            None => rest.begin.ok_or_else(|| RepairError::Disagreement {
                path: self.path.clone(),
                reason: "nothing says what its last record was".to_owned(),
            })?,
        };
        Ok((after.first().map_or(last, |next| next.first.prev()), proof))
    }
}

fn read_block(volume: &Volume, number: usize) -> Result<Vec<Record>, RepairError> {
    let block = volume.block(number)?;
    let (first, last) = volume.records_of(number);
    let record = |offset: u64| {
        let offset = Offset::new(offset);
        let frame =
            block.get(offset).ok_or_else(|| StoreError::Failed(format!("no record {offset}")))?;
        decode(offset, &frame).map_err(|error| RepairError::Store(error.to_string()))
    };
    (first.get()..=last.get()).map(record).collect()
}

/// Checks records that follow those that `checker` has seen; without a checker, the first is
/// accepted as it is.
fn check(
    mut checker: Option<Checker>,
    records: &[Record],
) -> Result<Option<Checker>, Box<VerifyError>> {
    for record in records {
        match &mut checker {
            Some(checker) => checker.check(record)?,
            None => checker = Some(Checker::after(record)),
        }
    }
    Ok(checker)
}

/// A volume that is being rewritten.
struct Writing {
    path: PathBuf,
    writer: Writer,
    checker: Checker,
}

impl Writing {
    fn begin(dir: &Path, volume: &VolumeFile, before: Chain) -> Result<Self, RepairError> {
        let writer = Writer::create(dir, volume.first, before, Packing::RANDOM)?;
        let checker = Checker::from_chain(volume.first.prev(), before);
        Ok(Self { path: volume.path.clone(), writer, checker })
    }

    fn append_all(&mut self, records: &[Record]) -> Result<(), RepairError> {
        let disagreement =
            |reason: String| RepairError::Disagreement { path: self.path.clone(), reason };
        for record in records {
            self.checker.check(record).map_err(|error| disagreement(error.to_string()))?;
            let frame = codec::encode_frame(record);
            let frame = frame.map_err(|error| disagreement(error.to_string()))?;
            self.writer.append(&frame, record.chain)?;
        }
        Ok(())
    }

    /// Puts it in place, if it ends with `last` and the chain value of `proof`.
    fn end(self, last: Offset, proof: (Offset, Chain)) -> Result<(Offset, Chain), RepairError> {
        let end = (self.checker.last(), *self.checker.chain());
        if end.0 != last || (proof.0 == last && proof.1 != end.1) {
            let reason = format!("its records end at {} with another chain value", end.0);
            return Err(RepairError::Disagreement { path: self.path, reason });
        }
        self.writer.finish()?;
        Ok(end)
    }
}

/// The records that are in no volume.
struct Rest {
    stores: Vec<Store>,
    /// The last record before them; and a record there or after it, with its chain value.
    begin: Option<(Offset, (Offset, Chain))>,
    /// The last record of the log.
    last: Offset,
}

impl Rest {
    fn open(log_dir: &Path) -> Result<Self, RepairError> {
        let mut stores = Vec::new();
        for number in tails(log_dir)? {
            stores.push(Store::open(&tail_dir(log_dir, number), DEFAULT_CACHE_BYTES)?);
        }
        let mut rest = Self { stores, begin: None, last: Offset::ZERO };
        let mut offsets = BTreeSet::new();
        for store in &rest.stores {
            offsets.append(&mut store.offsets_to(Offset::MAX)?);
        }
        let tip = tip_file::read(log_dir)
            .map_err(|source| OpenError::Io { path: tip_file::path(log_dir), source })?;
        // Records before a gap replace records that are in volumes.
        let mut first = offsets.last().copied();
        while let Some(before) = first.map(Offset::prev).filter(|before| offsets.contains(before)) {
            first = Some(before);
        }
        let noted = tip.map_or(Offset::ZERO, |tip| tip.offset);
        rest.last = offsets.last().map_or(noted, |last| noted.max(*last));
        rest.begin = match first {
            Some(first)
                if tip.is_none_or(|tip| tip.offset <= *offsets.last().unwrap_or(&first)) =>
            {
                let record =
                    rest.get(first).map_err(|error| RepairError::Store(error.to_string()))?;
                record.map(|record| (first.prev(), (first, record.chain)))
            }
            _ => tip.map(|tip| (tip.offset, (tip.offset, tip.chain))),
        };
        Ok(rest)
    }

    fn get(&self, offset: Offset) -> Result<Option<Record>, ReadError> {
        for store in &self.stores {
            if let Some(frame) = store.get(offset)? {
                return decode(offset, &frame).map(Some);
            }
        }
        Ok(None)
    }
}
