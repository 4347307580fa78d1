//! `m.direct_to_device`: messages to devices (server-server API, "Send-to-device messaging").

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedUserId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{EduError, content};
use crate::federation::PduReceiver;
use logcabin_base::{limits, metrics::metrics};
use logcabin_decide::to_device::ReceiveToDevice;
use logcabin_record::Origin;

#[derive(Deserialize)]
struct Content {
    sender: OwnedUserId,
    #[serde(rename = "type")]
    event_type: String,
    message_id: String,
    messages: BTreeMap<OwnedUserId, BTreeMap<String, Box<RawValue>>>,
}

impl PduReceiver<'_> {
    pub(super) async fn take_to_device(
        &self,
        origin: &ServerName,
        raw: &RawValue,
    ) -> Result<(), EduError> {
        let Content { sender, event_type, message_id, messages } = content(raw)?;
        if sender.server_name() != origin {
            return Err(EduError::NotTheirs);
        }
        if event_type.len() > limits::EVENT_FIELD_BYTES
            || message_id.len() > limits::MESSAGE_ID_BYTES
        {
            return Err(EduError::TooLarge);
        }
        let mut all = BTreeMap::new();
        for (user_id, devices) in messages {
            let mut of_user = Vec::with_capacity(devices.len());
            for (device_id, content) in devices {
                if content.get().len() > limits::EVENT_BYTES {
                    return Err(EduError::TooLarge);
                }
                if !content.get().starts_with('{') {
                    return Err(EduError::NotObject);
                }
                let device_id = (device_id != "*").then(|| OwnedDeviceId::from(device_id));
                of_user.push((device_id, content));
            }
            all.insert(user_id, of_user);
        }
        let received = ReceiveToDevice { sender, message_id, event_type, messages: all };
        let done = self.engine.propose(Origin::server(), received).await?;
        let dropped = self.charged(origin, done);
        metrics().federation_dropped.with_label_values(&["letter"]).inc_by(dropped);
        Ok(())
    }
}
