//! Show the server's long-running work, and its progress.

use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    office::{ActError, Office},
};
use logcabin_base::progress::{self, Progress};

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ListWork {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UnderWay {
    /// The oldest first.
    pub work: Vec<Progress>,
}

impl Act for ListWork {
    const NAME: &'static str = "list-work";
    const DONE: &'static str = "work";
    type Done = UnderWay;

    async fn perform(self, _: &Office, _: Attribution) -> Result<UnderWay, ActError> {
        Ok(UnderWay { work: progress::under_way() })
    }
}
