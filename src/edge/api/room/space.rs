//! Information about a room for users who are not in it: its summary, and the hierarchy of a space.

pub(in crate::edge::api) mod for_server;

use std::{cmp::Reverse, collections::HashSet, sync::Arc};

use ruma::api::auth_scheme::AccessTokenOptional;
use ruma::{
    EventEncryptionAlgorithm, OwnedRoomId, OwnedRoomOrAliasId, RoomId, RoomOrAliasId,
    SpaceChildOrder, UInt, UserId,
    api::client::{
        room::get_summary::v1 as get_summary,
        space::{SpaceHierarchyRoomsChunk, get_hierarchy::v1 as get_hierarchy},
    },
    events::{StateEventType, room::member::MembershipState},
    room::{JoinRuleSummary, RestrictedSummary, RoomSummary, RoomType},
    serde::Raw,
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{directory::describe, walks};
use crate::{
    base::limits,
    edge::{
        api::Server,
        http::{ApiError, Cx, Reply, Session, endpoint},
    },
    log::ReadError,
    read::events::{EventRef, EventStore, as_shown, to_raw},
    record::Offset,
    state::{Membership, Room, State},
};

pub(super) async fn summary(
    cx: Cx<Server, Option<Session>>,
    request: get_summary::Request,
) -> Result<get_summary::Response, ApiError> {
    summary_of(&cx, &request.room_id_or_alias)
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
    Reply::typed(summary_of(&cx, &request.room_id_or_alias)?)
}

fn summary_of(
    cx: &Cx<Server, Option<Session>>,
    room: &RoomOrAliasId,
) -> Result<get_summary::Response, ApiError> {
    let room = cx.app.known_room(&cx.app.resolve(room)?)?;
    let look = Look {
        state: &cx.app.engine.state(),
        events: cx.app.engine.events(),
        user_id: cx.caller.as_ref().map(|session| &*session.user_id),
        at: cx.app.engine.head().offset(),
    };
    // A room that the caller may not know of does not exist for them.
    if !look.may_know_of(&room)? {
        return Err(ApiError::not_found("There is no such room."));
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
    let limit = match request.limit {
        Some(limit) if limit == UInt::from(0_u32) => {
            return Err(ApiError::invalid_param("`limit` is greater than zero."));
        }
        Some(limit) => usize::try_from(u64::from(limit)).unwrap_or(usize::MAX),
        None => limits::HIERARCHY_ROOMS,
    };
    let walk = Walk {
        root: request.room_id,
        suggested_only: request.suggested_only,
        max_depth: request.max_depth.map(u64::from),
    };
    let page = match &request.from {
        Some(token) => PageToken::read(&cx, token, &walk)?,
        None => PageToken { at: cx.view_as_of()?.at(), passed: 0, as_of: cx.moment()?.is_some() },
    };
    let then = Look {
        state: &cx.app.engine.state(),
        events: cx.app.engine.events(),
        user_id: Some(&cx.caller.user_id),
        at: page.at,
    };
    // The hierarchy is that of the first page. Its rooms are shown as the caller may see them now,
    // with present redactions, unless an administrator asked for an earlier moment.
    let now = if page.as_of { then } else { Look { at: cx.view().at(), ..then } };
    cx.at_length(|| {
        let limit = limit.min(limits::HIERARCHY_ROOMS);
        let mut response = get_hierarchy::Response::new();
        let paused = request.from.as_deref().and_then(|from| cx.app.listing.space_walks.get(from));
        let mut rooms = walk.rooms(then, now, paused.as_deref())?;
        let (mut begun, mut bytes) = (None, 0);
        while let Some((room, depth)) = rooms.advance()? {
            if rooms.state.passed < page.passed {
                rooms.open(&room, depth)?;
                continue;
            }
            let begun = *begun.get_or_insert(rooms.state.looks);
            if response.rooms.len() == limit
                || bytes >= limits::HIERARCHY_BYTES
                || rooms.state.looks - begun > limits::HIERARCHY_LOOKS
            {
                let passed = rooms.state.passed;
                let token = PageToken { passed, ..page }.write(&cx, &walk);
                cx.app.listing.space_walks.keep(token.clone(), rooms.pause(&room, depth));
                response.next_batch = Some(token);
                break;
            }
            if let Some(children) = rooms.open(&room, depth)? {
                bytes += children.iter().map(Child::bytes).sum::<usize>();
                let children = children.iter().map(Child::stripped).collect();
                let summary = now.summary(&room)?;
                response.rooms.push(SpaceHierarchyRoomsChunk::new(summary, children));
            }
        }
        Ok(response)
    })
    .await
}

/// Whether the room exists, and the user is in it, is invited to it, or could join it.
pub(super) fn may_know_of(
    app: &Server,
    user_id: &UserId,
    room_id: &RoomId,
) -> Result<bool, ApiError> {
    let state = &app.engine.state();
    let Some(room) = state.rooms.get(room_id) else { return Ok(false) };
    let at = app.engine.head().offset();
    let look = Look { state, events: app.engine.events(), user_id: Some(user_id), at };
    Ok(look.may_know_of(&room)?)
}

/// A user's view of rooms that they may not be in, as of an offset.
#[derive(Clone, Copy)]
struct Look<'a> {
    state: &'a State,
    events: &'a EventStore,
    /// `None` for a caller without an account.
    user_id: Option<&'a UserId>,
    at: Offset,
}

impl Look<'_> {
    fn text(&self, room: &Room, kind: StateEventType, field: &str) -> Result<String, ReadError> {
        Ok(self.events.state_text(room, &kind, field, self.at)?.unwrap_or_default())
    }

    /// Whether the user may see the room's description: they are in it or invited, everyone may
    /// read it, or they could join it or knock.
    fn may_know_of(&self, room: &Room) -> Result<bool, ReadError> {
        let membership = self.user_id.and_then(|user_id| room.membership(user_id, self.at));
        let membership = membership.map(|(_, membership)| membership);
        if matches!(membership, Some(Membership::Join | Membership::Invite | Membership::Knock)) {
            return Ok(true);
        }
        let kind = StateEventType::RoomHistoryVisibility;
        if self.text(room, kind, "history_visibility")? == "world_readable" {
            return Ok(true);
        }
        if membership == Some(Membership::Ban) {
            return Ok(false);
        }
        let rules = &room.rules.authorization;
        let rule = self.text(room, StateEventType::RoomJoinRules, "join_rule")?;
        let (open, by_membership) = match rule.as_str() {
            "public" => (true, false),
            "knock" => (rules.knocking, false),
            "restricted" => (false, rules.restricted_join_rule),
            "knock_restricted" => {
                (rules.knock_restricted_join_rule, rules.knock_restricted_join_rule)
            }
            _ => (false, false),
        };
        let Some(user_id) = self.user_id.filter(|_| by_membership && !open) else {
            return Ok(open);
        };
        let allowed = self.allowed_rooms(room)?;
        let is_in = |room_id: &OwnedRoomId| {
            let room = self.state.rooms.get(room_id);
            room.is_some_and(|room| room.is_joined(user_id, self.at))
        };
        Ok(allowed.iter().any(is_in))
    }

    /// The rooms whose members may join this one.
    fn allowed_rooms(&self, room: &Room) -> Result<Vec<OwnedRoomId>, ReadError> {
        let kind = StateEventType::RoomJoinRules;
        let Some(offset) = room.state_event(&kind, "", self.at) else { return Ok(Vec::new()) };
        let event = self.events.get(offset)?.map(|event| as_shown(room, event, self.at));
        let content: Option<serde_json::Value> = event.and_then(|event| event.content_as().ok());
        let allow = content.as_ref().and_then(|content| content["allow"].as_array());
        let rooms = allow.into_iter().flatten().filter(|of| of["type"] == "m.room_membership");
        Ok(rooms.filter_map(|of| OwnedRoomId::try_from(of["room_id"].as_str()?).ok()).collect())
    }

    /// The room's summary: its directory entry, and what else is needed to join.
    fn summary(&self, room: &Room) -> Result<RoomSummary, ReadError> {
        let described = describe(self.events, room, self.at)?;
        let join_rule = match JoinRuleSummary::from(described.join_rule) {
            JoinRuleSummary::Restricted(_) => {
                JoinRuleSummary::Restricted(RestrictedSummary::new(self.allowed_rooms(room)?))
            }
            JoinRuleSummary::KnockRestricted(_) => {
                JoinRuleSummary::KnockRestricted(RestrictedSummary::new(self.allowed_rooms(room)?))
            }
            other => other,
        };
        let mut summary = RoomSummary::new(
            described.room_id,
            join_rule,
            described.guest_can_join,
            described.num_joined_members,
            described.world_readable,
        );
        summary.canonical_alias = described.canonical_alias;
        summary.name = described.name;
        summary.topic = described.topic;
        summary.avatar_url = described.avatar_url;
        summary.room_type = described.room_type;
        let algorithm = self.text(room, StateEventType::RoomEncryption, "algorithm")?;
        summary.encryption =
            Some(algorithm).filter(|text| !text.is_empty()).map(EventEncryptionAlgorithm::from);
        summary.room_version = Some(room.version.clone());
        Ok(summary)
    }
}

/// The requested rooms of a space.
struct Walk {
    root: OwnedRoomId,
    suggested_only: bool,
    max_depth: Option<u64>,
}

impl Walk {
    /// The rooms of the hierarchy as of `then`, as far as they are visible as of `now`: from the
    /// beginning, or from the end of the last page.
    fn rooms<'a>(
        &'a self,
        then: Look<'a>,
        now: Look<'a>,
        paused: Option<&Paused>,
    ) -> Result<Rooms<'a>, ApiError> {
        let refused = || ApiError::forbidden("You may not see this room, or there is none.");
        let room = then.state.rooms.get(&self.root).ok_or_else(refused)?;
        if !then.may_know_of(&room)? || !now.may_know_of(&room)? {
            return Err(refused());
        }
        let begun = || Paused { stack: vec![(self.root.clone(), 0)], ..Paused::default() };
        Ok(Rooms { walk: self, then, now, state: paused.cloned().unwrap_or_else(begun) })
    }
}

/// Iterates over the rooms of a space, each once: a room, then the hierarchies of its children in
/// order.
struct Rooms<'a> {
    walk: &'a Walk,
    /// As of when the hierarchy is walked.
    then: Look<'a>,
    /// As of when rooms and children are shown.
    now: Look<'a>,
    state: Paused,
}

/// The position of a paused walk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Paused {
    /// Rooms to visit, next one last, each with its depth.
    stack: Vec<(OwnedRoomId, u64)>,
    /// The rooms that were visited, by their `created`.
    seen: HashSet<Offset>,
    /// The number of rooms that it has passed.
    passed: usize,
    /// The number of rooms and children that were examined.
    looks: usize,
}

impl walks::Walk for Paused {
    fn weight(&self) -> u64 {
        let stack: usize = self.stack.iter().map(|(room_id, _)| room_id.as_str().len() + 48).sum();
        (stack + self.seen.capacity() * 16) as u64
    }
}

impl Rooms<'_> {
    /// The next room, with its depth. It must then be opened, or the walk paused before it.
    fn advance(&mut self) -> Result<Option<(Arc<Room>, u64)>, ReadError> {
        while self.state.looks < limits::HIERARCHY_WALK
            && let Some((room_id, depth)) = self.state.stack.pop()
        {
            self.state.looks += 1;
            let Some(room) = self.room(&room_id) else { continue };
            if self.state.seen.insert(room.created) && self.then.may_know_of(&room)? {
                return Ok(Some((room, depth)));
            }
        }
        Ok(None)
    }

    /// The room, if it existed then.
    fn room(&self, room_id: &RoomId) -> Option<Arc<Room>> {
        self.then.state.rooms.get(room_id).filter(|room| room.created <= self.then.at)
    }

    /// Visits a room. Returns its children, in order; `None` if the caller may no longer know of
    /// the room.
    fn open(&mut self, room: &Room, depth: u64) -> Result<Option<Vec<Child>>, ReadError> {
        self.state.passed += 1;
        if self.now.at != self.then.at && !self.now.may_know_of(room)? {
            return Ok(None);
        }
        let children = self.children(room)?;
        if self.walk.max_depth.is_none_or(|max_depth| depth < max_depth) {
            let there = children.iter().rev().filter(|child| self.room(&child.room_id).is_some());
            let deeper: Vec<_> = there.map(|child| (child.room_id.clone(), depth + 1)).collect();
            self.state.stack.extend(deeper);
        }
        Ok(Some(children))
    }

    /// Pauses the walk, with this room as the next one.
    fn pause(self, room: &Room, depth: u64) -> Paused {
        let mut state = self.state;
        state.seen.remove(&room.created);
        state.stack.push((room.id.clone(), depth));
        state
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
    event: EventRef,
    order: Option<String>,
    suggested: bool,
}

impl Child {
    /// The child in an event; `None` for one without servers, which was removed.
    fn new(room_id: OwnedRoomId, event: EventRef) -> Option<Self> {
        let content: serde_json::Value = event.content_as().ok()?;
        content["via"].as_array().filter(|via| !via.is_empty())?;
        // An invalid order counts as none.
        let order = content["order"].as_str().filter(|order| SpaceChildOrder::parse(order).is_ok());
        let (order, suggested) = (order.map(ToOwned::to_owned), content["suggested"] == true);
        Some(Self { room_id, event, order, suggested })
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

    fn write(self, cx: &Cx<Server>, walk: &Walk) -> String {
        let way = if self.as_of { 'm' } else { 'p' };
        let position = format!("{}.{}.{way}", cx.app.token(self.at), self.passed);
        let mac = cx.app.signing.lasting.mac(Self::PURPOSE, &Self::signed(cx, walk, &position));
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
        if !cx.app.signing.lasting.is_mac(Self::PURPOSE, &Self::signed(cx, walk, position), mac) {
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
