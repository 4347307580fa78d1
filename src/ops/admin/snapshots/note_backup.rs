//! Record that a backup was made.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_decide::maintenance;
use logcabin_record::command::BackupMade;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoteBackup {
    pub made: BackupMade,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BackupNoted {}

impl Act for NoteBackup {
    const NAME: &'static str = "note-backup";
    const DONE: &'static str = "noted";
    type Done = BackupNoted;

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<BackupNoted, ActError> {
        context.propose(by, maintenance::NoteBackup { made: self.made }).await?;
        Ok(BackupNoted {})
    }
}
