//! The directory: aliases and the list of public rooms.

use std::{cmp::Reverse, fmt, str::FromStr, sync::Arc};

use ruma::{
    RoomAliasId, RoomId, ServerName, UInt,
    api::client::{
        alias::{
            create_alias::v3 as create_alias_v3, delete_alias::v3 as delete_alias_v3,
            get_alias::v3 as get_alias_v3,
        },
        appservice::set_room_visibility::v3 as set_network_visibility,
        directory::{
            get_public_rooms::v3 as get_public_rooms,
            get_public_rooms_filtered::v3 as get_public_rooms_filtered,
            get_room_visibility::v3 as get_room_visibility,
            set_room_visibility::v3 as set_room_visibility,
        },
        room::{Visibility, aliases::v3 as aliases},
    },
    api::federation::directory::{
        get_public_rooms::v1 as for_servers, get_public_rooms_filtered::v1 as filtered_for_servers,
    },
    directory::{Filter, PublicRoomsChunk, RoomNetwork},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::reading::readable_as_of;
use crate::{
    api::{answer::json, appservice::services as appservice, server::Server},
    http::{ApiError, Appservice, AsOfRequest, Caller, Cx, Homeserver, Json, Session},
};
use logcabin_base::{limits, text};
use logcabin_decide::directory::{RemoveAlias, SetAlias, SetNetwork, SetVisibility};
use logcabin_read::policy_lists::{MatchOutcome, Subject};
use logcabin_record::{Offset, command::PolicyArea};
use logcabin_state::Room;

/// The default number of rooms on a page.
const ROOMS_PER_PAGE: usize = 100;

fn local(own: &ServerName, alias: &RoomAliasId) -> Result<(), ApiError> {
    if alias.server_name() != own {
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
    local(&cx.app.config.server.name, &request.room_alias)?;
    if request.room_alias.alias().is_empty() {
        return Err(ApiError::invalid_param("An alias has a name before the colon."));
    }
    appservice::check_alias(&cx.app.outside.services, &request.room_alias, &cx.caller)?;
    let (alias, room_id) = (request.room_alias, request.room_id);
    let (sender, of_service) = (cx.caller.user_id.clone(), cx.caller.service.is_some());
    let proposal = SetAlias { alias, room_id, sender, of_service };
    cx.propose(proposal).await?.into_inner();
    Ok(create_alias_v3::Response::new())
}

pub(super) async fn get_alias(
    cx: Cx<Server, Option<Session>>,
    AsOfRequest(request): AsOfRequest<get_alias_v3::Request>,
) -> Result<Json, ApiError> {
    let (app, alias) = (Arc::clone(&cx.app), &request.room_alias);
    let session = cx.caller.clone();
    if cx.is_remote(alias.server_name()) {
        let found = cx.remote_alias(alias).await?;
        must_be_listed(&app, &found.room_id, alias, session.as_ref())?;
        return json(&found);
    }
    let moment = match session.clone() {
        Some(session) => cx.called_by(session).moment()?,
        None => None,
    };
    let room_id = match moment {
        Some(at) => {
            let target = app.engine.state().aliases.get(alias, at);
            let none = || ApiError::not_found("There was no such alias.");
            target.ok_or_else(none)?.room_id
        }
        None => appservice::resolve(&app, (&**alias).into()).await?,
    };
    must_be_listed(&app, &room_id, alias, session.as_ref())?;
    json(&json!({ "room_id": room_id, "servers": [app.config.server.name] }))
}

pub(super) async fn delete_alias(
    cx: Cx<Server>,
    request: delete_alias_v3::Request,
) -> Result<delete_alias_v3::Response, ApiError> {
    local(&cx.app.config.server.name, &request.room_alias)?;
    appservice::check_alias(&cx.app.outside.services, &request.room_alias, &cx.caller)?;
    let (sender, of_service) = (cx.caller.user_id.clone(), cx.caller.service.is_some());
    let (alias, ts) = (request.room_alias, cx.app.now());
    let room_id = cx.app.resolve((&*alias).into())?;
    let proposal = RemoveAlias { alias, room_id, sender, of_service, ts };
    cx.propose(proposal).await?.into_inner();
    Ok(delete_alias_v3::Response::new())
}

pub(super) async fn room_aliases(
    cx: Cx<Server>,
    request: aliases::Request,
) -> Result<aliases::Response, ApiError> {
    let room = cx.app.room(&request.room_id)?;
    let view = cx.view_as_of()?;
    if !cx.is_admin() {
        readable_as_of(&view, &room)?;
    }
    Ok(aliases::Response::new(view.state.aliases.of_room(&room.id, view.at())))
}

pub(super) async fn get_visibility(
    cx: Cx<Server, ()>,
    request: get_room_visibility::Request,
) -> Result<get_room_visibility::Response, ApiError> {
    let public = cx.app.known_room(&request.room_id)?.is_public();
    let visibility = if public { Visibility::Public } else { Visibility::Private };
    Ok(get_room_visibility::Response::new(visibility))
}

pub(super) async fn set_visibility(
    cx: Cx<Server>,
    request: set_room_visibility::Request,
) -> Result<set_room_visibility::Response, ApiError> {
    let public = is_public(&request.visibility)?;
    let sender = cx.caller.user_id.clone();
    cx.propose(SetVisibility { room_id: request.room_id, sender, public }).await?.into_inner();
    Ok(set_room_visibility::Response::new())
}

pub(super) async fn set_network_visibility(
    cx: Cx<Server, Appservice>,
    request: set_network_visibility::Request,
) -> Result<set_network_visibility::Response, ApiError> {
    let service = cx.caller.service().ok_or_else(ApiError::missing_token)?.id.clone();
    let network_id = request.network_id;
    if network_id.is_empty() || network_id.len() > limits::IDENTIFIER_BYTES {
        return Err(ApiError::invalid_param("The id of a network has 1 to 255 bytes."));
    }
    let (room_id, listed) = (request.room_id, is_public(&request.visibility)?);
    cx.propose(SetNetwork { room_id, service, network_id, listed }).await?.into_inner();
    Ok(set_network_visibility::Response::new())
}

pub(super) fn is_public(visibility: &Visibility) -> Result<bool, ApiError> {
    match visibility {
        Visibility::Public => Ok(true),
        Visibility::Private => Ok(false),
        _ => Err(ApiError::invalid_param("`visibility` is `public` or `private`.")),
    }
}

pub(super) async fn public_rooms(
    cx: Cx<Server, ()>,
    request: get_public_rooms::Request,
) -> Result<get_public_rooms::Response, ApiError> {
    if let Some(server) = request.server.as_deref().filter(|server| cx.is_remote(server)) {
        let asked = PublicRoomsRequest {
            limit: request.limit,
            since: request.since,
            ..PublicRoomsRequest::default()
        };
        return Ok(remote_list(&cx, server, &asked).await?.into());
    }
    let wanted = DirectoryQuery {
        server: request.server.as_deref(),
        limit: request.limit,
        since: request.since.as_deref(),
        ..DirectoryQuery::default()
    };
    Ok(PublicRoomsResponse::from(cx.at_length(|| list(&cx.app, &wanted)).await?).into())
}

pub(super) async fn public_rooms_filtered(
    cx: Cx<Server>,
    request: get_public_rooms_filtered::Request,
) -> Result<get_public_rooms_filtered::Response, ApiError> {
    if let Some(server) = request.server.as_deref().filter(|server| cx.is_remote(server)) {
        let get_public_rooms_filtered::Request { limit, since, filter, room_network, .. } = request;
        let asked = PublicRoomsRequest { limit, since, filter, network: room_network };
        return Ok(remote_list(&cx, server, &asked).await?.into());
    }
    let wanted = DirectoryQuery {
        server: request.server.as_deref(),
        limit: request.limit,
        since: request.since.as_deref(),
        ..DirectoryQuery::searched(&request.filter, &request.room_network)
    };
    Ok(PublicRoomsResponse::from(cx.at_length(|| list(&cx.app, &wanted)).await?).into())
}

/// What is asked of another homeserver.
#[derive(Default, Serialize)]
struct PublicRoomsRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<UInt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<String>,
    #[serde(skip_serializing_if = "Filter::is_empty")]
    filter: Filter,
    #[serde(flatten)]
    network: RoomNetwork,
}

/// What another homeserver lists.
#[derive(Deserialize)]
struct PublicRoomsResponse {
    chunk: Vec<PublicRoomsChunk>,
    next_batch: Option<String>,
    prev_batch: Option<String>,
    total_room_count_estimate: Option<UInt>,
}

macro_rules! from_pages {
    ($($response:ty),+) => {$(
        impl From<PublicRoomsResponse> for $response {
            fn from(listed: PublicRoomsResponse) -> Self {
                let mut response = Self::default();
                response.chunk = listed.chunk;
                response.next_batch = listed.next_batch;
                response.prev_batch = listed.prev_batch;
                response.total_room_count_estimate = listed.total_room_count_estimate;
                response
            }
        }
    )+};
}

from_pages!(
    get_public_rooms_filtered::Response,
    for_servers::Response,
    filtered_for_servers::Response
);

impl From<PublicRoomsResponse> for get_public_rooms::Response {
    fn from(listed: PublicRoomsResponse) -> Self {
        let mut response = Self::new(listed.chunk);
        response.next_batch = listed.next_batch;
        response.prev_batch = listed.prev_batch;
        response.total_room_count_estimate = listed.total_room_count_estimate;
        response
    }
}

impl From<Page> for PublicRoomsResponse {
    fn from(page: Page) -> Self {
        Self {
            chunk: page.chunk(),
            next_batch: page.next,
            prev_batch: page.previous,
            total_room_count_estimate: Some(page.total),
        }
    }
}

/// The list, for another homeserver.
pub(in crate::api) async fn public_rooms_for_server(
    cx: Cx<Server, Homeserver>,
    request: for_servers::Request,
) -> Result<for_servers::Response, ApiError> {
    let wanted = DirectoryQuery {
        limit: request.limit,
        since: request.since.as_deref(),
        network: request.room_network.clone(),
        ..DirectoryQuery::default()
    };
    Ok(PublicRoomsResponse::from(cx.at_length(|| list(&cx.app, &wanted)).await?).into())
}

/// The same, searched.
pub(in crate::api) async fn public_rooms_filtered_for_server(
    cx: Cx<Server, Homeserver>,
    request: filtered_for_servers::Request,
) -> Result<filtered_for_servers::Response, ApiError> {
    let wanted = DirectoryQuery {
        limit: request.limit,
        since: request.since.as_deref(),
        ..DirectoryQuery::searched(&request.filter, &request.room_network)
    };
    Ok(PublicRoomsResponse::from(cx.at_length(|| list(&cx.app, &wanted)).await?).into())
}

struct Page {
    rooms: Vec<Arc<PublicRoomsChunk>>,
    next: Option<String>,
    previous: Option<String>,
    total: UInt,
}

impl Page {
    fn chunk(&self) -> Vec<PublicRoomsChunk> {
        self.rooms.iter().map(|room| PublicRoomsChunk::clone(room)).collect()
    }
}

/// A room's sort key: most members first, then oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    joined: Reverse<u64>,
    created: Offset,
}

impl SortKey {
    fn of(room: &Room) -> Self {
        Self { joined: Reverse(room.counts(Offset::MAX).joined), created: room.created }
    }
}

/// The start of a page: a position, not an index, so that a page continues where the last one ended
/// even if rooms were listed meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Since {
    After(SortKey),
    Before(SortKey),
}

impl fmt::Display for Since {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (way, place) = match self {
            Self::After(place) => ('a', place),
            Self::Before(place) => ('b', place),
        };
        write!(f, "{way}{}_{}", place.joined.0, place.created)
    }
}

impl FromStr for Since {
    type Err = ApiError;

    fn from_str(text: &str) -> Result<Self, ApiError> {
        let not_ours = || ApiError::invalid_param("`since` is not of this list.");
        let (way, place) = text.split_at_checked(1).ok_or_else(not_ours)?;
        let (joined, created) = place.split_once('_').ok_or_else(not_ours)?;
        let number = |text: &str| text.parse().map_err(|_| not_ours());
        let place =
            SortKey { joined: Reverse(number(joined)?), created: Offset::new(number(created)?) };
        match way {
            "a" => Ok(Self::After(place)),
            "b" => Ok(Self::Before(place)),
            _ => Err(not_ours()),
        }
    }
}

/// The requested part of the list.
#[derive(Default)]
struct DirectoryQuery<'a> {
    server: Option<&'a ServerName>,
    limit: Option<UInt>,
    since: Option<&'a str>,
    term: Option<&'a str>,
    types: Option<Vec<Option<String>>>,
    /// Whether to include the rooms of networks, or of one network only.
    network: RoomNetwork,
}

impl<'a> DirectoryQuery<'a> {
    /// The rooms that a filter lets through.
    fn searched(filter: &'a Filter, network: &RoomNetwork) -> Self {
        let types = filter.room_types.iter().map(|of| of.as_str().map(ToOwned::to_owned));
        Self {
            term: filter.generic_search_term.as_deref(),
            types: (!filter.room_types.is_empty()).then(|| types.collect()),
            network: network.clone(),
            ..Self::default()
        }
    }
}

/// A page of the list. It costs a look at the member count of each listed room. For each room on
/// the page (or, in a search, each listed room), it also costs the changes since it was last
/// described.
fn list(app: &Server, wanted: &DirectoryQuery<'_>) -> Result<Page, ApiError> {
    if wanted.server.is_some_and(|server| server != app.config.server.name) {
        return Err(ApiError::forbidden("This server does not federate: it lists its own rooms."));
    }
    let since: Option<Since> = wanted.since.map(str::parse).transpose()?;
    let limit = wanted.limit.map_or(ROOMS_PER_PAGE, |limit| {
        usize::try_from(u64::from(limit)).unwrap_or(usize::MAX).clamp(1, ROOMS_PER_PAGE * 10)
    });
    let rooms = &app.engine.state().rooms;
    let listed = match &wanted.network {
        RoomNetwork::All => rooms.of_all_networks(),
        RoomNetwork::ThirdParty(instance) => {
            let of = instance.split_once('|');
            of.map_or_else(Vec::new, |(service, network)| rooms.of_network(service, network))
        }
        _ => rooms.public(),
    };
    // Sort keys are computed once, because members come and go meanwhile.
    let mut rooms: Vec<_> = listed.into_iter().map(|room| (SortKey::of(&room), room)).collect();
    // Nobody is left in the others.
    rooms.retain(|(place, _)| place.joined.0 > 0);
    rooms.sort_unstable_by_key(|(place, _)| *place);
    if wanted.term.is_some() || wanted.types.is_some() {
        let term = wanted.term.map(text::fold);
        let mut kept = Vec::new();
        for (place, room) in rooms {
            let described = app.listing.catalogue.describe(app.engine.events(), &room)?;
            let room_type = described.room_type.as_ref().map(ToString::to_string);
            let of_type = wanted.types.as_ref().is_none_or(|types| types.contains(&room_type));
            if of_type && term.as_ref().is_none_or(|term| mentions(&described, term)) {
                kept.push((place, room));
            }
        }
        rooms = kept;
    }
    let (start, end) = match since {
        None => (0, limit),
        Some(Since::After(place)) => {
            let start = rooms.partition_point(|(of, _)| *of <= place);
            (start, start.saturating_add(limit))
        }
        Some(Since::Before(place)) => {
            let end = rooms.partition_point(|(of, _)| *of < place);
            (end.saturating_sub(limit), end)
        }
    };
    let page = rooms.get(start..end.min(rooms.len())).unwrap_or_default();
    let next = page.last().filter(|_| end < rooms.len());
    let previous = page.first().filter(|_| start > 0);
    let listed = page.iter().filter(|(_, room)| is_listed(app, &room.id, None));
    let described =
        listed.map(|(_, room)| app.listing.catalogue.describe(app.engine.events(), room));
    Ok(Page {
        rooms: described.collect::<Result<_, _>>()?,
        next: next.map(|(place, _)| Since::After(*place).to_string()),
        previous: previous.map(|(place, _)| Since::Before(*place).to_string()),
        total: UInt::try_from(rooms.len()).unwrap_or(UInt::MAX),
    })
}

/// Whether no policy list is against showing this room in the directory.
fn is_listed(app: &Server, room_id: &RoomId, alias: Option<&str>) -> bool {
    let (state, events) = (app.engine.state(), app.engine.events());
    let subject = Subject { alias, ..Subject::default().in_room(room_id) };
    let found = events.policy_lists().find(&state, PolicyArea::Directory, subject);
    found.is_none_or(|found| found.outcome != MatchOutcome::Applied)
}

/// Refuses an alias, or the room that it names, which a policy list is against.
pub(in crate::api) fn must_be_listed(
    app: &Server,
    room_id: &RoomId,
    alias: &RoomAliasId,
    by: Option<&Session>,
) -> Result<(), ApiError> {
    let (alias, by) = (Some(alias.as_str()), by.map(|session| &*session.user_id));
    let subject = Subject { alias, by, ..Subject::default().in_room(room_id) };
    match app.engine.refused_by_policy(PolicyArea::Directory, subject) {
        None => Ok(()),
        Some(_) => {
            Err(ApiError::forbidden("A moderation policy of this server is against this room."))
        }
    }
}

/// What another homeserver lists, without what policy lists are against.
async fn remote_list(
    cx: &Cx<Server, impl Caller>,
    server: &ServerName,
    asked: &PublicRoomsRequest,
) -> Result<PublicRoomsResponse, ApiError> {
    let mut listed = cx.remote_rooms::<PublicRoomsResponse>(server, asked).await?;
    listed.chunk.retain(|room| {
        let alias = room.canonical_alias.as_ref().map(|alias| alias.as_str());
        is_listed(&cx.app, &room.room_id, alias)
    });
    Ok(listed)
}

/// Whether a room has the folded `term` in its name, topic, alias or id.
fn mentions(room: &PublicRoomsChunk, term: &str) -> bool {
    let alias = room.canonical_alias.as_ref().map(|alias| alias.as_str());
    [room.name.as_deref(), room.topic.as_deref(), alias, Some(room.room_id.as_str())]
        .into_iter()
        .flatten()
        .any(|text| text::fold(text).contains(term))
}
