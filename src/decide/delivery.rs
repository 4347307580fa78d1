//! Delivery positions of outside receivers.

use super::{Commit, Proposal, Refusal};
use logcabin_record::{Stream, command::DeliveryAdvance};
use logcabin_state::deliveries::Position;

/// Record the delivery position of an outside receiver.
#[derive(Clone, Debug)]
pub struct Advance {
    /// The receiver.
    pub to: String,
    pub position: Position,
}

impl Proposal for Advance {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::delivery(&self.to)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let before = commit.env.state.deliveries.position(&self.to);
        if before.as_ref() == Some(&self.position) {
            return Ok(());
        }
        // A position never moves back.
        if before.is_some_and(|before| before.done > self.position.done) {
            return Err(Refusal::BadState("A later position is recorded already.".to_owned()));
        }
        let Position { done, under_way, set_aside } = self.position.clone();
        let to = self.to.clone();
        commit.append(self.stream(), DeliveryAdvance { to, done, under_way, set_aside });
        Ok(())
    }
}
