//! Segment files: writing them, finding their end, and reading them one at a time.
//!
//! [`Writer`] appends to the last segment and begins the next one. [`SegmentReader`] reads and
//! verifies one segment, plain or packed. [`find_end`] finds where a writer continues.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::{self, BufReader, BufWriter, Read as _, Take, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use bytes::Bytes;

use super::{ArchiveError, ArchiveOptions, packed::PackedReader};
use crate::{
    Log, MAX_HEADER_TEXT_BYTES, MAX_PAYLOAD_BYTES, ReadError,
    verify::Checker,
    volume::{self, Volume},
};
use logcabin_base::disk;
use logcabin_record::{
    CHAIN_START, Chain, Offset, Record,
    codec::{self, Frame},
};

pub const MAGIC: &[u8; 8] = b"LCSEG\r\n\x01";
pub(super) const HEADER_BYTES: usize = 8 + 8 + 32;
pub const TAG_RECORD: u8 = b'R';
pub const TAG_SEAL: u8 = b'S';
const EXTENSION: &str = "lcseg";

/// No frame is longer: a payload, a header with all its texts, the chain value, the state.
pub const MAX_FRAME_BYTES: usize = MAX_PAYLOAD_BYTES + MAX_HEADER_TEXT_BYTES + 512;

/// Writes segments.
pub(super) struct Writer {
    dir: PathBuf,
    segment_bytes: u64,
    pub(super) last: Offset,
    chain: Chain,
    at_batch_end: bool,
    open: Option<Segment>,
    /// How many segments it has sealed.
    pub(super) sealed: u64,
}

/// A segment that is being written.
pub struct Segment {
    path: PathBuf,
    file: BufWriter<File>,
    hasher: blake3::Hasher,
    length: u64,
    /// How much of it is known to be on disk. After a failed sync the rest may look written without
    /// being durable.
    synced: u64,
    count: u64,
}

impl Writer {
    /// Opens the archive at its end, after checking that it is a prefix of `log`. Everything after
    /// the last complete batch is cut off, and everything after `synced` if a writer has failed.
    pub(super) fn open(
        options: &ArchiveOptions,
        log: &dyn Log,
        synced: Option<&(PathBuf, u64)>,
    ) -> Result<Self, ArchiveError> {
        let dir = &options.dir;
        disk::make_private_dir(dir).map_err(ArchiveError::io(dir))?;
        if let Some((path, length)) = synced {
            let failed = ArchiveError::io(path);
            match OpenOptions::new().write(true).open(path) {
                Ok(file) if file.metadata().is_ok_and(|meta| meta.len() > *length) => {
                    file.set_len(*length).map_err(failed)?;
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let end = find_end(dir)?;
        let durable = *log.durable().borrow();
        let ahead = |archive| ArchiveError::Ahead { dir: dir.clone(), archive, log: durable };
        if end.last > durable {
            return Err(ahead(end.last));
        }
        for fault in &end.faults {
            // Records that the log lacks are never cut off, even if there is damage before them.
            if let Some(beyond) = record_follows(fault, durable)? {
                return Err(ahead(beyond));
            }
        }
        if end.last != Offset::ZERO
            && log.get(end.last)?.is_none_or(|record| record.chain != end.chain)
        {
            return Err(ArchiveError::Foreign { dir: dir.clone(), at: end.last });
        }
        for path in &end.unusable {
            tracing::warn!(path = %path.display(), "removing an archive segment without a complete batch");
            std::fs::remove_file(path).map_err(ArchiveError::io(path))?;
        }
        let open = end.unsealed.map(|unsealed| unsealed.reopen()).transpose()?;
        Ok(Self {
            dir: dir.clone(),
            segment_bytes: options.segment_bytes,
            last: end.last,
            chain: end.chain,
            at_batch_end: true,
            open,
            sealed: 0,
        })
    }

    pub(super) fn append(&mut self, record: &Record) -> Result<(), ArchiveError> {
        let damaged = |source| ReadError::Damaged { offset: record.offset(), source };
        let frame = codec::encode_frame(record).map_err(damaged)?;
        let segment = match &mut self.open {
            // Only between batches, so that a torn batch never spans two segments.
            Some(segment) if self.at_batch_end && segment.length >= self.segment_bytes => {
                segment.seal(&self.chain)?;
                self.sealed += 1;
                self.open.insert(Segment::create(&self.dir, record.offset(), &self.chain)?)
            }
            Some(segment) => segment,
            None => self.open.insert(Segment::create(&self.dir, record.offset(), &self.chain)?),
        };
        segment.append(&frame)?;
        self.last = record.offset();
        self.chain = record.chain;
        self.at_batch_end = record.header.batch_remaining == 0;
        Ok(())
    }

    /// Returns once everything appended is durable.
    pub(super) fn sync(&mut self) -> Result<(), ArchiveError> {
        self.open.as_mut().map_or(Ok(()), Segment::sync)
    }

    /// How much of the open segment is known to be on disk. The segments before it are durable.
    pub(super) fn synced(&self) -> Option<(PathBuf, u64)> {
        self.open.as_ref().map(|segment| (segment.path.clone(), segment.synced))
    }
}

impl Segment {
    fn create(dir: &Path, first: Offset, before: &Chain) -> Result<Self, ArchiveError> {
        let path = dir.join(format!("{:020}.{EXTENSION}", first.get()));
        let segment = Self::create_at(path, first, before)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(ArchiveError::io(dir))?;
        Ok(segment)
    }

    /// Creates a segment under any name, which need not survive a power failure yet.
    pub fn create_at(path: PathBuf, first: Offset, before: &Chain) -> Result<Self, ArchiveError> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(ArchiveError::io(&path))?;
        let mut segment = Self {
            path,
            file: BufWriter::new(file),
            hasher: blake3::Hasher::new(),
            length: 0,
            synced: 0,
            count: 0,
        };
        segment.put(MAGIC)?;
        segment.put(&first.get().to_be_bytes())?;
        segment.put(before)?;
        Ok(segment)
    }

    pub fn append(&mut self, frame: &[u8]) -> Result<(), ArchiveError> {
        let too_long = |_| ArchiveError::Io {
            path: self.path.clone(),
            source: io::Error::other("a frame is too long"),
        };
        let length = u32::try_from(frame.len()).map_err(too_long)?;
        self.put(&[TAG_RECORD])?;
        self.put(&length.to_be_bytes())?;
        self.put(frame)?;
        self.count += 1;
        Ok(())
    }

    pub fn seal(&mut self, chain: &Chain) -> Result<(), ArchiveError> {
        self.put(&[TAG_SEAL])?;
        self.put(&self.count.to_be_bytes())?;
        self.put(chain)?;
        let hash = *self.hasher.finalize().as_bytes();
        self.put(&hash)?;
        self.sync()
    }

    /// How many bytes were written.
    pub const fn length(&self) -> u64 {
        self.length
    }

    /// blake3 of all that was written.
    pub fn hash(&self) -> blake3::Hash {
        self.hasher.finalize()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.file.write_all(bytes).map_err(ArchiveError::io(&self.path))?;
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&mut self) -> Result<(), ArchiveError> {
        self.file.flush().map_err(ArchiveError::io(&self.path))?;
        self.file.get_ref().sync_data().map_err(ArchiveError::io(&self.path))?;
        self.synced = self.length;
        Ok(())
    }
}

/// The end of an archive, after its last complete batch.
struct End {
    last: Offset,
    chain: Chain,
    /// The segment to continue in.
    unsealed: Option<Unsealed>,
    /// Segments at the end without a complete batch.
    unusable: Vec<PathBuf>,
    /// Where reading stopped before a segment's end.
    faults: Vec<SegmentFault>,
}

struct Unsealed {
    path: PathBuf,
    length: u64,
    count: u64,
}

impl Unsealed {
    fn reopen(self) -> Result<Segment, ArchiveError> {
        let failed = ArchiveError::io(&self.path);
        let reopened = || {
            let mut file = OpenOptions::new().read(true).write(true).open(&self.path)?;
            let torn = file.metadata()?.len().saturating_sub(self.length);
            if torn > 0 {
                tracing::warn!(
                    path = %self.path.display(),
                    bytes = torn,
                    "the last archive segment ends in a partial record; truncating it and copying again"
                );
                file.set_len(self.length)?;
                file.sync_all()?;
            }
            let mut hasher = blake3::Hasher::new();
            // Leaves the file at its end, where writing continues.
            hasher.update_reader(&mut file)?;
            Ok((file, hasher))
        };
        let (file, hasher) = reopened().map_err(failed)?;
        Ok(Segment {
            path: self.path,
            file: BufWriter::new(file),
            hasher,
            length: self.length,
            synced: self.length,
            count: self.count,
        })
    }
}

/// Finds the end, and makes everything before it durable.
fn find_end(dir: &Path) -> Result<End, ArchiveError> {
    let (mut unusable, mut faults) = (Vec::new(), Vec::new());
    for (_, path) in segments(dir)?.into_iter().rev() {
        if is_packed(&path) {
            // It was complete before it got its name.
            let Volume { last, chain, .. } = Volume::open(path)?;
            return Ok(End { last, chain, unsealed: None, unusable, faults });
        }
        let mut reader = match PlainReader::open(&path)? {
            Ok(reader) => reader,
            Err(fault) => {
                faults.push(fault);
                unusable.push(path);
                continue;
            }
        };
        let (mut whole, mut intact) = (None, true);
        loop {
            match reader.next()? {
                Ok(Some((record, _))) if record.header.batch_remaining == 0 => {
                    whole = Some((record.offset(), record.chain, reader.position, reader.count));
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(fault) => {
                    faults.push(fault);
                    intact = false;
                    break;
                }
            }
        }
        let Some((last, chain, length, count)) = whole else {
            unusable.push(path);
            continue;
        };
        // Data that a process wrote before it was killed may not be on disk yet.
        reader.input.get_ref().get_ref().sync_all().map_err(ArchiveError::io(&path))?;
        // A seal that is followed by something is cut off with it.
        let sealed = reader.sealed && intact;
        let unsealed = (!sealed).then_some(Unsealed { path, length, count });
        return Ok(End { last, chain, unsealed, unusable, faults });
    }
    Ok(End { last: Offset::ZERO, chain: CHAIN_START, unsealed: None, unusable, faults })
}

/// The segments of a directory with the first offset of each, in order. Of a segment that is packed
/// and not yet removed, there is only the packed one.
pub(super) fn segments(dir: &Path) -> Result<Vec<(Offset, PathBuf)>, ArchiveError> {
    let mut segments = BTreeMap::new();
    for entry in std::fs::read_dir(dir).map_err(ArchiveError::io(dir))? {
        let path = entry.map_err(ArchiveError::io(dir))?.path();
        let is_plain = path.extension().is_some_and(|extension| extension == EXTENSION);
        if (is_plain || is_packed(&path))
            && let Some(first) = first_of(&path)
            && !(is_plain && segments.contains_key(&first))
        {
            segments.insert(first, path);
        }
    }
    Ok(segments.into_iter().collect())
}

/// What a plain segment is called while it replaces another one.
pub(super) const REWRITING: &str = "rewriting";

/// Removes what a crash left unfinished: it may hold what was erased since.
pub(super) fn remove_unfinished(dir: &Path) -> Result<(), ArchiveError> {
    for path in disk::entries(dir).map_err(ArchiveError::io(dir))? {
        let is_unfinished =
            |extension: &OsStr| [REWRITING, volume::UNFINISHED].iter().any(|of| extension == *of);
        if path.extension().is_some_and(is_unfinished) && first_of(&path).is_some() {
            std::fs::remove_file(&path).map_err(ArchiveError::io(&path))?;
        }
    }
    Ok(())
}

/// The offset after which a file is named.
fn first_of(path: &Path) -> Option<Offset> {
    Some(Offset::new(path.file_stem()?.to_str()?.parse().ok()?))
}

/// Whether a segment is packed: it is a volume.
pub(super) fn is_packed(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == volume::EXTENSION)
}

/// The path of a plain segment that is packed as `path`.
pub(super) fn plain(path: &Path) -> PathBuf {
    path.with_extension(EXTENSION)
}

/// What is wrong with a segment.
pub(super) struct SegmentFault {
    pub(super) path: PathBuf,
    /// The end of the last good entry.
    pub(super) at: u64,
    /// The segment's length when it was opened.
    pub(super) length: u64,
    /// Whether a crash may have left it.
    pub(super) may_be_torn: bool,
    pub(super) reason: String,
}

impl From<SegmentFault> for ArchiveError {
    fn from(SegmentFault { path, at, reason, .. }: SegmentFault) -> Self {
        Self::Damaged { path, at, reason }
    }
}

/// Reads one segment from its start and verifies it.
pub(super) enum SegmentReader {
    Plain(Box<PlainReader>),
    Packed(Box<PackedReader>),
}

impl SegmentReader {
    pub(super) fn open(path: &Path) -> Result<Result<Self, SegmentFault>, ArchiveError> {
        let packed = |path: &Path| -> Result<_, ArchiveError> {
            Ok(PackedReader::open(path)?.map(|reader| Self::Packed(Box::new(reader))))
        };
        if is_packed(path) {
            return packed(path);
        }
        match PlainReader::open(path) {
            // It was packed since it was listed.
            Err(error) if !path.exists() => {
                packed(&path.with_extension(volume::EXTENSION)).map_err(|_| error)
            }
            opened => Ok(opened?.map(|reader| Self::Plain(Box::new(reader)))),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Plain(reader) => &reader.path,
            Self::Packed(reader) => &reader.path,
        }
    }

    /// The next record and its frame; `None` at the segment's end, sealed or not.
    pub(super) fn next(
        &mut self,
    ) -> Result<Result<Option<(Record, Bytes)>, SegmentFault>, ArchiveError> {
        match self {
            Self::Plain(reader) => reader.next(),
            Self::Packed(reader) => reader.next(),
        }
    }

    /// What has checked the records so far.
    pub(super) const fn checker(&mut self) -> &mut Checker {
        match self {
            Self::Plain(reader) => &mut reader.checker,
            Self::Packed(reader) => &mut reader.checker,
        }
    }

    /// Whether it is complete, once it has been read to its end.
    pub(super) const fn is_sealed(&self) -> bool {
        match self {
            Self::Plain(reader) => reader.sealed,
            Self::Packed(_) => true,
        }
    }

    /// It, as damaged after the last good entry.
    pub(super) fn damaged(&self, reason: &str) -> ArchiveError {
        let fault = match self {
            Self::Plain(reader) => reader.fault(reason),
            Self::Packed(reader) => reader.fault(reason),
        };
        fault.into()
    }
}

/// Reads a plain segment. Later writes to it are not read: an incomplete entry of the archiver
/// would look like damage.
pub(super) struct PlainReader {
    path: PathBuf,
    input: BufReader<Take<File>>,
    /// The segment's length when it was opened.
    length: u64,
    hasher: blake3::Hasher,
    checker: Checker,
    /// The end of the last good entry.
    position: u64,
    count: u64,
    sealed: bool,
}

impl PlainReader {
    fn open(path: &Path) -> Result<Result<Self, SegmentFault>, ArchiveError> {
        let file = File::open(path).map_err(ArchiveError::io(path))?;
        let length = file.metadata().map_err(ArchiveError::io(path))?.len();
        let mut reader = Self {
            path: path.to_owned(),
            input: BufReader::with_capacity(256 * 1024, file.take(length)),
            length,
            hasher: blake3::Hasher::new(),
            checker: Checker::from_start(),
            position: 0,
            count: 0,
            sealed: false,
        };
        let mut header = [0; HEADER_BYTES];
        if !reader.fill(&mut header)? {
            return Ok(Err(reader.fault("the file ends inside its header")));
        }
        let mut fields = &header[..];
        let (mut magic, mut first, mut before) = ([0; 8], [0; 8], [0; 32]);
        for field in [&mut magic[..], &mut first[..], &mut before[..]] {
            fields.read_exact(field).map_err(ArchiveError::io(path))?;
        }
        if &magic != MAGIC {
            return Ok(Err(reader.fault("the file is not a segment of a known format")));
        }
        let before_first = Offset::new(u64::from_be_bytes(first)).prev();
        if before_first == Offset::ZERO && before != CHAIN_START {
            return Ok(Err(reader.fault("the chain does not begin at its start")));
        }
        reader.checker = Checker::from_chain(before_first, before);
        reader.position = HEADER_BYTES as u64;
        Ok(Ok(reader))
    }

    fn next(&mut self) -> Result<Result<Option<(Record, Bytes)>, SegmentFault>, ArchiveError> {
        let mut tag = [0; 1];
        if self.sealed {
            let more = self.input.read(&mut tag).map_err(ArchiveError::io(&self.path))?;
            return if more == 0 {
                Ok(Ok(None))
            } else {
                Ok(Err(self.fault("bytes follow the seal")))
            };
        }
        if !self.fill(&mut tag)? {
            return Ok(Ok(None));
        }
        match tag {
            [TAG_RECORD] => {
                let mut length = [0; 4];
                if !self.fill(&mut length)? {
                    return Ok(Err(self.fault("the file ends inside an entry")));
                }
                let length = u32::from_be_bytes(length) as usize;
                if length > MAX_FRAME_BYTES {
                    return Ok(Err(self.fault("an entry exceeds the largest record")));
                }
                let mut frame = vec![0; length];
                if !self.fill(&mut frame)? {
                    return Ok(Err(self.fault("the file ends inside an entry")));
                }
                let frame = Bytes::from(frame);
                let record = match Frame::decode(&frame) {
                    Ok(frame) => frame.record,
                    Err(error) => return Ok(Err(self.fault(&error.to_string()))),
                };
                if let Err(error) = self.checker.check(&record) {
                    return Ok(Err(self.fault(&error.to_string())));
                }
                self.count += 1;
                self.position += 5 + length as u64;
                Ok(Ok(Some((record, frame))))
            }
            [TAG_SEAL] => {
                let (mut count, mut chain, mut hash) = ([0; 8], [0; 32], [0; 32]);
                if !self.fill(&mut count)? || !self.fill(&mut chain)? {
                    return Ok(Err(self.fault("the file ends inside its seal")));
                }
                let expected = *self.hasher.finalize().as_bytes();
                if !self.fill(&mut hash)? {
                    return Ok(Err(self.fault("the file ends inside its seal")));
                }
                if u64::from_be_bytes(count) != self.count
                    || chain != *self.checker.chain()
                    || hash != expected
                {
                    return Ok(Err(self.fault("the seal does not match the segment")));
                }
                self.sealed = true;
                self.position += 1 + 8 + 32 + 32;
                self.next()
            }
            _ => Ok(Err(self.fault("an entry of an unknown kind"))),
        }
    }

    fn fault(&self, reason: &str) -> SegmentFault {
        SegmentFault {
            path: self.path.clone(),
            at: self.position,
            length: self.length,
            may_be_torn: true,
            reason: reason.to_owned(),
        }
    }

    /// Whether the file had enough bytes left.
    fn fill(&mut self, bytes: &mut [u8]) -> Result<bool, ArchiveError> {
        match self.input.read_exact(bytes) {
            Ok(()) => {
                self.hasher.update(bytes);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(ArchiveError::io(&self.path)(error)),
        }
    }
}

/// A record after `last`, if one can be decoded at `fault` or anywhere after it. A crash leaves at
/// most part of an entry at the end of a segment. An intact record after the fault therefore means
/// damage: either to the bytes before it, or it does not continue the previous record.
pub(super) fn record_follows(
    fault: &SegmentFault,
    last: Offset,
) -> Result<Option<Offset>, ArchiveError> {
    let mut bytes = std::fs::read(&fault.path).map_err(ArchiveError::io(&fault.path))?;
    bytes.truncate(usize::try_from(fault.length).unwrap_or(usize::MAX));
    let bytes = Bytes::from(bytes);
    let start = usize::try_from(fault.at).unwrap_or(usize::MAX);
    for position in start..bytes.len() {
        let Some([TAG_RECORD, length @ ..]) = bytes.get(position..position + 5) else { continue };
        let Ok(length) = <[u8; 4]>::try_from(length) else { continue };
        let length = u32::from_be_bytes(length) as usize;
        let begin = position + 5;
        if length > MAX_FRAME_BYTES || begin + length > bytes.len() {
            continue;
        }
        if let Ok(Frame { record, .. }) = Frame::decode(&bytes.slice(begin..begin + length))
            && record.offset() > last
            // The header of an entry may be written without its payload.
            && (position > start || record.holds_its_payload())
        {
            return Ok(Some(record.offset()));
        }
    }
    Ok(None)
}
