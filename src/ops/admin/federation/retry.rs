//! Retry an unreachable homeserver now.

use ruma::OwnedServerName;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::federation;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RetryDestination {
    /// The homeserver's name.
    pub server: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DestinationRetried {
    pub server_name: OwnedServerName,
    /// Whether its last attempt failed. If not, nothing was done.
    pub was_failing: bool,
}

impl Act for RetryDestination {
    const NAME: &'static str = "retry-destination";
    const DONE: &'static str = "retried";
    type Done = DestinationRetried;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Retry a homeserver now",
        fields: &[Field::new("server", "Homeserver", Kind::Text)],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let server_name = context.destination(&self.server)?;
        let now_ms = context.engine.clock().now_ms();
        let retry = federation::RetryDestination { server_name: server_name.clone(), now_ms };
        let was_failing = context.propose(by, retry).await?;
        Ok(DestinationRetried { server_name, was_failing })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let server = context.destination(&self.server)?;
        let known = context.engine.state().destinations.get(&server);
        let is_failing = known.is_some_and(|known| known.failing.is_some());
        Ok(is_failing.then(|| format!("the server retries {server} at once")).into_iter().collect())
    }
}
