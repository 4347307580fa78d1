//! Volumes: immutable, compressed files of old records, readable at any offset.
//!
//! A volume (`log_format.md`, "Volumes") is a sequence of blocks, each a zstd frame with some
//! dozens of record frames in it, followed by an index. [`Writer`] writes one under another name
//! and then renames it; a [`Volume`] reads one. To erase something from a volume, [`super::store`]
//! rewrites it.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufWriter, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use super::block::{self, Block, ShortBlock};
use logcabin_base::disk;
use logcabin_record::{Chain, Offset};

/// How a volume is compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packing {
    /// A block is closed at this many bytes.
    block_bytes: usize,
    /// The level of zstd.
    level: i32,
}

impl Packing {
    /// For records that are looked up one by one, each in some 100 microseconds. A higher level
    /// saves a twentieth of the space for twice the time.
    pub(crate) const RANDOM: Self = Self { block_bytes: 32 * 1024, level: 1 };
    /// For records that are read in sequence: a sixth less space.
    pub(crate) const SEQUENTIAL: Self = Self { block_bytes: 256 * 1024, level: 3 };
}

/// A block holds at least one record, so none is larger than this.
const MAX_BLOCK_BYTES: u32 =
    (Packing::SEQUENTIAL.block_bytes + super::archive::MAX_FRAME_BYTES + 4) as u32;

/// The magic number of frames that zstd tools skip. It and the length after it are little-endian.
const SKIPPABLE: u32 = 0x184D_2A5C;

const MAGIC: &[u8; 7] = b"LCVOL\r\n";
/// Blocks with whole frames. It is read, and no longer written.
const WHOLE: u8 = 1;
/// Short blocks.
const SHORT: u8 = 2;
const END_MAGIC: &[u8; 8] = b"LCEND\r\n\x01";

/// The length of the first frame.
const HEADER_BYTES: usize = 8 + MAGIC.len() + 1;
/// The length of an index entry: first offset, position, compressed and decompressed length.
const ENTRY_BYTES: usize = 8 + 8 + 4 + 4;
/// The length of the trailer: number of blocks, first and last offset, chain values before and
/// after them, length of all frames, hash, magic.
const TRAILER_BYTES: usize = 4 + 8 + 8 + 32 + 32 + 8 + 32 + END_MAGIC.len();

pub(crate) const EXTENSION: &str = "lcvol";
/// That of a volume that is being written.
pub(crate) const UNFINISHED: &str = "new";

/// Why a volume cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The file or its directory failed.
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
    /// The file was altered after it was written.
    #[error("the volume {} is damaged: {what}", .path.display())]
    Damaged { path: PathBuf, what: String },
}

/// The volumes in `dir`, in order. A missing directory has none, and unfinished files do not count.
pub fn list(dir: &Path) -> Result<Vec<Volume>, VolumeError> {
    let failed = |source| VolumeError::Io { path: dir.to_owned(), source };
    let mut volumes = Vec::new();
    for path in disk::entries(dir).map_err(failed)? {
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            // Errors name the volume itself, even if this is a link to it.
            volumes.push(Volume::open(path.canonicalize().map_err(failed)?)?);
        }
    }
    volumes.sort_by_key(|volume| volume.first);
    Ok(volumes)
}

static OPENED: AtomicU64 = AtomicU64::new(0);

/// The position and the records of one block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    first: Offset,
    at: u64,
    packed: u32,
    full: u32,
}

/// A volume that can be read.
#[derive(Debug)]
pub struct Volume {
    path: PathBuf,
    file: File,
    format: u8,
    /// A new number each time a volume is opened. It tells apart volumes that had the same path.
    pub(crate) id: u64,
    /// The first record.
    pub first: Offset,
    /// The last record.
    pub last: Offset,
    /// The chain value before the first record.
    pub before: Chain,
    /// The chain value of the last record.
    pub chain: Chain,
    /// The sum of the lengths of its frames, in bytes.
    pub full_bytes: u64,
    index: Vec<Entry>,
}

impl Volume {
    /// Opens a volume: reads its index and nothing else.
    pub fn open(path: PathBuf) -> Result<Self, VolumeError> {
        let io = |source| VolumeError::Io { path: path.clone(), source };
        let damaged =
            |what: &str| VolumeError::Damaged { path: path.clone(), what: what.to_owned() };
        let file = File::open(&path).map_err(io)?;
        let length = file.metadata().map_err(io)?.len();
        let trailer_at = length.checked_sub(TRAILER_BYTES as u64);
        let trailer_at = trailer_at.ok_or_else(|| damaged("it is too short"))?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).map_err(io)?;
        let format = match header {
            [.., WHOLE] if header[8..].starts_with(MAGIC) => WHOLE,
            [.., SHORT] if header[8..].starts_with(MAGIC) => SHORT,
            _ => return Err(damaged("it does not begin as a volume of a known format")),
        };
        let mut trailer = [0; TRAILER_BYTES];
        file.read_exact_at(&mut trailer, trailer_at).map_err(io)?;
        let mut fields = Fields(&trailer);
        let blocks = u32::from_be_bytes(fields.take());
        let first = Offset::new(u64::from_be_bytes(fields.take()));
        let last = Offset::new(u64::from_be_bytes(fields.take()));
        let (before, chain): (Chain, Chain) = (fields.take(), fields.take());
        let full_bytes = u64::from_be_bytes(fields.take());
        let hash: [u8; 32] = fields.take();
        if fields.0 != END_MAGIC {
            return Err(damaged("its end is not that of a volume"));
        }
        let index_bytes = u64::from(blocks) * ENTRY_BYTES as u64;
        let index_at = trailer_at.checked_sub(index_bytes);
        let index_at = index_at.ok_or_else(|| damaged("it is shorter than its index"))?;
        let mut entries = vec![0; usize::try_from(index_bytes).unwrap_or_default()];
        file.read_exact_at(&mut entries, index_at).map_err(io)?;
        if hash != index_hash(&entries, &trailer) {
            return Err(damaged("the hash of its index does not match"));
        }
        let entry = |bytes: &[u8]| {
            let mut fields = Fields(bytes);
            Entry {
                first: Offset::new(u64::from_be_bytes(fields.take())),
                at: u64::from_be_bytes(fields.take()),
                packed: u32::from_be_bytes(fields.take()),
                full: u32::from_be_bytes(fields.take()),
            }
        };
        let index = entries.chunks_exact(ENTRY_BYTES).map(entry).collect();
        let id = OPENED.fetch_add(1, Ordering::Relaxed);
        Ok(Self { path, file, format, id, first, last, before, chain, full_bytes, index })
    }

    /// Its size on disk in bytes.
    pub fn disk_bytes(&self) -> Result<u64, VolumeError> {
        let metadata = self.file.metadata().map_err(|source| self.io(source))?;
        Ok(disk::bytes_of(&metadata))
    }

    /// Whether this is the very same file.
    pub(crate) fn is(&self, other: &Self) -> bool {
        let file = |volume: &Self| {
            let metadata = volume.file.metadata().ok()?;
            Some((metadata.dev(), metadata.ino()))
        };
        file(self).is_some_and(|this| file(other) == Some(this))
    }

    /// How many blocks there are.
    pub const fn blocks(&self) -> usize {
        self.index.len()
    }

    /// Which block holds the record at `offset`, which must be one of this volume's.
    pub(crate) fn block_of(&self, offset: Offset) -> usize {
        self.index.partition_point(|entry| entry.first <= offset).saturating_sub(1)
    }

    /// Reads a block.
    pub fn block(&self, number: usize) -> Result<Block, VolumeError> {
        let damaged = |what: String| VolumeError::Damaged { path: self.path.clone(), what };
        let entry = self.index.get(number).ok_or_else(|| damaged(format!("no block {number}")))?;
        let wrong = |what: &dyn std::fmt::Display| {
            damaged(format!("the block from record {} on: {what}", entry.first))
        };
        if entry.full > MAX_BLOCK_BYTES || entry.packed > MAX_BLOCK_BYTES * 2 {
            return Err(wrong(&"it is longer than blocks are"));
        }
        let mut packed = vec![0; entry.packed as usize];
        self.file.read_exact_at(&mut packed, entry.at).map_err(|source| self.io(source))?;
        let full =
            block::decompress(&packed, entry.full as usize).map_err(|error| wrong(&error))?;
        if full.len() != entry.full as usize {
            return Err(wrong(&"it is not as long as it should be"));
        }
        let next = self.index.get(number + 1).map_or_else(|| self.last.next(), |next| next.first);
        let block = match self.format {
            WHOLE => Block::parse(entry.first, Bytes::from(full)),
            _ => Block::of_short(entry.first, &full),
        };
        let block = block.map_err(|error| wrong(&error))?;
        let count = next.get().saturating_sub(entry.first.get());
        if block.count() != count {
            return Err(wrong(&"it does not hold the records that it should"));
        }
        Ok(block)
    }

    /// The first and the last record of a block.
    pub fn records_of(&self, number: usize) -> (Offset, Offset) {
        let first = self.index.get(number).map_or(self.first, |entry| entry.first);
        let next = self.index.get(number + 1).map(|next| next.first.prev());
        (first, next.unwrap_or(self.last))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    fn io(&self, source: io::Error) -> VolumeError {
        VolumeError::Io { path: self.path.clone(), source }
    }
}

/// Writes a volume.
pub(crate) struct Writer {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    first: Offset,
    last: Offset,
    before: Chain,
    chain: Chain,
    written: u64,
    /// The sum of the lengths of the frames so far, in bytes.
    pub(crate) full_bytes: u64,
    block: ShortBlock,
    block_first: Offset,
    index: Vec<u8>,
    blocks: u32,
    packer: zstd::bulk::Compressor<'static>,
    block_bytes: usize,
}

impl Writer {
    /// Begins the volume whose first record is `first`, in `dir`. `before` is the chain value
    /// before it.
    pub(crate) fn create(
        dir: &Path,
        first: Offset,
        before: Chain,
        packing: Packing,
    ) -> Result<Self, VolumeError> {
        let path = dir.join(format!("{:020}.{EXTENSION}", first.get()));
        let partial = path.with_extension(UNFINISHED);
        let io = |source| VolumeError::Io { path: partial.clone(), source };
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(true).mode(0o600).open(&partial);
        let mut packer = zstd::bulk::Compressor::new(packing.level).map_err(io)?;
        // The checksum reveals a damaged block when it is read.
        packer.include_checksum(true).map_err(io)?;
        let mut writer = Self {
            file: BufWriter::with_capacity(1 << 18, file.map_err(io)?),
            path,
            partial: partial.clone(),
            first,
            last: first.prev(),
            before,
            chain: before,
            written: 0,
            full_bytes: 0,
            block: ShortBlock::begin(before),
            block_first: first,
            index: Vec::new(),
            blocks: 0,
            packer,
            block_bytes: packing.block_bytes,
        };
        writer.put_skippable(MAGIC.len() + 1)?;
        writer.put(MAGIC)?;
        writer.put(&[SHORT])?;
        Ok(writer)
    }

    /// Appends the frame of the next record, whose chain value is `chain`.
    pub(crate) fn append(&mut self, frame: &[u8], chain: Chain) -> Result<(), VolumeError> {
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        if frame.len() > super::archive::MAX_FRAME_BYTES {
            return Err(self.io(io::Error::other("a frame is longer than frames are")));
        }
        self.block.append(frame, chain).map_err(|error| self.io(io::Error::other(error)))?;
        self.full_bytes += u64::from(length);
        self.last = self.last.next();
        self.chain = chain;
        if self.block.len() >= self.block_bytes { self.end_block() } else { Ok(()) }
    }

    /// Completes the volume and renames it into place, where it replaces one of the same name.
    /// Returns once that is durable.
    pub(crate) fn finish(mut self) -> Result<Volume, VolumeError> {
        self.end_block()?;
        let index = std::mem::take(&mut self.index);
        let mut trailer = Vec::with_capacity(TRAILER_BYTES);
        trailer.extend_from_slice(&self.blocks.to_be_bytes());
        trailer.extend_from_slice(&self.first.get().to_be_bytes());
        trailer.extend_from_slice(&self.last.get().to_be_bytes());
        trailer.extend_from_slice(&self.before);
        trailer.extend_from_slice(&self.chain);
        trailer.extend_from_slice(&self.full_bytes.to_be_bytes());
        trailer.extend_from_slice(&index_hash(&index, &trailer));
        trailer.extend_from_slice(END_MAGIC);
        self.put_skippable(index.len() + trailer.len())?;
        self.put(&index)?;
        self.put(&trailer)?;
        let Self { path, partial, file, .. } = self;
        let in_place = || {
            let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            disk::put_in_place(&partial, &path)
        };
        in_place().map_err(|source| VolumeError::Io { path: path.clone(), source })?;
        Volume::open(path)
    }

    /// Gives it up, and removes what was written.
    pub(crate) fn abandon(self) -> Result<(), VolumeError> {
        fs::remove_file(&self.partial).map_err(|source| self.io(source))
    }

    fn end_block(&mut self) -> Result<(), VolumeError> {
        if self.last < self.block_first {
            return Ok(());
        }
        let block = std::mem::replace(&mut self.block, ShortBlock::begin(self.chain)).end();
        let packed = self.packer.compress(&block).map_err(|source| self.io(source))?;
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes();
        self.index.extend_from_slice(&self.block_first.get().to_be_bytes());
        self.index.extend_from_slice(&self.written.to_be_bytes());
        self.index.extend_from_slice(&length(packed.len()));
        self.index.extend_from_slice(&length(block.len()));
        self.blocks += 1;
        self.put(&packed)?;
        self.block_first = self.last.next();
        Ok(())
    }

    fn put_skippable(&mut self, length: usize) -> Result<(), VolumeError> {
        let length = u32::try_from(length)
            .map_err(|_| self.io(io::Error::other("a volume has too many blocks")))?;
        self.put(&SKIPPABLE.to_le_bytes())?;
        self.put(&length.to_le_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), VolumeError> {
        self.file.write_all(bytes).map_err(|source| self.io(source))?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn io(&self, source: io::Error) -> VolumeError {
        VolumeError::Io { path: self.partial.clone(), source }
    }
}

/// blake3 of the index and of the trailer before its hash.
fn index_hash(index: &[u8], trailer: &[u8]) -> [u8; 32] {
    let said = TRAILER_BYTES - 32 - END_MAGIC.len();
    let mut hasher = blake3::Hasher::new();
    hasher.update(index).update(&trailer[..said]);
    *hasher.finalize().as_bytes()
}

/// Reads fields of fixed lengths from the front of bytes that are long enough.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        if let Some((bytes, rest)) = self.0.split_first_chunk::<N>() {
            field = *bytes;
            self.0 = rest;
        }
        field
    }
}

#[cfg(test)]
mod tests {
    use logcabin_record::codec::{self, Tip};

    use super::*;
    use crate::samples;

    /// The tip before the record `first`.
    fn before(first: u64) -> Tip {
        Tip { offset: Offset::new(first).prev(), chain: [1; 32], ..Tip::default() }
    }

    /// Frames of all sizes, with their chain values.
    fn frames(first: u64, count: u64) -> Vec<(Vec<u8>, Chain)> {
        let mut tip = before(first);
        let frame = |number: u64| {
            let length = usize::try_from(number % 7).unwrap() * 400 + 1;
            let record = samples::record("room/!r", vec![b'x'; length]);
            let (record, frame) = tip.extend(record, 0, 5).unwrap();
            (frame, record.chain)
        };
        (first..first + count).map(frame).collect()
    }

    fn written(dir: &Path, first: u64, count: u64, packing: Packing) -> Volume {
        let before = before(first).chain;
        let mut writer = Writer::create(dir, Offset::new(first), before, packing).unwrap();
        for (frame, chain) in frames(first, count) {
            writer.append(&frame, chain).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn every_record_comes_back_from_every_block() {
        for (packing, count) in [(Packing::RANDOM, 500), (Packing::SEQUENTIAL, 2000)] {
            let dir = tempfile::tempdir().unwrap();
            let volume = written(dir.path(), 7, count, packing);
            assert!(volume.blocks() > 3, "{}", volume.blocks());
            assert_eq!((volume.first.get(), volume.last.get()), (7, 6 + count));
            let frames = frames(7, count);
            assert_eq!((volume.before, volume.chain), ([1; 32], frames.last().unwrap().1));
            for (offset, (frame, _)) in (7..).map(Offset::new).zip(&frames) {
                let block = volume.block(volume.block_of(offset)).unwrap();
                assert_eq!(block.get(offset).unwrap(), frame, "{offset}");
            }
            let last = volume.block(volume.blocks() - 1).unwrap();
            assert_eq!(last.get(volume.last.next()), None);
            assert!(volume.disk_bytes().unwrap() < volume.full_bytes / 3, "it is compressed");
            assert_eq!(list(dir.path()).unwrap().len(), 1);
        }
    }

    #[test]
    fn volumes_with_whole_frames_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let volume = written(dir.path(), 7, 20, Packing::RANDOM);
        let frames = frames(7, 20);
        let mut block = Vec::new();
        frames.iter().for_each(|(frame, _)| block::append(&mut block, frame));
        let packed = zstd::bulk::compress(&block, 1).unwrap();
        let header = [&SKIPPABLE.to_le_bytes()[..], &8_u32.to_le_bytes(), MAGIC, &[WHOLE]].concat();
        let mut index = 7_u64.to_be_bytes().to_vec();
        index.extend((header.len() as u64).to_be_bytes());
        index.extend((packed.len() as u32).to_be_bytes());
        index.extend((block.len() as u32).to_be_bytes());
        let good = fs::read(&volume.path).unwrap();
        let mut trailer = good[good.len() - TRAILER_BYTES..].to_vec();
        let at = TRAILER_BYTES - 32 - END_MAGIC.len();
        let hash = index_hash(&index, &trailer);
        trailer[at..at + 32].copy_from_slice(&hash);
        let length = (index.len() + trailer.len()) as u32;
        let skipped = [&SKIPPABLE.to_le_bytes()[..], &length.to_le_bytes()].concat();
        fs::write(&volume.path, [header, packed, skipped, index, trailer].concat()).unwrap();
        let volume = Volume::open(volume.path).unwrap();
        for (offset, (frame, _)) in (7..).map(Offset::new).zip(&frames) {
            assert_eq!(volume.block(0).unwrap().get(offset).unwrap(), frame);
        }
    }

    #[test]
    fn zstd_tools_can_read_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        let volume = written(dir.path(), 1, 100, Packing::RANDOM);
        let all = zstd::stream::decode_all(File::open(&volume.path).unwrap()).unwrap();
        let (frame, chain) = frames(1, 100).pop().unwrap();
        let mut short = Vec::new();
        codec::shorten(&frame, &mut short).unwrap();
        assert!(all.ends_with(&[short, chain.to_vec()].concat()));
    }

    #[test]
    fn altered_bytes_are_detected() {
        let read = |volume: Volume| -> Result<_, VolumeError> {
            let mut frames = Vec::new();
            for number in 0..volume.blocks() {
                let block = volume.block(number)?;
                let (first, last) = volume.records_of(number);
                frames.extend((first.get()..=last.get()).map(|at| block.get(Offset::new(at))));
            }
            Ok((volume.first, volume.last, frames))
        };
        let dir = tempfile::tempdir().unwrap();
        let volume = written(dir.path(), 1, 60, Packing::RANDOM);
        let good = fs::read(&volume.path).unwrap();
        let all = read(volume).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            let path = dir.path().join("bad");
            fs::write(&path, &bad).unwrap();
            let read = Volume::open(path).and_then(read);
            // Some bits do not matter, such as those between the blocks and the index.
            assert!(
                read.is_err() || read.is_ok_and(|read| read == all),
                "byte {at} of {}",
                good.len()
            );
        }
    }

    #[test]
    fn an_unfinished_file_is_not_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        let first = Offset::new(1);
        let begun = || {
            let mut writer = Writer::create(dir.path(), first, [1; 32], Packing::RANDOM).unwrap();
            let (frame, chain) = frames(1, 1).pop().unwrap();
            writer.append(&frame, chain).unwrap();
            writer
        };
        drop(begun());
        assert!(list(dir.path()).unwrap().is_empty());
        begun().abandon().unwrap();
        assert!(disk::entries(dir.path()).unwrap().is_empty());
        assert!(list(&dir.path().join("none")).unwrap().is_empty());
    }
}
