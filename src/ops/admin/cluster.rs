//! The state of the cluster.

use serde::{Deserialize, Serialize};

use super::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_cluster::Status;

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ClusterStatus {}

impl Act for ClusterStatus {
    const NAME: &'static str = "cluster-status";
    const DONE: &'static str = "cluster-status";

    type Done = Status;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Status, ActError> {
        let Some(cluster) = &context.cluster else {
            return Err(ActError::invalid("this server is not a node of a running cluster"));
        };
        cluster.status().await.map_err(ActError::invalid)
    }
}
