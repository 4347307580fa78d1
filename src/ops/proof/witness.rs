//! Verifies the checkpoints of a log while it is read from its first record on.

use std::collections::VecDeque;

use super::check;
use logcabin_record::{
    Chain, Command, Offset, Record, codec,
    command::{Body as _, LogCheckpoint, ServerIdentity},
    merkle::{self, Frontier, Hash},
};

/// A checkpoint that covers less than this is not checked: checkpoints cover what was just applied,
/// except for what was written at the same moment.
const FURTHEST: usize = 1 << 18;

/// Why a checkpoint is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It names another server, or another key.
    #[error("the checkpoint is of {0}, not of this server")]
    Server(String),
    /// The signature is invalid.
    #[error("the checkpoint's signature is not the server's")]
    Signature,
    /// It covers records after itself, or fewer than an earlier one.
    #[error("the checkpoint covers the log up to record {0}, which cannot be")]
    Upto(Offset),
    /// The root differs.
    #[error("up to record {0} the tree has another root than the checkpoint says")]
    Root(Offset),
    /// The chain value differs.
    #[error("at record {0} the chain has another value than the checkpoint says")]
    Chain(Offset),
}

/// Compares each checkpoint with the records that it covers.
#[derive(Debug, Default)]
pub struct Witness {
    /// The tree as of the last checkpoint, and the chain value there.
    frontier: Frontier,
    chain: Chain,
    /// The leaves and chain values since then.
    since: VecDeque<(Hash, Chain)>,
    checked: u64,
}

impl Witness {
    /// Takes the next record, and verifies it if it is a checkpoint. `server` is the identity in
    /// the log.
    ///
    /// # Errors
    /// What is wrong with a checkpoint. The next record can be taken nevertheless.
    pub fn take(&mut self, record: &Record, server: Option<&ServerIdentity>) -> Result<(), Fault> {
        let header = codec::encode_header(&record.header).unwrap_or_default();
        self.since.push_back((merkle::leaf(&header), record.chain));
        if self.since.len() > FURTHEST {
            self.forward();
        }
        if *record.header.kind != *LogCheckpoint::KIND.name {
            return Ok(());
        }
        match record.command() {
            Ok(Some(Command::LogCheckpoint(said))) => self.check(record.offset(), &said, server),
            _ => Ok(()),
        }
    }

    /// The number of valid checkpoints.
    pub const fn checked(&self) -> u64 {
        self.checked
    }

    /// The last record that a valid checkpoint covers, if there is one.
    pub fn vouched(&self) -> Option<Offset> {
        (self.checked > 0).then(|| Offset::new(self.frontier.size()))
    }

    fn check(
        &mut self,
        offset: Offset,
        said: &LogCheckpoint,
        server: Option<&ServerIdentity>,
    ) -> Result<(), Fault> {
        match server {
            Some(server) => check(said, server)?,
            None => return Err(Fault::Server(said.server_name.clone())),
        }
        let upto = said.upto;
        if upto >= offset || upto.get() < self.frontier.size() {
            return Err(Fault::Upto(upto));
        }
        while self.frontier.size() < upto.get() {
            self.forward();
        }
        if self.frontier.root() != said.root {
            return Err(Fault::Root(upto));
        }
        if self.chain != said.chain {
            return Err(Fault::Chain(upto));
        }
        self.checked += 1;
        Ok(())
    }

    fn forward(&mut self) {
        if let Some((leaf, chain)) = self.since.pop_front() {
            self.frontier.push(leaf, |_, _| ());
            self.chain = chain;
        }
    }
}
