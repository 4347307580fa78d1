//! What follows from commands about other homeservers.

use super::{Applied, Apply, At};
use crate::{
    record::command::{PeerKeys, ServerKey},
    state::State,
};

impl Apply for ServerKey {
    fn apply(self, state: &State, at: At) -> Applied {
        state.peers.sign_with(state.server().as_deref(), self, at.time_ms);
        Ok(Vec::new())
    }
}

impl Apply for PeerKeys {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.peers.learn(at.offset, self));
        Ok(Vec::new())
    }
}
