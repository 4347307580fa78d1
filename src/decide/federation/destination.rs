//! Operators' orders about unreachable homeservers.

use ruma::OwnedServerName;

use crate::{Commit, Proposal, Refusal};
use logcabin_record::{
    Stream,
    command::{Failing, PeerReached, Reached, SetAside},
};

/// Retry a failing homeserver at once.
#[derive(Clone, Debug)]
pub struct RetryDestination {
    pub server_name: OwnedServerName,
    /// The present time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

impl Proposal for RetryDestination {
    /// Whether it fails. If it does not, there is nothing to retry.
    type Outcome = bool;

    fn stream(&self) -> Stream {
        Stream::delivery("federation")
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let known = commit.env.state.destinations.get(&self.server_name);
        let Some(known) = known else { return Ok(false) };
        let Some(failing) = known.failing else { return Ok(false) };
        let reached = Reached {
            server_name: self.server_name.clone(),
            up_to: known.up_to,
            failing: Some(Failing { again_ms: self.now_ms, ..failing }),
            set_aside: known.set_aside,
        };
        commit.append(self.stream(), PeerReached { servers: vec![reached] });
        Ok(true)
    }
}

/// Forget that a homeserver failed and what was set aside for it, and drop everything that waits
/// for it.
#[derive(Clone, Debug)]
pub struct ResetDestination {
    pub server_name: OwnedServerName,
}

impl Proposal for ResetDestination {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::delivery("federation")
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let up_to = commit.env.state.applied();
        let server_name = self.server_name.clone();
        let reached = Reached { server_name, up_to, failing: None, set_aside: SetAside::default() };
        commit.append(self.stream(), PeerReached { servers: vec![reached] });
        Ok(())
    }
}
