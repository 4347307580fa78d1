//! Report up to which offset the projections were verified.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_snapshot as snapshot;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SnapshotStatus {}

impl Act for SnapshotStatus {
    const NAME: &'static str = "snapshot-status";
    const DONE: &'static str = "snapshot-status";
    type Done = snapshot::Status;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(context.snapshots.status())
    }
}
