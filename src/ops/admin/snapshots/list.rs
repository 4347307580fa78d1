//! List the snapshots.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_snapshot::{SnapshotError, SnapshotFile};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ListSnapshots {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Snapshots {
    /// The newest first.
    pub snapshots: Vec<SnapshotFile>,
}

impl Act for ListSnapshots {
    const NAME: &'static str = "list-snapshots";
    const DONE: &'static str = "snapshots";
    type Done = Snapshots;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Snapshots, ActError> {
        Ok(list(context)?)
    }
}

/// The snapshots, the newest first.
pub fn list(context: &ActContext) -> Result<Snapshots, SnapshotError> {
    Ok(Snapshots { snapshots: context.snapshots.list()? })
}
