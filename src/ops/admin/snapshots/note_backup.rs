//! Record that a backup was made.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    office::{ActError, Office},
};
use logcabin_decide::maintenance;
use logcabin_record::command::BackupMade;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoteBackup {
    pub made: BackupMade,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Noted {}

impl Act for NoteBackup {
    const NAME: &'static str = "note-backup";
    const DONE: &'static str = "noted";
    type Done = Noted;

    async fn perform(self, office: &Office, by: Attribution) -> Result<Noted, ActError> {
        office.propose(by, maintenance::NoteBackup { made: self.made }).await?;
        Ok(Noted {})
    }
}
