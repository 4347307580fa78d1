//! What follows from commands of devices.

use super::{Applied, Apply, At, Effect, wake};
use crate::State;
use logcabin_record::command::{
    DeviceConfirm, DeviceDehydrate, DeviceLogin, DeviceRefresh, DeviceRemove, DeviceRename,
    DeviceSeen, ToDeviceAck, ToDeviceSend,
};

impl Apply for DeviceLogin {
    fn apply(self, state: &State, at: At) -> Applied {
        let effects = wake(&self.user_id);
        let (user_id, device_id) = (self.user_id.clone(), self.device_id.clone());
        state.transactions.note_before(at.offset, &self.sent);
        Ok(match state.accounts.login(at.offset, at.happened_ms, at.time_ms, self) {
            Some(ended) => {
                state.transactions.end(ended);
                state.oauth.end_session(at.time_ms, ended);
                let mails = state.pushers.remove_devices(&user_id, &[device_id]);
                state.erasures.supersede(mails);
                // Waiting syncs of the session that ended are to end now.
                effects
            }
            None => Vec::new(),
        })
    }
}

impl Apply for DeviceRefresh {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.refresh(at.offset, at.time_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for DeviceConfirm {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.confirm(at.offset, &self);
        Ok(Vec::new())
    }
}

impl Apply for DeviceRemove {
    fn apply(self, state: &State, at: At) -> Applied {
        for ended in state.accounts.remove_devices(at.offset, &self) {
            state.transactions.end(ended);
            state.oauth.end_session(at.time_ms, ended);
        }
        let dropped = state.to_device.remove_devices(&self.user_id, &self.devices);
        state.erasures.supersede(dropped);
        let mails = state.pushers.remove_devices(&self.user_id, &self.devices);
        state.erasures.supersede(mails);
        let seen = state.seen.remove_devices(&self.user_id, &self.devices);
        state.erasures.supersede(seen);
        let had_keys = state.keys.remove_devices(at.offset, &self.user_id, &self.devices);
        // Waiting syncs of the removed devices are to end now.
        Ok(if had_keys { state.device_list(&self.user_id) } else { wake(&self.user_id) })
    }
}

impl Apply for DeviceRename {
    fn apply(self, state: &State, at: At) -> Applied {
        let seen = state.keys.rename_device(at.offset, &self.user_id, &self.device_id);
        let user_id = self.user_id.clone();
        state.accounts.rename_device(at.offset, self);
        Ok(if seen { state.device_list(&user_id) } else { Vec::new() })
    }
}

impl Apply for DeviceDehydrate {
    fn apply(self, state: &State, at: At) -> Applied {
        state.accounts.dehydrate(at.offset, at.happened_ms, self);
        Ok(Vec::new())
    }
}

impl Apply for DeviceSeen {
    fn apply(self, state: &State, at: At) -> Applied {
        let account = state.accounts.get(&self.user_id);
        let there = account.is_some_and(|of| of.read().device(&self.device_id).is_some());
        state.erasures.supersede(state.seen.note(at.offset, self, there));
        Ok(Vec::new())
    }
}

impl Apply for ToDeviceSend {
    fn apply(self, state: &State, at: At) -> Applied {
        state.transactions.note(at.offset, self.transaction.as_ref());
        let to_nobody = state.to_device.send(at.offset, &self, |user_id, device_id| {
            let account = state.accounts.get(user_id);
            account.is_some_and(|account| account.read().device(device_id).is_some())
        });
        state.erasures.supersede(to_nobody);
        Ok(self.messages.into_keys().map(Effect::WakeUser).collect())
    }
}

impl Apply for ToDeviceAck {
    fn apply(self, state: &State, _: At) -> Applied {
        state.erasures.supersede(state.to_device.acknowledge(&self));
        Ok(Vec::new())
    }
}
