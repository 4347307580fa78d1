//! Simplified sliding sync (MSC4186), on the path that clients use.
//!
//! The stable path is not served. The proposal now puts it at `/v4/sync` (ruma's comments say
//! `/v5/sync`) with a different format: objects for `required_state`, `timeline_events` for
//! `timeline`, `pos` in the body. It is not part of the specification yet, and the meaning of a
//! served path could not be changed later.

use std::{collections::BTreeMap, sync::Arc};

use ruma::{OwnedRoomId, api::client::sync::sync_events::v5 as sync_events};
use serde::Deserialize;

use super::{
    classic::{Stop, long_poll, write},
    presence,
};
use crate::{
    api::{e2ee::to_device, server::Server, server::positions::Undone},
    http::{ApiError, Cx, ErrorCode, Json, read_body},
};
use logcabin_base::limits;
use logcabin_read::{
    sync::{
        Effort, TooLong, UndonePosition,
        sliding::{self, ListConfig, Memory, RoomConfig, Rules, SlidingError, UnknownPos},
    },
    view::token::{Pos, Token},
};
use logcabin_record::Offset;

/// The requested rooms. ruma's request type lacks some filters.
#[derive(Deserialize)]
struct RequestedRooms {
    #[serde(default)]
    lists: BTreeMap<String, ListConfig>,
    #[serde(default)]
    room_subscriptions: BTreeMap<OwnedRoomId, RoomConfig>,
}

pub(super) async fn sync(
    mut cx: Cx<Server>,
    request: sync_events::Request,
) -> Result<Json, ApiError> {
    let name = request.conn_id.unwrap_or_default();
    if name.len() > limits::SLIDING_NAME_BYTES {
        let most = limits::SLIDING_NAME_BYTES;
        return Err(ApiError::invalid_param(format!("`conn_id` has at most {most} bytes.")));
    }
    let most = usize::try_from(cx.app.config.sync.max_timeline_limit).unwrap_or(usize::MAX);
    let asked: RequestedRooms = read_body(&cx.body)?;
    let (lists, subscriptions) = (asked.lists, asked.room_subscriptions);
    let acknowledged = request.extensions.to_device.since.as_deref().map(str::parse::<Token>);
    if let Some(Ok(token)) = acknowledged
        && token.epoch == cx.app.epoch
    {
        to_device::acknowledge(&cx, token.offset);
    }
    let (extensions, bytes) = (request.extensions, cx.body.len());
    let rules = Rules::new(&cx.caller.user_id, lists, subscriptions, extensions, most, bytes)
        .map_err(|bad| ApiError::invalid_param(bad.to_string()))?;
    let app = Arc::clone(&cx.app);
    let connections = &app.sync.connections;
    let pos: Option<Pos> = match request.pos.as_deref() {
        None | Some("") => None,
        // Whatever token the client has, it can only start over.
        Some(pos) => Some(pos.parse().map_err(|_| {
            if let Some(from) = app.position_at_source(pos) {
                connections.starts_over(cx.caller.session, &name, from.token);
            }
            unknown_pos(UnknownPos)
        })?),
    };
    if let Some(pos) = pos.filter(|pos| pos.token.epoch != cx.app.epoch) {
        connections.starts_over(cx.caller.session, &name, pos.token);
        return Err(unknown_pos(UnknownPos));
    }
    // A node that is behind another one may not have what that one gave out.
    if pos.is_some_and(|pos| pos.token.offset > cx.app.engine.head().offset()) {
        return Err(unknown_pos(UnknownPos).unless_behind());
    }
    let said = presence::said(&request.set_presence)?;
    let resumed = connections.resume(cx.caller.session, &name, pos).map_err(unknown_pos)?;
    let goes_on = resumed.goes_on(&rules);
    // A client that starts over may still show its earlier position: the `pos` that was refused
    // just now, or its position in to-device messages, which stays valid.
    let token = || acknowledged.and_then(Result::ok).filter(|token| token.epoch != cx.app.epoch);
    let came_from = match pos {
        None => resumed.came_from().or_else(token),
        Some(_) => None,
    };
    let came_from = came_from.and_then(|token| match cx.app.place(token).ok()? {
        Ok(after) => Some(UndonePosition { token, after }),
        Err(Undone(from)) => Some(from),
    });
    cx.forget_request();
    let _syncing = presence::Syncing::begin(&cx, said);
    // The request may have changed, so there may be something to send even if the log has nothing
    // new.
    let since = Offset::ZERO;
    let look = long_poll(&cx, request.timeout, pos.is_none(), since, |cx, effort| {
        if effort == Effort::Short && !goes_on {
            return Err(Stop::TooLong(TooLong));
        }
        let memory = Memory { unread: &cx.app.sync.unread, epoch: cx.app.epoch, effort };
        let look = sliding::look(&cx.view(), &rules, &resumed, came_from, memory);
        let look = look.map_err(|error| match error {
            SlidingError::UnknownPos(unknown) => Stop::Failed(unknown_pos(unknown)),
            SlidingError::TooLong(too_long) => Stop::TooLong(too_long),
            SlidingError::Read(error) => Stop::Failed(error.into()),
        })?;
        let is_empty = look.is_empty();
        Ok((look, is_empty))
    });
    let response = look.await?.send(connections, &resumed, request.txn_id).map_err(unknown_pos)?;
    write(&response)
}

fn unknown_pos(_: UnknownPos) -> ApiError {
    let message = "This position is not, or no longer, known: start without one.";
    ApiError::new(ErrorCode::UnknownPos, message)
}
