//! Dehydrated devices (MSC3814): a device of the user that receives messages while all other
//! devices are offline. The server stores its private keys, encrypted. The next device that the
//! user logs in with them decrypts the messages.

use std::collections::BTreeMap;

use ruma::{OwnedDeviceId, OwnedOneTimeKeyId, api::auth_scheme::AccessToken};
use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};

use super::device_keys::{check_identity, check_one_time};
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_base::limits;
use logcabin_decide::{
    account::{DeviceSet, RemoveDevices},
    device::Dehydrate,
};
use logcabin_read::sync::to_device;
use logcabin_record::{Command, Offset};
use logcabin_service::accounts::names::{device_id_or_new, short_name};

/// A device with its keys.
#[derive(Deserialize)]
pub(super) struct New {
    device_id: OwnedDeviceId,
    device_data: Box<RawValue>,
    device_keys: Box<RawValue>,
    #[serde(default)]
    one_time_keys: BTreeMap<OwnedOneTimeKeyId, Box<RawValue>>,
    #[serde(default)]
    fallback_keys: BTreeMap<OwnedOneTimeKeyId, Box<RawValue>>,
    initial_device_display_name: Option<String>,
}

/// The end of the last response.
#[derive(Deserialize)]
pub(super) struct From {
    next_batch: Option<String>,
}

endpoint! {
    /// Replaces the previous device.
    pub(super) struct Put = PUT
        "/_matrix/client/unstable/org.matrix.msc3814.v1/dehydrated_device";
    for AccessToken;
    { body: New = parameters }
}

endpoint! {
    /// The device.
    pub(super) struct Get = GET
        "/_matrix/client/unstable/org.matrix.msc3814.v1/dehydrated_device";
    for AccessToken;
    {}
}

endpoint! {
    /// Deletes the device.
    pub(super) struct Delete = DELETE
        "/_matrix/client/unstable/org.matrix.msc3814.v1/dehydrated_device";
    for AccessToken;
    {}
}

endpoint! {
    /// The messages to the device.
    pub(super) struct Events = POST
        "/_matrix/client/unstable/org.matrix.msc3814.v1/dehydrated_device/{device_id}/events";
    for AccessToken;
    { device_id: OwnedDeviceId = path, body: From = json }
}

impl Cx<Server> {
    /// The caller's dehydrated device, and the record with its private keys.
    fn dehydrated(&self) -> Result<(OwnedDeviceId, Offset), ApiError> {
        let account = self.app.engine.state().accounts.get(&self.caller.user_id);
        let found = account.and_then(|account| {
            let account = account.read();
            account.dehydrated_device().map(|(id, device)| (id.clone(), device.session))
        });
        found.ok_or_else(|| ApiError::not_found("You have no dehydrated device."))
    }
}

pub(super) async fn put(cx: Cx<Server>, request: Put) -> Result<Json, ApiError> {
    let new = request.body;
    let device_id = device_id_or_new(Some(new.device_id))?;
    if new.device_data.get().len() > limits::ACCOUNT_DATA_BYTES {
        return Err(ApiError::too_large("This is too large for the keys of a device."));
    }
    if !new.device_data.get().trim_start().starts_with('{') {
        return Err(ApiError::bad_json("`device_data` is an object."));
    }
    let user_id = &cx.caller.user_id;
    check_identity(&new.device_keys, user_id, &device_id)?;
    let proposal = Dehydrate {
        user_id: user_id.clone(),
        device_id: device_id.clone(),
        display_name: short_name(new.initial_device_display_name)?,
        device_data: new.device_data,
        device_keys: new.device_keys,
        one_time_keys: check_one_time(new.one_time_keys, user_id, &device_id)?,
        fallback_keys: check_one_time(new.fallback_keys, user_id, &device_id)?,
    };
    cx.propose(proposal).await?.into_inner();
    to_json(&json!({ "device_id": device_id }))
}

pub(super) async fn get(cx: Cx<Server>, _: Get) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response {
        device_id: OwnedDeviceId,
        device_data: Box<RawValue>,
    }
    let (device_id, record) = cx.dehydrated()?;
    match cx.app.engine.events().command(record)? {
        Some(Command::DeviceDehydrate(made)) => {
            let response = Response { device_id, device_data: made.device_data };
            to_json(&response)
        }
        _ => Err(ApiError::internal("the record of a dehydrated device is another")),
    }
}

pub(super) async fn delete(cx: Cx<Server>, _: Delete) -> Result<Json, ApiError> {
    let (device_id, _) = cx.dehydrated()?;
    let which = DeviceSet::These(vec![device_id.clone()]);
    cx.propose(RemoveDevices { user_id: cx.caller.user_id.clone(), which }).await?.into_inner();
    to_json(&json!({ "device_id": device_id }))
}

/// A page of the messages for the dehydrated device. They are kept until the device is removed: a
/// client that is interrupted starts over.
pub(super) async fn events(cx: Cx<Server>, request: Events) -> Result<Json, ApiError> {
    let dehydrated = cx.dehydrated().ok().map(|(device_id, _)| device_id);
    let device_id = dehydrated.filter(|id| *id == request.device_id);
    let device_id =
        device_id.ok_or_else(|| ApiError::forbidden("This is not your dehydrated device."))?;
    let since = request.body.next_batch.map(|token| cx.app.position(&token)).transpose()?;
    let mut view = cx.view();
    view.viewer.device_id = &device_id;
    let device = (view.user_id(), view.viewer.device_id);
    view.viewer.at = to_device::cut(&view.state, device, since, view.at());
    let events = to_device::messages(&view, since.unwrap_or(Offset::ZERO))?;
    let next_batch = cx.app.token(view.at());
    to_json(&json!({ "events": events, "next_batch": next_batch }))
}
