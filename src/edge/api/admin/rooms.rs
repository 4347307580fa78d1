//! Rooms.

use ruma::{RoomId, events::StateEventType};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Caller, Desk, nothing, reply};
use crate::{
    base::limits,
    edge::{
        api::at_length,
        http::{ApiError, RawRequest, Reply},
    },
    ops::admin::{Act, Done, NewRoom, RoomOrder, RoomsWanted, ShutdownStatus},
    read::events::{ClientEvent, EventForm},
    record::Offset,
    state::Membership,
};

pub(super) const STATUS_OF_ROOM: &str = "/_synapse/admin/v2/rooms/{room_id}/delete_status";
pub(super) const STATUS: &str = "/_synapse/admin/v2/rooms/delete_status/{delete_id}";
pub(super) const MAKE_ADMIN: &str = "/_synapse/admin/v1/rooms/{room_id}/make_room_admin";

/// What the room in the place of one that is shut down is called, and says, unless the tool says
/// it.
const NEW_NAME: &str = "Content Violation Notification";
const NEW_MESSAGE: &str = "The room that you were in was shut down by those who run this server.";

pub(super) async fn list(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (from, limit) = desk.page()?;
    let order = match desk.cx.query("order_by")? {
        Some(order) => serde_json::from_value(order.into())
            .map_err(|_| ApiError::invalid_param("There is no such order of rooms."))?,
        None => RoomOrder::default(),
    };
    let wanted = RoomsWanted {
        search: desk.cx.query("search_term")?,
        public: desk.flag("public_rooms")?,
        empty: desk.flag("empty_rooms")?,
        order,
        reverse: desk.backwards()?.unwrap_or(false),
        from,
        limit: Some(limit),
    };
    let (rooms, total) = at_length(|| desk.cx.app.office.rooms(&wanted))?;
    let next = from.saturating_add(rooms.len());
    let mut answer = json!({ "rooms": rooms, "offset": from, "total_rooms": total });
    if next < total {
        answer["next_batch"] = next.into();
    }
    if from > 0 {
        answer["prev_batch"] = from.saturating_sub(limit).into();
    }
    reply(&answer)
}

pub(super) async fn get(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    reply(&at_length(|| desk.cx.app.office.room_details(desk.arg(0)?).map_err(ApiError::from))?)
}

pub(super) async fn members(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let room = desk.cx.app.office.room(desk.arg(0)?)?;
    let members = room.members(Membership::Join, Offset::MAX).into_iter();
    let members: Vec<_> = members.map(|(user_id, _)| user_id).collect();
    reply(&json!({ "total": members.len(), "members": members }))
}

pub(super) async fn state(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    #[derive(Serialize)]
    struct State {
        state: Vec<ClientEvent>,
    }
    let desk = Desk::open(cx, request)?;
    let room = desk.cx.app.office.room(desk.arg(0)?)?;
    let view = desk.cx.view();
    let kind = desk.cx.query("type")?.map(StateEventType::from);
    at_length(|| {
        let offsets = room.state_like(kind.as_ref(), None, view.at());
        let events = view.events.get_all(&offsets)?;
        reply(&State { state: view.client_events(&room, &events, &EventForm::STATE)? })
    })
}

/// A page of what was said in a room, as it stands: those who run the server see what they could
/// read in the log.
pub(super) async fn messages(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    #[derive(Serialize)]
    struct Page {
        chunk: Vec<ClientEvent>,
        start: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        end: Option<String>,
    }
    let desk = Desk::open(cx, request)?;
    let (app, view) = (&desk.cx.app, desk.cx.view());
    let room = app.office.room(desk.arg(0)?)?;
    let backwards = desk.backwards()?.unwrap_or(false);
    let limit = desk.number("limit")?.unwrap_or(10).clamp(1, limits::PAGE_EVENTS);
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let position = |name: &str| {
        let token = desk.cx.query(name)?;
        token.map(|token| app.position(&token)).transpose()
    };
    let (from, to) = (position("from")?, position("to")?);
    let (start, offsets) = if backwards {
        let from = from.unwrap_or_else(|| view.at());
        (from, room.events_backward(from, to.unwrap_or(Offset::ZERO), limit))
    } else {
        let from = from.unwrap_or(Offset::ZERO);
        (from, room.events_forward(from, to.unwrap_or_else(|| view.at()), limit))
    };
    let last = offsets.last().filter(|_| offsets.len() == limit).copied();
    let end = last.map(|last| app.token(if backwards { last.prev() } else { last }));
    let events = offsets.iter().map(|offset| view.events.get(*offset));
    let events: Vec<_> = events.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect();
    let chunk = view.client_events(&room, &events, &EventForm::FULL)?;
    reply(&Page { chunk, start: app.token(start), end })
}

pub(super) async fn is_blocked(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (blocked, by) = desk.cx.app.office.block_status(desk.arg(0)?)?;
    let mut answer = json!({ "block": blocked });
    if let Some(by) = by {
        answer["user_id"] = by.into();
    }
    reply(&answer)
}

pub(super) async fn block(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (room, blocked) = (desk.arg(0)?.to_owned(), desk.required::<bool>("block")?);
    desk.act(Act::BlockRoom { room, blocked }, |_| json!({ "block": blocked })).await
}

/// What a tool wants of a room that is to be no more.
fn shutdown(desk: &Desk, wait: bool) -> Result<Act, ApiError> {
    let new_room = match desk.field::<String>("new_room_user_id")? {
        Some(user) => Some(NewRoom {
            user,
            name: desk.field("room_name")?.unwrap_or_else(|| NEW_NAME.to_owned()),
            message: desk.field("message")?.unwrap_or_else(|| NEW_MESSAGE.to_owned()),
        }),
        None => None,
    };
    let (room, block) = (desk.arg(0)?.to_owned(), desk.field("block")?.unwrap_or(false));
    let purge = desk.field("purge")?.unwrap_or(false);
    Ok(Act::ShutDownRoom { room, block, new_room, purge, wait })
}

/// Shuts a room down, and answers when it is done. One that is not known can be blocked so.
pub(super) async fn delete(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let room = desk.arg(0)?;
    let unknown = RoomId::parse(room)
        .is_ok_and(|room_id| desk.cx.app.engine.state().rooms.get(&room_id).is_none());
    if unknown && desk.field("block")? == Some(true) {
        let act = Act::BlockRoom { room: room.to_owned(), blocked: true };
        return desk.act(act, |_| nobody()).await;
    }
    desk.act(shutdown(&desk, true)?, |done| match done {
        Done::ShutDown(status) => outcome(&status),
        other => nothing(other),
    })
    .await
}

/// Begins to shut a room down.
pub(super) async fn begin_delete(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    desk.act(shutdown(&desk, false)?, |done| match done {
        Done::ShutDown(status) => json!({ "delete_id": status.id }),
        other => nothing(other),
    })
    .await
}

fn nobody() -> Value {
    json!({
        "kicked_users": [], "failed_to_kick_users": [], "local_aliases": [], "new_room_id": null,
    })
}

fn outcome(status: &ShutdownStatus) -> Value {
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
        "status": match (status.complete, status.purged) {
            (false, _) => "active",
            (true, Some(false)) => "failed",
            (true, _) => "complete",
        },
        "shutdown_room": outcome(status),
    })
}

pub(super) async fn status_of_room(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let room_id = RoomId::parse(desk.arg(0)?)
        .map_err(|_| ApiError::invalid_param("This is not a room id."))?;
    let results: Vec<_> = desk.cx.app.office.shutdowns(&room_id).iter().map(progress).collect();
    if results.is_empty() {
        return Err(ApiError::not_found("This room was not shut down."));
    }
    reply(&json!({ "results": results }))
}

pub(super) async fn status(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let status = desk.cx.app.office.shutdown(desk.arg(0)?);
    let status = status.ok_or_else(|| ApiError::not_found("There is no such shutdown."))?;
    reply(&progress(&status))
}

pub(super) async fn make_admin(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let user = desk.field("user_id")?.unwrap_or_else(|| desk.cx.caller.user_id.to_string());
    desk.act(Act::MakeRoomAdmin { room: desk.arg(0)?.to_owned(), user }, nothing).await
}

pub(super) async fn join(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let (room, user) = (desk.arg(0)?.to_owned(), desk.required("user_id")?);
    desk.act(Act::JoinRoom { user, room }, |done| match done {
        Done::Joined { room_id, .. } => json!({ "room_id": room_id }),
        other => nothing(other),
    })
    .await
}
