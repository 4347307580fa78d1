//! The homeservers that this one delivers to, and their positions.

use std::{collections::BTreeMap, sync::Arc};

use ruma::{OwnedRoomId, OwnedServerName, ServerName, events::StateEventType};
use serde::{Deserialize, Serialize};

use super::waiting::{Search, WaitingEvents};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_base::{background::at_length, clock::millis, limits};
use logcabin_log::ReadError;
use logcabin_read::policy_lists::{MatchOutcome, Subject};
use logcabin_record::{
    Offset,
    command::{Failing, PolicyArea, SetAsideItem},
};
use logcabin_service::federation::{OriginUsage, Site};
use logcabin_state::{Room, destinations::Destination};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListDestinations {
    /// How many to skip.
    #[serde(default)]
    pub from: usize,
    /// How many to list.
    pub limit: usize,
}

/// Homeservers: unreachable ones first, the longest unreachable before others, then by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destinations {
    /// Whether federation is on. Otherwise nothing is delivered.
    pub is_on: bool,
    pub destinations: Vec<DestinationRow>,
    /// How many there are in all.
    pub total: usize,
    /// How many of them are unreachable.
    pub failing: usize,
    /// The last record of the log.
    pub end: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationRow {
    pub server_name: OwnedServerName,
    /// The number of rooms with users of both homeservers.
    pub rooms: usize,
    /// Everything up to this record has been delivered; 0 if nothing ever was.
    pub up_to: Offset,
    pub waiting: WaitingEvents,
    /// Set if the last attempt to reach it failed.
    pub failing: Option<Failing>,
    /// How many events and EDUs are never sent to it, because they cannot be or it refuses them.
    #[serde(default)]
    pub set_aside: u64,
    /// Whether the configuration denies it.
    pub is_denied: bool,
}

impl Act for ListDestinations {
    const NAME: &'static str = "list-destinations";
    const DONE: &'static str = "destinations";
    type Done = Destinations;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Destinations, ActError> {
        Ok(at_length(|| list(context, self.from, self.limit))?)
    }
}

/// Up to `limit` homeservers after the first `from`.
pub fn list(context: &ActContext, from: usize, limit: usize) -> Result<Destinations, ReadError> {
    let state = context.engine.state();
    let mut all: Vec<_> = all(context)
        .into_iter()
        .map(|(server, rooms)| {
            let known = state.destinations.get(&server);
            let position = known.map_or((Offset::ZERO, None, 0), |known| {
                (known.up_to, known.failing, known.set_aside.count)
            });
            (server, rooms, position)
        })
        .collect();
    let total = all.len();
    let since = |failing: &Option<Failing>| failing.as_ref().map_or(u64::MAX, |of| of.since_ms);
    // The sort is stable: they were in the order of their names.
    all.sort_by_key(|(_, _, (_, failing, _))| since(failing));
    let failing = all.iter().take_while(|(_, _, (_, failing, _))| failing.is_some()).count();
    let mut search = Search::new(&context.engine);
    let page = all.into_iter().skip(from).take(limit.min(limits::DESTINATION_ROWS));
    let destinations = page
        .map(|(server_name, rooms, (up_to, failing, set_aside))| {
            let waiting = search.waiting(&server_name, up_to, &rooms)?;
            let is_denied = is_denied(context, &server_name);
            let rooms = rooms.len();
            Ok(DestinationRow { server_name, rooms, up_to, waiting, failing, set_aside, is_denied })
        })
        .collect::<Result<_, ReadError>>()?;
    let is_on = context.federation.load().enabled;
    Ok(Destinations { is_on, destinations, total, failing, end: state.applied() })
}

/// All homeservers that this one delivers to, by name, with their positions if there are any.
pub fn known(context: &ActContext) -> Vec<(OwnedServerName, Option<Destination>)> {
    let state = context.engine.state();
    let position = |server: OwnedServerName| {
        let known = state.destinations.get(&server);
        (server, known)
    };
    all(context).into_keys().map(position).collect()
}

/// The same, with the rooms that each shares with this one.
fn all(context: &ActContext) -> BTreeMap<OwnedServerName, Vec<Arc<Room>>> {
    let mut all = shared(context);
    for (server, _) in context.engine.state().destinations.all() {
        all.entry(server).or_default();
    }
    all
}

/// One of them, by its name.
pub fn find(
    context: &ActContext,
    name: &str,
) -> Result<(OwnedServerName, Option<Destination>), ActError> {
    let server = context.destination(name)?;
    let known = context.engine.state().destinations.get(&server);
    Ok((server, known))
}

/// The rooms with users of both homeservers.
pub fn shared_with(context: &ActContext, name: &str) -> Result<Vec<Arc<Room>>, ActError> {
    let server = context.destination(name)?;
    Ok(shared(context).remove(&server).unwrap_or_default())
}

/// The other homeservers with users in rooms of users of this one, with these rooms.
fn shared(context: &ActContext) -> BTreeMap<OwnedServerName, Vec<Arc<Room>>> {
    let own = &context.engine.env().server.name;
    let mut all = BTreeMap::<OwnedServerName, Vec<Arc<Room>>>::new();
    for room in context.engine.state().rooms.all() {
        let mut others = Vec::<OwnedServerName>::new();
        let mut is_own = false;
        room.each_joined_now(|user_id| {
            let server = user_id.server_name();
            if server == *own {
                is_own = true;
            } else if !others.iter().rev().take(8).any(|other| other == server) {
                others.push(server.to_owned());
            }
        });
        if is_own {
            others.sort_unstable();
            others.dedup();
            for server in others {
                all.entry(server).or_default().push(Arc::clone(&room));
            }
        }
    }
    all
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowDestination {
    /// The homeserver's name.
    pub server: String,
    /// How many rooms to list.
    pub limit: usize,
}

/// The details of one homeserver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestinationDetails {
    #[serde(flatten)]
    pub destination: DestinationRow,
    /// The newest events and EDUs that are never sent to it, newest last.
    #[serde(default)]
    pub newest_aside: Vec<SetAsideItem>,
    /// What it has used of its shares at this node, if they are bounded.
    #[serde(default)]
    pub used: Option<OriginUsage>,
    /// The processor time that state resolution took for it recently, in milliseconds.
    #[serde(default)]
    pub resolving_ms: u64,
    /// Rooms that it shares with this one: those with the most waiting events first.
    pub shared: Vec<SharedRoom>,
    /// The record with its signing keys, if they were needed.
    pub keys: Option<Offset>,
    /// The ids of these keys.
    pub key_ids: Vec<String>,
    /// Until when they are valid, in milliseconds since the Unix epoch.
    pub keys_valid_until_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedRoom {
    pub room_id: OwnedRoomId,
    /// The room's display name.
    pub name: Option<String>,
    /// The number of the homeserver's users in it.
    pub members: usize,
    pub waiting: WaitingEvents,
}

impl Act for ShowDestination {
    const NAME: &'static str = "show-destination";
    const DONE: &'static str = "destination";
    type Done = Box<DestinationDetails>;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(Box::new(at_length(|| one(context, &self.server, self.limit))?))
    }
}

/// The details of the homeserver of this name.
pub fn one(context: &ActContext, name: &str, limit: usize) -> Result<DestinationDetails, ActError> {
    Ok(details(context, &context.destination(name)?, limit)?)
}

/// The list entry of a homeserver.
pub(super) fn row(context: &ActContext, server: &ServerName) -> Result<DestinationRow, ReadError> {
    Ok(details(context, server, 0)?.destination)
}

fn details(
    context: &ActContext,
    server: &ServerName,
    limit: usize,
) -> Result<DestinationDetails, ReadError> {
    let state = context.engine.state();
    let rooms = shared(context).remove(server).unwrap_or_default();
    let known = state.destinations.get(server);
    let (up_to, failing, aside) =
        known.map_or_else(Default::default, |of| (of.up_to, of.failing, of.set_aside));
    let mut search = Search::new(&context.engine);
    let mut each = Vec::new();
    let mut waiting = WaitingEvents::default();
    for room in &rooms {
        let of_room = search.waiting(server, up_to, std::slice::from_ref(room))?;
        waiting.events += of_room.events;
        waiting.and_more |= of_room.and_more;
        waiting.records = waiting.records.max(of_room.records);
        waiting.since_ms = waiting.since_ms.into_iter().chain(of_room.since_ms).min();
        each.push((of_room, room));
    }
    each.sort_by_key(|(waiting, _)| std::cmp::Reverse(waiting.events));
    let shared = each
        .into_iter()
        .take(limit.min(limits::DESTINATION_ROWS))
        .map(|(waiting, room)| {
            let mut members = 0;
            room.each_joined_now(|user_id| members += usize::from(user_id.server_name() == server));
            let name = context.state_text(room, StateEventType::RoomName, "name")?;
            Ok(SharedRoom { room_id: room.id.clone(), name, members, waiting })
        })
        .collect::<Result<_, ReadError>>()?;
    let keys = state.federation_keys.get(server);
    let others = context.others.as_ref();
    let resolving = others.map(|others| others.resolving.used(Site::of(server).as_str()));
    Ok(DestinationDetails {
        destination: DestinationRow {
            server_name: server.to_owned(),
            rooms: rooms.len(),
            up_to,
            waiting,
            failing,
            set_aside: aside.count,
            is_denied: is_denied(context, server),
        },
        newest_aside: aside.newest,
        used: others.and_then(|others| others.accounts.used(server)),
        resolving_ms: millis(resolving.unwrap_or_default()),
        shared,
        keys: keys.as_ref().map(|keys| keys.record),
        keys_valid_until_ms: keys.as_ref().map(|keys| keys.valid_until_ms),
        key_ids: keys.map(|keys| keys.keys.into_keys().collect()).unwrap_or_default(),
    })
}

/// Whether the configuration or a policy list is against this homeserver.
fn is_denied(context: &ActContext, server: &ServerName) -> bool {
    let lists = context.engine.events().policy_lists();
    let subject = Subject::of_server(server);
    let found = lists.find(&context.engine.state(), PolicyArea::Federation, subject);
    found.is_some_and(|found| found.outcome == MatchOutcome::Applied)
        || !context.federation.load().permits(server)
}
