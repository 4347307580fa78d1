//! What is done for the log as a whole.

use super::{Commit, Proposal, Refusal};
use crate::record::{Stream, command::BackupMade};

/// Note that a backup was made.
#[derive(Clone, Debug)]
pub struct NoteBackup {
    /// Which.
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
