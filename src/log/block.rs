//! Blocks: the frames of consecutive records in one piece, as volumes and the default store pack
//! them.
//!
//! In a block, each frame follows its length (`u32`, big-endian).

use std::io;

use bytes::Bytes;
use parking_lot::Mutex;
use zstd::bulk::Decompressor;

use logcabin_record::Offset;

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

/// The bytes are not a block: a frame ends outside of it.
#[derive(Debug, thiserror::Error)]
#[error("it ends inside a record")]
pub(crate) struct Torn;

/// Appends a frame to the bytes of a block.
pub(crate) fn append(block: &mut Vec<u8>, frame: &[u8]) {
    // No frame is larger: see `MAX_FRAME_BYTES`.
    block.extend_from_slice(&u32::try_from(frame.len()).unwrap_or(u32::MAX).to_be_bytes());
    block.extend_from_slice(frame);
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
    pub(crate) fn parse(first: Offset, frames: Bytes) -> Result<Self, Torn> {
        let mut ends = Vec::new();
        let mut at = 0_usize;
        while at < frames.len() {
            let length = frames.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            let length = length.map(u32::from_be_bytes).ok_or(Torn)?;
            at = at.saturating_add(4).saturating_add(length as usize);
            ends.push(at);
        }
        if at == frames.len() {
            Ok(Self { first, frames, ends, stands_in: false })
        } else {
            Err(Torn)
        }
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
