//! Writes a log that no server has open straight into volumes, as fast as its records can be
//! compressed.
//!
//! An import makes millions of records that nobody waits for. Through the committer, each would be
//! compressed and synced twice: in a database first, and again when it is sealed. Here, records get
//! their offsets, chain values and frames as in [`Tip::extend`], and go into the volume that
//! sealing would have made of them. A volume is durable as a whole or not there at all, so a log
//! that was interrupted ends with its last whole volume; the databases are created when a server
//! opens it.
//!
//! The owner holds the lock of the data directory.

use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::{
    AppendError, Appended, Batch,
    block::Block,
    check_size,
    volume::{self, Packing, Volume, VolumeError, Writer},
};
use logcabin_base::disk;
use logcabin_record::{
    CHAIN_START, NewRecord, Offset, Record,
    codec::{CodecError, Frame, Tip},
};

/// Why a log could not be written or read. After a failed write, it is to be opened again.
#[derive(Debug, thiserror::Error)]
pub enum BulkError {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// Nothing was written: the records exceed a limit of the log.
    #[error("the records do not fit the log: {0}")]
    TooLarge(String),
    #[error("record {offset} is damaged: {source}")]
    Damaged { offset: Offset, source: CodecError },
    /// The volumes are not those of one log.
    #[error("the volume {} does not continue the one before it", .0.display())]
    Broken(PathBuf),
    /// The log cannot be cut there, because it is in the middle of a volume.
    #[error("no volume ends with record {0}")]
    NoEnd(Offset),
}

/// A log that is being written. See the module's documentation.
pub struct BulkLog {
    dir: PathBuf,
    volumes: Vec<Volume>,
    /// The end of the log, with the records of the unfinished volume.
    tip: Tip,
    writing: Option<Unfinished>,
    volume_bytes: u64,
    /// The block that was read last, with its volume.
    block: Option<(u64, usize, Block)>,
}

/// A volume that is being written. Its frames are kept, to be read.
struct Unfinished {
    writer: Writer,
    first: Offset,
    frames: Vec<u8>,
    /// Where each frame ends.
    ends: Vec<usize>,
}

impl Unfinished {
    fn frame(&self, offset: Offset) -> Option<&[u8]> {
        let number = usize::try_from(offset.get().checked_sub(self.first.get())?).ok()?;
        let end = *self.ends.get(number)?;
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.frames.get(begin..end)
    }
}

impl BulkLog {
    /// Opens the log in `log_dir`, or begins one. A volume is full at `volume_bytes` of frames.
    /// What an interrupted run left unfinished is removed. Blocks.
    pub fn open(log_dir: &Path, volume_bytes: u64) -> Result<Self, BulkError> {
        let dir = log_dir.join("volumes");
        let io = |source| BulkError::Io { path: dir.clone(), source };
        disk::make_private_dir(log_dir).map_err(io)?;
        disk::make_private_dir(&dir).map_err(io)?;
        disk::remove_unfinished(&dir).map_err(io)?;
        let volumes = volume::list(&dir)?;
        let (mut last, mut chain) = (Offset::ZERO, CHAIN_START);
        for volume in &volumes {
            if volume.first != last.next() || volume.before != chain {
                return Err(BulkError::Broken(volume.path().to_owned()));
            }
            (last, chain) = (volume.last, volume.chain);
        }
        let (tip, writing, block) = (Tip::default(), None, None);
        let mut log = Self { dir, volumes, tip, writing, volume_bytes, block };
        log.find_tip()?;
        Ok(log)
    }

    fn find_tip(&mut self) -> Result<(), BulkError> {
        let Some(last) = self.volumes.last() else {
            self.tip = Tip::default();
            return Ok(());
        };
        let (path, chain, last) = (last.path().to_owned(), last.chain, last.last);
        let record = self.get(last)?.ok_or_else(|| BulkError::Broken(path.clone()))?;
        if record.chain != chain || record.header.batch_remaining != 0 {
            return Err(BulkError::Broken(path));
        }
        self.tip = Tip::after(&record);
        Ok(())
    }

    /// The last record, and what the next one continues.
    pub const fn tip(&self) -> &Tip {
        &self.tip
    }

    /// The last record in a whole volume: what a crash leaves.
    pub fn durable(&self) -> Offset {
        self.volumes.last().map_or(Offset::ZERO, |volume| volume.last)
    }

    /// Removes all records after `last`, which must end a volume. To be called before anything is
    /// written.
    pub fn truncate(&mut self, last: Offset) -> Result<(), BulkError> {
        let kept = self.volumes.partition_point(|volume| volume.last <= last);
        let end = kept.checked_sub(1).and_then(|at| self.volumes.get(at));
        if end.map_or(Offset::ZERO, |volume| volume.last) != last {
            return Err(BulkError::NoEnd(last));
        }
        // From the end on: whatever is left after an interruption is the beginning of the log.
        while self.volumes.len() > kept
            && let Some(volume) = self.volumes.pop()
        {
            let path = volume.path().to_owned();
            std::fs::remove_file(&path).map_err(|source| BulkError::Io { path, source })?;
        }
        self.block = None;
        self.find_tip()
    }

    /// Appends records as one batch. Their time is `now_ms`, or that of the last record if that is
    /// later. Nothing is durable before [`Self::end_volume`].
    ///
    /// # Errors
    /// [`BulkError::TooLarge`] if nothing was written because of a limit of the log. After any
    /// other error, what is in memory is not what is on the disk.
    pub fn append(&mut self, records: Vec<NewRecord>, now_ms: u64) -> Result<Appended, BulkError> {
        let batch = Batch { expect: Vec::new(), records };
        check_size(&batch).map_err(|error| match error {
            AppendError::TooLarge(why) => BulkError::TooLarge(why),
            other => BulkError::TooLarge(other.to_string()),
        })?;
        let first = self.tip.offset.next();
        let mut remaining = u32::try_from(batch.records.len())
            .map_err(|_| BulkError::TooLarge("a batch has too many records".to_owned()))?;
        if remaining == 0 {
            return Ok(Appended { first, last: first.prev() });
        }
        let mut writing = match self.writing.take() {
            Some(writing) => writing,
            None => Unfinished {
                writer: Writer::create(&self.dir, first, self.tip.chain, Packing::RANDOM)?,
                first,
                frames: Vec::new(),
                ends: Vec::new(),
            },
        };
        for new in batch.records {
            remaining -= 1;
            let extended = self.tip.extend(new, remaining, now_ms);
            let offset = self.tip.offset;
            let (record, frame) =
                extended.map_err(|source| BulkError::Damaged { offset, source })?;
            writing.writer.append(&frame, record.chain)?;
            writing.frames.extend_from_slice(&frame);
            writing.ends.push(writing.frames.len());
        }
        self.writing = Some(writing);
        Ok(Appended { first, last: self.tip.offset })
    }

    /// How many times as large as a full volume the unfinished one is.
    pub fn fullness(&self) -> u64 {
        let bytes = self.writing.as_ref().map_or(0, |writing| writing.writer.full_bytes);
        bytes / self.volume_bytes.max(1)
    }

    /// Completes the volume that is being written, if there is one, and returns once it is durable.
    /// Blocks.
    pub fn end_volume(&mut self) -> Result<(), BulkError> {
        if let Some(Unfinished { writer, .. }) = self.writing.take() {
            self.volumes.push(writer.finish()?);
        }
        Ok(())
    }

    /// How many whole volumes there are.
    pub const fn volumes(&self) -> usize {
        self.volumes.len()
    }

    /// The record at `offset`, if there is one.
    pub fn get(&mut self, offset: Offset) -> Result<Option<Record>, BulkError> {
        if let Some(writing) = &self.writing
            && offset >= writing.first
        {
            let frame = writing.frame(offset).map(Bytes::copy_from_slice);
            return frame.map(|frame| decode(offset, &frame)).transpose();
        }
        let number = self.volumes.partition_point(|volume| volume.last < offset);
        let Some(volume) = self.volumes.get(number).filter(|volume| volume.first <= offset) else {
            return Ok(None);
        };
        let at = volume.block_of(offset);
        let block = match self.block.take() {
            Some((id, number, block)) if (id, number) == (volume.id, at) => block,
            _ => volume.block(at)?,
        };
        let frame = block.get(offset);
        self.block = Some((volume.id, at, block));
        frame.map(|frame| decode(offset, &frame)).transpose()
    }

    /// Calls `look` with every record in whole volumes from `from` on, in order.
    pub fn each<E: From<BulkError>>(
        &self,
        from: Offset,
        mut look: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<(), E> {
        for volume in self.volumes.iter().filter(|volume| volume.last >= from) {
            let begin = volume.block_of(from.max(volume.first));
            for number in begin..volume.blocks() {
                let block = volume.block(number).map_err(BulkError::from)?;
                let (first, last) = volume.records_of(number);
                for offset in first.max(from).get()..=last.get() {
                    let offset = Offset::new(offset);
                    if let Some(frame) = block.get(offset) {
                        look(decode(offset, &frame)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn decode(offset: Offset, frame: &Bytes) -> Result<Record, BulkError> {
    let damaged = |source| BulkError::Damaged { offset, source };
    Frame::decode(frame).map(|frame| frame.record).map_err(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Log as _,
        samples::{payload, record, start},
        store::{SledLog, SledOptions, log_dir},
        verify,
    };

    fn batch(number: u64, records: u64) -> Vec<NewRecord> {
        (0..records)
            .map(|at| record(&format!("s{}", number % 5), payload(number * 10 + at)))
            .collect()
    }

    /// Writes batches of growing length.
    fn write(log: &mut BulkLog, batches: std::ops::Range<u64>) {
        for number in batches {
            log.append(batch(number, number % 4 + 1), 1_000).unwrap();
            if log.fullness() > 0 {
                log.end_volume().unwrap();
            }
        }
    }

    fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
        let mut files: Vec<_> = disk::entries(&dir.join("volumes"))
            .unwrap()
            .into_iter()
            .map(|path| (path.file_name().unwrap().into(), std::fs::read(&path).unwrap()))
            .collect();
        files.sort();
        files
    }

    #[tokio::test]
    async fn a_server_opens_what_was_written_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut bulk = BulkLog::open(&log_dir(dir.path()), 2_000).unwrap();
        write(&mut bulk, 0..100);
        bulk.end_volume().unwrap();
        assert!(bulk.volumes() > 5, "{} volumes", bulk.volumes());
        let tip = bulk.tip().clone();
        drop(bulk);
        let log = SledLog::open(SledOptions::new(dir.path())).unwrap();
        start(&log);
        let verified = verify(&log, |_| ()).unwrap();
        assert_eq!((verified.last, verified.chain), (tip.offset, tip.chain));
        let appended = log.append(Batch { expect: vec![], records: batch(7, 2) }).await.unwrap();
        assert_eq!(appended.first, tip.offset.next());
        drop(log);
        let again = SledLog::open(SledOptions::new(dir.path())).unwrap();
        assert_eq!(verify(&again, |_| ()).unwrap().last, appended.last);
    }

    #[test]
    fn a_log_that_was_cut_and_written_again_has_the_same_bytes() {
        let (whole, cut) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut log = BulkLog::open(whole.path(), 1_500).unwrap();
        write(&mut log, 0..60);
        log.end_volume().unwrap();
        // What is not in a whole volume is lost, and so is what is cut off.
        let mut log = BulkLog::open(cut.path(), 1_500).unwrap();
        let mut ends = vec![(Offset::ZERO, 0)];
        for number in 0..40 {
            log.append(batch(number, number % 4 + 1), 1_000).unwrap();
            if log.fullness() > 0 {
                log.end_volume().unwrap();
                ends.push((log.durable(), number + 1));
            }
        }
        drop(log);
        let (kept, next) = ends[ends.len() / 2];
        let mut log = BulkLog::open(cut.path(), 1_500).unwrap();
        assert!(matches!(log.truncate(kept.next()), Err(BulkError::NoEnd(_))));
        log.truncate(kept).unwrap();
        assert_eq!(log.tip().offset, kept);
        write(&mut log, next..60);
        log.end_volume().unwrap();
        assert!(files(whole.path()) == files(cut.path()), "the volumes differ");
    }

    #[test]
    fn every_record_can_be_read_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = BulkLog::open(dir.path(), 1_500).unwrap();
        write(&mut log, 0..50);
        log.append(batch(50, 3), 1_000).unwrap();
        let last = log.tip().offset;
        assert!(log.durable() < last && log.durable() > Offset::ZERO);
        for offset in (1..=last.get()).rev() {
            let record = log.get(Offset::new(offset)).unwrap().unwrap();
            assert_eq!(record.offset().get(), offset);
            assert!(record.holds_its_payload());
        }
        assert!(log.get(last.next()).unwrap().is_none());
        assert!(log.get(Offset::ZERO).unwrap().is_none());
        let (mut next, from) = (7, Offset::new(7));
        log.each::<BulkError>(from, |record| {
            assert_eq!(record.offset().get(), next);
            next += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(next, log.durable().get() + 1);
    }

    #[test]
    fn what_is_too_large_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = BulkLog::open(dir.path(), 1_500).unwrap();
        log.append(batch(1, 1), 1_000).unwrap();
        let before = log.tip().clone();
        let large = Bytes::from(vec![b' '; crate::MAX_PAYLOAD_BYTES + 1]);
        let refused = log.append(vec![record("s", large)], 1_000);
        assert!(matches!(refused, Err(BulkError::TooLarge(_))));
        assert_eq!(*log.tip(), before);
    }
}
