//! What follows from commands of end-to-end encryption.

use super::{Applied, Apply, At, Effect, wake};
use crate::State;
use logcabin_record::command::{
    KeyBackupDelete, KeyBackupPut, KeyBackupRemove, KeyBackupSet, KeysClaim, KeysCrossSign,
    KeysDrop, KeysPermitReset, KeysSign, KeysUpload,
};

impl Apply for KeysUpload {
    fn apply(self, state: &State, at: At) -> Applied {
        let user_id = self.user_id.clone();
        let renewed = state.keys.upload(at.offset, self);
        Ok(if renewed { state.device_list(&user_id) } else { wake(&user_id) })
    }
}

impl Apply for KeysClaim {
    fn apply(self, state: &State, at: At) -> Applied {
        state.keys.claim(at.offset, &self);
        Ok(wake(&self.user_id))
    }
}

impl Apply for KeysDrop {
    fn apply(self, state: &State, at: At) -> Applied {
        // What others recorded of their devices meanwhile was undone, too.
        state.device_lists.suspect_all(at.offset);
        Ok(state.keys.drop_all(at.offset).into_iter().map(Effect::WakeUser).collect())
    }
}

impl Apply for KeysCrossSign {
    fn apply(self, state: &State, at: At) -> Applied {
        let user_id = self.user_id.clone();
        state.oauth.use_reset(&user_id);
        let seen = state.keys.cross_sign(at.offset, self);
        Ok(if seen { state.device_list(&user_id) } else { wake(&user_id) })
    }
}

impl Apply for KeysPermitReset {
    fn apply(self, state: &State, _: At) -> Applied {
        state.oauth.permit_reset(self.user_id, self.until_ms);
        Ok(Vec::new())
    }
}

impl Apply for KeysSign {
    fn apply(self, state: &State, at: At) -> Applied {
        let (user_id, by) = (self.user_id.clone(), self.by.clone());
        state.keys.sign(at.offset, self);
        Ok(if by == user_id {
            state.device_list(&user_id)
        } else {
            // Whom a user has verified is visible to these two users only.
            vec![Effect::WakeUser(user_id), Effect::WakeUser(by)]
        })
    }
}

impl Apply for KeyBackupSet {
    fn apply(self, state: &State, at: At) -> Applied {
        state.key_backups.set(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for KeyBackupDelete {
    fn apply(self, state: &State, _: At) -> Applied {
        state.key_backups.delete(&self);
        Ok(Vec::new())
    }
}

impl Apply for KeyBackupPut {
    fn apply(self, state: &State, at: At) -> Applied {
        state.key_backups.put(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for KeyBackupRemove {
    fn apply(self, state: &State, at: At) -> Applied {
        state.key_backups.remove(at.offset, &self);
        Ok(Vec::new())
    }
}
