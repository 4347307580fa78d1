//! The [Merkle tree](logcabin_record::merkle) over the records, and the checkpoints of it.
//!
//! It stores the frontier, which gives the root, and the roots over each [`BLOCK`] of leaves. With
//! these, a proof needs to read at most two blocks of records.

use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Chain, Offset, Record, codec,
    merkle::{self, Frontier, Hash},
};

/// The number of leaves under each stored root, which takes 32 bytes of memory.
pub const BLOCK: u64 = 1 << BLOCK_LEVEL;
const BLOCK_LEVEL: u32 = 10;

/// The tree.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct MerkleTree(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    frontier: Frontier,
    /// The chain value of the last record.
    chain: Chain,
    blocks: Vec<Hash>,
    checkpoints: Vec<CheckpointRange>,
    /// The time of the last checkpoint, or else of the first record, in milliseconds.
    since_ms: u64,
}

/// What a checkpoint covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointRange {
    /// The record of the checkpoint.
    pub record: Offset,
    /// The last record that it covers, an earlier one.
    pub upto: Offset,
}

/// The tree as of its last leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Root {
    /// The last record, which is the number of leaves.
    pub upto: Offset,
    pub root: Hash,
    /// The chain value of the last record.
    pub chain: Chain,
}

impl MerkleTree {
    /// The present tree.
    pub fn root(&self) -> Root {
        let inner = self.0.read();
        Root {
            upto: Offset::new(inner.frontier.size()),
            root: inner.frontier.root(),
            chain: inner.chain,
        }
    }

    /// The newest checkpoint whose record is at or before `at`.
    pub fn checkpoint(&self, at: Offset) -> Option<CheckpointRange> {
        let inner = self.0.read();
        let after = inner.checkpoints.partition_point(|covered| covered.record <= at);
        inner.checkpoints[..after].last().copied()
    }

    /// Up to `limit` of the newest checkpoints whose records are before `before`, the newest first,
    /// and how many there are in all.
    pub fn checkpoints(&self, before: Offset, limit: usize) -> (Vec<CheckpointRange>, usize) {
        let inner = self.0.read();
        let end = inner.checkpoints.partition_point(|covered| covered.record < before);
        let newest = inner.checkpoints[..end].iter().rev().take(limit);
        (newest.copied().collect(), inner.checkpoints.len())
    }

    /// The time of the last checkpoint, or else of the first record, in milliseconds since the Unix
    /// epoch.
    pub fn since_ms(&self) -> u64 {
        self.0.read().since_ms
    }

    /// The root over the leaves of this block, once it is full.
    pub fn block(&self, number: u64) -> Option<Hash> {
        let index = usize::try_from(number).ok()?;
        self.0.read().blocks.get(index).copied()
    }

    pub(super) fn add(&self, record: &Record) {
        // A record from a log fits its format.
        let header = codec::encode_header(&record.header).unwrap_or_default();
        let mut inner = self.0.write();
        let Inner { frontier, blocks, .. } = &mut *inner;
        frontier.push(merkle::leaf(&header), |level, root| {
            if level == BLOCK_LEVEL {
                blocks.push(*root);
            }
        });
        inner.chain = record.chain;
        if inner.frontier.size() == 1 {
            inner.since_ms = record.header.time_ms;
        }
    }

    pub(super) fn note_checkpoint(&self, record: Offset, upto: Offset, time_ms: u64) {
        let mut inner = self.0.write();
        inner.checkpoints.push(CheckpointRange { record, upto });
        inner.since_ms = time_ms;
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
