//! Write a snapshot of the projections.

use serde::{Deserialize, Serialize};

use crate::{
    ops::admin::{
        act::{Act, Attribution},
        office::{ActError, Office},
    },
    snapshot,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WriteSnapshot {}

impl Act for WriteSnapshot {
    const NAME: &'static str = "write-snapshot";
    const DONE: &'static str = "snapshot";
    type Done = snapshot::Header;

    async fn perform(self, office: &Office, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(office.snapshots.make().await?)
    }
}
