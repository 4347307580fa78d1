//! Write a snapshot of the projections.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    form::Form,
    office::{ActError, Office},
};
use logcabin_snapshot as snapshot;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WriteSnapshot {}

impl Act for WriteSnapshot {
    const NAME: &'static str = "write-snapshot";
    const DONE: &'static str = "snapshot";
    type Done = snapshot::Header;

    const FORM: Option<&'static Form> =
        Some(&Form { title: "Write a snapshot", fields: &[], is_final: false, foretells: false });

    async fn perform(self, office: &Office, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(office.snapshots.make().await?)
    }
}
