//! The synchronisation of clients before `/sync`: a snapshot, and a stream of events. The
//! specification has deprecated it, but bots and bridges still use it.

use std::{collections::BTreeSet, time::Duration};

use ruma::{
    OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, UInt, UserId, api::auth_scheme::AccessToken,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};
use tokio::time::{Instant, timeout_at};

use super::{classic::still_logged_in, presence::Syncing};
use crate::{
    api::{
        answer::json,
        room::reading::{page_size, readable_as_of, visible_event},
        server::Server,
    },
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_read::{
    events::{ClientEvent, EventForm, EventRef},
    sync::{self, ephemeral::OthersReceipts},
    view::{View, filter::EventFilter},
};
use logcabin_record::{Offset, command::PresenceState};
use logcabin_state::{Membership, Room, RoomMembership, rooms::gaps::TimelinePosition};

endpoint! {
    /// All of the caller's rooms.
    pub(super) struct InitialSync = GET
        "/_matrix/client/r0/initialSync"
        "/_matrix/client/v3/initialSync";
    for AccessToken;
    { query: InitialSyncQuery = query }
}

/// The requested part of each room, and the requested rooms.
#[derive(Deserialize)]
pub(super) struct InitialSyncQuery {
    limit: Option<UInt>,
    #[serde(default)]
    archived: bool,
}

endpoint! {
    /// One room.
    pub(super) struct RoomInitialSync = GET
        "/_matrix/client/r0/rooms/{room_id}/initialSync"
        "/_matrix/client/v3/rooms/{room_id}/initialSync";
    for AccessToken;
    { room_id: OwnedRoomId = path, query: RoomInitialSyncQuery = query }
}

/// The requested part of the room.
#[derive(Deserialize)]
pub(super) struct RoomInitialSyncQuery {
    limit: Option<UInt>,
}

endpoint! {
    /// Waits for events.
    pub(super) struct Events = GET "/_matrix/client/r0/events" "/_matrix/client/v3/events";
    for AccessToken;
    { query: EventsAfter = query }
}

/// The position after which events are requested, the timeout in milliseconds, and the room.
#[derive(Deserialize)]
pub(super) struct EventsAfter {
    from: Option<String>,
    timeout: Option<u64>,
    room_id: Option<OwnedRoomId>,
}

endpoint! {
    /// One event.
    pub(super) struct Event = GET
        "/_matrix/client/r0/events/{event_id}"
        "/_matrix/client/v3/events/{event_id}";
    for AccessToken;
    { event_id: OwnedEventId = path }
}

/// The default number of messages of each room.
const MESSAGES: u32 = 10;

/// `GET /initialSync`: everything that the caller needs to begin.
pub(super) async fn initial_sync(cx: Cx<Server>, request: InitialSync) -> Result<Json, ApiError> {
    cx.at_length(|| snapshot(&cx, &request.query)).await
}

fn snapshot(cx: &Cx<Server>, wanted: &InitialSyncQuery) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response {
        end: String,
        presence: Vec<Value>,
        /// Not in the specification, but clients of this endpoint look for it here.
        receipts: Vec<Value>,
        account_data: Vec<Box<RawValue>>,
        rooms: Vec<RoomInfo>,
    }
    let InitialSyncQuery { limit, archived } = *wanted;
    let view = cx.view();
    let mut rooms = Vec::new();
    for part in view.state.memberships.of(view.user_id(), view.at()) {
        let wanted = match part.membership {
            Membership::Join => true,
            Membership::Invite => view.shows_invite(&part)?,
            Membership::Leave | Membership::Ban => archived && !part.forgotten,
            Membership::Knock => false,
        };
        if let Some(room) = view.state.rooms.get(&part.room_id).filter(|_| wanted) {
            rooms.push(RoomInfo::new(cx, &view, &room, limit)?);
        }
    }
    let receipts = rooms.iter_mut().flat_map(|room| std::mem::take(&mut room.receipts)).collect();
    let account_data = account_data(&view, None)?;
    let presence = presence(cx, &view, None, &[]);
    json(&Response { end: cx.app.token(view.at()), presence, receipts, account_data, rooms })
}

/// `GET /rooms/{roomId}/initialSync`: the same for one room, which may be world-readable.
pub(super) async fn room_initial_sync(
    cx: Cx<Server>,
    request: RoomInitialSync,
) -> Result<Json, ApiError> {
    let RoomInitialSyncQuery { limit } = request.query;
    let room = cx.app.room(&request.room_id)?;
    cx.at_length(|| {
        let view = cx.view();
        readable_as_of(&view, &room)?;
        let mut info = RoomInfo::new(&cx, &view, &room, limit)?;
        let is_there = |event: &Value| {
            let sender =
                event["sender"].as_str().and_then(|sender| <&UserId>::try_from(sender).ok());
            sender.is_some_and(|sender| room.is_joined(sender, view.at()))
        };
        let presence = presence(&cx, &view, None, &[]);
        info.presence = Some(presence.into_iter().filter(is_there).collect());
        json(&info)
    })
    .await
}

/// `GET /events/{eventId}`.
pub(super) async fn event(cx: Cx<Server>, request: Event) -> Result<Json, ApiError> {
    let event_id = &request.event_id;
    let view = cx.view();
    let absent = || ApiError::not_found("There is no such event, or you may not see it.");
    let event = view.events.find_shown(&view.state, event_id)?.ok_or_else(absent)?;
    let room = view.state.rooms.get(&event.room_id).ok_or_else(absent)?;
    let event = visible_event(&view, &room, event_id)?;
    json(&view.client_event(&room, &event, &EventForm::FULL)?)
}

/// The initial data of a room.
#[derive(Serialize)]
struct RoomInfo {
    room_id: OwnedRoomId,
    #[serde(skip_serializing_if = "Option::is_none")]
    membership: Option<Membership>,
    /// The inviter, for an invited user.
    #[serde(skip_serializing_if = "Option::is_none")]
    inviter: Option<OwnedUserId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    invite: Option<ClientEvent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    messages: Option<Messages>,
    state: Vec<ClientEvent>,
    visibility: &'static str,
    account_data: Vec<Box<RawValue>>,
    /// The presence of the members, if only this room is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    presence: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    receipts: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    typing: Option<Value>,
}

#[derive(Serialize)]
struct Messages {
    start: String,
    end: String,
    chunk: Vec<ClientEvent>,
}

impl RoomInfo {
    fn new(
        cx: &Cx<Server>,
        view: &View<'_>,
        room: &Room,
        limit: Option<UInt>,
    ) -> Result<Self, ApiError> {
        let form = &EventForm::FULL;
        let part = view.state.memberships.in_room(view.user_id(), &room.id, view.at());
        let mut info = Self {
            room_id: room.id.clone(),
            membership: part.as_ref().map(|part| part.membership),
            inviter: None,
            invite: None,
            messages: None,
            state: Vec::new(),
            visibility: if room.is_public() { "public" } else { "private" },
            account_data: account_data(view, Some(&room.id))?,
            presence: None,
            receipts: Vec::new(),
            typing: None,
        };
        if part.as_ref().is_some_and(|part| part.membership == Membership::Join) {
            info.receipts = receipts(view, room, None)?;
            info.typing = typing(view, room, None)?;
        }
        if let Some(part) = part.filter(|part| part.membership == Membership::Invite)
            && let Some(invite) = view.events.get(part.offset)?
        {
            info.inviter = Some(invite.sender.clone());
            info.invite = Some(view.client_event(room, &invite, form)?);
        }
        if let Some(seen) = view.state_as_of(room)? {
            let all = EventFilter::default();
            let limit = page_size(limit.unwrap_or_else(|| MESSAGES.into()), &all);
            let mut events = view.page_backward(room, seen, Offset::ZERO, limit, &all)?.events;
            events.reverse();
            if let Some(gap) = room.last_gap(Offset::ZERO, seen) {
                events.retain(|event| event.offset >= gap);
            }
            let start = events.first().map(|first| room.before_event(first.offset));
            info.messages = Some(Messages {
                start: cx.app.history_token(start.unwrap_or(TimelinePosition::After(seen))),
                end: cx.app.token(seen),
                chunk: view.client_events(room, &events, form)?,
            });
            let state = view.events.get_all(&room.full_state(seen))?;
            info.state = view.client_events(room, &state, &EventForm::STATE)?;
        }
        Ok(info)
    }
}

/// The presence that is new after `since` of users that the caller may see; without it, of all
/// online users.
fn presence(
    cx: &Cx<Server>,
    view: &View<'_>,
    since: Option<Offset>,
    rooms: &[RoomMembership],
) -> Vec<Value> {
    if !cx.app.config.presence.enabled {
        return Vec::new();
    }
    let events = view.presence(since, rooms, &EventFilter::default());
    let with_user = |event: Box<RawValue>| {
        let mut event = to_value(&event);
        // When these endpoints were new, the user was in the content.
        event["content"]["user_id"] = event["sender"].clone();
        event
    };
    events.into_iter().map(with_user).collect()
}

/// The room's receipts after `since`, or, if that is `None`, the newest.
fn receipts(view: &View<'_>, room: &Room, since: Option<Offset>) -> Result<Vec<Value>, ApiError> {
    let others = OthersReceipts::of(since.is_none());
    let since = since.unwrap_or(Offset::ZERO);
    let events = sync::ephemeral::receipts(view, room, since, others)?;
    Ok(events.iter().map(|event| of_room(event, &room.id)).collect())
}

/// The typing users in the room, if they changed after `since`, or, if that is `None`, if there are
/// any.
fn typing(view: &View<'_>, room: &Room, since: Option<Offset>) -> Result<Option<Value>, ApiError> {
    let event = sync::ephemeral::typing(view, room, since)?;
    Ok(event.map(|event| of_room(&event, &room.id)))
}

fn of_room(event: &RawValue, room_id: &RoomId) -> Value {
    let mut event = to_value(event);
    event["room_id"] = room_id.as_str().into();
    event
}

/// An event that the server created.
fn to_value(event: &RawValue) -> Value {
    serde_json::from_str(event.get()).unwrap_or_default()
}

/// The caller's account data of a room, or the global one.
fn account_data(view: &View<'_>, room_id: Option<&RoomId>) -> Result<Vec<Box<RawValue>>, ApiError> {
    let Some(account) = view.state.accounts.get(view.user_id()) else { return Ok(Vec::new()) };
    let filter = EventFilter::default();
    Ok(match room_id {
        Some(room_id) => {
            sync::account_data::of_room(view, &account, room_id, Offset::ZERO, &filter, true)?
        }
        None => sync::account_data::global(view, &account, Offset::ZERO, &filter, true)?,
    })
}

/// `GET /events`: what has happened in the caller's rooms, or in one room that they may read, as
/// soon as there is something.
pub(super) async fn events(cx: Cx<Server>, request: Events) -> Result<Json, ApiError> {
    #[derive(Serialize)]
    struct Response {
        start: String,
        end: String,
        chunk: Vec<Entry>,
    }
    let EventsAfter { from, timeout, room_id } = request.query;
    let head = cx.app.engine.head();
    let start = from.map_or_else(|| Ok(head.offset()), |from| cx.app.position(&from))?;
    let peeked = room_id.map(|room_id| cx.app.room(&room_id)).transpose()?;
    let longest = Duration::from_secs(cx.app.config.sync.max_timeout_seconds);
    let deadline = Instant::now() + Duration::from_millis(timeout.unwrap_or_default()).min(longest);

    let _syncing = Syncing::begin(&cx, PresenceState::Online);
    let listener = head.listen(&cx.caller.user_id);
    // A caller who is not in the room is not woken by its events.
    let mut any_move = head.follow();
    let mut looked_up_to = start;
    let mut is_hurried = false;
    loop {
        // Both are created before the check, and awaited after it.
        let woken = listener.woken();
        tokio::pin!(woken);
        woken.as_mut().enable();
        any_move.borrow_and_update();

        let look = || {
            let view = cx.view();
            if let Some(room) = &peeked {
                readable_as_of(&view, room)?;
            }
            NewEvents::after(&cx, &view, looked_up_to, peeked.as_deref())
        };
        let news = cx.at_length(look).await?;
        looked_up_to = news.end;
        let ends = is_hurried || Instant::now() >= deadline || cx.shutdown.is_given();
        if !news.chunk.is_empty() || ends {
            let (start, end) = (cx.app.token(start), cx.app.token(news.end));
            return json(&Response { start, end, chunk: news.chunk });
        }
        tokio::select! {
            woken = timeout_at(deadline, woken) => drop(woken),
            moved = any_move.changed(), if peeked.is_some() => drop(moved),
            () = cx.shutdown.given() => {}
            () = cx.hurry.notified() => is_hurried = true,
        }
        still_logged_in(&cx)?;
    }
}

/// An event in a response.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    /// An event of a room's timeline.
    OfTimeline(ClientEvent),
    /// Presence, typing, receipts, account data.
    Passing(Value),
}

/// New events for the caller.
struct NewEvents {
    chunk: Vec<Entry>,
    /// The position up to which was searched.
    end: Offset,
}

impl NewEvents {
    /// The first events after `after`, oldest first, of `only` or of all rooms of the caller.
    fn after(
        cx: &Cx<Server>,
        view: &View<'_>,
        after: Offset,
        only: Option<&Room>,
    ) -> Result<Self, ApiError> {
        let limit = page_size(UInt::MAX, &EventFilter::default());
        let mut end = view.at().max(after);
        let mut found: Vec<(EventRef, ClientEvent)> = Vec::new();
        let mut look = |room: &Room, to: Offset| -> Result<(), ApiError> {
            let page = view.page_forward(room, after, to, limit, &EventFilter::default())?;
            end = page.next.map_or(end, |next| next.min(end));
            for event in page.events {
                let form = view.client_event(room, &event, &EventForm::FULL)?;
                found.push((event, form));
            }
            Ok(())
        };
        match only {
            Some(room) => look(room, Offset::MAX)?,
            None => {
                for part in view.state.memberships.of(view.user_id(), view.at()) {
                    let room = view.state.rooms.get(&part.room_id);
                    // For a room that was left, the events before that.
                    let joined = part.membership == Membership::Join;
                    let to = if joined { Offset::MAX } else { part.offset };
                    if let Some(room) = room.filter(|room| room.changed() > after && to > after) {
                        look(&room, to)?;
                    }
                }
            }
        }
        found.sort_unstable_by_key(|(event, _)| event.offset);
        // Events after the end of one room's page belong to the next request, for all rooms.
        found.retain(|(event, _)| event.offset <= end);
        if found.len() > limit {
            found.truncate(limit);
            end = found.last().map_or(end, |(last, _)| last.offset);
        }
        let mut chunk: Vec<_> =
            found.into_iter().map(|(_, form)| Entry::OfTimeline(form)).collect();
        if only.is_none() && view.at() > after {
            chunk.extend(passing(cx, view, after)?.into_iter().map(Entry::Passing));
        }
        Ok(Self { chunk, end })
    }
}

/// Everything new after `after` except timeline events.
fn passing(cx: &Cx<Server>, view: &View<'_>, after: Offset) -> Result<Vec<Value>, ApiError> {
    let mut found = Vec::new();
    let account = view.state.accounts.get(view.user_id());
    let account = account.filter(|account| account.read().changed > after);
    let mut with_account_data = BTreeSet::new();
    let all = EventFilter::default();
    if let Some(account) = &account {
        with_account_data = sync::account_data::rooms_changed(&account.read(), after, view.at())
            .into_iter()
            .collect();
        let global = sync::account_data::global(view, account, after, &all, false)?;
        found.extend(global.iter().map(|event| to_value(event)));
    }
    let rooms = sync::changed_rooms(view, after, with_account_data.clone());
    found.extend(presence(cx, view, Some(after), &rooms));
    for part in rooms {
        if let Some(account) =
            account.as_ref().filter(|_| with_account_data.contains(&part.room_id))
        {
            let events =
                sync::account_data::of_room(view, account, &part.room_id, after, &all, false)?;
            found.extend(events.iter().map(|event| of_room(event, &part.room_id)));
        }
        let room = view.state.rooms.get(&part.room_id);
        if let Some(room) = room.filter(|_| part.membership == Membership::Join) {
            // If the caller was not there before, everything is new.
            let was_there = room.is_joined(view.user_id(), after);
            found.extend(receipts(view, &room, was_there.then_some(after))?);
            found.extend(typing(view, &room, was_there.then_some(after))?);
        }
    }
    Ok(found)
}
