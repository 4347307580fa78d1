//! The response of `/sync` as of one offset (client-server API, "Syncing").
//!
//! [`respond`] is a function of the user, `since` and the head: the same inputs give the same
//! response, whatever is applied meanwhile. The one exception is members that the device already
//! has ([`super::lazy`]). Its cost is proportional to the changes: the log's journal lists the
//! touched streams, and only the user's rooms among them are examined.

mod rooms;

use std::{collections::BTreeSet, sync::Arc};

use ruma::OwnedRoomId;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use self::rooms::{InvitedRoom, JoinedRoom, KnockedRoom, LeftRoom, RoomSync};
use super::{
    Effort, KnownMembers, LookError, UndonePosition, account_data, device_lists::DeviceLists, gone,
    key_counts::KeyCounts, to_device,
};
use crate::{
    events::EventForm,
    notifications::Unread,
    view::{
        ByteBudget, View,
        filter::{EventFilter, Filter, RoomSelection},
        token::Token,
    },
};
use logcabin_base::{
    background::lock_at_length,
    limits,
    planted::{self, Fault},
};
use logcabin_record::{Epoch, Offset};
use logcabin_state::{Membership, RoomMembership};

#[derive(Clone, Debug)]
pub struct Request {
    /// The client's position; `None` for an initial sync.
    pub since: Option<Offset>,
    /// For a client whose position was undone by a restore: that position.
    pub came_from: Option<UndonePosition>,
    /// Whether the full state of every joined room is requested.
    pub full_state: bool,
    /// Whether the state after the timeline is requested instead of the one before it.
    pub use_state_after: bool,
    /// The filter, which other requests may share.
    pub filter: Arc<SyncFilter>,
    /// The current epoch, for tokens.
    pub epoch: Epoch,
}

/// A parsed filter.
#[derive(Clone, Debug)]
pub struct SyncFilter {
    /// For global account data.
    pub account_data: EventFilter,
    pub presence: EventFilter,
    pub room: RoomFilters,
}

/// The part of a filter for rooms.
#[derive(Clone, Debug)]
pub struct RoomFilters {
    /// The selected rooms.
    pub selection: RoomSelection,
    /// Whether an initial sync includes rooms that were left.
    pub include_leave: bool,
    pub timeline: EventFilter,
    pub state: EventFilter,
    /// For account data of rooms.
    pub account_data: EventFilter,
    /// For typing and receipts.
    pub ephemeral: EventFilter,
    /// How many events a timeline has, within the server's limits.
    pub timeline_limit: usize,
    /// Whether unread counts are requested by thread.
    pub unread_by_thread: bool,
    /// The format of events.
    pub form: EventForm,
}

impl SyncFilter {
    /// A filter with its limits. Timelines have `default_limit` events unless the filter says
    /// otherwise, and at most `max_limit`.
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

/// Rooms as a JSON object. Each comes once, so no map is needed.
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
    /// Whether it contains nothing new.
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

/// Caches that make responses cheaper and may be dropped at any time; and how much work a response
/// may be.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// The members that devices have.
    pub members: &'a KnownMembers,
    /// The cache of unread counts.
    pub unread: &'a Unread,
    /// How much work the response may be.
    pub effort: Effort,
}

/// The response to `request` as of the view's offset.
///
/// # Errors
/// When it needs more work than allowed, or the log cannot be read.
pub fn respond(
    view: &View<'_>,
    request: &Request,
    memory: Memory<'_>,
) -> Result<Response, LookError> {
    let since = request.since.unwrap_or(Offset::ZERO);
    let initial = request.since.is_none();
    let filter = &request.filter;
    // Locked for a moment at a time. Processing a room locks it again, and locking it twice while a
    // writer waits would deadlock both.
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
    let next = if planted::has(Fault::TokenTooFar) { view.at().next() } else { view.at() };
    let mut response = Response {
        next_batch: Token { epoch: request.epoch, offset: next }.to_string(),
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
    // A client that starts over because of a restore keeps what it knows of others' devices.
    if let Some(known) = request.since.or_else(|| request.came_from.map(|from| from.after)) {
        response.device_lists = DeviceLists::between(view, known, &rooms);
    }
    response.presence.events = view.presence(request.since, &rooms, &filter.presence);
    let budget = ByteBudget::new(limits::ANSWER_BYTES);
    let gone = request.came_from.map(|from| gone::rooms(view, from)).transpose()?;
    let gone = gone.unwrap_or_default();
    for part in rooms {
        if !filter.room.selection.includes(&part.room_id) {
            continue;
        }
        let Some(room) = view.state.rooms.get(&part.room_id) else {
            // It was purged: clients learn that the user is no longer in it.
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
            Membership::Invite if changed && planted::has(Fault::InviteNotShown) => {}
            Membership::Invite if changed && view.shows_invite(&part)? => {
                response.rooms.invite.insert(part.room_id, sync.invited()?);
            }
            // The removal before a hidden invite is not hidden.
            Membership::Invite if changed && sync.was_joined() => {
                // If the invite itself ended the membership, the timeline would show it.
                let is_invite = |at| {
                    let of = room.membership(view.user_id(), at);
                    of.is_some_and(|(_, membership)| membership == Membership::Invite)
                };
                let departed = room.departed(view.user_id(), part.offset);
                if let Some(offset) = departed.filter(|offset| !is_invite(*offset)) {
                    let left = RoomMembership { offset, membership: Membership::Leave, ..part };
                    response.rooms.leave.insert(left.room_id.clone(), sync.left(&left, device)?);
                }
            }
            Membership::Knock if changed => {
                response.rooms.knock.insert(part.room_id, sync.knocked()?);
            }
            // What ends a hidden invite is hidden.
            Membership::Leave | Membership::Ban
                if !initial && !sync.was_joined() && view.ends_hidden_invite(&room, &part)? => {}
            // Clients learn of a leave even if the room was forgotten right after.
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
        let mut rooms = view.state.memberships.of(view.user_id(), view.at());
        // Rooms that were joined one after the other are often next to each other in the log, so
        // one block of records serves several. The newest come first: the response's budget for
        // timelines may not suffice for all.
        rooms.sort_unstable_by_key(|room| std::cmp::Reverse(room.offset));
        return rooms;
    }
    super::changed_rooms(view, since, with_account_data)
}
