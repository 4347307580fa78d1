//! Facts about devices, and keys of devices and users.

use ruma::{OwnedDeviceId, UserId};
use serde_json::{Value, json};

use super::{Affects, Answer, Chain, Change};
use logcabin_record::command::{
    DeviceConfirm, DeviceDehydrate, DeviceLogin, DeviceRefresh, DeviceRemove, DeviceRename,
    DeviceSeen, KeysClaim, KeysCrossSign, KeysSign, KeysUpload, OauthEnd, OauthGrant, topic,
};

impl Chain<'_> {
    /// Whether the fact is about this device, or its keys.
    fn is_device(&self, user_id: &UserId, device_id: &OwnedDeviceId) -> bool {
        self.is_of(user_id) && self.is_named(device_id.as_str())
    }

    /// What a login does to a device: it keeps its name, but not its session.
    fn logged_in(&self, display_name: Option<&str>) -> Change {
        let before = self.value.as_ref().map(|device| device["display_name"].clone());
        let name = before.unwrap_or_else(|| json!(display_name));
        Change::Becomes(json!({ "display_name": name }))
    }
}

/// The effect of a removal on the device and its keys.
fn removed_by(remove: &DeviceRemove, chain: &Chain<'_>) -> Option<Change> {
    let is_gone = remove.devices.iter().any(|gone| chain.is_device(&remove.user_id, gone));
    is_gone.then_some(Change::Ends)
}

impl Affects<topic::Device> for DeviceLogin {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_device(&self.user_id, &self.device_id);
        Ok(is_it.then(|| chain.logged_in(self.display_name.as_deref())))
    }
}

impl Affects<topic::Device> for DeviceDehydrate {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_device(&self.user_id, &self.device_id);
        Ok(is_it.then(|| chain.logged_in(self.display_name.as_deref())))
    }
}

impl Affects<topic::Device> for DeviceRefresh {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_device(&self.user_id, &self.device_id).then_some(Change::Stays))
    }
}

impl Affects<topic::Device> for DeviceConfirm {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_device(&self.user_id, &self.device_id).then_some(Change::Stays))
    }
}

impl Affects<topic::Device> for DeviceSeen {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_device(&self.user_id, &self.device_id).then_some(Change::Stays))
    }
}

impl Affects<topic::Device> for DeviceRename {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        if !chain.is_device(&self.user_id, &self.device_id) {
            return Ok(None);
        }
        let mut device = chain.so_far();
        device["display_name"] = json!(self.display_name);
        Ok(Some(Change::Becomes(device)))
    }
}

impl Affects<topic::Device> for DeviceRemove {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(removed_by(self, chain))
    }
}

impl Affects<topic::Device> for OauthGrant {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let here = |device_id| chain.is_device(&self.user_id, device_id);
        if !self.device_id.as_ref().is_some_and(here) {
            return Ok(None);
        }
        let mut device = chain.so_far();
        device["client_id"] = json!(self.client_id);
        device["grant_id"] = json!(self.grant_id);
        device["scope"] = json!(self.scope);
        Ok(Some(Change::Becomes(device)))
    }
}

impl Affects<topic::Device> for OauthEnd {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let device = chain.value.as_ref().filter(|_| chain.is_of(&self.user_id));
        let grant_id = device.and_then(|device| device["grant_id"].as_str());
        let ends = grant_id.is_some_and(|id| self.grants.iter().any(|ended| ended == id));
        Ok(ends.then_some(Change::Stays))
    }
}

impl Affects<topic::Keys> for KeysCrossSign {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        if !chain.is_of(&self.user_id) || chain.name().is_some() {
            return Ok(None);
        }
        let mut keys = chain.so_far();
        for name in ["master_key", "self_signing_key", "user_signing_key"] {
            if let Some(key) = shown.get(name) {
                keys[name] = key["keys"].clone();
            }
        }
        Ok(Some(Change::Becomes(keys)))
    }
}

impl Affects<topic::Keys> for KeysSign {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        let is_it = chain.is_of(&self.user_id) && chain.name().is_none();
        Ok(is_it.then_some(Change::Stays))
    }
}

impl Affects<topic::Keys> for KeysUpload {
    fn change(&self, chain: &mut Chain<'_>, shown: &Value) -> Answer {
        let is_it = chain.is_device(&self.user_id, &self.device_id);
        Ok(is_it.then(|| match shown.get("device_keys") {
            Some(keys) => Change::Becomes(keys["keys"].clone()),
            None => Change::Stays,
        }))
    }
}

impl Affects<topic::Keys> for KeysClaim {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(chain.is_device(&self.user_id, &self.device_id).then_some(Change::Stays))
    }
}

impl Affects<topic::Keys> for DeviceRemove {
    fn change(&self, chain: &mut Chain<'_>, _: &Value) -> Answer {
        Ok(removed_by(self, chain))
    }
}
