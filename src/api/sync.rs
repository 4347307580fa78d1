//! `/sync`: answers at once when there is something new, and otherwise waits.

use std::time::Duration;

use bytes::Bytes;
use ruma::api::client::sync::sync_events::v3::{self as sync_events, Filter};
use tokio::time::{Instant, timeout_at};

use super::{Server, at_length, filter, json};
use crate::{
    http::{ApiError, Cx},
    sync::{self, Request, SyncFilter},
};

pub(super) async fn sync(cx: Cx<Server>, request: sync_events::Request) -> Result<Bytes, ApiError> {
    let settings = &cx.app.config.sync;
    let definition = match &request.filter {
        Some(Filter::FilterDefinition(definition)) => definition.clone(),
        Some(Filter::FilterId(id)) => filter::definition(&cx.app, &cx.caller.user_id, id)?,
        Some(_) | None => Default::default(),
    };
    let to_usize = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
    let wanted = Request {
        since: match request.since.as_deref() {
            // Some clients send an empty `since` for none.
            None | Some("") => None,
            // One who comes from a future that a restore has undone begins anew.
            Some(since) => cx.app.position_or_abandoned(since)?,
        },
        full_state: request.full_state,
        filter: SyncFilter::new(
            definition,
            to_usize(settings.timeline_limit),
            to_usize(settings.max_timeline_limit),
        ),
        epoch: cx.app.epoch,
    };
    let at_once = wanted.since.is_none() || wanted.full_state;
    let longest = Duration::from_secs(settings.max_timeout_seconds);
    let patience = request.timeout.unwrap_or_default().min(longest);
    let deadline = Instant::now() + patience;

    let head = cx.app.engine.head();
    let listener = head.listen(&cx.caller.user_id);
    loop {
        // Made before the look, awaited after it: what is published in between is not missed.
        let woken = listener.woken();
        tokio::pin!(woken);
        woken.as_mut().enable();

        if at_once {
            return at_length(|| json(&sync::v3::respond(&cx.view(), &cx.app.unread, &wanted)?));
        }
        let response = sync::v3::respond(&cx.view(), &cx.app.unread, &wanted)?;
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
fn still_logged_in(cx: &Cx<Server>) -> Result<(), ApiError> {
    let account = cx.app.engine.state().accounts.get(&cx.caller.user_id);
    let device = account.and_then(|account| account.read().device(&cx.caller.device_id).cloned());
    if device.is_some_and(|device| device.session == cx.caller.session) {
        Ok(())
    } else {
        Err(ApiError::unknown_token(false))
    }
}
