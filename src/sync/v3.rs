//! `/sync`: the answer as of one offset (client-server API, "Syncing").
//!
//! [`respond`] is a function of the user, `since` and the head: the same three give the same answer,
//! whatever is applied meanwhile; but for members that the device already has ([`super::lazy`]). Its cost
//! follows what changed: the log's journal names the streams that were touched, and only the user's rooms
//! among them are looked at.

mod rooms;

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedRoomId, api::client::filter::FilterDefinition};
use serde::Serialize;
use serde_json::value::RawValue;

use self::rooms::{InvitedRoom, JoinedRoom, KnockedRoom, LeftRoom, RoomSync};
use super::{KnownMembers, account_data};
use crate::{
    log::ReadError,
    record::{Epoch, Offset},
    state::{Membership, RoomMembership},
    view::{
        View,
        filter::{EventFilter, RoomSelection},
        token::Token,
    },
};

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where the client has got to; `None` for an initial sync.
    pub since: Option<Offset>,
    /// Whether the whole state of every joined room is wanted.
    pub full_state: bool,
    /// Whether the state after the timeline is wanted rather than the one before it.
    pub use_state_after: bool,
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
}

impl SyncFilter {
    /// The filter of a definition. Timelines have `default_limit` events unless the filter says
    /// otherwise, and `max_limit` at most.
    #[must_use]
    pub fn new(definition: FilterDefinition, default_limit: usize, max_limit: usize) -> Self {
        let room = definition.room;
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
pub fn respond(
    view: &View<'_>,
    request: &Request,
    known: &KnownMembers,
) -> Result<Response, ReadError> {
    let since = request.since.unwrap_or(Offset::ZERO);
    let initial = request.since.is_none();
    let filter = &request.filter;
    let account = view.state.accounts.get(view.user_id());
    let session = view.viewer.session;
    let device = filter.room.state.lazy_load_members.then(|| known.of(session, request.since));
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
                account_data::global(view, &account, since, &filter.account_data, initial)?;
            with_account_data.extend(account_data::rooms_changed(&account, since, view.at()));
        }
    }
    let rooms = rooms_to_look_at(view, request, since, with_account_data);
    for part in rooms {
        if !filter.room.selection.includes(&part.room_id) {
            continue;
        }
        let Some(room) = view.state.rooms.get(&part.room_id) else { continue };
        let account = account.as_ref().map(|account| account.read());
        let sync = RoomSync {
            view: *view,
            room: &room,
            request,
            since,
            filter: &filter.room,
            account: account.as_deref(),
        };
        let changed = part.offset > since;
        let mut device = device.as_ref().map(|device| device.lock());
        let device = device.as_deref_mut();
        match part.membership {
            Membership::Join => {
                if let Some(joined) = sync.joined(device)? {
                    response.rooms.join.insert(part.room_id, joined);
                }
            }
            Membership::Invite if changed => {
                response.rooms.invite.insert(part.room_id, sync.invited()?);
            }
            Membership::Knock if changed => {
                response.rooms.knock.insert(part.room_id, sync.knocked()?);
            }
            // Those who follow are told of a leave even if the room was forgotten right after.
            Membership::Leave | Membership::Ban
                if changed && (!initial || (filter.room.include_leave && !part.forgotten)) =>
            {
                let left = sync.left(&part, device)?;
                response.rooms.leave.insert(part.room_id, left);
            }
            _ => {}
        }
    }
    if let Some(device) = device {
        known.keep(session, device);
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
