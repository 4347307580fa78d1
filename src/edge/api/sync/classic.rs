//! `/sync`: returns news at once if there is any, and otherwise waits.

use std::time::{self, Duration};

use ruma::api::client::sync::sync_events::v3 as sync_events;
use tokio::time::{Instant, timeout_at};

use super::{filter, presence};
use crate::{
    api::{
        answer::json, auth::rights::locked, e2ee::to_device, error::awaiting_approval,
        server::Server, server::positions::Undone,
    },
    http::{ApiError, Cx, Json},
};
use logcabin_base::{
    metrics::{SyncStage, metrics},
    traces::{self, Traces, traces},
};
use logcabin_read::sync::{
    self, Effort, LookError, TooLong,
    v3::{self, Request},
};
use logcabin_record::{Offset, Stream};

/// A parsed sync request. Most syncs wait, and while waiting they hold only this.
struct Prepared {
    cx: Cx<Server>,
    wanted: Request,
    timeout: Option<Duration>,
    _syncing: presence::Syncing,
}

// Not an `async fn`, which would hold the request for as long as it waits.
pub(super) fn sync(
    cx: Cx<Server>,
    request: sync_events::Request,
) -> impl Future<Output = Result<Json, ApiError>> + Send {
    let prepared = prepare(cx, request).map(Box::new);
    async move {
        let prepared = prepared?;
        let Prepared { cx, wanted, timeout, .. } = &*prepared;
        let at_once = wanted.since.is_none() || wanted.full_state;
        let look = |cx: &Cx<Server>, effort| {
            let mut view = cx.view();
            let device = (view.user_id(), view.viewer.device_id);
            view.viewer.at = sync::to_device::cut(&view.state, device, wanted.since, view.at());
            let (members, unread) = (&cx.app.sync.known_members, &cx.app.sync.unread);
            let memory = v3::Memory { members, unread, effort };
            let response = v3::respond(&view, wanted, memory).map_err(|error| match error {
                LookError::TooLong(too_long) => Stop::TooLong(too_long),
                LookError::Read(error) => Stop::Failed(error.into()),
            })?;
            let is_empty = response.is_empty();
            Ok((response, is_empty))
        };
        let since = wanted.since.unwrap_or(Offset::ZERO);
        let response = long_poll(cx, *timeout, at_once, since, look).await?;
        write(&response)
    }
}

fn prepare(mut cx: Cx<Server>, request: sync_events::Request) -> Result<Prepared, ApiError> {
    let said = presence::said(&request.set_presence)?;
    let (since, came_from) = match request.since.as_deref() {
        // Some clients send an empty `since` instead of none.
        None | Some("") => (None, None),
        Some(since) => match cx.app.position_or_undone(since)? {
            Ok(since) => (Some(since), None),
            // A client from a future that a restore has undone starts over.
            Err(Undone(from)) => (None, Some(from)),
        },
    };
    let wanted = Request {
        since,
        came_from,
        full_state: request.full_state,
        use_state_after: request.use_state_after,
        filter: filter::of_sync(&cx)?,
        epoch: cx.app.epoch,
    };
    if let Some(since) = wanted.since {
        to_device::acknowledge(&cx, since);
    }
    cx.forget_request();
    let syncing = presence::Syncing::begin(&cx, said);
    Ok(Prepared { cx, wanted, timeout: request.timeout, _syncing: syncing })
}

/// Writes the answer to a sync.
pub(super) fn write<T: serde::Serialize>(response: &T) -> Result<Json, ApiError> {
    let began = time::Instant::now();
    let written = json(response);
    metrics().sync_stage.since(SyncStage::Write, began);
    written
}

/// Why an attempt has no result.
pub(super) enum Stop {
    TooLong(TooLong),
    Failed(ApiError),
}

/// When a long-poll was woken.
#[derive(Clone, Copy)]
struct WakeTimes {
    /// When what it was woken for was published.
    published: time::Instant,
    /// When it was woken.
    at: time::Instant,
}

/// Adds the answer to a sync that waited to the traces of the records that it tells of.
fn tell_traces(cx: &Cx<Server>, traces: &Traces, since: Offset, woken: WakeTimes) {
    let (engine, user_id) = (&cx.app.engine, &cx.caller.user_id);
    let (own, head) = (Stream::user(user_id), engine.head());
    let state = engine.state();
    let concerns = |stream: &Stream| match stream.room_id() {
        Some(room_id) => {
            let part = state.memberships.part(user_id, room_id);
            part.is_some_and(|part| part.is_joined(Offset::MAX))
        }
        None => *stream == own,
    };
    let answered = time::Instant::now();
    for (offset, traced) in head.traced().between(since, head.offset(), concerns) {
        let about = || vec![traces::about(offset.get())];
        traces.child(traced, "wake", woken.published, woken.at, about());
        traces.child(traced, "sync answer", woken.at, answered, about());
    }
}

/// Repeats `look` until there is something new, for as long as the client is willing to wait;
/// `at_once` looks once, without a limit on the work. `look` says whether its result is empty,
/// which it is as long as the log has nothing after `since`.
///
/// Every attempt begins as short work, and becomes long work of the caller's if it would be more.
pub(super) async fn long_poll<T>(
    cx: &Cx<Server>,
    timeout: Option<Duration>,
    at_once: bool,
    since: Offset,
    look: impl Fn(&Cx<Server>, Effort) -> Result<(T, bool), Stop>,
) -> Result<T, ApiError> {
    let look_at_length = || cx.at_length(|| look(cx, Effort::Any).map_err(ApiError::from));
    let longest = Duration::from_secs(cx.app.config.sync.max_timeout_seconds);
    let deadline = Instant::now() + timeout.unwrap_or_default().min(longest);
    let head = cx.app.engine.head();
    let listener = head.listen(&cx.caller.user_id);
    let mut woken_by: Option<WakeTimes> = None;
    let stages = &metrics().sync_stage;
    let mut is_hurried = false;
    loop {
        // Created before the attempt and awaited after it, so that no change in between is missed.
        let woken = listener.woken();
        tokio::pin!(woken);
        woken.as_mut().enable();

        if at_once {
            let began = time::Instant::now();
            let found = look_at_length().await;
            stages.since(SyncStage::Read, began);
            return found.map(|(found, _)| found);
        }
        let ends = is_hurried || Instant::now() >= deadline || cx.shutdown.is_given();
        if ends || head.offset() > since {
            let began = time::Instant::now();
            let (found, is_empty) = match look(cx, Effort::Short) {
                Ok(found) => found,
                Err(Stop::TooLong(_)) => look_at_length().await?,
                Err(Stop::Failed(error)) => return Err(error),
            };
            stages.since(SyncStage::Read, began);
            if let Some(woken) = woken_by.filter(|_| !is_empty) {
                let WakeTimes { published, .. } = woken;
                metrics().sync_delay.observe(published.elapsed().as_secs_f64());
                if let Some(traces) = traces() {
                    tell_traces(cx, traces, since, woken);
                }
            }
            if !is_empty || ends {
                return Ok(found);
            }
        }
        let began = time::Instant::now();
        tokio::select! {
            woken = timeout_at(deadline, woken) => {
                let (at, published) = (time::Instant::now(), listener.published());
                woken_by = woken.is_ok().then_some(WakeTimes { published, at });
            }
            () = cx.shutdown.given() => {}
            // Boxed, so that a sync that waits is small.
            () = Box::pin(cx.hurry.notified()) => is_hurried = true,
        }
        stages.since(SyncStage::Wait, began);
        still_logged_in(cx)?;
    }
}

impl From<Stop> for ApiError {
    fn from(stop: Stop) -> Self {
        match stop {
            // An attempt without a limit is never too long.
            Stop::TooLong(too_long) => Self::internal(too_long),
            Stop::Failed(error) => error,
        }
    }
}

/// A session that ended or was locked while the sync waited learns of it at once.
pub(super) fn still_logged_in(cx: &Cx<Server>) -> Result<(), ApiError> {
    let account = cx.app.engine.state().accounts.get(&cx.caller.user_id);
    let standing = account.as_ref().map(|account| account.read().standing).unwrap_or_default();
    if standing.locked {
        return Err(locked());
    }
    if standing.waiting.is_some() {
        return Err(awaiting_approval());
    }
    if cx.caller.service.is_some() && cx.caller.device().is_err() {
        return Ok(());
    }
    let session = account.and_then(|account| {
        account.read().device(&cx.caller.device_id).map(|device| device.session)
    });
    if session == Some(cx.caller.session) { Ok(()) } else { Err(ApiError::unknown_token(false)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// See `a_request_that_waits_is_small` in `http`.
    #[test]
    fn a_sync_that_waits_is_small() {
        fn size_of_future<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
            size_of::<F>()
        }
        let (future, prepared) = (size_of_future(sync), size_of::<Prepared>());
        assert!(future <= 1024, "the future: {future} bytes");
        assert!(prepared <= 1024, "what it was asked for: {prepared} bytes");
    }
}
