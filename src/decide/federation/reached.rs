//! The delivery positions of other homeservers.

use crate::{Commit, Proposal, Refusal};
use logcabin_record::{
    Stream,
    command::{PeerReached, Reached},
};

/// Record the delivery positions of homeservers.
#[derive(Clone, Debug)]
pub struct NoteReached(pub Vec<Reached>);

impl Proposal for NoteReached {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::delivery("federation")
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let destinations = &commit.env.state.destinations;
        let servers = self.0.iter().filter(|reached| {
            destinations.get(&reached.server_name).is_none_or(|before| {
                before.up_to < reached.up_to
                    || (before.up_to == reached.up_to
                        && (before.failing != reached.failing
                            || before.set_aside != reached.set_aside))
            })
        });
        let servers: Vec<_> = servers.cloned().collect();
        if !servers.is_empty() {
            commit.append(self.stream(), PeerReached { servers });
        }
        Ok(())
    }
}
