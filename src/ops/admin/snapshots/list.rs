//! List the snapshots.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    office::{ActError, Office},
};
use logcabin_snapshot::{Kept, SnapshotError};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ListSnapshots {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshots {
    /// The newest first.
    pub snapshots: Vec<Kept>,
}

impl Act for ListSnapshots {
    const NAME: &'static str = "list-snapshots";
    const DONE: &'static str = "snapshots";
    type Done = Snapshots;

    async fn perform(self, office: &Office, _: Attribution) -> Result<Snapshots, ActError> {
        Ok(list(office)?)
    }
}

/// The snapshots, the newest first.
pub fn list(office: &Office) -> Result<Snapshots, SnapshotError> {
    Ok(Snapshots { snapshots: office.snapshots.list()? })
}
