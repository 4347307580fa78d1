//! Events of rooms that another homeserver is in (server-server API, "Retrieving events",
//! "Backfilling and retrieving missing events", "Retrieving event authorization information").

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, HashSet},
    sync::Arc,
};

use ruma::{
    EventId, MilliSecondsSinceUnixEpoch, OwnedEventId, RoomId, ServerName,
    api::federation::{
        authorization::get_event_authorization::v1 as get_event_authorization,
        backfill::get_backfill::v1 as get_backfill,
        event::{
            get_event::v1 as get_event, get_event_by_timestamp::v1 as get_event_by_timestamp,
            get_missing_events::v1 as get_missing_events, get_room_state::v1 as get_room_state,
            get_room_state_ids::v1 as get_room_state_ids,
        },
    },
};
use serde_json::value::RawValue;

use crate::{
    api::server::Server,
    http::{ApiError, Cx, Homeserver},
};
use logcabin_base::limits;
use logcabin_engine::{Engine, LiveState};
use logcabin_read::{
    branches::{Branches, ChainError},
    events::EventRef,
    servers::{admits, may_see, shown_to},
    view::time::ByTime,
};
use logcabin_record::Offset;
use logcabin_state::Room;

/// Which events come first on the way back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WalkOrder {
    /// Those of the greatest depth.
    Latest,
    /// Those that are the fewest steps away.
    Nearest,
}

/// The part of a room that a homeserver may see.
pub(super) struct ServerView<'a> {
    engine: &'a Engine,
    pub(super) state: LiveState,
    pub(super) room: Arc<Room>,
    server: &'a ServerName,
    at: Offset,
}

impl<'a> ServerView<'a> {
    /// A room with a user of the homeserver, whose access control list allows the homeserver.
    pub(super) fn of(
        engine: &'a Engine,
        room_id: &RoomId,
        server: &'a ServerName,
    ) -> Result<Self, ApiError> {
        let look = Self::at_all(engine, room_id, server)?;
        if !look.room.has_server(server) {
            return Err(ApiError::forbidden("Your server is not in this room."));
        }
        Ok(look)
    }

    /// A room whose access control list allows the homeserver.
    pub(super) fn at_all(
        engine: &'a Engine,
        room_id: &RoomId,
        server: &'a ServerName,
    ) -> Result<Self, ApiError> {
        let (state, at) = (engine.state(), engine.head().offset());
        let unknown = || ApiError::not_found("This server is not in the room.");
        let room = state.rooms.get(room_id).ok_or_else(unknown)?;
        if !room.has_server(&engine.env().server.name) {
            return Err(unknown());
        }
        if !admits(engine.events(), &room, server)? {
            return Err(ApiError::forbidden("This room denies your server."));
        }
        Ok(Self { engine, state, room, server, at })
    }

    pub(super) fn branches(&self) -> Branches<'_> {
        Branches::new(&self.state, self.engine.events(), &self.room)
    }

    /// An event of the room. One that was rejected is among them: without it, other homeservers
    /// could not take an event that names it and is allowed.
    fn event(&self, event_id: &EventId) -> Result<EventRef, ApiError> {
        let found = self.engine.events().find_known(&self.state, &self.room, event_id)?;
        found.ok_or_else(|| ApiError::not_found("There is no such event in the room."))
    }

    /// An event in federation format, as the homeserver may see it.
    pub(super) fn pdu(&self, event: EventRef) -> Result<Box<RawValue>, ApiError> {
        let events = self.engine.events();
        let shown = shown_to(events, &self.room, event, self.server, self.at)?;
        Ok(events.in_federation_format(&self.room, &shown))
    }

    /// The events with these ids, in that format.
    pub(super) fn pdus(
        &self,
        branches: &Branches<'_>,
        ids: impl IntoIterator<Item = OwnedEventId>,
    ) -> Result<Vec<Box<RawValue>>, ApiError> {
        let mut pdus = Vec::new();
        for event_id in ids {
            if let Some(event) = branches.find(&event_id)? {
                pdus.push(self.pdu(event)?);
            }
        }
        Ok(pdus)
    }

    /// The state before an event, and the authorities of that state.
    pub(super) fn state_before(
        &self,
        branches: &Branches<'_>,
        event: &EventRef,
    ) -> Result<(Vec<EventRef>, BTreeSet<OwnedEventId>), ApiError> {
        let view = branches.before(event).map_err(too_many)?.ok_or_else(|| {
            ApiError::not_found("The state of the room at this event is not known.")
        })?;
        let mut state = Vec::new();
        for offset in branches.keys(&view).map_err(too_many)?.into_values() {
            state.extend(branches.get(offset)?);
        }
        let chain = branches.chain(state.iter().map(|event| &event.event_id)).map_err(too_many)?;
        Ok((state, chain.into_iter().collect()))
    }

    /// The events before these in the order of `walk`, up to `limit`, filtered by `wanted`.
    fn ancestors(
        &self,
        from: Vec<EventRef>,
        walk: WalkOrder,
        limit: usize,
        wanted: impl Fn(&EventRef) -> bool,
    ) -> Result<Vec<EventRef>, ApiError> {
        let branches = self.branches();
        let mut seen = HashSet::new();
        let mut todo = BinaryHeap::new();
        for event in from {
            if seen.insert(event.event_id.clone()) {
                todo.push((Reverse(0_usize), event.depth, event.event_id.clone()));
            }
        }
        let mut found = Vec::new();
        while let Some((Reverse(steps), _, event_id)) = todo.pop() {
            let Some(event) = branches.find(&event_id)? else { continue };
            if !wanted(&event) {
                continue;
            }
            for before in &event.prev_events {
                if seen.insert(before.clone())
                    && let Some(before) = branches.find(before)?
                {
                    let steps = if walk == WalkOrder::Nearest { steps + 1 } else { 0 };
                    todo.push((Reverse(steps), before.depth, before.event_id.clone()));
                }
            }
            found.push(event);
            if found.len() >= limit {
                break;
            }
        }
        Ok(found)
    }
}

pub(super) fn too_many(error: ChainError) -> ApiError {
    match error {
        ChainError::TooMany | ChainError::Unprepared | ChainError::Changed => {
            ApiError::too_large("The room's history is too large for this request.")
        }
        ChainError::Read(error) => error.into(),
    }
}

fn now(engine: &Engine) -> MilliSecondsSinceUnixEpoch {
    engine.clock().timestamp()
}

pub(super) async fn event(
    cx: Cx<Server, Homeserver>,
    request: get_event::Request,
) -> Result<get_event::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    let state = cx.app.engine.state();
    let unknown = || ApiError::not_found("There is no such event.");
    let mut room_id = None;
    for offset in state.events.candidates(&request.event_id) {
        let event = cx.app.engine.events().get(offset)?;
        room_id = room_id.or_else(|| event.filter(|event| event.event_id == request.event_id));
    }
    let room_id = room_id.ok_or_else(unknown)?.room_id.clone();
    // A homeserver outside the room must not learn that the room exists.
    let look = ServerView::of(&cx.app.engine, &room_id, server).map_err(|_| unknown())?;
    let pdu = look.pdu(look.event(&request.event_id)?)?;
    Ok(get_event::Response::new(cx.app.config.server.name.clone(), now(&cx.app.engine), pdu))
}

pub(super) async fn state(
    cx: Cx<Server, Homeserver>,
    request: get_room_state::Request,
) -> Result<get_room_state::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    cx.at_length(|| {
        let look = ServerView::of(&cx.app.engine, &request.room_id, server)?;
        let branches = look.branches();
        let (state, chain) = look.state_before(&branches, &look.event(&request.event_id)?)?;
        let chain = look.pdus(&branches, chain)?;
        let state: Result<Vec<_>, _> = state.into_iter().map(|event| look.pdu(event)).collect();
        Ok(get_room_state::Response::new(chain, state?))
    })
    .await
}

pub(super) async fn state_ids(
    cx: Cx<Server, Homeserver>,
    request: get_room_state_ids::Request,
) -> Result<get_room_state_ids::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    cx.at_length(|| {
        let look = ServerView::of(&cx.app.engine, &request.room_id, server)?;
        let branches = look.branches();
        let (state, chain) = look.state_before(&branches, &look.event(&request.event_id)?)?;
        let state = state.into_iter().map(|event| event.event_id.clone()).collect();
        Ok(get_room_state_ids::Response::new(chain.into_iter().collect(), state))
    })
    .await
}

pub(super) async fn event_auth(
    cx: Cx<Server, Homeserver>,
    request: get_event_authorization::Request,
) -> Result<get_event_authorization::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    cx.at_length(|| {
        let look = ServerView::of(&cx.app.engine, &request.room_id, server)?;
        let event = look.event(&request.event_id)?;
        let branches = look.branches();
        let chain = branches.chain([&event.event_id].into_iter()).map_err(too_many)?;
        let chain: BTreeSet<_> = chain.into_iter().collect();
        Ok(get_event_authorization::Response::new(look.pdus(&branches, chain)?))
    })
    .await
}

pub(super) async fn backfill(
    cx: Cx<Server, Homeserver>,
    request: get_backfill::Request,
) -> Result<get_backfill::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
    let limit = limit.min(limits::EVENTS_FOR_SERVER);
    if request.v.len() > limits::PREDECESSORS {
        return Err(ApiError::invalid_param("There are too many events in `v`."));
    }
    cx.at_length(|| {
        let look = ServerView::of(&cx.app.engine, &request.room_id, server)?;
        let from = request.v.iter().filter_map(|event_id| look.event(event_id).ok()).collect();
        let is_allowed = |event: &EventRef| !ruma::state_res::Event::rejected(&**event);
        let found = look.ancestors(from, WalkOrder::Latest, limit, is_allowed)?;
        let pdus: Result<Vec<_>, _> = found.into_iter().map(|event| look.pdu(event)).collect();
        Ok(get_backfill::Response::new(
            cx.app.config.server.name.clone(),
            now(&cx.app.engine),
            pdus?,
        ))
    })
    .await
}

pub(super) async fn missing_events(
    cx: Cx<Server, Homeserver>,
    request: get_missing_events::Request,
) -> Result<get_missing_events::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    let limit = usize::try_from(request.limit).unwrap_or(usize::MAX);
    let limit = limit.min(limits::EVENTS_FOR_SERVER);
    let most = limits::EVENTS_FOR_SERVER;
    if request.latest_events.len() > most || request.earliest_events.len() > most {
        return Err(ApiError::invalid_param("There are too many events in the request."));
    }
    cx.at_length(|| {
        let look = ServerView::of(&cx.app.engine, &request.room_id, server)?;
        let earliest: HashSet<_> = request.earliest_events.iter().collect();
        let latest: HashSet<_> = request.latest_events.iter().collect();
        let min_depth = u64::from(request.min_depth);
        let from: Vec<_> = latest.iter().filter_map(|event_id| look.event(event_id).ok()).collect();
        // Without those that the latest ones name, the homeserver cannot go on.
        let direct = from.iter().flat_map(|event| event.prev_events.iter().cloned());
        let direct: HashSet<_> = direct.collect();
        // The homeserver has the latest ones; they are only the starting points.
        let found = look.ancestors(from, WalkOrder::Nearest, limit + latest.len(), |event| {
            let is_deep = event.depth >= min_depth || direct.contains(&event.event_id);
            is_deep && !earliest.contains(&event.event_id)
        })?;
        let mut found: Vec<_> =
            found.into_iter().filter(|event| !latest.contains(&event.event_id)).collect();
        found.truncate(limit);
        found.reverse();
        found.sort_by_key(|event| event.depth);
        let pdus: Result<Vec<_>, _> = found.into_iter().map(|event| look.pdu(event)).collect();
        Ok(get_missing_events::Response::new(pdus?))
    })
    .await
}

pub(super) async fn timestamp_to_event(
    cx: Cx<Server, Homeserver>,
    request: get_event_by_timestamp::Request,
) -> Result<get_event_by_timestamp::Response, ApiError> {
    let Homeserver(server) = &cx.caller;
    cx.at_length(|| {
        let look = ServerView::of(&cx.app.engine, &request.room_id, server)?;
        let events = cx.app.engine.events();
        let by_time = ByTime { events, room: &look.room, at: look.at };
        let wanted = |event: &EventRef| {
            Ok(!events.is_over(&look.room, event) && may_see(events, &look.room, event, server)?)
        };
        let ts = request.ts.get().into();
        let found = by_time.closest(ts, request.dir, wanted, limits::EVENTS_FOR_SERVER)?;
        let found =
            found.ok_or_else(|| ApiError::not_found("There is no such event in the room."))?;
        let (event_id, ts) = (found.event_id.clone(), found.origin_server_ts);
        Ok(get_event_by_timestamp::Response::new(event_id, ts))
    })
    .await
}
