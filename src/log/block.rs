//! Blocks: the frames of consecutive records in one piece, as volumes and the default store pack
//! them.
//!
//! In a block, each frame follows its length (`u32`, big-endian). In a short block, the frames are
//! short ones ([`codec::shorten`]) between the chain value before them and that of the last.

use std::io;

use bytes::Bytes;
use parking_lot::Mutex;
use zstd::bulk::Decompressor;

use logcabin_record::{
    Chain, Offset,
    codec::{self, CodecError},
};

/// Contexts for decompression. Making one costs as much as decompressing a block: zstd allocates
/// 100 KB and asks the processor what it can do, which is slow in a virtual machine.
static UNPACKERS: Mutex<Vec<Decompressor<'static>>> = Mutex::new(Vec::new());

/// The most contexts that are kept.
const MAX_UNPACKERS: usize = 8;

/// Decompresses a zstd frame of at most `full` bytes.
///
/// # Errors
/// If the frame is damaged or longer.
pub(crate) fn decompress(packed: &[u8], full: usize) -> io::Result<Vec<u8>> {
    let kept = UNPACKERS.lock().pop();
    let mut unpacker = match kept {
        Some(unpacker) => unpacker,
        None => Decompressor::new()?,
    };
    let bytes = unpacker.decompress(packed, full)?;
    let mut unpackers = UNPACKERS.lock();
    if unpackers.len() < MAX_UNPACKERS {
        unpackers.push(unpacker);
    }
    Ok(bytes)
}

/// Why bytes are not a block.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BlockError {
    /// A frame ends outside of it.
    #[error("it ends inside a record")]
    Torn,
    #[error(transparent)]
    Record(#[from] CodecError),
}

/// Appends a frame to the bytes of a block.
pub(crate) fn append(block: &mut Vec<u8>, frame: &[u8]) {
    after_length(block, |block| block.extend_from_slice(frame));
}

/// Appends the length of what `append` appends, and then that.
fn after_length<T>(block: &mut Vec<u8>, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
    let at = block.len();
    block.extend_from_slice(&[0; 4]);
    let appended = append(block);
    // No frame is larger: see `MAX_FRAME_BYTES`.
    let length = u32::try_from(block.len() - at - 4).unwrap_or(u32::MAX);
    block[at..at + 4].copy_from_slice(&length.to_be_bytes());
    appended
}

/// A short block that is being written.
#[derive(Debug)]
pub(crate) struct ShortBlock {
    bytes: Vec<u8>,
    /// The chain value of the last record.
    chain: Chain,
}

impl ShortBlock {
    /// Begins a block after the record with this chain value.
    pub(crate) fn begin(before: Chain) -> Self {
        Self { bytes: before.to_vec(), chain: before }
    }

    /// Appends the frame of the next record, whose chain value is `chain`.
    pub(crate) fn append(&mut self, frame: &[u8], chain: Chain) -> Result<(), CodecError> {
        after_length(&mut self.bytes, |bytes| codec::shorten(frame, bytes))?;
        self.chain = chain;
        Ok(())
    }

    /// How many bytes there are, besides the last chain value.
    pub(crate) const fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&self.chain);
        self.bytes
    }
}

/// The frames of consecutive records.
#[derive(Debug)]
pub struct Block {
    first: Offset,
    frames: Bytes,
    /// Where each frame ends.
    ends: Vec<usize>,
    /// Whether it replaces a block that cannot be read.
    pub(crate) stands_in: bool,
}

impl Block {
    /// Reads a block whose first record is `first`.
    pub(crate) fn parse(first: Offset, frames: Bytes) -> Result<Self, BlockError> {
        let mut ends = Vec::new();
        let mut at = 0_usize;
        while at < frames.len() {
            let length = frames.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            let length = length.map(u32::from_be_bytes).ok_or(BlockError::Torn)?;
            at = at.saturating_add(4).saturating_add(length as usize);
            ends.push(at);
        }
        if at == frames.len() {
            Ok(Self { first, frames, ends, stands_in: false })
        } else {
            Err(BlockError::Torn)
        }
    }

    /// Reads a short block whose first record is `first`, and computes what it leaves out. What is
    /// altered in it breaks the chain.
    pub(crate) fn of_short(first: Offset, bytes: &[u8]) -> Result<Self, BlockError> {
        let (before, bytes) = bytes.split_first_chunk::<32>().ok_or(BlockError::Torn)?;
        let (mut bytes, last) = bytes.split_last_chunk::<32>().ok_or(BlockError::Torn)?;
        let (mut frames, mut ends) = (Vec::with_capacity(bytes.len() * 2), Vec::new());
        let mut chain = *before;
        while !bytes.is_empty() {
            let (length, rest) = bytes.split_first_chunk::<4>().ok_or(BlockError::Torn)?;
            let length = u32::from_be_bytes(*length) as usize;
            let (short, rest) = rest.split_at_checked(length).ok_or(BlockError::Torn)?;
            chain = after_length(&mut frames, |frames| codec::lengthen(short, &chain, frames))?;
            ends.push(frames.len());
            bytes = rest;
        }
        if chain != *last {
            return Err(CodecError::Chain.into());
        }
        Ok(Self { first, frames: Bytes::from(frames), ends, stands_in: false })
    }

    /// A block of these frames.
    pub(crate) fn of(first: Offset, records: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        let (mut frames, mut ends) = (Vec::new(), Vec::new());
        for frame in records {
            append(&mut frames, frame.as_ref());
            ends.push(frames.len());
        }
        Self { first, frames: Bytes::from(frames), ends, stands_in: false }
    }

    /// The frames of the records from `first` on, in place of a block that cannot be read.
    pub(crate) fn standing_in(first: Offset, records: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self { stands_in: true, ..Self::of(first, records) }
    }

    /// The number of records.
    pub(crate) fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    /// The frame of the record at `offset`.
    pub fn get(&self, offset: Offset) -> Option<Bytes> {
        let number = usize::try_from(offset.get().checked_sub(self.first.get())?).ok()?;
        let end = *self.ends.get(number)?;
        let begin = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        // A copy: a slice would keep the whole block in memory for as long as one record.
        Some(Bytes::copy_from_slice(&self.frames[begin + 4..end]))
    }

    /// Its approximate size in memory, in bytes.
    pub const fn weight(&self) -> u64 {
        (self.frames.len() + self.ends.len() * 8 + 64) as u64
    }
}
