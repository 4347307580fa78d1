//! `/sync`: the answer as of one offset (client-server API, "Syncing").
//!
//! [`respond`] is a function of the user, `since` and the head: the same three give the same answer,
//! whatever is applied meanwhile. Its cost follows what changed: the log's journal names the streams
//! that were touched, and only the user's rooms among them are looked at.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ruma::{
    OwnedEventId, OwnedRoomId, RoomId, UserId, api::client::filter::FilterDefinition,
    events::StateEventType,
};
use serde::Serialize;
use serde_json::{json, value::RawValue};

use crate::{
    events::{ClientForm, EventRef, to_raw},
    log::ReadError,
    push::{Count, Counts, Unread, ruleset},
    record::{Command, Epoch, Offset},
    state::{Account, Membership, Room, RoomMembership},
    view::{
        View,
        filter::{EventFilter, RoomSelection},
        token::Token,
    },
};

/// How many heroes name a room that has no name (client-server API, `m.heroes`).
const HEROES: usize = 5;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where the client has got to; `None` for an initial sync.
    pub since: Option<Offset>,
    /// Whether the whole state of every joined room is wanted.
    pub full_state: bool,
    /// The filter.
    pub filter: SyncFilter,
    /// The epoch in which tokens are given out.
    pub epoch: Epoch,
}

/// A filter, taken apart.
#[derive(Clone, Debug, Default)]
pub struct SyncFilter {
    /// On global account data.
    pub account_data: EventFilter,
    /// On rooms.
    pub room: RoomFilters,
}

/// The part of a filter that is about rooms.
#[derive(Clone, Debug, Default)]
pub struct RoomFilters {
    /// Which rooms.
    pub selection: RoomSelection,
    /// Whether rooms that were left are wanted in an initial sync.
    pub include_leave: bool,
    /// On timelines.
    pub timeline: EventFilter,
    /// On state.
    pub state: EventFilter,
    /// On account data of rooms.
    pub account_data: EventFilter,
    /// On typing and receipts.
    pub ephemeral: EventFilter,
    /// How many events of a timeline are returned, within the server's bounds.
    pub timeline_limit: usize,
    /// Whether unread counts are wanted by thread.
    pub unread_by_thread: bool,
}

impl SyncFilter {
    /// The filter of a definition. Timelines have `default_limit` events unless the filter says
    /// otherwise, and `max_limit` at most.
    #[must_use]
    pub fn new(definition: FilterDefinition, default_limit: usize, max_limit: usize) -> Self {
        let room = definition.room;
        let unread_by_thread = room.timeline.unread_thread_notifications;
        let timeline = EventFilter::from(room.timeline);
        let asked = timeline.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self {
            account_data: definition.account_data.into(),
            room: RoomFilters {
                selection: RoomSelection::new(room.rooms, room.not_rooms),
                include_leave: room.include_leave,
                timeline_limit: asked.unwrap_or(default_limit).min(max_limit),
                timeline,
                state: room.state.into(),
                account_data: room.account_data.into(),
                ephemeral: room.ephemeral.into(),
                unread_by_thread,
            },
        }
    }
}

/// The body of a sync's response.
#[derive(Debug, Serialize)]
pub struct Response {
    next_batch: String,
    account_data: Events,
    presence: Events,
    rooms: Rooms,
    to_device: Events,
    device_lists: DeviceLists,
    device_one_time_keys_count: BTreeMap<String, u64>,
}

#[derive(Debug, Default, Serialize)]
struct Rooms {
    join: BTreeMap<OwnedRoomId, JoinedRoom>,
    invite: BTreeMap<OwnedRoomId, InvitedRoom>,
    knock: BTreeMap<OwnedRoomId, KnockedRoom>,
    leave: BTreeMap<OwnedRoomId, LeftRoom>,
}

#[derive(Debug, Default, Serialize)]
struct DeviceLists {
    changed: Vec<String>,
    left: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Events {
    events: Vec<Box<RawValue>>,
}

#[derive(Debug, Default, Serialize)]
struct Timeline {
    events: Vec<Box<RawValue>>,
    limited: bool,
    prev_batch: String,
}

#[derive(Debug, Default, Serialize)]
struct JoinedRoom {
    summary: Summary,
    state: Events,
    timeline: Timeline,
    ephemeral: Events,
    account_data: Events,
    unread_notifications: UnreadCount,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    unread_thread_notifications: BTreeMap<OwnedEventId, UnreadCount>,
}

#[derive(Debug, Default, Serialize)]
struct UnreadCount {
    highlight_count: u64,
    notification_count: u64,
}

impl From<Count> for UnreadCount {
    fn from(count: Count) -> Self {
        Self { highlight_count: count.highlights, notification_count: count.notifications }
    }
}

#[derive(Debug, Default, Serialize)]
struct LeftRoom {
    state: Events,
    timeline: Timeline,
    account_data: Events,
}

#[derive(Debug, Serialize)]
struct InvitedRoom {
    invite_state: Events,
}

#[derive(Debug, Serialize)]
struct KnockedRoom {
    knock_state: Events,
}

#[derive(Debug, Default, Serialize)]
struct Summary {
    #[serde(rename = "m.heroes", skip_serializing_if = "Option::is_none")]
    heroes: Option<Vec<String>>,
    #[serde(rename = "m.joined_member_count", skip_serializing_if = "Option::is_none")]
    joined: Option<u64>,
    #[serde(rename = "m.invited_member_count", skip_serializing_if = "Option::is_none")]
    invited: Option<u64>,
}

impl Response {
    /// Whether there is nothing new in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.account_data.events.is_empty()
            && self.rooms.join.is_empty()
            && self.rooms.invite.is_empty()
            && self.rooms.knock.is_empty()
            && self.rooms.leave.is_empty()
    }
}

/// The answer to `request` as of the view's offset.
///
/// # Errors
/// When the log cannot be read.
pub fn respond(view: &View<'_>, unread: &Unread, request: &Request) -> Result<Response, ReadError> {
    let since = request.since.unwrap_or(Offset::ZERO);
    let initial = request.since.is_none();
    let filter = &request.filter;
    let account = view.state.accounts.get(view.user_id());
    let mut response = Response {
        next_batch: Token { epoch: request.epoch, offset: view.at() }.to_string(),
        account_data: Events::default(),
        presence: Events::default(),
        rooms: Rooms::default(),
        to_device: Events::default(),
        device_lists: DeviceLists::default(),
        device_one_time_keys_count: BTreeMap::new(),
    };
    let mut with_account_data = BTreeSet::new();
    if let Some(account) = &account {
        let account = account.read();
        if initial || account.changed > since {
            response.account_data.events =
                global_account_data(view, &account, since, &filter.account_data, initial)?;
            with_account_data.extend(rooms_with_account_data(&account, since, view.at()));
        }
    }
    let rooms = rooms_to_look_at(view, request, since, with_account_data);
    for part in rooms {
        if !filter.room.selection.includes(&part.room_id) {
            continue;
        }
        let Some(room) = view.state.rooms.get(&part.room_id) else { continue };
        let sync =
            RoomSync { view: *view, room: &room, unread, request, since, filter: &filter.room };
        let changed = part.offset > since;
        match part.membership {
            Membership::Join => {
                let account = account.as_ref().map(|account| account.read());
                if let Some(joined) = sync.joined(&part, account.as_deref())? {
                    response.rooms.join.insert(part.room_id, joined);
                }
            }
            Membership::Invite if changed && sync.is_from_ignored(&part)? => {}
            Membership::Invite if changed => {
                let invite_state = Events { events: view.stripped_state(&part.room_id)? };
                response.rooms.invite.insert(part.room_id, InvitedRoom { invite_state });
            }
            Membership::Knock if changed => {
                let knock_state = Events { events: view.stripped_state(&part.room_id)? };
                response.rooms.knock.insert(part.room_id, KnockedRoom { knock_state });
            }
            // Those who follow are told of a leave even if the room was forgotten right after.
            Membership::Leave | Membership::Ban
                if changed && (!initial || (filter.room.include_leave && !part.forgotten)) =>
            {
                let left = if part.forgotten { sync.forgotten(&part)? } else { sync.left(&part)? };
                response.rooms.leave.insert(part.room_id, left);
            }
            _ => {}
        }
    }
    Ok(response)
}

/// The user's rooms that may have something new. Either each of them is asked, or, when fewer
/// records than that have come, the journal is: whichever is less to look at.
fn rooms_to_look_at(
    view: &View<'_>,
    request: &Request,
    since: Offset,
    with_account_data: BTreeSet<OwnedRoomId>,
) -> Vec<RoomMembership> {
    if request.since.is_none() || request.full_state {
        return view.state.memberships.of(view.user_id(), view.at());
    }
    let new_records = view.at().get().saturating_sub(since.get());
    let rooms = view.state.memberships.count(view.user_id());
    if usize::try_from(new_records).is_ok_and(|records| records <= rooms) {
        let mut touched = with_account_data;
        let streams = view.state.streams.touched(since, view.at());
        touched.extend(streams.iter().filter_map(|stream| stream.room_id().map(RoomId::to_owned)));
        let memberships = &view.state.memberships;
        return touched
            .iter()
            .filter_map(|room_id| memberships.in_room(view.user_id(), room_id, view.at()))
            .collect();
    }
    let mut parts = view.state.memberships.of(view.user_id(), view.at());
    parts.retain(|part| {
        let room = view.state.rooms.get(&part.room_id);
        room.is_some_and(|room| room.changed() > since) || with_account_data.contains(&part.room_id)
    });
    parts
}

fn global_account_data(
    view: &View<'_>,
    account: &Account,
    since: Offset,
    filter: &EventFilter,
    initial: bool,
) -> Result<Vec<Box<RawValue>>, ReadError> {
    let changed = account.account_data_between(None, since, view.at());
    let has_push_rules = changed.iter().any(|(event_type, _)| *event_type == ruleset::EVENT_TYPE);
    let mut events = account_data(view, changed, filter)?;
    // Push rules that the user never changed are the server's own.
    if initial && !has_push_rules && filter.wants_type(ruleset::EVENT_TYPE) {
        let content = ruleset::shown_content(view.user_id(), None);
        events.push(to_raw(&json!({ "type": ruleset::EVENT_TYPE, "content": content })));
    }
    Ok(events)
}

fn account_data(
    view: &View<'_>,
    changed: Vec<(&str, Offset)>,
    filter: &EventFilter,
) -> Result<Vec<Box<RawValue>>, ReadError> {
    #[derive(Serialize)]
    struct AccountData<'a> {
        #[serde(rename = "type")]
        event_type: &'a str,
        content: &'a RawValue,
    }
    let mut events = Vec::new();
    for (event_type, offset) in changed {
        if filter.wants_type(event_type)
            && let Some(Command::AccountDataSet(mut body)) = view.events.command(offset)?
        {
            if event_type == ruleset::EVENT_TYPE {
                body.content = ruleset::shown_content(view.user_id(), Some(&body.content));
            }
            events.push(to_raw(&AccountData { event_type, content: &body.content }));
        }
    }
    Ok(events)
}

fn rooms_with_account_data(account: &Account, since: Offset, to: Offset) -> Vec<OwnedRoomId> {
    let changed = account.account_data.iter().filter_map(|((room, _), history)| {
        let room = room.as_ref()?;
        history.between(since, to).next().map(|_| room.clone())
    });
    changed.collect()
}

/// One room's part of a sync.
struct RoomSync<'a> {
    view: View<'a>,
    room: &'a Room,
    unread: &'a Unread,
    request: &'a Request,
    since: Offset,
    filter: &'a RoomFilters,
}

impl RoomSync<'_> {
    /// The room of one who is joined; `None` if there is nothing new.
    fn joined(
        &self,
        part: &RoomMembership,
        account: Option<&Account>,
    ) -> Result<Option<JoinedRoom>, ReadError> {
        let (since, at) = (self.since, self.view.at());
        let newly = !self.room.is_joined(self.view.user_id(), since);
        let first = self.request.since.is_none() || newly;
        let timeline = self.timeline(if first { Offset::ZERO } else { since }, at)?;
        let whole = first || self.request.full_state;
        let state = self.state(&timeline, whole, at)?;

        let mut joined = JoinedRoom {
            ephemeral: Events { events: self.ephemeral(first)? },
            ..JoinedRoom::default()
        };
        if let Some(account) = account
            && self.filter.account_data.wants_room(&part.room_id)
        {
            let data_since = if first { Offset::ZERO } else { since };
            let changed = account.account_data_between(Some(&part.room_id), data_since, at);
            joined.account_data.events =
                account_data(&self.view, changed, &self.filter.account_data)?;
        }
        let members_changed = whole || self.room.counts(at) != self.room.counts(since);
        if members_changed {
            joined.summary = self.summary()?;
        }
        let quiet = timeline.events.is_empty()
            && state.is_empty()
            && joined.ephemeral.events.is_empty()
            && joined.account_data.events.is_empty();
        let quiet = quiet && !whole && !members_changed;
        // A receipt of one's own, or an event that the filter leaves out, may change the counts alone.
        let before = if quiet { Some(self.unread(since)?) } else { None };
        let unread = self.unread(at)?;
        if before.is_some_and(|before| before == unread) {
            return Ok(None);
        }
        if self.filter.unread_by_thread {
            joined.unread_notifications = unread.main.into();
            for (root, count) in unread.threads {
                if let Some(root) = self.view.events.get(root)? {
                    joined.unread_thread_notifications.insert(root.event_id.clone(), count.into());
                }
            }
        } else {
            joined.unread_notifications = unread.total().into();
        }
        joined.state.events = self.view.client_events(self.room, &state, ClientForm::Sync)?;
        joined.timeline = self.client_timeline(timeline)?;
        Ok(Some(joined))
    }

    fn unread(&self, at: Offset) -> Result<Counts, ReadError> {
        let View { state, events, .. } = self.view;
        self.unread.counts(state, events, self.view.user_id(), self.room, at)
    }

    /// Whether it is someone whom the user ignores who invited them.
    fn is_from_ignored(&self, part: &RoomMembership) -> Result<bool, ReadError> {
        let ignored = self.view.ignored()?;
        let invite = self.view.events.get(part.offset)?;
        Ok(invite.is_some_and(|invite| ignored.contains(&invite.sender)))
    }

    /// The room of one who is not in it any more: as it was when they left.
    fn left(&self, part: &RoomMembership) -> Result<LeftRoom, ReadError> {
        let at = part.offset;
        let was_joined_before = self.room.is_joined(self.view.user_id(), self.since);
        let departed = self.departed(at).filter(|departed| *departed > self.since);
        let (timeline, state) = match departed {
            Some(departed) => {
                let since = if was_joined_before { self.since } else { Offset::ZERO };
                let timeline = self.timeline(since, at)?;
                let whole = !was_joined_before || self.request.since.is_none();
                // A ban, say, may have come long after they left: the state is that of the leave.
                let state = self.state(&timeline, whole, departed)?;
                (timeline, state)
            }
            // One who was not in the room learns what became of their invite, ban or knock.
            None => {
                let events = self.view.events.get_all(&[at])?;
                (Stretch { events, limited: false, start: at, at }, Vec::new())
            }
        };
        Ok(LeftRoom {
            state: Events { events: self.view.client_events(self.room, &state, ClientForm::Sync)? },
            timeline: self.client_timeline(timeline)?,
            account_data: Events::default(),
        })
    }

    /// When the user last stopped being joined, up to and with `at`.
    fn departed(&self, at: Offset) -> Option<Offset> {
        let changes = self.room.membership_changes(self.view.user_id(), at);
        let leave = changes.windows(2).rfind(|pair| {
            let (before, after) = (pair[0].1, pair[1].1);
            before == Membership::Join && after != Membership::Join
        });
        leave.map(|pair| pair[1].0)
    }

    /// The room of one who has left and forgotten it: their other devices learn that they left, and
    /// no more.
    fn forgotten(&self, part: &RoomMembership) -> Result<LeftRoom, ReadError> {
        let at = part.offset;
        let events = self.events_of(&[at])?;
        let timeline = Stretch { events, limited: false, start: at, at };
        Ok(LeftRoom { timeline: self.client_timeline(timeline)?, ..LeftRoom::default() })
    }

    /// The newest visible events after `since`, oldest first.
    fn timeline(&self, since: Offset, at: Offset) -> Result<Stretch, ReadError> {
        let limit = self.filter.timeline_limit;
        let filter = &self.filter.timeline;
        if !filter.wants_room(&self.room.id) {
            return Ok(Stretch { events: Vec::new(), limited: false, start: at.next(), at });
        }
        let page = self.view.page_backward(self.room, at, since, limit, filter)?;
        let mut events = page.events;
        events.reverse();
        let start = match (&page.next, events.first()) {
            // Nothing was left out: the timeline reaches back to `since`.
            (None, _) => since.next(),
            (Some(_), Some(first)) => first.offset,
            (Some(_), None) => at.next(),
        };
        Ok(Stretch { events, limited: page.next.is_some(), start, at })
    }

    /// The state that, with the timeline on top, brings the client to the state as of `at`.
    fn state(
        &self,
        timeline: &Stretch,
        whole: bool,
        at: Offset,
    ) -> Result<Vec<EventRef>, ReadError> {
        if !self.filter.state.wants_room(&self.room.id) {
            return Ok(Vec::new());
        }
        let before = timeline.start.prev().min(at);
        let lazy = self.filter.state.lazy_load_members;
        let mut offsets = if whole && lazy {
            self.room.state_without_members(before)
        } else if whole {
            self.room.full_state(before)
        } else {
            self.room.state_delta(self.since, before)
        };
        // Changes that the timeline's filter left out would otherwise reach the client nowhere.
        let shown: HashSet<Offset> = timeline.events.iter().map(|event| event.offset).collect();
        let from = if whole { Offset::ZERO } else { self.since };
        let within = self.room.state_delta(before.max(from), at);
        offsets.extend(within.into_iter().filter(|offset| !shown.contains(offset)));
        let mut state = self.events_of(&offsets)?;
        if lazy {
            let own = whole.then(|| self.view.user_id());
            let members = self.view.members_of(self.room, &timeline.events, own, before)?;
            state.retain(|event| !shown.contains(&event.offset));
            state.extend(members);
        }
        state.retain(|event| self.filter.state.matches(event) && !shown.contains(&event.offset));
        state.sort_unstable_by_key(|event| event.offset);
        // Of each key, the newest.
        let mut seen = HashSet::new();
        let mut newest: Vec<_> = state
            .into_iter()
            .rev()
            .filter(|event| seen.insert((event.event_type.clone(), event.state_key.clone())))
            .collect();
        newest.reverse();
        Ok(newest)
    }

    fn events_of(&self, offsets: &[Offset]) -> Result<Vec<EventRef>, ReadError> {
        self.view.events.get_all(offsets)
    }

    fn client_timeline(&self, timeline: Stretch) -> Result<Timeline, ReadError> {
        let offset = timeline.start.prev().min(timeline.at);
        Ok(Timeline {
            events: self.view.client_events(self.room, &timeline.events, ClientForm::Sync)?,
            limited: timeline.limited,
            prev_batch: Token { epoch: self.request.epoch, offset }.to_string(),
        })
    }

    fn ephemeral(&self, first: bool) -> Result<Vec<Box<RawValue>>, ReadError> {
        if !self.filter.ephemeral.wants_room(&self.room.id) {
            return Ok(Vec::new());
        }
        let (user_id, at) = (self.view.user_id(), self.view.at());
        let since = if first { Offset::ZERO } else { self.since };
        let mut events = Vec::new();
        let receipts = self.room.receipts_between(since, at);
        if !receipts.is_empty() && self.filter.ephemeral.wants_type("m.receipt") {
            let mut content = serde_json::Map::new();
            for ((of, receipt_type, thread_id), receipt) in receipts {
                if receipt_type == "m.read.private" && of != user_id {
                    continue;
                }
                let mut data = json!({ "ts": receipt.ts });
                if let Some(thread_id) = thread_id {
                    data["thread_id"] = thread_id.into();
                }
                let of_event =
                    content.entry(receipt.event_id.as_str()).or_insert_with(|| json!({}));
                // `of_event` and what it holds are objects made right here.
                of_event[receipt_type][of.as_str()] = data;
            }
            if !content.is_empty() {
                events.push(to_raw(&json!({ "type": "m.receipt", "content": content })));
            }
        }
        let (typing, changed) = self.room.typing();
        // What changed after this response's offset is news for the next one.
        let news = changed <= at && if first { !typing.is_empty() } else { changed > since };
        if news && self.filter.ephemeral.wants_type("m.typing") {
            let now = self.view.viewer.now_ms;
            let users: Vec<&UserId> =
                typing.iter().filter(|(_, until)| *until > now).map(|(user, _)| &**user).collect();
            events.push(to_raw(&json!({ "type": "m.typing", "content": { "user_ids": users } })));
        }
        Ok(events)
    }

    /// How many are in the room, and who they are if it has no name.
    fn summary(&self) -> Result<Summary, ReadError> {
        let at = self.view.at();
        let counts = self.room.counts(at);
        let text =
            |event_type, field| self.view.events.state_text(self.room, &event_type, field, at);
        let named = text(StateEventType::RoomName, "name")?.is_some()
            || text(StateEventType::RoomCanonicalAlias, "alias")?.is_some();
        let heroes = if named {
            None
        } else {
            let others = |membership| {
                let members = self.room.members(membership, at).into_iter();
                members.filter(|(user_id, _)| user_id != self.view.user_id())
            };
            let mut heroes: Vec<_> =
                others(Membership::Join).chain(others(Membership::Invite)).collect();
            if heroes.is_empty() {
                heroes = others(Membership::Leave).chain(others(Membership::Ban)).collect();
            }
            heroes.sort_unstable_by_key(|(_, offset)| *offset);
            heroes.truncate(HEROES);
            Some(heroes.into_iter().map(|(user_id, _)| user_id.to_string()).collect())
        };
        Ok(Summary { heroes, joined: Some(counts.joined), invited: Some(counts.invited) })
    }
}

/// A stretch of a timeline on its way to the client.
struct Stretch {
    events: Vec<EventRef>,
    limited: bool,
    /// The first offset that the stretch covers: all visible events from here on are in it.
    start: Offset,
    at: Offset,
}
