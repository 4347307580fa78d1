//! Rooms.

use ruma::{OwnedRoomId, RoomId, api::auth_scheme::AccessToken, events::StateEventType};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::parts::{ActParameters, AdminParts as _, PageOf, nothing};
use crate::{
    api::{
        answer::json as to_json,
        room::{reading::event_filter, space::whole_hierarchy},
        server::Server,
    },
    http::{ApiError, Cx, Json, Reply, endpoint},
};
use logcabin_base::{background::at_length, limits};
use logcabin_ops::admin::rooms::{
    self, BlockRoom, JoinRoom, Joined, MakeRoomAdmin, NewRoom, RoomOrder, RoomSearch, ShutDownRoom,
    ShutdownStatus, shutdown,
};
use logcabin_read::events::{ClientEvent, EventForm};
use logcabin_record::Offset;
use logcabin_state::Membership;

/// The default name and message of the replacement of a room that is shut down.
const NEW_NAME: &str = "Content Violation Notification";
const NEW_MESSAGE: &str = "The room that you were in was shut down by the server's administrators.";

endpoint! {
    /// `GET …/rooms`
    pub(super) struct List = GET "/_synapse/admin/v1/rooms";
    for AccessToken;
    {
        page: PageOf = page,
        order_by: Option<String> = parameter,
        search_term: Option<String> = parameter,
        public_rooms: Option<bool> = flag,
        empty_rooms: Option<bool> = flag,
        dir: Option<bool> = backwards,
    }
}

pub(super) async fn list(cx: Cx<Server>, request: List) -> Result<Json, ApiError> {
    let PageOf { from, limit } = request.page;
    let order = match request.order_by {
        Some(order) => serde_json::from_value(order.into())
            .map_err(|_| ApiError::invalid_param("There is no such order of rooms."))?,
        None => RoomOrder::default(),
    };
    let wanted = RoomSearch {
        search: request.search_term,
        public: request.public_rooms,
        empty: request.empty_rooms,
        order,
        reverse: request.dir.unwrap_or(false),
        from,
        limit: Some(limit),
    };
    let (rooms, total) = at_length(|| rooms::list(&cx.app.context, &wanted))?;
    let next = from.saturating_add(rooms.len());
    let mut answer = json!({ "rooms": rooms, "offset": from, "total_rooms": total });
    if next < total {
        answer["next_batch"] = next.into();
    }
    if from > 0 {
        answer["prev_batch"] = from.saturating_sub(limit).into();
    }
    to_json(&answer)
}

endpoint! {
    /// `GET …/rooms/{room_id}`
    pub(super) struct Get = GET "/_synapse/admin/v1/rooms/{room_id}";
    for AccessToken;
    { room: String = path }
}

pub(super) async fn get(cx: Cx<Server>, request: Get) -> Result<Json, ApiError> {
    to_json(&at_length(|| rooms::details(&cx.app.context, &request.room).map_err(ApiError::from))?)
}

endpoint! {
    /// `GET …/rooms/{room_id}/members`
    pub(super) struct Members = GET "/_synapse/admin/v1/rooms/{room_id}/members";
    for AccessToken;
    { room: String = path }
}

pub(super) async fn members(cx: Cx<Server>, request: Members) -> Result<Json, ApiError> {
    let room = cx.app.context.room(&request.room)?;
    let members = room.members(Membership::Join, Offset::MAX).into_iter();
    let members: Vec<_> = members.map(|(user_id, _)| user_id).collect();
    to_json(&json!({ "total": members.len(), "members": members }))
}

endpoint! {
    /// `GET …/rooms/{room_id}/state`
    pub(super) struct State = GET "/_synapse/admin/v1/rooms/{room_id}/state";
    for AccessToken;
    { room: String = path }
}

pub(super) async fn state(cx: Cx<Server>, request: State) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct State {
        state: Vec<ClientEvent>,
    }
    let room = cx.app.context.room(&request.room)?;
    let view = cx.view();
    let kind = cx.query("type")?.map(StateEventType::from);
    at_length(|| {
        let offsets = room.state_like(kind.as_ref(), None, view.at());
        let events = view.events.get_all(&offsets)?;
        to_json(&State { state: view.client_events(&room, &events, &EventForm::STATE)? })
    })
}

endpoint! {
    /// `GET …/rooms/{room_id}/messages`
    pub(super) struct Messages = GET "/_synapse/admin/v1/rooms/{room_id}/messages";
    for AccessToken;
    {
        room: String = path,
        dir: Option<bool> = backwards,
        limit: Option<u64> = number,
        from: Option<String> = parameter,
        to: Option<String> = parameter,
    }
}

/// A page of a room's messages as of now. Administrators see what they could also read in the log.
pub(super) async fn messages(cx: Cx<Server>, request: Messages) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Page {
        chunk: Vec<ClientEvent>,
        start: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<String>,
    }
    let (app, view) = (&cx.app, cx.view());
    let room = app.context.room(&request.room)?;
    let backwards = request.dir.unwrap_or(false);
    let limit = request.limit.unwrap_or(10).clamp(1, limits::PAGE_EVENTS);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let position = |token: Option<String>| token.map(|token| app.position(&token)).transpose();
    let (from, to) = (position(request.from)?, position(request.to)?);
    let start = from.unwrap_or_else(|| if backwards { view.at() } else { Offset::ZERO });
    let to = to.unwrap_or_else(|| if backwards { Offset::ZERO } else { view.at() });
    let filter = event_filter(&cx)?;
    at_length(|| {
        let (mut events, mut position, mut looked_at) = (Vec::new(), start, 0);
        let end = 'page: loop {
            let found = match backwards {
                true => room.events_backward(position, to, limit),
                false => room.events_forward(position, to, limit),
            };
            for offset in &found {
                if events.len() == limit || looked_at >= limits::SCANNED_EVENTS {
                    break 'page Some(app.token(position));
                }
                looked_at += filter.looks();
                position = if backwards { offset.prev() } else { *offset };
                let event = view.events.get(*offset)?;
                events.extend(event.filter(|event| filter.matches(&room, event, view.at())));
            }
            if found.len() < limit {
                break None;
            }
        };
        let chunk = view.client_events(&room, &events, &EventForm::FULL)?;
        to_json(&Page { chunk, start: app.token(start), end })
    })
}

endpoint! {
    /// `GET …/rooms/{room_id}/hierarchy`
    pub(super) struct Hierarchy = GET "/_synapse/admin/v1/rooms/{room_id}/hierarchy";
    for AccessToken;
    {
        room: String = path,
        from: Option<String> = parameter,
        limit: Option<u64> = number,
        max_depth: Option<u64> = number,
    }
}

/// A page of a space's hierarchy, with every room in it that this server has.
pub(super) async fn hierarchy(cx: Cx<Server>, request: Hierarchy) -> Result<Reply, ApiError> {
    let Hierarchy { room, from, limit, max_depth } = request;
    let root = cx.app.context.room(&room)?.id.clone();
    Reply::typed(whole_hierarchy(&cx, root, max_depth, from.as_deref(), limit).await?)
}

endpoint! {
    /// `GET …/rooms/{room_id}/block`
    pub(super) struct IsBlocked = GET "/_synapse/admin/v1/rooms/{room_id}/block";
    for AccessToken;
    { room: String = path }
}

pub(super) async fn is_blocked(cx: Cx<Server>, request: IsBlocked) -> Result<Json, ApiError> {
    let (blocked, by) = rooms::block_status(&cx.app.context, &request.room)?;
    let mut answer = json!({ "block": blocked });
    if let Some(by) = by {
        answer["user_id"] = by.into();
    }
    to_json(&answer)
}

endpoint! {
    /// `PUT …/rooms/{room_id}/block`
    pub(super) struct Block = PUT "/_synapse/admin/v1/rooms/{room_id}/block";
    for AccessToken;
    { room: String = path, body: BlockBody = parameters, terms: ActParameters = terms }
}

pub(super) async fn block(cx: Cx<Server>, request: Block) -> Result<Json, ApiError> {
    let Block { room, body: BlockBody { block: blocked }, terms } = request;
    cx.act(BlockRoom { room, blocked }, terms, |_| json!({ "block": blocked })).await
}

/// Whether to block a room.
#[derive(Deserialize)]
pub(super) struct BlockBody {
    block: bool,
}

/// The user who becomes the admin of a room.
#[derive(Deserialize)]
pub(super) struct MakeAdminBody {
    user_id: Option<String>,
}

/// The user who joins a room.
#[derive(Deserialize)]
pub(super) struct JoinBody {
    user_id: String,
}

/// The parameters for shutting a room down.
#[derive(Deserialize)]
pub(super) struct ShutdownBody {
    new_room_user_id: Option<String>,
    room_name: Option<String>,
    message: Option<String>,
    block: Option<bool>,
    purge: Option<bool>,
}

impl ShutdownBody {
    fn act(self, room: String, wait: bool) -> ShutDownRoom {
        let new_room = self.new_room_user_id.map(|user| NewRoom {
            user,
            name: self.room_name.unwrap_or_else(|| NEW_NAME.to_owned()),
            message: self.message.unwrap_or_else(|| NEW_MESSAGE.to_owned()),
        });
        let (block, purge) = (self.block.unwrap_or(false), self.purge.unwrap_or(false));
        ShutDownRoom { room, block, new_room, purge, wait }
    }
}

endpoint! {
    /// `DELETE …/rooms/{room_id}`
    pub(super) struct Delete = DELETE "/_synapse/admin/v1/rooms/{room_id}";
    for AccessToken;
    { room: String = path, body: ShutdownBody = json, terms: ActParameters = terms }
}

/// Shuts a room down, and responds when that is complete. An unknown room can be blocked this way.
pub(super) async fn delete(cx: Cx<Server>, request: Delete) -> Result<Json, ApiError> {
    let Delete { room, body, terms } = request;
    let unknown = RoomId::parse(&room)
        .is_ok_and(|room_id| cx.app.engine.state().rooms.get(&room_id).is_none());
    if unknown && body.block == Some(true) {
        let act = BlockRoom { room, blocked: true };
        return cx.act(act, terms, |_| nobody()).await;
    }
    cx.act(body.act(room, true), terms, |status| outcome(&status)).await
}

endpoint! {
    /// `DELETE …/rooms/{room_id}`
    pub(super) struct BeginDelete = DELETE "/_synapse/admin/v2/rooms/{room_id}";
    for AccessToken;
    { room: String = path, body: ShutdownBody = json, terms: ActParameters = terms }
}

/// Begins to shut a room down.
pub(super) async fn begin_delete(cx: Cx<Server>, request: BeginDelete) -> Result<Json, ApiError> {
    let BeginDelete { room, body, terms } = request;
    cx.act(body.act(room, false), terms, |status| json!({ "delete_id": status.id })).await
}

fn nobody() -> Value {
    json!({
        "kicked_users": [], "failed_to_kick_users": [], "local_aliases": [], "new_room_id": null,
    })
}

pub(super) fn outcome(status: &ShutdownStatus) -> Value {
    json!({
        "kicked_users": status.kicked_users,
        "failed_to_kick_users": status.failed_to_kick_users,
        "local_aliases": status.local_aliases,
        "new_room_id": status.new_room_id,
    })
}

fn progress(status: &ShutdownStatus) -> Value {
    json!({
        "delete_id": status.id,
        "room_id": status.room_id,
        "status": status.in_words(),
        "shutdown_room": outcome(status),
    })
}

endpoint! {
    /// `GET …/rooms/{room_id}/delete_status`
    pub(super) struct StatusOfRoom = GET "/_synapse/admin/v2/rooms/{room_id}/delete_status";
    for AccessToken;
    { room_id: OwnedRoomId = path }
}

pub(super) async fn status_of_room(
    cx: Cx<Server>,
    request: StatusOfRoom,
) -> Result<Json, ApiError> {
    let results: Vec<_> =
        shutdown::of_room(&cx.app.context, &request.room_id).iter().map(progress).collect();
    if results.is_empty() {
        return Err(ApiError::not_found("This room was not shut down."));
    }
    to_json(&json!({ "results": results }))
}

endpoint! {
    /// `GET …/rooms/delete_status/{delete_id}`
    pub(super) struct Status = GET "/_synapse/admin/v2/rooms/delete_status/{delete_id}";
    for AccessToken;
    { delete_id: String = path }
}

pub(super) async fn status(cx: Cx<Server>, request: Status) -> Result<Json, ApiError> {
    let status = shutdown::of_id(&cx.app.context, &request.delete_id);
    let status = status.ok_or_else(|| ApiError::not_found("There is no such shutdown."))?;
    to_json(&progress(&status))
}

endpoint! {
    /// `POST …/rooms/{room_id}/make_room_admin`
    pub(super) struct MakeAdmin = POST "/_synapse/admin/v1/rooms/{room_id}/make_room_admin";
    for AccessToken;
    { room: String = path, body: MakeAdminBody = json, terms: ActParameters = terms }
}

pub(super) async fn make_admin(cx: Cx<Server>, request: MakeAdmin) -> Result<Json, ApiError> {
    let MakeAdmin { room, body, terms } = request;
    let user = body.user_id.unwrap_or_else(|| cx.caller.user_id.to_string());
    cx.act(MakeRoomAdmin { room, user }, terms, nothing).await
}

endpoint! {
    /// `POST …/join/{room_id}`
    pub(super) struct Join = POST "/_synapse/admin/v1/join/{room_id}";
    for AccessToken;
    { room: String = path, body: JoinBody = parameters, terms: ActParameters = terms }
}

pub(super) async fn join(cx: Cx<Server>, request: Join) -> Result<Json, ApiError> {
    let Join { room, body: JoinBody { user_id: user }, terms } = request;
    cx.act(JoinRoom { user, room }, terms, |Joined { room_id, .. }| json!({ "room_id": room_id }))
        .await
}
