//! The values of the default store.
//!
//! Records that become durable together are one value, a *group*: one write to sled instead of one
//! for each record, and one compressed piece on the disk. `log_format.md`, "Keys and values in the
//! store", has the bytes.

use bytes::Bytes;
use parking_lot::Mutex;

use super::StoreError;
use crate::{
    archive::MAX_FRAME_BYTES,
    block::{self, Block},
};
use logcabin_record::{Offset, codec::FORMAT};

/// The first byte of a group. A value with any other is the frame of one record, as earlier
/// versions wrote them.
const GROUP: u8 = 2;
const _: () = assert!(GROUP != FORMAT);

/// The tag, the number of records, and the length of the block.
const HEADER_BYTES: usize = 1 + 4 + 4;

/// A group is closed before its block exceeds this, unless a single record does. sled keeps up to
/// 17 values on a page, and a page must stay below a quarter of a segment: see `database`.
const BLOCK_BYTES: usize = 64 * 1024;

const MAX_BLOCK_BYTES: usize = BLOCK_BYTES + MAX_FRAME_BYTES + 4;

/// The fastest level of zstd.
const LEVEL: i32 = 1;

/// Encodes and decodes groups. It keeps its context: to make one costs more than a group.
pub(super) struct Packer {
    packer: Mutex<zstd::bulk::Compressor<'static>>,
}

impl Packer {
    pub(super) fn new() -> std::io::Result<Self> {
        let mut packer = zstd::bulk::Compressor::new(LEVEL)?;
        // The checksum reveals a damaged group when it is read.
        packer.include_checksum(true)?;
        Ok(Self { packer: Mutex::new(packer) })
    }

    /// The values that hold `frames`, each with the offset of its first record.
    pub(super) fn pack(
        &self,
        frames: &[(Offset, Vec<u8>)],
    ) -> Result<Vec<(Offset, Vec<u8>)>, StoreError> {
        let mut packer = self.packer.lock();
        let (mut values, mut rest) = (Vec::with_capacity(1), frames);
        while let Some((first, _)) = rest.first() {
            let first = *first;
            let (mut count, mut block) = (0_u32, Vec::new());
            while let Some(((offset, frame), others)) = rest.split_first() {
                let continues = offset.get() == first.get() + u64::from(count);
                let fits = block.len() + frame.len() + 4 <= BLOCK_BYTES;
                if count > 0 && !(continues && fits) {
                    break;
                }
                block::append(&mut block, frame);
                (count, rest) = (count + 1, others);
            }
            let failed = |error| StoreError::Failed(format!("packing records failed: {error}"));
            let packed = packer.compress(&block).map_err(failed)?;
            let mut value = Vec::with_capacity(HEADER_BYTES + packed.len());
            value.push(GROUP);
            value.extend_from_slice(&count.to_be_bytes());
            value.extend_from_slice(&u32::try_from(block.len()).unwrap_or(u32::MAX).to_be_bytes());
            value.extend_from_slice(&packed);
            values.push((first, value));
        }
        Ok(values)
    }

    /// The records of the value whose first record is `first`.
    pub(super) fn unpack(first: Offset, value: &[u8]) -> Result<Block, StoreError> {
        let Some((count, full)) = header(value) else { return Ok(Block::of(first, [value])) };
        let damaged =
            |what: &dyn std::fmt::Display| StoreError::Damaged { first, what: what.to_string() };
        let full = full as usize;
        if full > MAX_BLOCK_BYTES {
            return Err(damaged(&"it is longer than groups are"));
        }
        let packed = value.get(HEADER_BYTES..).unwrap_or_default();
        let frames = block::decompress(packed, full).map_err(|error| damaged(&error))?;
        if frames.len() != full {
            return Err(damaged(&"it is not as long as it should be"));
        }
        let block = Block::parse(first, Bytes::from(frames)).map_err(|error| damaged(&error))?;
        if block.count() != u64::from(count) {
            return Err(damaged(&"it does not hold the records that it should"));
        }
        Ok(block)
    }
}

/// The number of records in a value, without unpacking it.
pub(super) fn count(value: &[u8]) -> u64 {
    match header(value) {
        Some((count, _)) => u64::from(count),
        None => 1,
    }
}

fn header(value: &[u8]) -> Option<(u32, u32)> {
    let (&tag, rest) = value.split_first()?;
    let number = |at: usize| rest.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes);
    (tag == GROUP).then(|| Some((number(0)?, number(4)?))).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(lengths: &[usize]) -> Vec<(Offset, Vec<u8>)> {
        let frame = |(length, at)| (Offset::new(at), vec![FORMAT; length]);
        lengths.iter().copied().zip(7..).map(frame).collect()
    }

    #[test]
    fn groups_hold_their_records_and_fit_on_a_page() {
        let packer = Packer::new().unwrap();
        for (lengths, groups) in [
            (vec![], 0),
            (vec![800], 1),
            (vec![800; 40], 1),
            (vec![BLOCK_BYTES, 10, 10], 2),
            (vec![10, 199_000, 10, 199_000], 4),
            (vec![800; 200], 3),
        ] {
            let frames = frames(&lengths);
            let values = packer.pack(&frames).unwrap();
            assert_eq!(values.len(), groups, "{lengths:?}");
            let mut expected = frames.iter();
            for (first, value) in &values {
                let block = Packer::unpack(*first, value).unwrap();
                assert_eq!(block.count(), count(value));
                for offset in first.get()..first.get() + block.count() {
                    let (at, frame) = expected.next().unwrap();
                    assert_eq!(at.get(), offset);
                    assert_eq!(block.get(*at).unwrap(), frame);
                }
            }
            assert!(expected.next().is_none());
        }
    }

    #[test]
    fn a_gap_ends_a_group() {
        let mut frames = frames(&[10, 10, 10]);
        frames.remove(1);
        let values = Packer::new().unwrap().pack(&frames).unwrap();
        let firsts: Vec<_> = values.iter().map(|(first, _)| first.get()).collect();
        assert_eq!(firsts, [7, 9]);
    }

    #[test]
    fn a_damaged_group_is_noticed() {
        let packer = Packer::new().unwrap();
        let values = packer.pack(&frames(&[700, 800, 900])).unwrap();
        let (first, value) = &values[0];
        let content =
            |block: &Block| (7..10).map(|at| block.get(Offset::new(at))).collect::<Vec<_>>();
        let good = content(&Packer::unpack(*first, value).unwrap());
        for at in 1..value.len() {
            for bit in 0..8 {
                let mut value = value.clone();
                value[at] ^= 1 << bit;
                match Packer::unpack(*first, &value) {
                    // Not every bit of a zstd frame matters.
                    Ok(block) => assert!(content(&block) == good, "byte {at}, bit {bit}"),
                    Err(error) => assert!(matches!(error, StoreError::Damaged { .. }), "{error}"),
                }
            }
            assert!(
                Packer::unpack(*first, &value[..at]).is_err() || at < HEADER_BYTES,
                "{at} bytes"
            );
        }
    }
}
