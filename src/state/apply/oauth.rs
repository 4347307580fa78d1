//! What follows from commands of OAuth 2.0, and from sign-ins at the server's pages.

use super::{Applied, Apply, At, wake};
use crate::State;
use logcabin_record::command::{
    BrowserSignIn, BrowserSignOut, OauthClient, OauthClientRemove, OauthCode, OauthConfirm,
    OauthDeviceAnswer, OauthDeviceRequest, OauthEnd, OauthGrant, OauthKey, OauthRefresh,
};

impl Apply for OauthClient {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.register(at.offset, at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for OauthClientRemove {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.remove_clients(at.time_ms, &self.clients));
        Ok(Vec::new())
    }
}

impl Apply for OauthCode {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.add_code(at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for OauthDeviceRequest {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.ask(at.offset, at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for OauthDeviceAnswer {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.answer(at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for OauthGrant {
    fn apply(self, state: &State, at: At) -> Applied {
        let device = self.device_id.as_ref().and_then(|device_id| {
            let account = state.accounts.get(&self.user_id)?;
            let session = account.read().device(device_id)?.session;
            Some(session)
        });
        let session = device.unwrap_or(at.offset);
        state.erasures.supersede(state.oauth.give(session, at.happened_ms, at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for OauthRefresh {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.refresh(at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for OauthConfirm {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.confirm(at.time_ms, &self.grant_id));
        Ok(Vec::new())
    }
}

impl Apply for OauthEnd {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.end(at.time_ms, &self.grants));
        // Waiting syncs of grants without a device are to end now.
        Ok(wake(&self.user_id))
    }
}

impl Apply for OauthKey {
    fn apply(self, state: &State, at: At) -> Applied {
        state.erasures.supersede(state.oauth.add_key(at.time_ms, self));
        Ok(Vec::new())
    }
}

impl Apply for BrowserSignIn {
    fn apply(self, state: &State, at: At) -> Applied {
        state.oauth.sign_in(at.time_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for BrowserSignOut {
    fn apply(self, state: &State, _: At) -> Applied {
        state.oauth.sign_out(&self.user_id, &self.browsers);
        Ok(Vec::new())
    }
}
