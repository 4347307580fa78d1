//! `/sync`: the answer as of one offset (client-server API, "Syncing").
//!
//! [`respond`] is a function of the user, `since` and the head: the same three give the same
//! answer, whatever is applied meanwhile; but for members that the device already has
//! ([`super::lazy`]). Its cost follows what changed: the log's journal names the streams that were
//! touched, and only the user's rooms among them are looked at.

mod rooms;

use std::{collections::BTreeSet, sync::Arc};

use ruma::OwnedRoomId;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use self::rooms::{InvitedRoom, JoinedRoom, KnockedRoom, LeftRoom, RoomSync};
use super::{
    CameFrom, Effort, KnownMembers, LookError, account_data, device_lists::DeviceLists, gone,
    key_counts::KeyCounts, to_device,
};
use crate::{
    base::{background::lock_at_length, limits},
    read::{
        events::EventForm,
        push::Unread,
        view::{
            ByteBudget, View,
            filter::{EventFilter, Filter, RoomSelection},
            token::Token,
        },
    },
    record::{Epoch, Offset},
    state::{Membership, RoomMembership},
};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where the client has got to; `None` for an initial sync.
    pub since: Option<Offset>,
    /// For one who begins anew since a restore undid where they had got to: where that was.
    pub came_from: Option<CameFrom>,
    /// Whether the whole state of every joined room is wanted.
    pub full_state: bool,
    /// Whether the state after the timeline is wanted rather than the one before it.
    pub use_state_after: bool,
    /// The filter, which others may ask for, too.
    pub filter: Arc<SyncFilter>,
    /// The epoch in which tokens are given out.
    pub epoch: Epoch,
}

/// A filter, taken apart.
#[derive(Clone, Debug)]
pub struct SyncFilter {
    /// On global account data.
    pub account_data: EventFilter,
    /// On presence.
    pub presence: EventFilter,
    /// On rooms.
    pub room: RoomFilters,
}

/// The part of a filter that is about rooms.
#[derive(Clone, Debug)]
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
    /// The form of events.
    pub form: EventForm,
}

impl SyncFilter {
    /// A filter with its bounds. Timelines have `default_limit` events unless the filter says
    /// otherwise, and `max_limit` at most.
    #[must_use]
    pub fn new(filter: Filter, default_limit: usize, max_limit: usize) -> Self {
        let form = filter.form(&EventForm::STATE);
        let room = filter.room;
        let asked = room.timeline.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        Self {
            account_data: filter.account_data,
            presence: filter.presence,
            room: RoomFilters {
                selection: room.selection,
                include_leave: room.include_leave,
                timeline_limit: asked.unwrap_or(default_limit).min(max_limit),
                unread_by_thread: room.timeline.unread_thread_notifications,
                timeline: room.timeline,
                state: room.state,
                account_data: room.account_data,
                ephemeral: room.ephemeral,
                form,
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
    #[serde(skip_serializing_if = "DeviceLists::is_empty")]
    device_lists: DeviceLists,
    #[serde(flatten)]
    key_counts: KeyCounts,
}

#[derive(Debug, Default, Serialize)]
struct Rooms {
    join: ByRoom<JoinedRoom>,
    invite: ByRoom<InvitedRoom>,
    knock: ByRoom<KnockedRoom>,
    leave: ByRoom<LeftRoom>,
}

/// Rooms, each of which comes once: an object in JSON. A map would move them about.
#[derive(Debug)]
struct ByRoom<T>(Vec<(OwnedRoomId, T)>);

impl<T> Default for ByRoom<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> ByRoom<T> {
    fn insert(&mut self, room_id: OwnedRoomId, room: T) {
        self.0.push((room_id, room));
    }

    const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T: Serialize> Serialize for ByRoom<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(room_id, room)| (room_id, room)))
    }
}

#[derive(Debug, Serialize)]
struct Events<E = Box<RawValue>> {
    events: Vec<E>,
}

impl<E> Default for Events<E> {
    fn default() -> Self {
        Self { events: Vec::new() }
    }
}

impl Response {
    /// Whether there is nothing new in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.account_data.events.is_empty()
            && self.presence.events.is_empty()
            && self.to_device.events.is_empty()
            && self.device_lists.is_empty()
            && !self.key_counts.changed
            && self.rooms.join.is_empty()
            && self.rooms.invite.is_empty()
            && self.rooms.knock.is_empty()
            && self.rooms.leave.is_empty()
    }
}

/// What makes answers cheaper, which may be forgotten at any time; and how much they may cost.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// What devices know of members.
    pub members: &'a KnownMembers,
    /// What was counted.
    pub unread: &'a Unread,
    /// How much work the answer may be.
    pub effort: Effort,
}

/// The answer to `request` as of the view's offset.
///
/// # Errors
/// When it is more work than it may be, or the log cannot be read.
pub fn respond(
    view: &View<'_>,
    request: &Request,
    memory: Memory<'_>,
) -> Result<Response, LookError> {
    let since = request.since.unwrap_or(Offset::ZERO);
    let initial = request.since.is_none();
    let filter = &request.filter;
    // Locked for a moment at a time: a look at a room locks it itself, and one who locks it for a
    // second time while a writer waits would wait for ever, and the writer with them.
    let account = view.state.accounts.get(view.user_id());
    let mut with_account_data = BTreeSet::new();
    let has_account_data =
        account.as_ref().filter(|account| initial || account.read().changed > since);
    if let Some(account) = has_account_data {
        with_account_data.extend(account_data::rooms_changed(&account.read(), since, view.at()));
    }
    let rooms = rooms_to_look_at(view, request, since, with_account_data);
    memory.effort.suffices(view, since, &rooms, memory.unread)?;
    let session = view.viewer.session;
    let device =
        filter.room.state.lazy_load_members.then(|| memory.members.of(session, request.since));
    let mut response = Response {
        next_batch: Token { epoch: request.epoch, offset: view.at() }.to_string(),
        account_data: Events::default(),
        presence: Events::default(),
        rooms: Rooms::default(),
        to_device: Events { events: to_device::messages(view, since)? },
        device_lists: DeviceLists::default(),
        key_counts: KeyCounts::of(view, since),
    };
    if let Some(account) = has_account_data {
        response.account_data.events =
            account_data::global(view, account, since, &filter.account_data, initial)?;
    }
    // A client that begins anew in the middle of its life keeps what it knows of others' devices.
    if let Some(known) = request.since.or_else(|| request.came_from.map(|from| from.after)) {
        response.device_lists = DeviceLists::between(view, known, &rooms);
    }
    response.presence.events = view.presence(request.since, &rooms, &filter.presence);
    let budget = ByteBudget::new(limits::ANSWER_BYTES);
    let gone = request.came_from.map(|from| gone::rooms(view, from)).unwrap_or_default();
    for part in rooms {
        if !filter.room.selection.includes(&part.room_id) {
            continue;
        }
        let Some(room) = view.state.rooms.get(&part.room_id) else {
            // It was purged: those who follow are told that they are not in it any more.
            if part.offset > since && !initial {
                let left = LeftRoom::without_room(view, request, &part.room_id, part.offset)?;
                response.rooms.leave.insert(part.room_id, left);
            }
            continue;
        };
        let sync = RoomSync {
            view: view.clone(),
            room: &room,
            request,
            since,
            filter: &filter.room,
            account: account.as_deref(),
            unread: memory.unread,
            budget: &budget,
        };
        let changed = part.offset > since;
        let mut device = device.as_ref().map(|device| lock_at_length(device));
        let device = device.as_deref_mut();
        match part.membership {
            Membership::Join => {
                if let Some(joined) = sync.joined(device)? {
                    response.rooms.join.insert(part.room_id, joined);
                }
            }
            Membership::Invite if changed && view.shows_invite(&part)? => {
                response.rooms.invite.insert(part.room_id, sync.invited()?);
            }
            Membership::Knock if changed => {
                response.rooms.knock.insert(part.room_id, sync.knocked()?);
            }
            // Those who follow are told of a leave even if the room was forgotten right after.
            Membership::Leave | Membership::Ban
                if changed
                    && (!initial
                        || gone.contains_key(&part.room_id)
                        || (filter.room.include_leave && !part.forgotten)) =>
            {
                let left = sync.left(&part, device)?;
                response.rooms.leave.insert(part.room_id, left);
            }
            _ => {}
        }
    }
    for (room_id, because) in gone {
        let told = response.rooms.leave.0.iter().any(|(told, _)| *told == room_id);
        if !told && filter.room.selection.includes(&room_id) {
            let left = LeftRoom::without_room(view, request, &room_id, because)?;
            response.rooms.leave.insert(room_id, left);
        }
    }
    if let Some(device) = device {
        memory.members.keep(session, device);
    }
    Ok(response)
}

fn rooms_to_look_at(
    view: &View<'_>,
    request: &Request,
    since: Offset,
    with_account_data: BTreeSet<OwnedRoomId>,
) -> Vec<RoomMembership> {
    if request.since.is_none() || request.full_state {
        return view.state.memberships.of(view.user_id(), view.at());
    }
    super::changed_rooms(view, since, with_account_data)
}
