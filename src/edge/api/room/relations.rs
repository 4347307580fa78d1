//! Related events (client-server API, "Event relationships" and "Threading").

use ruma::{
    EventId, RoomId, UInt,
    api::{
        Direction,
        client::{
            relations::{
                get_relating_events::v1 as relating_events,
                get_relating_events_with_rel_type::v1 as with_rel_type,
                get_relating_events_with_rel_type_and_event_type::v1 as with_both,
            },
            threads::get_threads::v1::{self as get_threads, IncludeThreads},
        },
    },
};
use serde::Serialize;

use super::reading::{page_size, readable_as_of, room_of_event, visible_event};
use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json},
};
use logcabin_base::limits;
use logcabin_read::{
    events::{ClientEvent, EventForm},
    view::{
        filter::EventFilter,
        relations::{PageRange, RelationQuery, ThreadQuery},
        token::ThreadsToken,
    },
};
use logcabin_record::Offset;

/// The default number of events on a page.
const PAGE: u32 = 20;

/// The common parameters of the three endpoints for an event's children.
struct RelationsRequest<'a> {
    room_id: &'a RoomId,
    event_id: &'a EventId,
    rel_type: Option<String>,
    event_type: Option<String>,
    from: Option<&'a str>,
    to: Option<&'a str>,
    dir: Direction,
    limit: Option<UInt>,
    recurse: bool,
}

macro_rules! asked {
    ($request:expr, $rel_type:expr, $event_type:expr) => {
        RelationsRequest {
            room_id: &$request.room_id,
            event_id: &$request.event_id,
            rel_type: $rel_type,
            event_type: $event_type,
            from: $request.from.as_deref(),
            to: $request.to.as_deref(),
            dir: $request.dir,
            limit: $request.limit,
            recurse: $request.recurse,
        }
    };
}

pub(super) async fn all(
    cx: Cx<Server>,
    request: relating_events::Request,
) -> Result<Json, ApiError> {
    children(&cx, &asked!(request, None, None)).await
}

pub(super) async fn of_rel_type(
    cx: Cx<Server>,
    request: with_rel_type::Request,
) -> Result<Json, ApiError> {
    let rel_type = Some(request.rel_type.to_string());
    children(&cx, &asked!(request, rel_type, None)).await
}

pub(super) async fn of_rel_type_and_event_type(
    cx: Cx<Server>,
    request: with_both::Request,
) -> Result<Json, ApiError> {
    let rel_type = Some(request.rel_type.to_string());
    let event_type = Some(request.event_type.to_string());
    children(&cx, &asked!(request, rel_type, event_type)).await
}

async fn children(cx: &Cx<Server>, asked: &RelationsRequest<'_>) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response<'a> {
        chunk: Vec<ClientEvent>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_batch: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        prev_batch: Option<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        recursion_depth: Option<usize>,
    }
    let room = room_of_event(&cx.app.engine, asked.room_id)?;
    let view = cx.view();
    let parent = visible_event(&view, &room, asked.event_id)?;
    let position =
        |token: Option<&str>| token.map(|token| cx.app.position_in(&room, token)).transpose();
    let (from, to) = (position(asked.from)?, position(asked.to)?);
    let stretch = match asked.dir {
        Direction::Backward => PageRange::Backward {
            from: from.unwrap_or(Offset::MAX),
            after: to.unwrap_or(Offset::ZERO),
        },
        Direction::Forward => PageRange::Forward {
            after: from.unwrap_or(Offset::ZERO),
            to: to.unwrap_or(Offset::MAX),
        },
    };
    let wanted = RelationQuery {
        rel_type: asked.rel_type.as_deref(),
        event_type: asked.event_type.as_deref(),
        depth: if asked.recurse { limits::RELATION_DEPTH } else { 1 },
    };
    let limit = page_size(asked.limit.unwrap_or_else(|| PAGE.into()), &EventFilter::default());
    cx.at_length(|| {
        let page = view.relations(&room, parent.offset, wanted, stretch, limit)?;
        json(&Response {
            chunk: view.client_events(&room, &page.events, &EventForm::FULL)?,
            next_batch: page.next.map(|offset| cx.app.token(offset)),
            prev_batch: asked.from,
            recursion_depth: asked.recurse.then_some(wanted.depth),
        })
    })
    .await
}

pub(super) async fn threads(
    cx: Cx<Server>,
    request: get_threads::Request,
) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response {
        chunk: Vec<ClientEvent>,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_batch: Option<String>,
    }
    let participated = match &request.include {
        IncludeThreads::All => false,
        IncludeThreads::Participated => true,
        _ => return Err(ApiError::invalid_param("`include` is `all` or `participated`.")),
    };
    let limit = page_size(request.limit.unwrap_or_else(|| PAGE.into()), &EventFilter::default());
    if limit == 0 {
        return Err(ApiError::invalid_param("`limit` is greater than 0."));
    }
    // Here, the existence of a hidden room is not revealed.
    let room = cx.app.room(&request.room_id);
    let room = room.map_err(|_| ApiError::forbidden("You cannot view this room."))?;
    let view = cx.view();
    readable_as_of(&view, &room)?;
    let (as_of, before) = match request.from.as_deref() {
        None => (view.at(), Offset::MAX),
        Some(token) => {
            let token = ThreadsToken::try_from(token)
                .map_err(|_| ApiError::invalid_param("This is not a token of this list."))?;
            (cx.app.position(token.as_of)?, token.before)
        }
    };
    cx.at_length(|| {
        let key = |token: &str| {
            format!("{} {} {participated} {token}", cx.caller.user_id, request.room_id)
        };
        let walk =
            request.from.as_deref().and_then(|from| cx.app.listing.thread_walks.get(&key(from)));
        let wanted = ThreadQuery { as_of, before, participated };
        let threads = view.threads(&room, wanted, limit, walk.as_deref())?;
        let next = |before| ThreadsToken { as_of: &cx.app.token(as_of), before }.to_string();
        let next_batch = threads.next.map(next);
        if let Some(token) = &next_batch {
            cx.app.listing.thread_walks.keep(key(token), threads.walk);
        }
        let chunk = view.thread_roots(&room, &threads.roots, &EventForm::FULL)?;
        json(&Response { chunk, next_batch })
    })
    .await
}
