//! What follows from commands of pushers.

use super::{Applied, Apply, At};
use crate::State;
use logcabin_record::pusher::{PusherAdvance, PusherMail, PusherRemove, PusherSet};

impl Apply for PusherSet {
    fn apply(self, state: &State, at: At) -> Applied {
        state.pushers.set(at.offset, at.happened_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for PusherRemove {
    fn apply(self, state: &State, _: At) -> Applied {
        state.erasures.supersede(state.pushers.remove(&self));
        Ok(Vec::new())
    }
}

impl Apply for PusherAdvance {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.pushers.advance(at.offset, self));
        Ok(Vec::new())
    }
}

impl Apply for PusherMail {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.pushers.mail(at.offset, at.time_ms, &self));
        Ok(Vec::new())
    }
}
