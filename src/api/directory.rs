//! The directory: aliases and the list of public rooms.

use std::sync::Arc;

use ruma::{
    OwnedMxcUri, OwnedRoomAliasId, RoomAliasId, UInt,
    api::client::{
        alias::{
            create_alias::v3 as create_alias_v3, delete_alias::v3 as delete_alias_v3,
            get_alias::v3 as get_alias_v3,
        },
        directory::{
            get_public_rooms::v3 as get_public_rooms,
            get_public_rooms_filtered::v3 as get_public_rooms_filtered,
            get_room_visibility::v3 as get_room_visibility,
            set_room_visibility::v3 as set_room_visibility,
        },
        room::{Visibility, aliases::v3 as aliases},
    },
    directory::{PublicRoomsChunk, PublicRoomsChunkInit},
    events::StateEventType,
    room::{JoinRuleKind, RoomType},
};

use super::{Server, at_length, timeline::readable_as_of};
use crate::{
    decide::directory::{RemoveAlias, SetAlias, SetVisibility},
    events::EventStore,
    http::{ApiError, Cx},
    limits,
    log::ReadError,
    record::Offset,
    state::Room,
};

/// Rooms on one page of the list when the client does not say.
const ROOMS_PER_PAGE: usize = 100;

fn local(app: &Server, alias: &RoomAliasId) -> Result<(), ApiError> {
    if alias.server_name() != app.config.server.name {
        return Err(ApiError::invalid_param("The alias belongs to another server."));
    }
    if alias.as_str().len() > limits::IDENTIFIER_BYTES {
        return Err(ApiError::invalid_param("The alias is too long."));
    }
    Ok(())
}

pub(super) async fn create_alias(
    cx: Cx<Server>,
    request: create_alias_v3::Request,
) -> Result<create_alias_v3::Response, ApiError> {
    local(&cx.app, &request.room_alias)?;
    let sender = cx.caller.user_id.clone();
    let proposal = SetAlias { alias: request.room_alias, room_id: request.room_id, sender };
    cx.propose(proposal).await?.into_inner();
    Ok(create_alias_v3::Response::new())
}

pub(super) async fn get_alias(
    cx: Cx<Server, ()>,
    request: get_alias_v3::Request,
) -> Result<get_alias_v3::Response, ApiError> {
    let target = cx.app.engine.state().aliases.get(&request.room_alias, Offset::MAX);
    let target = target.ok_or_else(|| ApiError::not_found("There is no such alias."))?;
    let servers = vec![cx.app.config.server.name.clone()];
    Ok(get_alias_v3::Response::new(target.room_id, servers))
}

pub(super) async fn delete_alias(
    cx: Cx<Server>,
    request: delete_alias_v3::Request,
) -> Result<delete_alias_v3::Response, ApiError> {
    local(&cx.app, &request.room_alias)?;
    let sender = cx.caller.user_id.clone();
    let (alias, ts) = (request.room_alias, cx.app.now());
    let room_id = cx.app.resolve((&*alias).into())?;
    let proposal = RemoveAlias { alias, room_id, sender, ts };
    cx.propose(proposal).await?.into_inner();
    Ok(delete_alias_v3::Response::new())
}

pub(super) async fn room_aliases(
    cx: Cx<Server>,
    request: aliases::Request,
) -> Result<aliases::Response, ApiError> {
    let room = cx.app.room(&request.room_id)?;
    let view = cx.view();
    readable_as_of(&view, &room)?;
    Ok(aliases::Response::new(view.state.aliases.of_room(&room.id, view.at())))
}

pub(super) async fn get_visibility(
    cx: Cx<Server, ()>,
    request: get_room_visibility::Request,
) -> Result<get_room_visibility::Response, ApiError> {
    let public = cx.app.room(&request.room_id)?.is_public();
    let visibility = if public { Visibility::Public } else { Visibility::Private };
    Ok(get_room_visibility::Response::new(visibility))
}

pub(super) async fn set_visibility(
    cx: Cx<Server>,
    request: set_room_visibility::Request,
) -> Result<set_room_visibility::Response, ApiError> {
    let public = match request.visibility {
        Visibility::Public => true,
        Visibility::Private => false,
        _ => return Err(ApiError::invalid_param("`visibility` is `public` or `private`.")),
    };
    let sender = cx.caller.user_id.clone();
    cx.propose(SetVisibility { room_id: request.room_id, sender, public }).await?.into_inner();
    Ok(set_room_visibility::Response::new())
}

pub(super) async fn public_rooms(
    cx: Cx<Server, ()>,
    request: get_public_rooms::Request,
) -> Result<get_public_rooms::Response, ApiError> {
    let server = request.server.as_deref();
    let page =
        at_length(|| list(&cx.app, server, None, None, request.limit, request.since.as_deref()))?;
    let mut response = get_public_rooms::Response::new(page.rooms);
    response.next_batch = page.next;
    response.prev_batch = page.previous;
    response.total_room_count_estimate = Some(page.total);
    Ok(response)
}

pub(super) async fn public_rooms_filtered(
    cx: Cx<Server>,
    request: get_public_rooms_filtered::Request,
) -> Result<get_public_rooms_filtered::Response, ApiError> {
    let filter = request.filter;
    let server = request.server.as_deref();
    let term = filter.generic_search_term.as_deref();
    let types: Option<Vec<Option<String>>> = (!filter.room_types.is_empty()).then(|| {
        filter.room_types.iter().map(|filter| filter.as_str().map(ToOwned::to_owned)).collect()
    });
    let page =
        at_length(|| list(&cx.app, server, term, types, request.limit, request.since.as_deref()))?;
    let mut response = get_public_rooms_filtered::Response::new();
    response.chunk = page.rooms;
    response.next_batch = page.next;
    response.prev_batch = page.previous;
    response.total_room_count_estimate = Some(page.total);
    Ok(response)
}

struct Page {
    rooms: Vec<PublicRoomsChunk>,
    next: Option<String>,
    previous: Option<String>,
    total: UInt,
}

fn list(
    app: &Server,
    server: Option<&ruma::ServerName>,
    term: Option<&str>,
    types: Option<Vec<Option<String>>>,
    limit: Option<UInt>,
    since: Option<&str>,
) -> Result<Page, ApiError> {
    if server.is_some_and(|server| server != app.config.server.name) {
        return Err(ApiError::forbidden("This server does not federate: it lists its own rooms."));
    }
    let start: usize = match since {
        Some(since) => {
            since.parse().map_err(|_| ApiError::invalid_param("`since` is not of this list."))?
        }
        None => 0,
    };
    let limit = limit.map_or(ROOMS_PER_PAGE, |limit| {
        usize::try_from(u64::from(limit)).unwrap_or(usize::MAX).clamp(1, ROOMS_PER_PAGE * 10)
    });
    let mut rooms: Vec<_> = app.engine.state().rooms.public();
    rooms.sort_by_cached_key(|room| std::cmp::Reverse(room.counts(Offset::MAX).joined));
    if term.is_some() || types.is_some() {
        let wanted = |room: &Arc<Room>| -> Result<bool, ApiError> {
            let described = describe(app.engine.events(), room)?;
            let room_type = described.room_type.as_ref().map(ToString::to_string);
            Ok(types.as_ref().is_none_or(|types| types.contains(&room_type))
                && term.is_none_or(|term| mentions(&described, term)))
        };
        let mut kept = Vec::new();
        for room in rooms {
            if wanted(&room)? {
                kept.push(room);
            }
        }
        rooms = kept;
    }
    let total = UInt::try_from(rooms.len()).unwrap_or(UInt::MAX);
    let end = start.saturating_add(limit).min(rooms.len());
    let next = (end < rooms.len()).then(|| end.to_string());
    let previous = (start > 0).then(|| start.saturating_sub(limit).to_string());
    let page = rooms.get(start.min(end)..end).unwrap_or_default();
    let rooms = page.iter().map(|room| describe(app.engine.events(), room));
    Ok(Page { rooms: rooms.collect::<Result<_, _>>()?, next, previous, total })
}

fn mentions(room: &PublicRoomsChunk, term: &str) -> bool {
    let term = term.to_lowercase();
    let alias = room.canonical_alias.as_ref().map(|alias| alias.as_str());
    [room.name.as_deref(), room.topic.as_deref(), alias]
        .into_iter()
        .flatten()
        .any(|text| text.to_lowercase().contains(&term))
}

/// What the directory says of a room.
pub(super) fn describe(events: &EventStore, room: &Room) -> Result<PublicRoomsChunk, ReadError> {
    let field = |event_type: StateEventType, field: &str| {
        events.state_text(room, &event_type, field, Offset::MAX)
    };
    let visibility = field(StateEventType::RoomHistoryVisibility, "history_visibility")?;
    let guests = field(StateEventType::RoomGuestAccess, "guest_access")?;
    let joined = room.counts(Offset::MAX).joined;
    let init = PublicRoomsChunkInit {
        num_joined_members: UInt::try_from(joined).unwrap_or(UInt::MAX),
        room_id: room.id.clone(),
        world_readable: visibility.as_deref() == Some("world_readable"),
        guest_can_join: guests.as_deref() == Some("can_join"),
    };
    let mut described = PublicRoomsChunk::from(init);
    described.name = field(StateEventType::RoomName, "name")?;
    described.topic = field(StateEventType::RoomTopic, "topic")?;
    described.avatar_url =
        field(StateEventType::RoomAvatar, "url")?.map(|url| OwnedMxcUri::from(url.as_str()));
    described.canonical_alias = field(StateEventType::RoomCanonicalAlias, "alias")?
        .and_then(|alias| OwnedRoomAliasId::try_from(alias).ok());
    if let Some(rule) = field(StateEventType::RoomJoinRules, "join_rule")? {
        described.join_rule = JoinRuleKind::from(rule);
    }
    described.room_type = field(StateEventType::RoomCreate, "type")?.map(RoomType::from);
    Ok(described)
}
