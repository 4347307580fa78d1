//! Information about a room for users who are not in it: its summary, and the hierarchy of a space.

pub(in crate::api) mod for_server;
pub(crate) mod remote;
mod view;

use std::{cmp::Reverse, sync::Arc};

use ruma::{
    OwnedRoomId, OwnedRoomOrAliasId, OwnedServerName, RoomId, RoomOrAliasId, SpaceChildOrder,
    UserId,
    api::{
        auth_scheme::AccessTokenOptional,
        client::{
            room::get_summary::v1 as get_summary,
            space::{SpaceHierarchyRoomsChunk, get_hierarchy::v1 as get_hierarchy},
        },
    },
    events::{StateEventType, room::member::MembershipState},
    room::RoomType,
    serde::Raw,
};
use serde::Serialize;
use serde_json::value::RawValue;

use self::{remote::via, view::SpaceView};
use super::remote_rooms::RoomReference;
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, Session, endpoint},
};
use logcabin_base::limits;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_read::events::{EventRef, as_shown, to_raw};
use logcabin_record::Offset;
use logcabin_service::spaces::{Described, Descriptions, Paused, RemoteChild, Visit};
use logcabin_state::{Membership, Room};

pub(super) async fn summary(
    cx: Cx<Server, Option<Session>>,
    request: get_summary::Request,
) -> Result<get_summary::Response, ApiError> {
    summary_of(&cx, &request.room_id_or_alias, request.via).await
}

endpoint! {
    /// The path of the summary from before it was specified, which clients still try first.
    pub(super) struct EarlySummary = GET
        "/_matrix/client/unstable/im.nheko.summary/summary/{room_id_or_alias}";
    for AccessTokenOptional;
    { room_id_or_alias: OwnedRoomOrAliasId = path }
}

/// Like [`summary`].
pub(super) async fn early_summary(
    cx: Cx<Server, Option<Session>>,
    request: EarlySummary,
) -> Result<Reply, ApiError> {
    Reply::typed(summary_of(&cx, &request.room_id_or_alias, Vec::new()).await?)
}

async fn summary_of(
    cx: &Cx<Server, Option<Session>>,
    room: &RoomOrAliasId,
    named: Vec<OwnedServerName>,
) -> Result<get_summary::Response, ApiError> {
    // A room that the caller may not know of does not exist for them.
    let hidden = || ApiError::not_found("There is no such room.");
    // Others are asked for those who have an account only.
    let place = match cx.caller {
        Some(_) => cx.place(room, named).await?,
        None => RoomReference { room_id: cx.app.resolve(room)?, via: named },
    };
    let state = cx.app.engine.state();
    let look = SpaceView {
        state: &state,
        events: cx.app.engine.events(),
        user_id: cx.caller.as_ref().map(|session| &*session.user_id),
        sees_all: false,
        at: cx.app.engine.head().offset(),
        federates_as: cx.caller.as_ref().and_then(|_| cx.app.federates_as()),
    };
    let room = look.state.rooms.get(&place.room_id);
    if look.is_remote_room(room.as_deref()) {
        let listing = &cx.app.listing;
        let via = via(&place.room_id, &place.via);
        if listing.descriptions.get(&place.room_id, &via).is_none() {
            cx.describe(&place.room_id, &via).await?;
        }
        let described = listing.descriptions.get(&place.room_id, &via).flatten();
        let described = described.filter(|described| look.may_know_of_remote(described));
        let summary = described.ok_or_else(hidden)?.summary.clone();
        let mut response = get_summary::Response::new(summary);
        response.membership = Some(MembershipState::Leave);
        return Ok(response);
    }
    let room = room.ok_or_else(hidden)?;
    if !look.may_know_of(&room)? {
        return Err(hidden());
    }
    let mut response = get_summary::Response::new(look.summary(&room)?);
    if let Some(user_id) = look.user_id {
        let membership = room.membership(user_id, look.at).map(|(_, membership)| membership);
        let membership = membership.unwrap_or(Membership::Leave).as_str();
        response.membership = Some(MembershipState::from(membership));
    }
    Ok(response)
}

pub(super) async fn hierarchy(
    cx: Cx<Server>,
    request: get_hierarchy::Request,
) -> Result<get_hierarchy::Response, ApiError> {
    let walk = Walk {
        root: request.room_id,
        suggested_only: request.suggested_only,
        max_depth: request.max_depth.map(u64::from),
        sees_all: false,
    };
    page(&cx, walk, request.from.as_deref(), request.limit.map(u64::from)).await
}

/// A page of the hierarchy with every room of this server in it, and none that others describe:
/// only for administrators.
pub(in crate::api) async fn whole_hierarchy(
    cx: &Cx<Server>,
    root: OwnedRoomId,
    max_depth: Option<u64>,
    from: Option<&str>,
    limit: Option<u64>,
) -> Result<get_hierarchy::Response, ApiError> {
    let walk = Walk { root, suggested_only: false, max_depth, sees_all: true };
    page(cx, walk, from, limit).await
}

async fn page(
    cx: &Cx<Server>,
    walk: Walk,
    from: Option<&str>,
    limit: Option<u64>,
) -> Result<get_hierarchy::Response, ApiError> {
    let limit = match limit {
        Some(0) => return Err(ApiError::invalid_param("`limit` is greater than zero.")),
        Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
        None => limits::HIERARCHY_ROOMS,
    };
    let page = match from {
        Some(token) => PageToken::read(cx, token, &walk)?,
        None => PageToken { at: cx.view_as_of()?.at(), passed: 0, as_of: cx.moment()?.is_some() },
    };
    let state = cx.app.engine.state();
    let then = SpaceView {
        state: &state,
        events: cx.app.engine.events(),
        user_id: Some(&cx.caller.user_id),
        sees_all: walk.sees_all,
        at: page.at,
        federates_as: cx.app.federates_as().filter(|_| !walk.sees_all),
    };
    // The hierarchy is that of the first page. Its rooms are shown as the caller may see them now,
    // with present redactions, unless an administrator asked for an earlier moment.
    let now = if page.as_of { then } else { SpaceView { at: cx.view().at(), ..then } };
    let limit = limit.min(limits::HIERARCHY_ROOMS);
    let mut paused = from.and_then(|from| cx.app.listing.space_walks.get(from));
    let mut part = PartialPage { response: get_hierarchy::Response::new(), begun: None, bytes: 0 };
    for asked in 0.. {
        let may_ask = asked < limits::HIERARCHY_ASKED;
        let end = cx
            .at_length(|| {
                let mut rooms =
                    walk.rooms(then, now, &cx.app.listing.descriptions, paused.as_deref())?;
                let end = part.fill(&mut rooms, &page, limit, may_ask)?;
                Ok((end, rooms.state))
            })
            .await?;
        match end {
            (End::All, _) => break,
            (End::Page, state) => {
                let token =
                    PageToken { passed: state.passed.max(page.passed), ..page }.write(cx, &walk);
                cx.app.listing.space_walks.keep(token.clone(), state);
                part.response.next_batch = Some(token);
                break;
            }
            (End::Ask(room_id, via), state) => {
                cx.describe(&room_id, &via).await?;
                paused = Some(Arc::new(state));
            }
        }
    }
    Ok(part.response)
}

/// Part of a page.
struct PartialPage {
    response: get_hierarchy::Response,
    begun: Option<usize>,
    bytes: usize,
}

/// Why a part of a page ends.
enum End {
    /// There is no other room.
    All,
    /// The page is full.
    Page,
    /// Others have to be asked for the next room.
    Ask(OwnedRoomId, Vec<OwnedServerName>),
}

impl PartialPage {
    fn fill(
        &mut self,
        rooms: &mut Rooms<'_>,
        page: &PageToken,
        limit: usize,
        may_ask: bool,
    ) -> Result<End, ApiError> {
        while let Some((next, depth)) = rooms.advance()? {
            if let Next::Unknown(visit) = next {
                let (room_id, via) = (visit.room_id.clone(), visit.via.clone());
                rooms.put_back(Next::Unknown(visit), depth);
                return Ok(if may_ask { End::Ask(room_id, via) } else { End::Page });
            }
            if rooms.state.passed < page.passed {
                rooms.open(&next, depth)?;
                continue;
            }
            let begun = *self.begun.get_or_insert(rooms.state.looks);
            if self.response.rooms.len() == limit
                || self.bytes >= limits::HIERARCHY_BYTES
                || rooms.state.looks - begun > limits::HIERARCHY_LOOKS
            {
                rooms.put_back(next, depth);
                return Ok(End::Page);
            }
            if let Some(chunk) = rooms.open(&next, depth)? {
                self.bytes += chunk.bytes;
                self.response.rooms.push(chunk.rooms);
            }
        }
        Ok(End::All)
    }
}

/// Whether the room exists, and the user is in it, is invited to it, or could join it.
pub(super) fn may_know_of(
    engine: &Engine,
    user_id: &UserId,
    room_id: &RoomId,
) -> Result<bool, ApiError> {
    let state = &engine.state();
    let Some(room) = state.rooms.get(room_id) else { return Ok(false) };
    let at = engine.head().offset();
    let events = engine.events();
    let user_id = Some(user_id);
    let look = SpaceView { state, events, user_id, sees_all: false, at, federates_as: None };
    Ok(look.may_know_of(&room)?)
}

/// The requested rooms of a space.
struct Walk {
    root: OwnedRoomId,
    suggested_only: bool,
    max_depth: Option<u64>,
    /// Whether it shows every room of this server, as to an administrator.
    sees_all: bool,
}

impl Walk {
    /// The rooms of the hierarchy as of `then`, as far as they are visible as of `now`: from the
    /// beginning, or from the end of the last page.
    fn rooms<'a>(
        &'a self,
        then: SpaceView<'a>,
        now: SpaceView<'a>,
        descriptions: &'a Descriptions,
        paused: Option<&Paused>,
    ) -> Result<Rooms<'a>, ApiError> {
        let refused = || ApiError::forbidden("You may not see this room, or there is none.");
        let room = then.state.rooms.get(&self.root);
        if then.is_remote_room(room.as_deref()) {
            match descriptions.get(&self.root, &via(&self.root, &[])) {
                Some(Some(described)) if now.may_know_of_remote(&described) => {}
                Some(_) => return Err(refused()),
                None => {}
            }
        } else {
            let room = room.ok_or_else(refused)?;
            if !then.may_know_of(&room)? || !now.may_know_of(&room)? {
                return Err(refused());
            }
        }
        let root = Visit { room_id: self.root.clone(), via: via(&self.root, &[]), depth: 0 };
        let begun = || Paused { stack: vec![root], ..Paused::default() };
        let state = paused.cloned().unwrap_or_else(begun);
        Ok(Rooms { walk: self, then, now, descriptions, state })
    }
}

/// Iterates over the rooms of a space, each once: a room, then the hierarchies of its children in
/// order.
struct Rooms<'a> {
    walk: &'a Walk,
    /// As of when the hierarchy is walked.
    then: SpaceView<'a>,
    /// As of when rooms and children are shown.
    now: SpaceView<'a>,
    descriptions: &'a Descriptions,
    state: Paused,
}

/// A room in the walk.
enum Next {
    Here(Arc<Room>),
    /// As others describe it, who were asked for it.
    Elsewhere(Arc<Described>, Visit),
    /// Others have to be asked for it.
    Unknown(Visit),
}

/// A room of a page, and its approximate size in bytes.
struct Chunk {
    rooms: SpaceHierarchyRoomsChunk,
    bytes: usize,
}

impl Rooms<'_> {
    /// The next room, with its depth. It must then be opened or put back.
    fn advance(&mut self) -> Result<Option<(Next, u64)>, ReadError> {
        while self.state.looks < limits::HIERARCHY_WALK
            && let Some(visit) = self.state.stack.pop()
        {
            self.state.looks += 1;
            let (room, depth) = (self.room(&visit.room_id), visit.depth);
            if self.then.is_remote_room(room.as_deref()) {
                let next = match self.descriptions.get(&visit.room_id, &visit.via) {
                    None => Next::Unknown(visit),
                    Some(Some(described)) if self.now.may_know_of_remote(&described) => {
                        if !self.state.seen_elsewhere.insert(visit.room_id.clone()) {
                            continue;
                        }
                        Next::Elsewhere(described, visit)
                    }
                    Some(_) => continue,
                };
                return Ok(Some((next, depth)));
            }
            let Some(room) = room else { continue };
            if self.state.seen.insert(room.created) && self.then.may_know_of(&room)? {
                return Ok(Some((Next::Here(room), depth)));
            }
        }
        Ok(None)
    }

    /// Makes this room the next one again.
    fn put_back(&mut self, next: Next, depth: u64) {
        let visit = match next {
            Next::Here(room) => {
                self.state.seen.remove(&room.created);
                Visit { room_id: room.id.clone(), via: Vec::new(), depth }
            }
            Next::Elsewhere(_, visit) => {
                self.state.seen_elsewhere.remove(&visit.room_id);
                visit
            }
            Next::Unknown(visit) => visit,
        };
        self.state.looks -= 1;
        self.state.stack.push(visit);
    }

    /// The room, if it existed then.
    fn room(&self, room_id: &RoomId) -> Option<Arc<Room>> {
        self.then.state.rooms.get(room_id).filter(|room| room.created <= self.then.at)
    }

    /// Visits a room; `None` if the caller may no longer know of it.
    fn open(&mut self, next: &Next, depth: u64) -> Result<Option<Chunk>, ReadError> {
        self.state.passed += 1;
        match next {
            Next::Here(room) => self.open_here(room, depth),
            Next::Elsewhere(described, _) => Ok(Some(self.open_elsewhere(described, depth))),
            Next::Unknown(..) => Ok(None),
        }
    }

    fn open_here(&mut self, room: &Room, depth: u64) -> Result<Option<Chunk>, ReadError> {
        if self.now.at != self.then.at && !self.now.may_know_of(room)? {
            return Ok(None);
        }
        let children = self.children(room)?;
        let visits = children.iter().map(|child| (&child.room_id, &child.via));
        self.visit_later(visits.collect(), depth);
        let bytes = children.iter().map(Child::bytes).sum();
        let children = children.iter().map(Child::stripped).collect();
        let rooms = SpaceHierarchyRoomsChunk::new(self.now.summary(room)?, children);
        Ok(Some(Chunk { rooms, bytes }))
    }

    fn open_elsewhere(&mut self, described: &Described, depth: u64) -> Chunk {
        let children = described.children.iter();
        let children: Vec<_> =
            children.filter(|child| !self.walk.suggested_only || child.suggested).collect();
        self.state.looks += children.len();
        let visits = children.iter().map(|child| (&child.room_id, &child.via));
        self.visit_later(visits.collect(), depth);
        let bytes = children.iter().map(|child| child.bytes()).sum();
        let children = children.into_iter().map(RemoteChild::stripped).collect();
        let rooms = SpaceHierarchyRoomsChunk::new(described.summary.clone(), children);
        Chunk { rooms, bytes }
    }

    fn visit_later(&mut self, children: Vec<(&OwnedRoomId, &Vec<OwnedServerName>)>, depth: u64) {
        if self.walk.max_depth.is_some_and(|max_depth| depth >= max_depth) {
            return;
        }
        for (room_id, named) in children.into_iter().rev() {
            let room = self.room(room_id);
            let via = if self.then.is_remote_room(room.as_deref()) {
                via(room_id, named)
            } else if room.is_some() {
                Vec::new()
            } else {
                continue;
            };
            self.state.stack.push(Visit { room_id: room_id.clone(), via, depth: depth + 1 });
        }
    }

    /// The children of a space in display order; a room of another type has none.
    fn children(&mut self, room: &Room) -> Result<Vec<Child>, ReadError> {
        let room_type = self.then.text(room, StateEventType::RoomCreate, "type")?;
        if room_type != RoomType::Space.as_str() {
            return Ok(Vec::new());
        }
        let mut named = room.state_of_type(&StateEventType::SpaceChild, self.then.at);
        named.sort_unstable_by_key(|(_, offset)| Reverse(*offset));
        let (mut children, mut bytes) = (Vec::new(), 0);
        for (room_id, offset) in named.into_iter().take(limits::SPACE_CHILDREN) {
            self.state.looks += 1;
            let Some(event) = self.now.events.get(offset)? else { continue };
            // An event that was redacted since has no content, and so names no child.
            let event = as_shown(room, event, self.now.at);
            bytes += event.content.get().len();
            if bytes > limits::SPACE_CHILDREN_BYTES {
                break;
            }
            let child = RoomId::parse(room_id).ok().and_then(|id| Child::new(id, event));
            children.extend(child.filter(|child| !self.walk.suggested_only || child.suggested));
        }
        children.sort_by_cached_key(Child::place);
        Ok(children)
    }
}

/// A room in a space.
struct Child {
    room_id: OwnedRoomId,
    via: Vec<OwnedServerName>,
    event: EventRef,
    order: Option<String>,
    suggested: bool,
}

impl Child {
    /// The child in an event; `None` for one without servers, which was removed.
    fn new(room_id: OwnedRoomId, event: EventRef) -> Option<Self> {
        let content: serde_json::Value = event.content_as().ok()?;
        let via = content["via"].as_array().filter(|via| !via.is_empty())?;
        let via = via.iter().take(limits::HIERARCHY_VIA).filter_map(|server| server.as_str());
        let via = via.filter_map(|server| server.try_into().ok()).collect();
        // An invalid order counts as none.
        let order = content["order"].as_str().filter(|order| SpaceChildOrder::parse(order).is_ok());
        let (order, suggested) = (order.map(ToOwned::to_owned), content["suggested"] == true);
        Some(Self { room_id, via, event, order, suggested })
    }

    /// Its approximate size in a response, in bytes.
    fn bytes(&self) -> usize {
        self.event.content.get().len() + self.room_id.as_str().len() + 256
    }

    /// Children with an order come first, sorted by it; then by age, then by id.
    fn place(&self) -> (bool, Option<String>, u64, OwnedRoomId) {
        let ts = u64::from(self.event.origin_server_ts.get());
        (self.order.is_none(), self.order.clone(), ts, self.room_id.clone())
    }

    fn stripped<T>(&self) -> Raw<T> {
        #[derive(Serialize)]
        struct Stripped<'a> {
            #[serde(rename = "type")]
            event_type: &'a ruma::events::TimelineEventType,
            state_key: &'a RoomId,
            sender: &'a UserId,
            content: &'a RawValue,
            origin_server_ts: ruma::MilliSecondsSinceUnixEpoch,
        }
        Raw::from_json(to_raw(&Stripped {
            event_type: &self.event.event_type,
            state_key: &self.room_id,
            sender: &self.event.sender,
            content: &self.event.content,
            origin_server_ts: self.event.origin_server_ts,
        }))
    }
}

/// The start of the next page of a walk: as of when, and after how many rooms.
///
/// Its MAC binds it to the walk and to the user. Otherwise anybody could forge one that shows a
/// space as it was before they could know of it.
#[derive(Clone, Copy)]
struct PageToken {
    at: Offset,
    passed: usize,
    /// Whether an administrator asked to see everything as of `at`.
    as_of: bool,
}

impl PageToken {
    const PURPOSE: &str = "page of a space";

    const PURPOSE_WITH_ALL_ROOMS: &str = "page of a space with all rooms";

    const fn purpose(walk: &Walk) -> &'static str {
        if walk.sees_all { Self::PURPOSE_WITH_ALL_ROOMS } else { Self::PURPOSE }
    }

    fn write(self, cx: &Cx<Server>, walk: &Walk) -> String {
        let way = if self.as_of { 'm' } else { 'p' };
        let position = format!("{}.{}.{way}", cx.app.token(self.at), self.passed);
        let signed = Self::signed(cx, walk, &position);
        let mac = cx.app.signing.lasting.mac(Self::purpose(walk), &signed);
        format!("{position}.{mac}")
    }

    /// The text that the MAC of a token covers.
    fn signed(cx: &Cx<Server>, walk: &Walk, position: &str) -> String {
        let of = (&*cx.caller.user_id, &walk.root, walk.suggested_only, walk.max_depth, position);
        to_raw(&of).get().to_owned()
    }

    fn read(cx: &Cx<Server>, token: &str, walk: &Walk) -> Result<Self, ApiError> {
        let unknown = || {
            ApiError::invalid_param(
                "`from` is no token of this space with this `suggested_only` and `max_depth`.",
            )
        };
        let (position, mac) = token.rsplit_once('.').ok_or_else(unknown)?;
        let signed = Self::signed(cx, walk, position);
        if !cx.app.signing.lasting.is_mac(Self::purpose(walk), &signed, mac) {
            return Err(unknown());
        }
        let mut parts = position.splitn(3, '.');
        let (at, passed, way) = (parts.next(), parts.next(), parts.next());
        let passed = passed.and_then(|passed| passed.parse().ok()).ok_or_else(unknown)?;
        let as_of = way == Some("m");
        if as_of {
            cx.must_be_admin()?;
        }
        Ok(Self { at: cx.app.position(at.unwrap_or_default())?, passed, as_of })
    }
}

#[cfg(test)]
mod tests;
