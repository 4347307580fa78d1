//! Presence: whether users are online, and their status messages.

use std::sync::Arc;

use futures_util::future::join_all;
use ruma::{
    OwnedDeviceId, OwnedUserId, UserId,
    api::client::presence::{get_presence::v3 as get_presence, set_presence::v3 as set_presence},
    presence::PresenceState as Said,
};
use serde_json::json;

use crate::{
    base::{limits, shutdown::Shutdown, timers::Timed},
    cluster::Cluster,
    decide::{is_local, presence::SetPresence},
    edge::{
        api::{Activity, Server, json},
        http::{ApiError, Cx, Json},
    },
    engine::Engine,
    record::{Origin, Stream, command::PresenceState},
    service::presence::Seen,
    state::presence::Shown,
};

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
        let _recheck = Recheck { app: &cx.app, user_id };
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
    json(&shown.content(last_active_ms, view.viewer.now_ms))
}

fn proposal(user_id: OwnedUserId, seen: Seen, status_msg: Option<Option<String>>) -> SetPresence {
    let Seen { presence, currently_active, last_active_ms } = seen;
    SetPresence { user_id, presence, currently_active, last_active_ms, status_msg }
}

/// Makes the writer check a user again when this is dropped.
struct Recheck<'a> {
    app: &'a Server,
    user_id: &'a OwnedUserId,
}

impl Drop for Recheck<'_> {
    fn drop(&mut self) {
        self.app.presence.recheck(self.user_id, self.app.engine.clock().now_ms());
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

/// The users of this server who are not offline, as others see them.
pub(crate) fn around(engine: &Engine) -> Vec<(OwnedUserId, Shown)> {
    let presence = &engine.state().presence;
    let around = presence.around().into_iter();
    let around = around.filter(|user_id| is_local(&engine.env().server, user_id));
    around.filter_map(|user| Some((user.clone(), presence.get(&user)?))).collect()
}

/// Follows the presence of other users as nodes come and go, until the server stops.
pub(crate) async fn follow_nodes(app: Arc<Server>, cluster: Arc<dyn Cluster>, shutdown: Shutdown) {
    let mut changes = cluster.changes();
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = shutdown.given() => return,
        }
        let is_own =
            |user_id: &UserId| cluster.preferred(Stream::presence(user_id).as_str()).is_none();
        let around = around(&app.engine);
        let now_ms = app.engine.clock().now_ms();
        app.presence.nodes_changed(&cluster.there(), is_own, around, now_ms);
    }
}

/// Records visible presence whenever it has changed. No request waits for it.
pub(crate) struct Writer(pub(crate) Arc<Server>);

impl Timed for Writer {
    fn next_ms(&self) -> Option<u64> {
        self.0.presence.next_due_ms()
    }

    async fn changed(&mut self) {
        self.0.presence.changed().notified().await;
    }

    async fn fire(&self, now_ms: u64) {
        let Self(app) = self;
        let record = async |(user_id, seen): (OwnedUserId, Seen)| {
            let proposal = proposal(user_id.clone(), seen, None);
            match app.engine.propose(Origin::server(), proposal).await {
                Ok(recorded) => recorded.into_inner(),
                Err(error) => {
                    tracing::debug!(%error, "presence was not recorded");
                    let wait_ms = u64::try_from(limits::TIMER_RETRY.as_millis()).unwrap_or(5000);
                    app.presence.recheck(&user_id, now_ms.saturating_add(wait_ms));
                }
            }
        };
        join_all(app.presence.take_due(now_ms, limits::PRESENCE_BATCH).into_iter().map(record))
            .await;
    }
}
