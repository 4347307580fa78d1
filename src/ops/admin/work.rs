//! Show the server's long-running work, and its progress.

use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::progress::{self, Progress};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ListWork {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkList {
    /// The oldest first.
    pub work: Vec<Progress>,
}

impl Act for ListWork {
    const NAME: &'static str = "list-work";
    const DONE: &'static str = "work";
    type Done = WorkList;

    async fn perform(self, _: &ActContext, _: Attribution) -> Result<WorkList, ActError> {
        Ok(WorkList { work: progress::under_way() })
    }
}
