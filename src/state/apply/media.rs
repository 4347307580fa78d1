//! What follows from commands of uploaded files.

use super::{Applied, Apply, At};
use crate::{Effect, State};
use logcabin_record::command::{
    MediaCreate, MediaProtect, MediaQuarantine, MediaRemove, MediaUpload,
};

impl Apply for MediaCreate {
    fn apply(self, state: &State, at: At) -> Applied {
        state.media.create(at.time_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for MediaUpload {
    fn apply(self, state: &State, at: At) -> Applied {
        state.media.upload(at.offset, at.happened_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for MediaQuarantine {
    fn apply(self, state: &State, at: At) -> Applied {
        state.media.quarantine(at.offset, &self);
        state.remote_media.quarantine(at.offset, &self);
        Ok(Vec::new())
    }
}

impl Apply for MediaProtect {
    fn apply(self, state: &State, _: At) -> Applied {
        state.media.protect(self);
        Ok(Vec::new())
    }
}

impl Apply for MediaRemove {
    fn apply(self, state: &State, at: At) -> Applied {
        let (records, unnamed) = state.media.remove(&self.media_ids);
        state.erasures.condemn(at.offset, records);
        Ok(unnamed.into_iter().map(Effect::Unnamed).collect())
    }
}
