//! Is anything wrong, and how is the server?

use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use crate::doctor::{Report, ServerStatus, examine, status};
use logcabin_base::background::at_length;

/// Examines the server, which takes some seconds: other servers are asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Examine {}

impl Act for Examine {
    const NAME: &'static str = "examine";
    const DONE: &'static str = "examined";
    type Done = Report;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Report, ActError> {
        Ok(examine(context, None).await)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowStatus {}

impl Act for ShowStatus {
    const NAME: &'static str = "show-status";
    const DONE: &'static str = "status";
    type Done = Box<ServerStatus>;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        at_length(|| status(context)).map(Box::new)
    }
}
