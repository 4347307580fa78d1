//! Write a snapshot of the projections.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::Form,
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

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(context.snapshots.make().await?)
    }
}
