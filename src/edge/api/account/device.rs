//! Devices.

use ruma::{
    DeviceId, OwnedDeviceId,
    api::client::device::{
        delete_device::v3 as delete_device, delete_devices::v3 as delete_devices,
        get_device::v3 as get_device, get_devices::v3 as get_devices,
        update_device::v3 as update_device,
    },
};
use serde::Serialize;
use serde_json::json;

use crate::{
    api::{
        answer::json as to_json,
        auth::{credentials::NewTokens, uiaa::confirm_identity},
        server::Server,
    },
    http::{ApiError, Cx, Json},
};
use logcabin_decide::account::{DeviceSet, Login, RemoveDevices, RenameDevice};
use logcabin_service::accounts::names::{device_id_or_new, short_name};
use logcabin_state as state;

/// A device as its user sees it. Some clients refuse a list in which a member is null, or a device
/// has no time.
#[derive(Serialize)]
struct Described {
    device_id: OwnedDeviceId,
    #[serde(skip_serializing_if = "Option::is_none")]
    display_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_seen_ip: Option<String>,
    /// That of the login, if it was not used since.
    last_seen_ts: u64,
}

fn described(cx: &Cx<Server>, device_id: &DeviceId, device: &state::Device) -> Described {
    let state = cx.app.engine.state();
    let seen = cx.app.last_seen.of(&state, &cx.caller.user_id, device_id, device);
    Described {
        device_id: device_id.to_owned(),
        display_name: device.display_name.clone(),
        last_seen_ip: seen.as_ref().map(|seen| seen.address.to_string()),
        last_seen_ts: seen.map_or(device.login_ms, |seen| seen.seen_ms),
    }
}

pub(super) async fn list(cx: Cx<Server>, _: get_devices::Request) -> Result<Json, ApiError> {
    let account = cx.app.engine.state().accounts.get(&cx.caller.user_id);
    let devices = account.map_or_else(Vec::new, |account| {
        account.read().active_devices().map(|(id, device)| described(&cx, id, device)).collect()
    });
    to_json(&json!({ "devices": devices }))
}

pub(super) async fn get(cx: Cx<Server>, request: get_device::Request) -> Result<Json, ApiError> {
    let account = cx.app.engine.state().accounts.get(&cx.caller.user_id);
    let device = account.and_then(|account| account.read().device(&request.device_id).cloned());
    let device = device.ok_or_else(|| ApiError::not_found("You have no such device."))?;
    to_json(&described(&cx, &request.device_id, &device))
}

pub(super) async fn rename(
    cx: Cx<Server>,
    request: update_device::Request,
) -> Result<update_device::Response, ApiError> {
    let user_id = cx.caller.user_id.clone();
    let display_name = short_name(request.display_name)?;
    if cx.caller.service.is_some() {
        let account = cx.app.engine.state().accounts.get(&user_id);
        let known = account.is_some_and(|of| of.read().device(&request.device_id).is_some());
        if !known {
            // An application service creates its users' devices by naming them. The token of such a
            // device is not returned, because the service has its own.
            let device_id = device_id_or_new(Some(request.device_id))?;
            let tokens = NewTokens::make(&cx.app, false).hashes();
            let login = Login { user_id, device_id, display_name, tokens, verified: None };
            cx.propose(login).await?.into_inner();
            return Ok(update_device::Response::new());
        }
    }
    let proposal = RenameDevice { user_id, device_id: request.device_id, display_name };
    cx.propose(proposal).await?.into_inner();
    Ok(update_device::Response::new())
}

pub(super) async fn delete(
    cx: Cx<Server>,
    request: delete_device::Request,
) -> Result<delete_device::Response, ApiError> {
    // The path is part of what the user confirms.
    let endpoint = format!("delete_device/{}", request.device_id);
    confirm_identity(&cx.app, &cx.caller, cx.client, &endpoint, &cx.body, request.auth.as_ref())
        .await?;
    remove(&cx, vec![request.device_id]).await?;
    Ok(delete_device::Response::new())
}

pub(super) async fn delete_many(
    cx: Cx<Server>,
    request: delete_devices::Request,
) -> Result<delete_devices::Response, ApiError> {
    let endpoint = "delete_devices";
    confirm_identity(&cx.app, &cx.caller, cx.client, endpoint, &cx.body, request.auth.as_ref())
        .await?;
    remove(&cx, request.devices).await?;
    Ok(delete_devices::Response::new())
}

async fn remove(cx: &Cx<Server>, devices: Vec<OwnedDeviceId>) -> Result<(), ApiError> {
    let user_id = cx.caller.user_id.clone();
    cx.propose(RemoveDevices { user_id, which: DeviceSet::These(devices) }).await?.into_inner();
    Ok(())
}
