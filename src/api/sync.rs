//! `/sync`: answers at once when there is something new, and otherwise waits.

use std::time::Duration;

use bytes::Bytes;
use ruma::api::client::sync::sync_events::v3 as sync_events;
use tokio::time::{Instant, timeout_at};

use super::{Server, at_length, filter, json, presence, to_device};
use crate::{
    http::{ApiError, Cx},
    sync::{
        self,
        v3::{self, Request, SyncFilter},
    },
    view::filter::EventFilter,
};

pub(super) async fn sync(cx: Cx<Server>, request: sync_events::Request) -> Result<Bytes, ApiError> {
    let settings = &cx.app.config.sync;
    let to_usize = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let said = presence::said(&request.set_presence)?;
    let mut wanted = Request {
        since: match request.since.as_deref() {
            // Some clients send an empty `since` for none.
            None | Some("") => None,
            // One who comes from a future that a restore has undone begins anew.
            Some(since) => cx.app.position_or_abandoned(since)?,
        },
        full_state: request.full_state,
        use_state_after: request.use_state_after,
        filter: SyncFilter::new(
            filter::of_sync(&cx)?,
            to_usize(settings.timeline_limit),
            to_usize(settings.max_timeline_limit),
        ),
        epoch: cx.app.epoch,
    };
    if let Some(since) = wanted.since {
        to_device::acknowledge(&cx, since);
    }
    if !cx.app.presence.is_enabled() {
        wanted.filter.presence = EventFilter::nothing();
    }
    let at_once = wanted.since.is_none() || wanted.full_state;
    let longest = Duration::from_secs(settings.max_timeout_seconds);
    let patience = request.timeout.unwrap_or_default().min(longest);
    let deadline = Instant::now() + patience;

    let respond = |cx: &Cx<Server>| {
        let mut view = cx.view();
        let device = (view.user_id(), view.viewer.device_id);
        view.viewer.at = sync::to_device::cut(view.state, device, wanted.since, view.at());
        let memory = v3::Memory { members: &cx.app.known_members, unread: &cx.app.unread };
        v3::respond(&view, &wanted, memory)
    };
    let _syncing = presence::Syncing::begin(&cx, said);
    let head = cx.app.engine.head();
    let listener = head.listen(&cx.caller.user_id);
    loop {
        // Made before the look, awaited after it: what is published in between is not missed.
        let woken = listener.woken();
        tokio::pin!(woken);
        woken.as_mut().enable();

        if at_once {
            return at_length(|| json(&respond(&cx)?));
        }
        let response = respond(&cx)?;
        let now = Instant::now();
        if !response.is_empty() || now >= deadline || cx.shutdown.is_given() {
            return json(&response);
        }
        drop(response);
        tokio::select! {
            woken = timeout_at(deadline, woken) => drop(woken),
            () = cx.shutdown.given() => {}
        }
        still_logged_in(&cx)?;
    }
}

/// A session that ended while the sync waited learns so at once.
pub(super) fn still_logged_in(cx: &Cx<Server>) -> Result<(), ApiError> {
    let account = cx.app.engine.state().accounts.get(&cx.caller.user_id);
    let device = account.and_then(|account| account.read().device(&cx.caller.device_id).cloned());
    if device.is_some_and(|device| device.session == cx.caller.session) {
        Ok(())
    } else {
        Err(ApiError::unknown_token(false))
    }
}
