//! List the snapshots.

use serde::{Deserialize, Serialize};

use crate::{
    ops::admin::{
        act::{Act, Attribution},
        office::{ActError, Office},
    },
    snapshot::{Kept, SnapshotError},
};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct ListSnapshots {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Snapshots {
    /// The newest first.
    pub(crate) snapshots: Vec<Kept>,
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
pub(crate) fn list(office: &Office) -> Result<Snapshots, SnapshotError> {
    Ok(Snapshots { snapshots: office.snapshots.list()? })
}
