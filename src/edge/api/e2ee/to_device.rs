//! To-device messages (client-server API, "Send-to-Device messaging").

use std::collections::BTreeMap;

use ruma::{
    api::client::to_device::send_event_to_device::v3 as send_event_to_device,
    to_device::DeviceIdOrAllDevices,
};

use crate::{
    api::{room::send::transaction, server::Server},
    http::{ApiError, Cx},
};
use logcabin_base::{clock::random_letters, limits};
use logcabin_decide::to_device::{Acknowledge, SendToDevice};
use logcabin_record::Offset;

pub(super) async fn send(
    cx: Cx<Server>,
    request: send_event_to_device::Request,
) -> Result<send_event_to_device::Response, ApiError> {
    let event_type = request.event_type.to_string();
    if event_type.len() > limits::EVENT_FIELD_BYTES {
        return Err(ApiError::invalid_param("The type is too long."));
    }
    let scope = format!("sendToDevice/{event_type}");
    let transaction = transaction(&cx, scope, request.txn_id.as_str())?;
    let mut messages = BTreeMap::new();
    for (user_id, devices) in request.messages {
        let mut of_user = Vec::with_capacity(devices.len());
        for (device, content) in devices {
            let content = content.into_json();
            if !content.get().starts_with('{') {
                return Err(ApiError::bad_json("A message is not an object."));
            }
            if content.get().len() > limits::EVENT_BYTES {
                return Err(ApiError::too_large("A message is larger than an event may be."));
            }
            let device = match device {
                DeviceIdOrAllDevices::DeviceId(device_id) => Some(device_id),
                DeviceIdOrAllDevices::AllDevices => None,
            };
            of_user.push((device, content));
        }
        messages.insert(user_id, of_user);
    }
    cx.may_write_to(messages.keys().map(|user_id| &**user_id))?;
    let sender = cx.caller.user_id.clone();
    let federates = cx.app.outside.federation.is_some();
    let outside = federates.then(|| random_letters(20));
    let proposal = SendToDevice { sender, event_type, messages, outside, transaction };
    cx.propose(proposal).await?.into_inner();
    Ok(send_event_to_device::Response::new())
}

/// A device that comes back with `since` has all messages up to then. They must not be sent again,
/// even if the device starts over.
///
/// A sync does not wait for the record. If it is lost with the process, an initial sync repeats
/// messages that the device has, which the device can detect.
pub(crate) fn acknowledge(cx: &Cx<Server>, since: Offset) {
    let (user_id, device_id) = (cx.caller.user_id.clone(), cx.caller.device_id.clone());
    if cx.app.engine.state().to_device.unacknowledged(&user_id, &device_id, since) == 0 {
        return;
    }
    let (app, origin) = (std::sync::Arc::clone(&cx.app), cx.origin());
    tokio::spawn(async move {
        let proposal = Acknowledge { user_id, device_id, up_to: since };
        if let Err(error) = app.engine.propose(origin, proposal).await {
            tracing::warn!(?error, "messages to a device could not be marked as received");
        }
    });
}
