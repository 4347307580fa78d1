//! Compare the projections with a replay of the whole log.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::Form,
};
use logcabin_snapshot as snapshot;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CompareSnapshots {}

impl Act for CompareSnapshots {
    const NAME: &'static str = "compare-snapshots";
    const DONE: &'static str = "compared";
    type Done = snapshot::Status;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Compare the projections with a replay",
        fields: &[],
        is_final: false,
        foretells: false,
    });
    // A snapshot cannot verify itself.
    const REPLAYS: bool = true;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(context.snapshots.scrub().await?)
    }
}
