//! Presence: whether users are online, and their status messages.

use std::sync::Arc;

use ruma::{
    OwnedDeviceId, OwnedUserId,
    api::client::presence::{get_presence::v3 as get_presence, set_presence::v3 as set_presence},
    presence::PresenceState as Said,
};
use serde_json::json;

use crate::{
    api::{answer::json, server::Server, server::node_message::Activity},
    http::{ApiError, Cx, Json},
};
use logcabin_base::{clock::Clock, limits};
use logcabin_decide::is_local;
use logcabin_read::view::presence::Content;
use logcabin_record::command::PresenceState;
use logcabin_service::presence::{Tracker, writer::proposal};

/// The presence that a client reports for a device.
pub(super) fn said(said: &Said) -> Result<PresenceState, ApiError> {
    match said {
        Said::Online => Ok(PresenceState::Online),
        Said::Unavailable => Ok(PresenceState::Unavailable),
        Said::Offline => Ok(PresenceState::Offline),
        _ => Err(ApiError::invalid_param("Presence is `online`, `unavailable` or `offline`.")),
    }
}

pub(super) async fn set(
    cx: Cx<Server>,
    request: set_presence::Request,
) -> Result<set_presence::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let said = said(&request.presence)?;
    let status_msg = request.status_msg.filter(|text| !text.is_empty());
    if status_msg.as_ref().is_some_and(|text| text.len() > limits::STATUS_MSG_BYTES) {
        let most = limits::STATUS_MSG_BYTES;
        return Err(ApiError::too_large(format!("`status_msg` has {most} bytes at most.")));
    }
    let tracker = &cx.app.presence;
    if tracker.is_enabled() {
        let now_ms = cx.app.engine.clock().now_ms();
        let user_id = &cx.caller.user_id;
        let seen = tracker.set(user_id, &cx.caller.device_id, said, now_ms);
        // Whatever becomes of this and of a concurrent write, the writer checks again afterwards.
        let _recheck = Recheck { tracker, clock: cx.app.engine.clock(), user_id };
        cx.propose(proposal(user_id.clone(), seen, Some(status_msg))).await?.into_inner();
    }
    Ok(set_presence::Response::new())
}

pub(super) async fn get(cx: Cx<Server>, request: get_presence::Request) -> Result<Json, ApiError> {
    let user_id = &request.user_id;
    if !cx.app.presence.is_enabled() {
        return json(&json!({ "presence": "offline" }));
    }
    let is_local = is_local(&cx.app.engine.env().server, user_id);
    if is_local && !cx.app.engine.state().accounts.contains(user_id) {
        return Err(ApiError::not_found("There is no such user here."));
    }
    let view = cx.view();
    if !view.sees_presence_of(user_id) {
        return Err(ApiError::forbidden("You are in no room with this user."));
    }
    let shown = view.state.presence.get(user_id).unwrap_or_default();
    // While a user is active, only the tracker knows when they last did something.
    let last_active_ms = cx.app.presence.last_active_ms(user_id).max(shown.last_active_ms);
    json(&Content::of(&shown, last_active_ms, view.viewer.now_ms))
}

/// Makes the writer check a user again when this is dropped.
struct Recheck<'a> {
    tracker: &'a Tracker,
    clock: &'a Clock,
    user_id: &'a OwnedUserId,
}

impl Drop for Recheck<'_> {
    fn drop(&mut self) {
        self.tracker.recheck(self.user_id, self.clock.now_ms());
    }
}

/// A sync in progress: during it, the device is online.
pub(super) struct Syncing(Option<(Arc<Server>, OwnedUserId, OwnedDeviceId)>);

impl Syncing {
    /// Begins a sync of the caller's device, which reports this presence.
    pub(super) fn begin(cx: &Cx<Server>, said: PresenceState) -> Self {
        if said == PresenceState::Offline {
            return Self(None);
        }
        let (user_id, device_id) = (&cx.caller.user_id, &cx.caller.device_id);
        cx.app.note_presence(user_id, device_id, Activity::Begins(said));
        Self(Some((Arc::clone(&cx.app), user_id.clone(), device_id.clone())))
    }
}

impl Drop for Syncing {
    fn drop(&mut self) {
        if let Some((app, user_id, device_id)) = &self.0 {
            app.note_presence(user_id, device_id, Activity::Ends);
        }
    }
}

impl Cx<Server> {
    /// Records an action that shows that the caller is active.
    pub(crate) fn is_active(&self) {
        // Only the application service knows whether a remote user is active.
        if self.caller.service.is_some() {
            return;
        }
        let (user_id, device_id) = (&self.caller.user_id, &self.caller.device_id);
        self.app.note_presence(user_id, device_id, Activity::Acts);
    }
}
