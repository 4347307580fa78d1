//! Simplified sliding sync (MSC4186): the rooms in a client's windows, and what is new in them.
//!
//! A connection follows the log from one response to the next. [`connection`] stores what it has
//! been sent; [`list`] keeps its lists and their order. A response is exact as of one offset. Its
//! cost is proportional to the changes: as long as a client repeats the same request, only the
//! rooms in the log's journal are examined, and those that their moves have pushed into a window.

mod client_rooms;
mod connection;
mod extensions;
mod files;
mod list;
mod room;
mod rules;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map::Entry},
    sync::Arc,
};

use parking_lot::RwLock;
use ruma::{OwnedRoomId, UserId};
use serde::Serialize;

use self::{
    connection::{Addition, Connection, Form, RoomChange, SentRoom},
    extensions::{Extensions, Source},
    list::{ChangedRoom, FilterInput, Order},
    room::{Outcome, RoomResult, RoomSync},
    rules::{Matched, Rule},
};
pub use self::{
    connection::{Connections, Resumed, UnknownPos},
    rules::{BadRules, Filters, ListConfig, RoomConfig, Rules},
};
use super::{Effort, TooLong, UndonePosition, account_data, changed_rooms, gone};
use crate::{
    notifications::Unread,
    view::{ByteBudget, View, token::Pos},
};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::{Epoch, Offset, Stream};
use logcabin_state::{Account, Membership, Room, RoomMembership};

/// Up to this many rooms are located in a list one by one; for more, the list is scanned.
const FEW_ROOMS: usize = 16;

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum SlidingError {
    /// The client must start over.
    #[error(transparent)]
    UnknownPos(#[from] UnknownPos),
    /// It needs more work than allowed.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The body of a response.
#[derive(Debug, Serialize)]
pub struct Response {
    pos: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    txn_id: Option<String>,
    lists: BTreeMap<String, ListResult>,
    rooms: BTreeMap<OwnedRoomId, RoomResult>,
    extensions: Extensions,
}

#[derive(Debug, Serialize)]
struct ListResult {
    count: usize,
}

/// A response that may still be discarded: the connection does not know of it.
#[derive(Debug)]
pub struct PendingResponse {
    lists: BTreeMap<String, ListResult>,
    rooms: BTreeMap<OwnedRoomId, RoomResult>,
    extensions: Extensions,
    is_empty: bool,
    epoch: Epoch,
    addition: Addition,
}

impl PendingResponse {
    /// Whether it contains nothing new.
    pub const fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// The response. The connection records that it is in flight.
    ///
    /// # Errors
    /// When a later request has moved the connection on.
    pub fn send(
        self,
        connections: &Connections,
        resumed: &Resumed,
        txn_id: Option<String>,
    ) -> Result<Response, UnknownPos> {
        let pos: Pos = connections.sent(resumed, self.epoch, self.addition)?;
        let Self { lists, rooms, extensions, .. } = self;
        Ok(Response { pos: pos.to_string(), txn_id, lists, rooms, extensions })
    }
}

/// The caches and limits of an attempt.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// The cache of unread counts.
    pub unread: &'a Unread,
    /// The current epoch, for positions.
    pub epoch: Epoch,
    /// How much work the attempt may do.
    pub effort: Effort,
}

/// What is new for a connection under these rules, as of the view's offset. For one that starts
/// over, also what became of the rooms that the client had before.
///
/// # Errors
/// When a later request has moved the connection on, the attempt needs more work than allowed, or
/// the log cannot be read.
pub fn look(
    view: &View<'_>,
    rules: &Rules,
    resumed: &Resumed,
    came_from: Option<UndonePosition>,
    Memory { unread, epoch, effort }: Memory<'_>,
) -> Result<PendingResponse, SlidingError> {
    let mut connection = resumed.lock()?;
    let account = view.state.accounts.get(view.user_id());
    // Locked for a moment at a time: writes to the account must not wait for a long attempt.
    let account = account.as_deref();
    let since = connection.has.at;
    let direct = connection.direct(view, account)?;
    let facts = FilterInput { account, direct: &direct };
    let touched = touched(view, since, facts)?;
    let parts: Vec<_> = touched.iter().map(|touched| touched.part.clone()).collect();
    effort.suffices(view, since, &parts, unread)?;
    let followed = connection.follow(view, rules, &touched, facts)?;

    let same = followed && since != Offset::ZERO && connection.has.fingerprint == rules.fingerprint;
    let candidates = candidates(view, &connection, rules, &touched, same);
    let source = Source { view: view.clone(), rules, account, since, epoch };
    let mut extensions = Extensions::new(&source, &touched)?;
    let account_data = extensions.add_global(&source, connection.has.account_data)?;
    let budget = ByteBudget::new(limits::ANSWER_BYTES);
    let mut rooms = BTreeMap::new();
    let mut changes = Vec::new();
    let mut combined = HashMap::new();
    for (room, matched) in candidates {
        let part = view.state.memberships.in_room(view.user_id(), &room.id, view.at());
        let Some(part) = part else { continue };
        let has = connection.has.rooms.get(room.created);
        let has = has.as_ref();
        // Nothing is told of a hidden invite but the removal before it, to a client that has the
        // room as it was before.
        let part = match part.membership {
            Membership::Invite if !view.shows_invite(&part)? => {
                let Some(has) = has else { continue };
                match removal_before(&part, &room, view.user_id(), &has.sent) {
                    Some(removal) => removal,
                    // The invite itself ended the membership.
                    None if has.sent.form == Form::Joined => part,
                    None => continue,
                }
            }
            _ => part,
        };
        let is_dm = direct.contains(&room.id);
        let sync = RoomSync {
            view: view.clone(),
            room: &room,
            part: &part,
            since,
            epoch,
            has,
            is_dm,
            unread,
            budget: &budget,
        };
        let rule = matched.is_any().then(|| rule(&mut combined, rules, &room, matched));
        let outcome = match part.membership {
            Membership::Join => match &rule {
                Some(rule) => Some(sync.joined(rule)?),
                None => has.map(|has| unwanted(&has.sent, since)),
            },
            // A client that has the room learns that the user is no longer in it, whether the room
            // is in a list or not.
            Membership::Invite | Membership::Knock if rule.is_some() || has.is_some() => {
                sync.stripped()?
            }
            Membership::Invite | Membership::Knock => None,
            Membership::Leave | Membership::Ban => sync.ended(rule.as_ref())?,
        };
        let Some(Outcome { result, mut sent, members, all_members }) = outcome else { continue };
        if let Some(sent) = sent.as_mut().filter(|sent| sent.form == Form::Joined) {
            let has_gap = result.as_ref().is_some_and(RoomResult::has_gap);
            extensions.add_room(&source, &room, matched, has_gap, sent)?;
        }
        if let Some(result) = result {
            rooms.insert(room.id.clone(), result);
        }
        let change = match sent {
            Some(sent) => {
                let known = has.is_some_and(|has| has.sent == sent);
                let as_before = known && members.is_empty() && !all_members;
                (!as_before).then_some(RoomChange::Sent { sent, members, all_members })
            }
            None => Some(RoomChange::Gone),
        };
        changes.extend(change.map(|change| (room.created, change)));
    }
    let gone = came_from.map(|from| gone::rooms(view, from)).transpose()?.unwrap_or_default();
    for (room_id, because) in gone {
        if let Entry::Vacant(room) = rooms.entry(room_id) {
            let leave = gone::leave(view, room.key(), because)?;
            room.insert(RoomResult::gone(leave, because));
        }
    }
    let counts: BTreeMap<_, _> =
        connection.orders.iter().map(|(name, order)| (name.clone(), order.len())).collect();
    let is_empty = since != Offset::ZERO
        && rooms.is_empty()
        && extensions.is_empty()
        && counts == connection.has.counts;
    let addition = Addition {
        at: view.at(),
        fingerprint: rules.fingerprint,
        asked_bytes: rules.bytes,
        counts: counts.clone(),
        account_data,
        rooms: changes,
    };
    let lists = counts.into_iter().map(|(name, count)| (name, ListResult { count })).collect();
    Ok(PendingResponse { lists, rooms, extensions, is_empty, epoch, addition })
}

/// What is requested of a room. Rooms in the same lists share it.
fn rule(
    combined: &mut HashMap<rules::Lists, Rule>,
    rules: &Rules,
    room: &Room,
    matched: Matched,
) -> Rule {
    if matched.subscribed {
        return rules.combined(&room.id, matched);
    }
    let of_lists = || rules.combined(&room.id, matched);
    combined.entry(matched.lists).or_insert_with(of_lists).clone()
}

/// A room that the client has but no longer requests: news after `since` is not sent.
fn unwanted(sent: &SentRoom, since: Offset) -> Outcome {
    let mut sent = sent.clone();
    sent.events = sent.events.behind(since);
    Outcome { result: None, sent: Some(sent), members: Vec::new(), all_members: false }
}

/// The removal of a user before an invite and after what the client was sent, if there was one.
fn removal_before(
    invite: &RoomMembership,
    room: &Room,
    user_id: &UserId,
    sent: &SentRoom,
) -> Option<RoomMembership> {
    let changes = room.membership_changes(user_id, invite.offset).into_iter().rev();
    let mut since_join = changes.take_while(|(_, membership)| *membership != Membership::Join);
    let (offset, membership) = since_join
        .find(|(_, membership)| matches!(membership, Membership::Leave | Membership::Ban))?;
    let is_news = match sent.form {
        Form::Joined => true,
        Form::Stripped(at) | Form::Ended(at) => offset > at,
    };
    is_news.then(|| RoomMembership { offset, membership, ..invite.clone() })
}

/// The user's rooms that may have news after `since`.
fn touched(
    view: &View<'_>,
    since: Offset,
    facts: FilterInput<'_>,
) -> Result<Vec<ChangedRoom>, ReadError> {
    if since == Offset::ZERO {
        // All lists are built from scratch.
        return Ok(Vec::new());
    }
    let mut also = BTreeSet::new();
    let user_id = view.user_id();
    if view.state.streams.head(&Stream::user(user_id)) > since {
        also.extend(view.state.memberships.forgotten_between(user_id, since, view.at()));
        if let Some(account) = facts.account.filter(|account| account.read().changed > since) {
            also.extend(account_data::rooms_changed(&account.read(), since, view.at()));
            if list::takes_other_invites(&account.read(), since, view.at()) {
                let parts = view.state.memberships.of(user_id, view.at()).into_iter();
                let invites = parts.filter(|part| part.membership == Membership::Invite);
                also.extend(invites.map(|part| part.room_id));
            }
            // Rooms that were a direct chat at any time since: a list may have been built in
            // between.
            let versions = list::direct_changes(&account.read(), since, view.at());
            if !versions.is_empty() {
                for at in versions.into_iter().chain([since]) {
                    also.extend(list::direct(view, at)?);
                }
            }
        }
    }
    let parts = changed_rooms(view, since, also).into_iter();
    let with_room = parts.filter_map(|part| {
        let room = view.state.rooms.get(&part.room_id)?;
        Some(ChangedRoom { part, room })
    });
    Ok(with_room.collect())
}

/// The rooms that may have to be sent, or are no longer to be sent, each with the reasons.
///
/// If the request is the `same` as before, an untouched room can only have come into a window
/// because touched ones moved past it, one place for each. So it is at most that far from an end of
/// the window.
fn candidates(
    view: &View<'_>,
    connection: &Connection,
    rules: &Rules,
    touched: &[ChangedRoom],
    same: bool,
) -> Vec<(Arc<Room>, Matched)> {
    let orders: Vec<(&Order, &rules::List)> = rules
        .lists
        .iter()
        .filter_map(|list| Some((connection.orders.get(&list.name)?, list)))
        .collect();
    let mut found: HashMap<Offset, usize> = HashMap::new();
    let mut rooms: Vec<(Arc<Room>, Matched)> = Vec::new();
    let mut add = |room: &Arc<Room>| {
        found.entry(room.created).or_insert_with(|| {
            let subscribed = rules.subscriptions.contains_key(&room.id);
            rooms.push((Arc::clone(room), Matched { subscribed, ..Matched::default() }));
            rooms.len() - 1
        });
    };
    touched.iter().for_each(|touched| add(&touched.room));
    let moved = touched.len();
    for (order, list) in &orders {
        for (from, to) in list.ranges.iter().copied() {
            if same {
                order.rooms(from, from.saturating_add(moved).min(to)).for_each(&mut add);
                let to = to.min(order.len());
                order.rooms(to.saturating_sub(moved).max(from), to).for_each(&mut add);
            } else {
                order.rooms(from, to).for_each(&mut add);
            }
        }
    }
    if !same {
        let subscribed = rules.subscriptions.keys();
        let subscribed = subscribed.filter_map(|room_id| view.state.rooms.get(room_id));
        subscribed.for_each(|room| add(&room));
    }
    for (number, (order, list)) in orders.iter().enumerate() {
        if rooms.len() <= FEW_ROOMS {
            for (room, matched) in &mut rooms {
                let place = order.index(room);
                let within =
                    |place| list.ranges.iter().any(|(from, to)| (*from..*to).contains(&place));
                if place.is_some_and(within) {
                    matched.lists.insert(number);
                }
            }
        } else {
            for room in list.ranges.iter().flat_map(|(from, to)| order.rooms(*from, *to)) {
                if let Some((_, matched)) = found.get(&room.created).and_then(|i| rooms.get_mut(*i))
                {
                    matched.lists.insert(number);
                }
            }
        }
    }
    rooms
}

impl Connection {
    /// The user's direct chats as of the view's offset.
    fn direct(
        &mut self,
        view: &View<'_>,
        account: Option<&RwLock<Account>>,
    ) -> Result<Arc<HashSet<OwnedRoomId>>, ReadError> {
        let named =
            account.and_then(|account| account.read().account_data_at(None, "m.direct", view.at()));
        let offset = named.unwrap_or(Offset::ZERO);
        if let Some((of, direct)) = &self.direct
            && *of == offset
        {
            return Ok(Arc::clone(direct));
        }
        let direct = Arc::new(list::direct(view, view.at())?);
        self.direct = Some((offset, Arc::clone(&direct)));
        Ok(direct)
    }

    /// Updates the lists to the view's offset. Returns whether all of them could be updated without
    /// rebuilding.
    fn follow(
        &mut self,
        view: &View<'_>,
        rules: &Rules,
        touched: &[ChangedRoom],
        facts: FilterInput<'_>,
    ) -> Result<bool, ReadError> {
        let mut before = std::mem::take(&mut self.orders);
        let mut followed = true;
        for list in &rules.lists {
            let order = before.remove(&list.name);
            let order = match order {
                Some(mut order) if order.can_follow(view, &list.filters, self.has.at, touched) => {
                    order.follow(view, touched, facts)?;
                    order
                }
                _ => {
                    followed = false;
                    Order::new(view, &list.filters, facts)?
                }
            };
            self.orders.insert(list.name.clone(), order);
        }
        Ok(followed)
    }
}
