//! What follows from commands of third-party identifiers and their validation.

use super::{Applied, Apply, At};
use crate::State;
use logcabin_record::threepid::{
    Medium, ThreepidAdd, ThreepidBind, ThreepidRemove, ThreepidUnbind, ValidationComplete,
    ValidationMiss, ValidationRequest, ValidationSent, ValidationUse,
};

impl Apply for ValidationRequest {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.validations.request(at.offset, at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for ValidationSent {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.validations.sent(at.time_ms, &self));
        Ok(Vec::new())
    }
}

impl Apply for ValidationMiss {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.validations.miss(at.time_ms, &self));
        Ok(Vec::new())
    }
}

impl Apply for ValidationComplete {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.validations.complete(at.time_ms, &self));
        Ok(Vec::new())
    }
}

impl Apply for ValidationUse {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.validations.used(at.time_ms, &self));
        Ok(Vec::new())
    }
}

impl Apply for ThreepidAdd {
    fn apply(self, state: &State, _: At) -> Applied {
        state.threepids.add(self);
        Ok(Vec::new())
    }
}

impl Apply for ThreepidRemove {
    fn apply(self, state: &State, _: At) -> Applied {
        state.threepids.remove(&self);
        if self.threepid.medium == Medium::Email {
            let mails = state.pushers.remove_address(&self.user_id, &self.threepid.address);
            state.erasures.supersede(mails);
        }
        Ok(Vec::new())
    }
}

impl Apply for ThreepidBind {
    fn apply(self, state: &State, _: At) -> Applied {
        state.threepids.bind(self);
        Ok(Vec::new())
    }
}

impl Apply for ThreepidUnbind {
    fn apply(self, state: &State, _: At) -> Applied {
        state.threepids.unbind(self);
        Ok(Vec::new())
    }
}
