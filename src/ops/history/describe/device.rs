//! Commands of devices, in words.

use super::{ActorAndText, Describe, joined};
use logcabin_record::{
    Record,
    command::{
        DeviceConfirm, DeviceDehydrate, DeviceLogin, DeviceRefresh, DeviceRemove, DeviceRename,
        DeviceSeen, ToDeviceAck, ToDeviceSend,
    },
};

impl Describe for DeviceLogin {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let name = self.display_name.map_or_else(String::new, |name| format!(" ({name})"));
        (self.user_id.to_string(), format!("logged in on {}{name}", self.device_id))
    }
}

impl Describe for DeviceRefresh {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("got new tokens for {}", self.device_id))
    }
}

impl Describe for DeviceConfirm {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        (self.user_id.to_string(), format!("uses the new tokens of {}", self.device_id))
    }
}

impl Describe for DeviceRemove {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let devices = joined(self.devices.iter().map(ToString::to_string).collect());
        (self.user_id.to_string(), format!("logged out {devices}"))
    }
}

impl Describe for DeviceRename {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let name = self.display_name.unwrap_or_else(|| "nothing".to_owned());
        (self.user_id.to_string(), format!("named {} {name}", self.device_id))
    }
}

impl Describe for DeviceDehydrate {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let name = self.display_name.map_or_else(String::new, |name| format!(" ({name})"));
        (self.user_id.to_string(), format!("dehydrated a device, {}{name}", self.device_id))
    }
}

impl Describe for DeviceSeen {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = format!("was seen on {} from {}", self.device_id, self.sighting.address);
        (self.user_id.to_string(), text)
    }
}

impl Describe for ToDeviceSend {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let devices: usize = self.messages.values().map(std::collections::BTreeMap::len).sum();
        let text = format!("sent {} to {devices} device(s)", self.event_type);
        (self.sender.to_string(), text)
    }
}

impl Describe for ToDeviceAck {
    fn describe(self, _: &Record, _: String) -> ActorAndText {
        let text = format!("has the messages to {} up to {}", self.device_id, self.up_to);
        (self.user_id.to_string(), text)
    }
}
