//! What follows from commands of the server as a whole.

use std::sync::Arc;

use super::{Applied, Apply, At};
use crate::State;
use logcabin_record::command::{
    AdminReason, AdminUndo, BackupMade, DeliveryAdvance, ImportBegin, ImportEnd, LogCheckpoint,
    LogErase, PolicyApprove, PolicyJudge, PolicySubscribe, PolicyUnsubscribe, ServerIdentity,
    ServerRestore,
};

impl Apply for ServerIdentity {
    fn apply(self, state: &State, _: At) -> Applied {
        *state.server.write() = Some(Arc::new(self));
        Ok(Vec::new())
    }
}

impl Apply for ServerRestore {
    fn apply(self, _: &State, _: At) -> Applied {
        // What it says is in its header, too: see `apply`.
        Ok(Vec::new())
    }
}

impl Apply for BackupMade {
    fn apply(self, state: &State, at: At) -> Applied {
        state.backups.made(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for LogErase {
    fn apply(self, state: &State, at: At) -> Applied {
        let runs = &self.superseded;
        let is_named = |record| {
            let at = runs.partition_point(|(_, last)| *last < record);
            runs.get(at).is_some_and(|(first, _)| *first <= record)
        };
        state.erasures.supersede(state.validations.forget(is_named));
        state.erasures.supersede(state.oauth.forget(at.time_ms, is_named));
        state.keys.forget_changes(self.taken.iter().map(|taken| (taken.first, taken.last)));
        state.erasures.erase(at.offset, at.time_ms, &self);
        Ok(Vec::new())
    }
}

impl Apply for LogCheckpoint {
    fn apply(self, state: &State, at: At) -> Applied {
        state.tree.note_checkpoint(at.offset, self.upto, at.time_ms);
        Ok(Vec::new())
    }
}

impl Apply for ImportBegin {
    fn apply(self, state: &State, at: At) -> Applied {
        state.imports.begin(at.offset, &self);
        Ok(Vec::new())
    }
}

impl Apply for ImportEnd {
    fn apply(self, state: &State, at: At) -> Applied {
        state.imports.end(at.offset);
        Ok(Vec::new())
    }
}

impl Apply for AdminReason {
    fn apply(self, _: &State, _: At) -> Applied {
        // For people to read: nothing follows from it.
        Ok(Vec::new())
    }
}

impl Apply for AdminUndo {
    fn apply(self, _: &State, _: At) -> Applied {
        // For people to read: what it undid is undone by the records before it.
        Ok(Vec::new())
    }
}

impl Apply for DeliveryAdvance {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.deliveries.advance(at.offset, self));
        Ok(Vec::new())
    }
}

impl Apply for PolicySubscribe {
    fn apply(self, state: &State, at: At) -> Applied {
        state.policy_lists.subscribe(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for PolicyUnsubscribe {
    fn apply(self, state: &State, _: At) -> Applied {
        state.policy_lists.unsubscribe(&self);
        Ok(Vec::new())
    }
}

impl Apply for PolicyJudge {
    fn apply(self, state: &State, at: At) -> Applied {
        state.policy_lists.judge(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for PolicyApprove {
    fn apply(self, state: &State, at: At) -> Applied {
        state.policy_lists.approve(at.offset, self);
        Ok(Vec::new())
    }
}
