//! Push rules, and the list of notifications (client-server API, "Push notifications").

use std::{cmp::Ordering, collections::BinaryHeap, sync::Arc};

use ruma::{
    MilliSecondsSinceUnixEpoch, RoomId,
    api::client::push::{
        PushRule, delete_pushrule::v3 as delete_pushrule,
        get_notifications::v3 as get_notifications, get_pushrule::v3 as get_pushrule,
        get_pushrule_actions::v3 as get_pushrule_actions,
        get_pushrule_enabled::v3 as get_pushrule_enabled,
        get_pushrules_all::v3 as get_pushrules_all,
        get_pushrules_global_scope::v3 as get_pushrules_global, set_pushrule::v3 as set_pushrule,
        set_pushrule_actions::v3 as set_pushrule_actions,
        set_pushrule_enabled::v3 as set_pushrule_enabled,
    },
    events::TimelineEventType,
    push::{Action, RuleKind, Ruleset},
};
use serde::Serialize;

use crate::{
    api::{account::account_data, answer::json, server::Server},
    http::{ApiError, Cx, Json},
};
use logcabin_base::limits;
use logcabin_decide::push::{ChangePushRules, RuleChange};
use logcabin_log::ReadError;
use logcabin_read::{
    events::{ClientEvent, EventForm, EventRef},
    notifications::{Judge, Unread, ruleset},
    view::View,
};
use logcabin_record::Offset;
use logcabin_state::{Membership, Room};

pub(super) async fn all(
    cx: Cx<Server>,
    _: get_pushrules_all::Request,
) -> Result<get_pushrules_all::Response, ApiError> {
    Ok(get_pushrules_all::Response::new(rules(&cx)?))
}

pub(super) async fn global(
    cx: Cx<Server>,
    _: get_pushrules_global::Request,
) -> Result<get_pushrules_global::Response, ApiError> {
    Ok(get_pushrules_global::Response::new(rules(&cx)?))
}

pub(super) async fn get(
    cx: Cx<Server>,
    request: get_pushrule::Request,
) -> Result<get_pushrule::Response, ApiError> {
    Ok(get_pushrule::Response::new(rule(&cx, request.kind, &request.rule_id)?))
}

pub(super) async fn get_actions(
    cx: Cx<Server>,
    request: get_pushrule_actions::Request,
) -> Result<get_pushrule_actions::Response, ApiError> {
    let rule = rule(&cx, request.kind, &request.rule_id)?;
    Ok(get_pushrule_actions::Response::new(rule.actions))
}

pub(super) async fn get_enabled(
    cx: Cx<Server>,
    request: get_pushrule_enabled::Request,
) -> Result<get_pushrule_enabled::Response, ApiError> {
    let rule = rule(&cx, request.kind, &request.rule_id)?;
    Ok(get_pushrule_enabled::Response::new(rule.enabled))
}

pub(super) async fn put(
    cx: Cx<Server>,
    request: set_pushrule::Request,
) -> Result<set_pushrule::Response, ApiError> {
    let set_pushrule::Request { rule, before, after, .. } = request;
    change(&cx, RuleChange::Put { rule, before, after }).await?;
    Ok(set_pushrule::Response::new())
}

pub(super) async fn delete(
    cx: Cx<Server>,
    request: delete_pushrule::Request,
) -> Result<delete_pushrule::Response, ApiError> {
    change(&cx, RuleChange::Remove(request.kind, request.rule_id)).await?;
    Ok(delete_pushrule::Response::new())
}

pub(super) async fn set_actions(
    cx: Cx<Server>,
    request: set_pushrule_actions::Request,
) -> Result<set_pushrule_actions::Response, ApiError> {
    change(&cx, RuleChange::SetActions(request.kind, request.rule_id, request.actions)).await?;
    Ok(set_pushrule_actions::Response::new())
}

pub(super) async fn set_enabled(
    cx: Cx<Server>,
    request: set_pushrule_enabled::Request,
) -> Result<set_pushrule_enabled::Response, ApiError> {
    change(&cx, RuleChange::Enable(request.kind, request.rule_id, request.enabled)).await?;
    Ok(set_pushrule_enabled::Response::new())
}

fn rules(cx: &Cx<Server>) -> Result<Ruleset, ApiError> {
    let user_id = &cx.caller.user_id;
    let kept = account_data::find(cx, user_id, None, ruleset::EVENT_TYPE)?;
    Ok(ruleset::shown(user_id, kept.as_deref()))
}

fn rule(cx: &Cx<Server>, kind: RuleKind, rule_id: &str) -> Result<PushRule, ApiError> {
    let rules = rules(cx)?;
    let rule = rules.get(kind, rule_id);
    rule.map(PushRule::from).ok_or_else(|| ApiError::not_found("There is no such push rule."))
}

async fn change(cx: &Cx<Server>, change: RuleChange) -> Result<(), ApiError> {
    let user_id = cx.caller.user_id.clone();
    cx.propose(ChangePushRules { user_id, change }).await?.into_inner();
    Ok(())
}

/// The body of the response to `/notifications`.
#[derive(Serialize)]
struct Notifications {
    notifications: Vec<Notification>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_token: Option<String>,
}

#[derive(Serialize)]
struct Notification {
    actions: Vec<Action>,
    event: ClientEvent,
    read: bool,
    room_id: ruma::OwnedRoomId,
    ts: MilliSecondsSinceUnixEpoch,
}

pub(super) async fn notifications(
    cx: Cx<Server>,
    request: get_notifications::Request,
) -> Result<Json, ApiError> {
    let from = request.from.as_deref().map(|from| cx.app.position(from)).transpose()?;
    let limit = request.limit.map_or(limits::NOTIFICATIONS, u64::from);
    let limit = usize::try_from(limit.clamp(1, limits::NOTIFICATIONS)).unwrap_or(1);
    let only_highlights = request.only.as_deref() == Some("highlight");
    cx.at_length(|| {
        let view = cx.view();
        let list = notified(&cx, &view, from.unwrap_or_else(|| view.at()), limit, only_highlights)?;
        json(&list)
    })
    .await
}

/// The position in a room during a backward search of all of a user's rooms: the next event to
/// examine.
struct SearchPosition {
    room: Arc<Room>,
    /// Events that were read ahead, oldest first.
    ahead: Vec<Offset>,
}

impl SearchPosition {
    fn begin(room: Arc<Room>, from: Offset) -> Option<Self> {
        let mut way = Self { room, ahead: Vec::new() };
        way.look_up(from);
        (!way.ahead.is_empty()).then_some(way)
    }

    fn look_up(&mut self, from: Offset) {
        self.ahead = self.room.events_backward(from, Offset::ZERO, 16);
        self.ahead.reverse();
    }

    fn next(&self) -> Offset {
        self.ahead.last().copied().unwrap_or(Offset::ZERO)
    }
}

impl PartialEq for SearchPosition {
    fn eq(&self, other: &Self) -> bool {
        self.next() == other.next()
    }
}

impl Eq for SearchPosition {}

impl PartialOrd for SearchPosition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SearchPosition {
    fn cmp(&self, other: &Self) -> Ordering {
        self.next().cmp(&other.next())
    }
}

/// The user's notifications up to and including `from`, newest first, within the limits of one
/// request.
fn notified(
    cx: &Cx<Server>,
    view: &View<'_>,
    from: Offset,
    limit: usize,
    only_highlights: bool,
) -> Result<Notifications, ReadError> {
    let parts = view.state.memberships.of(view.user_id(), view.at()).into_iter();
    let rooms = parts.filter(|part| !part.forgotten).filter_map(|part| {
        let room = view.state.rooms.get(&part.room_id)?;
        // Events after the user left did not notify them.
        let joined = part.membership == Membership::Join;
        SearchPosition::begin(room, if joined { from } else { from.min(part.offset) })
    });
    let mut ways: BinaryHeap<_> = rooms.collect();
    let mut list = Notifications { notifications: Vec::new(), next_token: None };
    let (mut looked_at, mut bytes) = (0, 0);
    while let Some(mut way) = ways.pop() {
        let offset = way.next();
        if list.notifications.len() == limit
            || bytes >= limits::PAGE_BYTES
            || looked_at == limits::SCANNED_EVENTS
        {
            list.next_token = Some(cx.app.token(offset));
            break;
        }
        looked_at += 1;
        if let Some(found) =
            notification(&cx.app.sync.unread, view, &way.room, offset, only_highlights)?
        {
            bytes += found.event.get().len();
            list.notifications.push(found);
        }
        way.ahead.pop();
        if way.ahead.is_empty() {
            way.look_up(offset.prev());
        }
        if !way.ahead.is_empty() {
            ways.push(way);
        }
    }
    Ok(list)
}

/// The notification for the event at `offset`, if the user was notified of it.
fn notification(
    unread: &Unread,
    view: &View<'_>,
    room: &Room,
    offset: Offset,
    only_highlights: bool,
) -> Result<Option<Notification>, ReadError> {
    let user_id = view.user_id();
    let Some(event) = view.events.get(offset)? else { return Ok(None) };
    let is_invite = is_invite_of(&event, view, room);
    if is_invite && !view.shows_invite_event(&event)? {
        return Ok(None);
    }
    let reached = room.is_joined(user_id, offset) || is_invite;
    if !reached || room.redaction_of(offset, view.at()).is_some() || !view.may_see(room, &event)? {
        return Ok(None);
    }
    let judge = Judge { state: &view.state, events: view.events, user_id, room };
    let Some(outcome) = judge.outcome(&event)? else { return Ok(None) };
    if !outcome.notify || (only_highlights && !outcome.highlight) {
        return Ok(None);
    }
    Ok(Some(Notification {
        actions: outcome.actions.clone(),
        event: view.client_event(room, &event, &EventForm::SYNC)?,
        read: unread.has_read(judge, &event, view.at())?,
        room_id: RoomId::to_owned(&room.id),
        ts: event.origin_server_ts,
    }))
}

fn is_invite_of(event: &EventRef, view: &View<'_>, room: &Room) -> bool {
    event.event_type == TimelineEventType::RoomMember
        && event.state_key.as_deref() == Some(view.user_id().as_str())
        && matches!(room.membership(view.user_id(), event.offset), Some((_, Membership::Invite)))
}
