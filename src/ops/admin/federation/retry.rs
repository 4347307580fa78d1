//! Retry an unreachable homeserver now.

use ruma::OwnedServerName;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    form::{Field, Form, Kind},
    office::{ActError, Office},
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

    async fn perform(self, office: &Office, by: Attribution) -> Result<Self::Done, ActError> {
        let server_name = office.destination(&self.server)?;
        let now_ms = office.engine.clock().now_ms();
        let retry = federation::RetryDestination { server_name: server_name.clone(), now_ms };
        let was_failing = office.propose(by, retry).await?;
        Ok(DestinationRetried { server_name, was_failing })
    }

    async fn effect(&self, office: &Office) -> Result<Vec<String>, ActError> {
        let server = office.destination(&self.server)?;
        let known = office.engine.state().destinations.get(&server);
        let is_failing = known.is_some_and(|known| known.failing.is_some());
        Ok(is_failing.then(|| format!("the server retries {server} at once")).into_iter().collect())
    }
}
