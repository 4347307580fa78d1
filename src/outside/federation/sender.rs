//! Tells other homeservers of events (server-server API, "Transactions").
//!
//! There are no queues on disk. A destination has one durable number, the record up to which it has
//! been told. One task follows the log and notes for each destination the events that concern it; a
//! destination with something to be told has a task of its own, so none delays another. What a
//! destination has missed, while it or this server was away, is found in the rooms that they share.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedServerName, ServerName, UserId};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{debug, error, info, warn};

use super::{Peers, Question, Unreachable};
use crate::{
    base::{
        clock::{millis, random_letters},
        limits,
        shutdown::Shutdown,
    },
    decide::federation::NoteReached,
    engine::Engine,
    log::ReadError,
    read::events::{EventRef, as_shown},
    record::{
        Command, Offset, Origin, Record,
        command::{Body as _, Failing, Reached, RoomEvent},
    },
    state::{Room, State},
};

/// What is to be told to one homeserver.
#[derive(Debug, Default)]
struct Destination {
    /// It has been told of everything up to here.
    up_to: Offset,
    /// The events that it is to be told of next.
    next: VecDeque<Offset>,
    /// It has missed more than that: the rest is found in the rooms.
    is_behind: bool,
    /// The rooms in which it may have missed something.
    rooms: BTreeSet<OwnedRoomId>,
    /// It has a task.
    is_served: bool,
    failing: Option<Failing>,
    /// Notified when it is likely to be back.
    back: Arc<Notify>,
    /// How far it has been told, or whether it fails, has changed since that was recorded.
    is_to_be_noted: bool,
}

/// What a homeserver is to be told next.
enum Next {
    /// What it has missed since this offset.
    Missed(Offset),
    /// These events.
    Events(Vec<Offset>),
}

/// The servers with users in a room, as of the last change of its state.
type Present = (Offset, Arc<[OwnedServerName]>);

/// Tells other homeservers of events.
pub(crate) struct Sender {
    engine: Arc<Engine>,
    peers: Arc<Peers>,
    destinations: Mutex<HashMap<OwnedServerName, Destination>>,
    present: Mutex<HashMap<OwnedRoomId, Present>>,
    places: Semaphore,
}

#[derive(Deserialize)]
struct Outcomes {
    #[serde(default)]
    pdus: BTreeMap<String, Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    #[serde(default)]
    error: Option<String>,
}

impl Sender {
    pub(crate) fn new(engine: &Arc<Engine>, peers: &Arc<Peers>) -> Self {
        Self {
            engine: Arc::clone(engine),
            peers: Arc::clone(peers),
            destinations: Mutex::default(),
            present: Mutex::default(),
            places: Semaphore::new(limits::DESTINATIONS_AT_ONCE),
        }
    }

    /// A request of this homeserver has come: it can be reached again.
    pub(crate) fn is_back(&self, server: &ServerName) {
        let destinations = self.destinations.lock();
        let failing = destinations.get(server).filter(|of| of.failing.is_some());
        failing.inspect(|destination| destination.back.notify_one());
    }

    /// Tells until the server shuts down.
    pub(crate) async fn run(self: Arc<Self>, shutdown: Shutdown) {
        // They end with this: when the lease is lost, another node tells.
        let mut tasks = JoinSet::new();
        let mut records = self.engine.follow(self.engine.head().offset().next());
        for server in self.begin() {
            self.serve(server, &mut tasks);
        }
        let mut tick = interval(limits::DESTINATIONS_NOTED);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.given() => break,
                _ = tick.tick() => self.note().await,
                _ = records.wait() => {}
            }
            let mut panicked = false;
            while let Some(ended) = tasks.try_join_next() {
                panicked |= ended.is_err();
            }
            if panicked {
                error!("telling a homeserver panicked; all begin again");
                self.note().await;
                tasks = JoinSet::new();
                for server in self.begin() {
                    self.serve(server, &mut tasks);
                }
            }
            loop {
                match records.ready() {
                    Ok(Some(record)) => {
                        if let Err(error) = self.dispatch(&record, &mut tasks) {
                            warn!(%error, "other homeservers are not told of a record");
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        warn!(%error, "other homeservers are told later");
                        sleep(limits::DELIVERY_RETRY.0).await;
                        break;
                    }
                }
            }
        }
        self.note().await;
    }

    /// Takes up what is recorded of destinations. Gives those that may have missed something.
    fn begin(&self) -> Vec<OwnedServerName> {
        let state = self.engine.state();
        let mut all = self.destinations.lock();
        all.clear();
        for (server, known) in state.destinations.all() {
            let (up_to, failing) = (known.up_to, known.failing);
            all.insert(server, Destination { up_to, failing, ..Destination::default() });
        }
        for room in state.rooms.all() {
            for server in room.known_servers() {
                if server == *self.peers.own_name() {
                    continue;
                }
                let destination = all.entry(server).or_default();
                destination.is_behind |= room.changed() > destination.up_to;
                destination.rooms.insert(room.id.clone());
            }
        }
        let behind = all.iter().filter(|(_, destination)| destination.is_behind);
        behind.map(|(server, _)| server.clone()).collect()
    }

    /// The other homeservers with a user who is joined to the room.
    fn servers_of(&self, room: &Room) -> Arc<[OwnedServerName]> {
        let changed = room.last_state_change(Offset::MAX);
        let kept = self.present.lock().get(&room.id).cloned();
        if let Some((_, servers)) = kept.filter(|(at, _)| *at == changed) {
            return servers;
        }
        let mut servers = room.servers();
        servers.retain(|server| server != self.peers.own_name());
        let servers: Arc<[_]> = servers.into();
        self.present.lock().insert(room.id.clone(), (changed, Arc::clone(&servers)));
        servers
    }

    /// Notes whom a record concerns.
    fn dispatch(
        self: &Arc<Self>,
        record: &Record,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), ReadError> {
        if &*record.header.kind != RoomEvent::KIND.name {
            return Ok(());
        }
        let Ok(Some(Command::RoomEvent(body))) = record.command() else { return Ok(()) };
        let foreign = body.received.as_ref();
        if foreign.is_some_and(|received| !received.relayed) {
            return Ok(());
        }
        let state = self.engine.state();
        let Some(room) = state.rooms.get(&body.room_id) else { return Ok(()) };
        let offset = record.offset();
        let Some(event) = self.engine.events().get(offset)? else { return Ok(()) };
        let mut servers: BTreeSet<_> = self.servers_of(&room).iter().cloned().collect();
        // Who is removed from the room learns of it.
        servers.extend(target(&event).filter(|server| room.knows_server(server)));
        if let Some(received) = foreign {
            servers.remove(&received.from);
        }
        servers.remove(self.peers.own_name());
        for server in servers {
            let mut all = self.destinations.lock();
            let destination = all.entry(server.clone()).or_default();
            destination.rooms.insert(room.id.clone());
            if destination.next.len() < limits::DESTINATION_EVENTS {
                destination.next.push_back(offset);
            } else {
                destination.next.clear();
                destination.is_behind = true;
            }
            drop(all);
            self.serve(server, tasks);
        }
        Ok(())
    }

    /// Starts the task of a destination, unless it has one.
    fn serve(self: &Arc<Self>, server: OwnedServerName, tasks: &mut JoinSet<()>) {
        let mut all = self.destinations.lock();
        let Some(destination) = all.get_mut(&server) else { return };
        if !std::mem::replace(&mut destination.is_served, true) {
            let this = Arc::clone(self);
            tasks.spawn(async move { this.tell(&server).await });
        }
    }

    /// Tells a homeserver everything that it has not been told.
    async fn tell(&self, server: &ServerName) {
        while let Some(next) = self.next(server) {
            match next {
                Next::Missed(up_to) => self.catch_up(server, up_to).await,
                Next::Events(offsets) => {
                    self.deliver(server, &offsets).await;
                    let mut all = self.destinations.lock();
                    let Some(destination) = all.get_mut(server) else { return };
                    destination.up_to = offsets.into_iter().fold(destination.up_to, Offset::max);
                    destination.failing = None;
                    destination.is_to_be_noted = true;
                }
            }
        }
    }

    /// What a homeserver is to be told next. If there is nothing, its task is over: whoever has
    /// something for it from then on starts another.
    fn next(&self, server: &ServerName) -> Option<Next> {
        let mut all = self.destinations.lock();
        let destination = all.get_mut(server)?;
        if std::mem::take(&mut destination.is_behind) {
            return Some(Next::Missed(destination.up_to));
        }
        let many = destination.next.len().min(limits::TRANSACTION_PDUS);
        destination.is_served = many > 0;
        (many > 0).then(|| Next::Events(destination.next.drain(..many).collect()))
    }

    /// Adds what a homeserver has missed to what it is told next.
    async fn catch_up(&self, server: &ServerName, up_to: Offset) {
        let missed = self.missed(server, up_to);
        if let Err(error) = &missed {
            warn!(%server, %error, "what a homeserver has missed cannot be read");
            sleep(limits::DELIVERY_RETRY.1).await;
        }
        let mut all = self.destinations.lock();
        let Some(destination) = all.get_mut(server) else { return };
        match missed {
            Ok(mut next) => {
                next.extend(destination.next.drain(..));
                destination.next = next.into_iter().collect();
            }
            Err(_) => destination.is_behind = true,
        }
    }

    /// The events after `up_to` that a homeserver is to be told of: all of a room, if they are few,
    /// or else the newest, from which it finds the others.
    fn missed(&self, server: &ServerName, up_to: Offset) -> Result<BTreeSet<Offset>, ReadError> {
        let state = self.engine.state();
        let mut missed = BTreeSet::new();
        let rooms = self.destinations.lock().get(server).map(|of| of.rooms.clone());
        let rooms = rooms.into_iter().flatten().filter_map(|room_id| state.rooms.get(&room_id));
        for room in rooms.filter(|room| room.changed() > up_to) {
            let is_in = self.servers_of(&room).iter().any(|of| of == server);
            let recent = room.events_backward(Offset::MAX, up_to, limits::DESTINATION_MISSED + 1);
            let is_all = recent.len() <= limits::DESTINATION_MISSED;
            for offset in recent {
                let Some(event) = self.engine.events().get(offset)? else { continue };
                let is_told = event
                    .received
                    .as_ref()
                    .is_none_or(|received| received.relayed && received.from != *server);
                let concerns = is_in || target(&event).is_some_and(|of| of == *server);
                if is_told && concerns {
                    missed.insert(offset);
                    if !is_all {
                        break;
                    }
                }
            }
        }
        Ok(missed)
    }

    /// Sends events until they have arrived.
    async fn deliver(&self, server: &ServerName, offsets: &[Offset]) {
        let id = random_letters(20);
        loop {
            let state = self.engine.state();
            let pdus = match self.pdus(&state, offsets) {
                Ok(pdus) => pdus,
                Err(error) => {
                    warn!(%server, %error, "events for a homeserver cannot be read");
                    sleep(limits::DELIVERY_RETRY.1).await;
                    continue;
                }
            };
            if pdus.is_empty() {
                return;
            }
            let body = json!({
                "origin": self.peers.own_name(),
                "origin_server_ts": self.engine.clock().now_ms(),
                "pdus": pdus,
                "edus": [],
            });
            let mut question = Question::put(format!("/_matrix/federation/v1/send/{id}"), &body);
            question.timeout = limits::DESTINATION_TIMEOUT;
            let asked = {
                // Those who wait for a place wait in the order in which they came.
                let Ok(_place) = self.places.acquire().await else { return };
                self.peers.ask(server, question).await
            };
            match asked.and_then(|answer| answer.json::<Outcomes>()) {
                Ok(outcomes) => {
                    for (event_id, outcome) in outcomes.pdus {
                        if let Some(error) = outcome.error {
                            debug!(%server, event_id, error, "a homeserver does not take an event");
                        }
                    }
                    return;
                }
                // It will never have anything to do with this server, or the other way round.
                Err(Unreachable::Denied | Unreachable::Own | Unreachable::Name) => return,
                Err(error) => self.wait(server, &error).await,
            }
        }
    }

    fn pdus(&self, state: &State, offsets: &[Offset]) -> Result<Vec<Box<RawValue>>, ReadError> {
        let events = self.engine.events();
        let mut pdus = Vec::new();
        for offset in offsets {
            let Some(event) = events.get(*offset)? else { continue };
            let Some(room) = state.rooms.get(&event.room_id) else { continue };
            let shown = as_shown(&room, event, Offset::MAX);
            pdus.push(events.in_federation_format(&room, &shown));
        }
        Ok(pdus)
    }

    /// Waits before the next attempt.
    async fn wait(&self, server: &ServerName, error: &Unreachable) {
        let now_ms = self.engine.clock().now_ms();
        let (back, pause) = {
            let mut all = self.destinations.lock();
            let Some(destination) = all.get_mut(server) else { return };
            let before = destination.failing.take();
            let attempts = before.as_ref().map_or(0, |before| before.attempts).saturating_add(1);
            let (first, longest) = limits::DESTINATION_RETRY;
            let pause = first.saturating_mul(1 << (attempts - 1).min(20)).min(longest);
            if before.is_none() {
                info!(%server, %error, "a homeserver cannot be reached; it is tried again");
            }
            destination.failing = Some(Failing {
                since_ms: before.map_or(now_ms, |before| before.since_ms),
                attempts,
                again_ms: now_ms.saturating_add(millis(pause)),
                error: error.to_string(),
            });
            destination.is_to_be_noted = true;
            (Arc::clone(&destination.back), pause)
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = back.notified() => sleep(Duration::from_millis(200)).await,
        }
    }

    /// Records how far destinations have been told.
    async fn note(&self) {
        let reached: Vec<_> = {
            let mut all = self.destinations.lock();
            let changed = all.iter_mut().filter(|(_, destination)| destination.is_to_be_noted);
            changed
                .take(limits::DESTINATIONS_IN_RECORD)
                .map(|(server, destination)| {
                    destination.is_to_be_noted = false;
                    Reached {
                        server_name: server.clone(),
                        up_to: destination.up_to,
                        failing: destination.failing.clone(),
                    }
                })
                .collect()
        };
        if reached.is_empty() {
            return;
        }
        let servers: Vec<_> = reached.iter().map(|reached| reached.server_name.clone()).collect();
        if let Err(error) = self.engine.propose(Origin::server(), NoteReached(reached)).await {
            warn!(%error, "it is not recorded yet what other homeservers were told");
            let mut all = self.destinations.lock();
            for server in servers {
                all.entry(server).or_default().is_to_be_noted = true;
            }
        }
    }
}

/// The homeserver of the user whose membership an event changes, unless it was asked for its
/// signature and has the event from that.
fn target(event: &EventRef) -> Option<OwnedServerName> {
    #[derive(Deserialize)]
    struct Content {
        membership: String,
    }
    if event.event_type.to_string() != "m.room.member" {
        return None;
    }
    let content: Content = event.content_as().ok()?;
    if content.membership == "invite" {
        return None;
    }
    let user_id = <&UserId>::try_from(event.state_key.as_deref()?).ok()?;
    Some(user_id.server_name().to_owned())
}
