//! What follows from commands of accounts.

use super::{Applied, Apply, At, Effect, wake};
use crate::{State, erasures};
use logcabin_record::{
    Offset,
    command::{
        AccountDataSet, FilterCreate, LoginTokenUse, PresenceSet, ProfileSet,
        RegistrationTokenRemove, RegistrationTokenSet, SsoLink, UserDeactivate, UserErase,
        UserPassword, UserRedact, UserRedactFinish, UserRegister, UserStatus, UserUpgrade,
        UserWait,
    },
};

impl Apply for UserRegister {
    fn apply(self, state: &State, at: At) -> Applied {
        state.names.add(&self.user_id);
        state.registration_tokens.count_use(self.met.registration_token.as_ref());
        state.accounts.register(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for UserUpgrade {
    fn apply(self, state: &State, at: At) -> Applied {
        state.registration_tokens.count_use(self.met.registration_token.as_ref());
        state.accounts.upgrade(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for UserWait {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.wait(at.offset, &self.user_id);
        // Nobody finds somebody who is not here yet.
        state.names.remove(&self.user_id);
        Ok(wake(&self.user_id))
    }
}

impl Apply for RegistrationTokenSet {
    fn apply(self, state: &State, _: At) -> Applied {
        state.registration_tokens.set(self);
        Ok(Vec::new())
    }
}

impl Apply for RegistrationTokenRemove {
    fn apply(self, state: &State, _: At) -> Applied {
        state.registration_tokens.remove(&self.registration_token);
        Ok(Vec::new())
    }
}

impl Apply for UserPassword {
    fn apply(self, state: &State, at: At) -> Applied {
        if !self.renewed {
            state.oauth.sign_out_everywhere(&self.user_id);
        }
        state.accounts.set_password(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for LoginTokenUse {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.use_login_token(at.offset, at.time_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for SsoLink {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.link(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for UserStatus {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.set_status(at.offset, &self);
        if self.approved == Some(true)
            && let Some(account) = state.accounts.get(&self.user_id)
            && account.read().standing.deactivated.is_none()
        {
            let name = account.read().profile_field("displayname").cloned();
            state.names.add(&self.user_id);
            state
                .names
                .set_display_name(&self.user_id, name.as_ref().and_then(|name| name.as_str()));
        }
        // Waiting syncs of a locked user are to end now.
        Ok(wake(&self.user_id))
    }
}

impl Apply for UserDeactivate {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.deactivate(at.offset, &self);
        state.erasures.supersede(state.oauth.forget_user(at.time_ms, &self.user_id));
        state.names.remove(&self.user_id);
        state.threepids.drop_user(&self.user_id);
        state.erasures.supersede(state.pushers.remove_user(&self.user_id));
        if self.erase {
            state.forget_user(at.offset, &self);
        }
        Ok(if state.keys.forget(at.offset, &self.user_id) {
            state.device_list(&self.user_id)
        } else {
            wake(&self.user_id)
        })
    }
}

impl Apply for ProfileSet {
    fn apply(self, state: &State, at: At) -> Applied {
        if self.field == "displayname" {
            let name = self.value.as_ref().and_then(serde_json::Value::as_str);
            state.names.set_display_name(&self.user_id, name);
        }
        state.accounts.set_profile(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for AccountDataSet {
    fn apply(self, state: &State, at: At) -> Applied {
        let effects = wake(&self.user_id);
        state.usage.set_data(&self);
        state.erasures.supersede(state.accounts.set_account_data(at.offset, self));
        Ok(effects)
    }
}

impl Apply for FilterCreate {
    fn apply(self, state: &State, at: At) -> Applied {
        state.usage.add_filter(&self);
        state.accounts.create_filter(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for UserErase {
    fn apply(self, state: &State, at: At) -> Applied {
        let records = erasures::named(&self.records, at.offset);
        let asked = state.validations.forget(|record| records.contains(&record));
        state.erasures.condemn(at.offset, records.into_iter().chain(asked));
        if !self.more {
            state.erasures.settle(&self.user_id);
        }
        Ok(Vec::new())
    }
}

impl Apply for UserRedact {
    fn apply(self, state: &State, at: At) -> Applied {
        state.redactions.begin(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for UserRedactFinish {
    fn apply(self, state: &State, at: At) -> Applied {
        state.redactions.finish(at.offset, self);
        Ok(Vec::new())
    }
}

impl Apply for PresenceSet {
    fn apply(self, state: &State, at: At) -> Applied {
        let effects = vec![Effect::WakePresence(self.user_id.clone())];
        state.erasures.supersede(state.presence.set(at.offset, self));
        Ok(effects)
    }
}

impl State {
    /// What is kept of a user is gone, as if it had never been; the records that held it are found
    /// later.
    fn forget_user(&self, offset: Offset, body: &UserDeactivate) {
        self.threepids.forget(&body.user_id);
        self.usage.forget(&body.user_id);
        self.key_backups.forget(&body.user_id);
        self.keys.forget_signer(&body.user_id);
        self.erasures.supersede(self.presence.forget(&body.user_id));
        let owed = erasures::PendingErasure {
            because: offset,
            messages: body.messages,
            media: body.media,
        };
        self.erasures.owe(body.user_id.clone(), owed);
    }
}
