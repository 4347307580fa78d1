//! Proofs about a log for people who do not have it.
//!
//! A *checkpoint* is a record with a signed statement of the server about its log: the number of
//! records, the chain value of the last, the root of the [Merkle tree](logcabin_record::merkle)
//! over their headers. [`keep`] makes them. Given one, a few dozen hashes prove that a record is in
//! the log ([`Prover::inclusion`]), or that the log of an earlier checkpoint, of a backup for
//! example, is a prefix of that of a later one ([`Prover::consistency`]). `log_format.md` defines
//! the bytes, and `examples/verify_proof.rs` verifies proofs with none of this code.

mod keeper;
mod witness;

use std::sync::Arc;

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ruma::{SigningKeyAlgorithm, signatures::verify_canonical_json_bytes};
use serde::{Deserialize, Serialize};

pub use keeper::{Policy, checkpoint};
pub use keeper::{keep, keep_last};
pub use witness::{Fault, Witness};

use logcabin_base::threads;
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::{Log, ReadError};
use logcabin_record::{
    Command, Offset, Origin, Payload, Record, codec,
    command::{LogCheckpoint, ServerIdentity},
    mask,
    merkle::{self, Hash},
};
use logcabin_state::{
    MerkleTree,
    merkle_tree::{BLOCK, CheckpointRange},
};

/// A proof, for a program to verify. Hashes and headers are in lower-case hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "proof", rename_all = "lowercase")]
pub enum Proof {
    /// A record is in the log.
    Inclusion {
        /// The record.
        offset: Offset,
        header: String,
        /// Its payload, if it was requested and exists: the bytes whose hash is in the header.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        payload: Option<String>,
        /// The sibling hashes on the way from the leaf to the root.
        path: Vec<String>,
        /// A checkpoint that covers the record.
        checkpoint: LogCheckpoint,
        /// The key of its signature, in unpadded base64: to be compared with a key from an
        /// independent source.
        public_key: String,
    },
    /// The log of one checkpoint is a prefix of that of another.
    Consistency {
        /// The earlier one.
        first: LogCheckpoint,
        /// The later one.
        second: LogCheckpoint,
        /// The hashes from which both roots are computed.
        path: Vec<String>,
        public_key: String,
    },
}

/// What to prove.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProofRequest {
    /// That a record is in the log.
    Inclusion {
        /// The record.
        offset: Offset,
        /// Whether to include its payload.
        payload: bool,
    },
    /// That the log of one checkpoint is a prefix of that of another.
    Consistency {
        /// The earlier one.
        first: First,
        /// The later one: the newest at or before this record, or the newest of all.
        second: Option<Offset>,
    },
}

/// The earlier checkpoint.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum First {
    /// The newest at or before this record.
    At(Offset),
    /// One from elsewhere, for example from a backup.
    Said(LogCheckpoint),
}

/// Why something cannot be proven.
#[derive(Debug, thiserror::Error)]
pub enum ProofError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("record {offset}: {source}")]
    Record { offset: Offset, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("no checkpoint could be made: {0}")]
    Propose(#[from] ProposeError),
    #[error("there is no record {offset}; the log ends at {end}")]
    NoRecord { offset: Offset, end: Offset },
    #[error("there is no checkpoint at or before record {0}")]
    NoCheckpoint(Offset),
    #[error("the payload of record {0} holds a secret, which is not shown; prove it without")]
    Secret(Offset),
    #[error(
        "the first checkpoint covers {first} records, and the second only {second}: name the earlier one first"
    )]
    Order {
        /// The last record of the first.
        first: Offset,
        /// The last record of the second.
        second: Offset,
    },
    #[error(
        "the log is not the one of this checkpoint: up to record {upto} it has the root {ours}, the checkpoint says {theirs}"
    )]
    Diverged {
        /// The last record of the checkpoint.
        upto: Offset,
        /// The root of this log.
        ours: String,
        /// The root in the checkpoint.
        theirs: String,
    },
    /// A given checkpoint was not signed by this server.
    #[error("{0}")]
    Checkpoint(Fault),
    /// The log has no identity yet.
    #[error("the log has no server yet")]
    NoServer,
}

/// Computes proofs from a log and its tree.
#[derive(Debug)]
pub struct Prover<'a> {
    tree: &'a MerkleTree,
    log: &'a dyn Log,
    server: &'a ServerIdentity,
    /// The leaves that were read last, starting at this index.
    leaves: (u64, Vec<Hash>),
}

impl<'a> Prover<'a> {
    /// A prover for `log` and its tree.
    pub fn new(tree: &'a MerkleTree, log: &'a dyn Log, server: &'a ServerIdentity) -> Self {
        Self { tree, log, server, leaves: (0, Vec::new()) }
    }

    /// Proves that the record at `offset` is in the log, by the newest checkpoint; `None` if that
    /// does not cover it. Blocks.
    ///
    /// # Errors
    /// When there is no such record, or its payload is requested and contains a secret.
    pub fn inclusion(
        &mut self,
        offset: Offset,
        with_payload: bool,
    ) -> Result<Option<Proof>, ProofError> {
        let end = self.tree.root().upto;
        if offset == Offset::ZERO || offset > end {
            return Err(ProofError::NoRecord { offset, end });
        }
        let Some(covered) = self.tree.checkpoint(Offset::MAX).filter(|is| offset <= is.upto) else {
            return Ok(None);
        };
        let record = self.log.get(offset)?.ok_or(ReadError::Missing(offset))?;
        let header = codec::encode_header(&record.header).map_err(|error| at(offset, error))?;
        let payload = match &record.payload {
            Payload::Present(bytes) if with_payload => {
                let shown = serde_json::from_slice(bytes).ok();
                if shown.is_none() || shown != mask::payload(&record) {
                    return Err(ProofError::Secret(offset));
                }
                String::from_utf8(bytes.to_vec()).ok()
            }
            _ => None,
        };
        let (index, size) = (offset.get() - 1, covered.upto.get());
        let path = merkle::inclusion(index, size, |from, to| self.subtree(from, to))?;
        Ok(Some(Proof::Inclusion {
            offset,
            header: hex(&header),
            payload,
            path: path.iter().map(|hash| hex(hash)).collect(),
            checkpoint: self.statement(covered)?,
            public_key: self.server.public_key.clone(),
        }))
    }

    /// Proves that the log of `first` is a prefix of that of the checkpoint `second`. Blocks.
    ///
    /// # Errors
    /// When that is not true, or this server did not sign `first`.
    pub fn consistency(
        &mut self,
        first: LogCheckpoint,
        second: CheckpointRange,
    ) -> Result<Proof, ProofError> {
        check(&first, self.server).map_err(ProofError::Checkpoint)?;
        if first.upto > second.upto || first.upto == Offset::ZERO {
            return Err(ProofError::Order { first: first.upto, second: second.upto });
        }
        let ours = self.subtree(0, first.upto.get())?;
        if ours != first.root {
            let (ours, theirs) = (hex(&ours), hex(&first.root));
            return Err(ProofError::Diverged { upto: first.upto, ours, theirs });
        }
        let (from, to) = (first.upto.get(), second.upto.get());
        let path = merkle::consistency(from, to, |from, to| self.subtree(from, to))?;
        Ok(Proof::Consistency {
            first,
            second: self.statement(second)?,
            path: path.iter().map(|hash| hex(hash)).collect(),
            public_key: self.server.public_key.clone(),
        })
    }

    /// Computes the requested proof. Blocks.
    ///
    /// # Errors
    /// As for [`Prover::inclusion`] and [`Prover::consistency`].
    pub fn answer(&mut self, asked: ProofRequest) -> Result<Proof, ProofError> {
        let checkpoint = |at| self.tree.checkpoint(at).ok_or(ProofError::NoCheckpoint(at));
        match asked {
            ProofRequest::Inclusion { offset, payload } => {
                let proof = self.inclusion(offset, payload)?;
                proof.ok_or(ProofError::NoCheckpoint(self.tree.root().upto))
            }
            ProofRequest::Consistency { first, second } => {
                let second = checkpoint(second.unwrap_or(Offset::MAX))?;
                let first = match first {
                    First::Said(said) => said,
                    First::At(at) => self.statement(checkpoint(at)?)?,
                };
                self.consistency(first, second)
            }
        }
    }

    /// The content of a checkpoint.
    pub fn statement(&self, covered: CheckpointRange) -> Result<LogCheckpoint, ProofError> {
        let offset = covered.record;
        let record = self.log.get(offset)?.ok_or(ReadError::Missing(offset))?;
        match record.command() {
            Ok(Some(Command::LogCheckpoint(said))) => Ok(said),
            Err(error) => Err(at(offset, error)),
            Ok(_) => Err(ProofError::NoCheckpoint(offset)),
        }
    }

    /// The root over the leaves from `from` to before `to`, a subtree of a tree over the log.
    fn subtree(&mut self, from: u64, to: u64) -> Result<Hash, ProofError> {
        let size = to - from;
        // A subtree of this size starts with a block.
        let kept = (size == BLOCK).then(|| self.tree.block(from / BLOCK)).flatten();
        match (size, kept) {
            (_, Some(root)) => Ok(root),
            (0, _) => Ok(merkle::empty()),
            (1, _) => self.leaf(from),
            _ => {
                let middle = from + merkle::split(size);
                let (left, right) = (self.subtree(from, middle)?, self.subtree(middle, to)?);
                Ok(merkle::node(&left, &right))
            }
        }
    }

    fn leaf(&mut self, index: u64) -> Result<Hash, ProofError> {
        let begin = index / BLOCK * BLOCK;
        if self.leaves.1.is_empty() || self.leaves.0 != begin {
            let records = self.log.read(Offset::new(begin + 1), BLOCK as usize)?;
            let leaf = |record: &Record| {
                let header = codec::encode_header(&record.header);
                header
                    .map(|header| merkle::leaf(&header))
                    .map_err(|error| at(record.offset(), error))
            };
            self.leaves = (begin, records.iter().map(leaf).collect::<Result<_, _>>()?);
        }
        let place = usize::try_from(index - begin).ok();
        let leaf = place.and_then(|place| self.leaves.1.get(place)).copied();
        leaf.ok_or_else(|| ReadError::Missing(Offset::new(index + 1)).into())
    }
}

/// Computes the requested proof, after making a checkpoint in the name of `origin` if the newest
/// one does not cover enough.
pub(crate) async fn make(
    engine: &Arc<Engine>,
    origin: Origin,
    asked: ProofRequest,
) -> Result<Proof, ProofError> {
    let needed = match &asked {
        ProofRequest::Inclusion { offset, .. } => *offset,
        ProofRequest::Consistency { first: First::Said(said), second: None } => said.upto,
        ProofRequest::Consistency { .. } => Offset::ZERO,
    };
    let tree = &engine.state().tree;
    let end = engine.state().applied();
    if needed > end {
        return Err(ProofError::NoRecord { offset: needed, end });
    }
    // Without a second one, the present log is meant.
    let of_now = matches!(asked, ProofRequest::Consistency { second: None, .. });
    let falls_short =
        |newest: CheckpointRange| newest.upto < needed || (of_now && newest.record < end);
    if tree.checkpoint(Offset::MAX).is_none_or(falls_short) {
        checkpoint(engine, origin).await?;
    }
    let engine = Arc::clone(engine);
    let made = threads::spawn_blocking(move || {
        let server = engine.state().server().ok_or(ProofError::NoServer)?;
        let state = engine.state();
        let mut prover = Prover::new(&state.tree, &**engine.log(), &server);
        prover.answer(asked)
    });
    made.await.unwrap_or(Err(ProofError::NoServer))
}

/// Verifies that `server` signed this.
pub fn check(said: &LogCheckpoint, server: &ServerIdentity) -> Result<(), Fault> {
    if said.server_name != server.server_name || said.key_id != server.key_id {
        return Err(Fault::Server(format!("{} with {}", said.server_name, said.key_id)));
    }
    let (key, signature) =
        (STANDARD_NO_PAD.decode(&server.public_key), STANDARD_NO_PAD.decode(&said.signature));
    let good = key.is_ok_and(|key| {
        signature.is_ok_and(|signature| {
            let statement = said.statement();
            let algorithm = SigningKeyAlgorithm::Ed25519;
            verify_canonical_json_bytes(&algorithm, &key, &signature, statement.as_bytes()).is_ok()
        })
    });
    if good { Ok(()) } else { Err(Fault::Signature) }
}

fn at(offset: Offset, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ProofError {
    ProofError::Record { offset, source: error.into() }
}

/// Bytes in lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
