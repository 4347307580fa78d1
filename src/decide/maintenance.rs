//! Maintenance of the log.

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use ruma::signatures::KeyPair as _;

use super::{Commit, Proposal, Refusal};
use logcabin_record::{
    Stream,
    command::{BackupMade, LogCheckpoint},
};

/// Record that a backup was made.
#[derive(Clone, Debug)]
pub struct NoteBackup {
    pub made: BackupMade,
}

impl Proposal for NoteBackup {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        commit.append(self.stream(), self.made.clone());
        Ok(())
    }
}

/// Sign a checkpoint over all records that have been applied.
#[derive(Clone, Copy, Debug)]
pub struct SignCheckpoint {
    /// The time, in milliseconds since the Unix epoch.
    pub time_ms: u64,
}

impl Proposal for SignCheckpoint {
    type Outcome = ();

    // One after the other: each covers everything that the previous one covers.
    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let (state, keys) = (&commit.env.state, &commit.env.server);
        let tree = state.tree.root();
        let mut said = LogCheckpoint {
            server_name: keys.name.to_string(),
            upto: tree.upto,
            root: tree.root,
            chain: tree.chain,
            time_ms: self.time_ms,
            key_id: state.server().map(|server| server.key_id.clone()).unwrap_or_default(),
            signature: String::new(),
        };
        let signature = keys.key_pair.sign(said.statement().as_bytes());
        said.signature = STANDARD_NO_PAD.encode(signature.as_bytes());
        commit.append(self.stream(), said);
        Ok(())
    }
}
