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

use http::Method;
use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedServerName, ServerName, UserId};
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::{
    sync::{Notify, Semaphore},
    time::{MissedTickBehavior, interval, sleep},
};
use tracing::{debug, info, warn};

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
        command::{Failing, Reached},
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
    /// It has a task.
    is_served: bool,
    failing: Option<Failing>,
    /// Notified when it is likely to be back.
    back: Arc<Notify>,
    /// What was recorded last.
    noted: Option<(Offset, Option<Failing>)>,
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
        let mut records = self.engine.follow(self.engine.head().offset().next());
        self.begin(&shutdown);
        let mut tick = interval(limits::DESTINATIONS_NOTED);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.given() => break,
                _ = tick.tick() => self.note().await,
                _ = records.wait() => {}
            }
            loop {
                match records.ready() {
                    Ok(Some(record)) => {
                        if let Err(error) = self.dispatch(&record, &shutdown) {
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

    /// What was not told before the server started is told now.
    fn begin(self: &Arc<Self>, shutdown: &Shutdown) {
        let state = self.engine.state();
        let mut all = self.destinations.lock();
        all.clear();
        for (server, known) in state.destinations.all() {
            let noted = Some((known.up_to, known.failing.clone()));
            let (up_to, failing) = (known.up_to, known.failing);
            all.insert(server, Destination { up_to, failing, noted, ..Destination::default() });
        }
        for room in state.rooms.all() {
            for server in self.servers_of(&room).iter() {
                all.entry(server.clone()).or_default();
            }
        }
        for destination in all.values_mut() {
            destination.is_behind = true;
        }
        let servers: Vec<_> = all.keys().cloned().collect();
        drop(all);
        for server in servers {
            self.serve(server, shutdown);
        }
    }

    /// The other homeservers with a user who is joined to the room.
    fn servers_of(&self, room: &Room) -> Arc<[OwnedServerName]> {
        let changed = room.last_state_change(Offset::MAX);
        let kept = self.present.lock().get(&room.id).cloned();
        if let Some((_, servers)) = kept.filter(|(at, _)| *at == changed) {
            return servers;
        }
        let mut servers = BTreeSet::new();
        room.each_joined_now(|user_id| {
            if user_id.server_name() != self.peers.own_name() {
                servers.insert(user_id.server_name().to_owned());
            }
        });
        let servers: Arc<[_]> = servers.into_iter().collect();
        self.present.lock().insert(room.id.clone(), (changed, Arc::clone(&servers)));
        servers
    }

    /// Notes whom a record concerns.
    fn dispatch(self: &Arc<Self>, record: &Record, shutdown: &Shutdown) -> Result<(), ReadError> {
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
        servers.extend(target(&event).filter(|server| self.is_known(&room, server)));
        if let Some(received) = foreign {
            servers.remove(&received.from);
        }
        servers.remove(self.peers.own_name());
        for server in servers {
            let mut all = self.destinations.lock();
            let destination = all.entry(server.clone()).or_default();
            if destination.next.len() < limits::DESTINATION_EVENTS {
                destination.next.push_back(offset);
            } else {
                destination.next.clear();
                destination.is_behind = true;
            }
            drop(all);
            self.serve(server, shutdown);
        }
        Ok(())
    }

    /// Whether the homeserver has been in the room: one that was invited got the invite otherwise.
    fn is_known(&self, room: &Room, server: &ServerName) -> bool {
        room.knows_server(server)
    }

    /// Starts the task of a destination, unless it has one.
    fn serve(self: &Arc<Self>, server: OwnedServerName, shutdown: &Shutdown) {
        {
            let mut all = self.destinations.lock();
            let Some(destination) = all.get_mut(&server) else { return };
            if destination.is_served {
                return;
            }
            destination.is_served = true;
        }
        let (this, shutdown) = (Arc::clone(self), shutdown.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = this.tell(&server) => {}
                () = shutdown.given() => {}
            }
            if let Some(destination) = this.destinations.lock().get_mut(&server) {
                destination.is_served = false;
            }
        });
    }

    /// Tells a homeserver everything that it has not been told.
    async fn tell(&self, server: &ServerName) {
        loop {
            let behind = {
                let mut all = self.destinations.lock();
                let Some(destination) = all.get_mut(server) else { return };
                std::mem::take(&mut destination.is_behind).then_some(destination.up_to)
            };
            if let Some(up_to) = behind {
                match self.missed(server, up_to) {
                    Ok(missed) => {
                        let mut all = self.destinations.lock();
                        let Some(destination) = all.get_mut(server) else { return };
                        let mut next = missed;
                        next.extend(destination.next.drain(..));
                        destination.next = next.into_iter().collect();
                    }
                    Err(error) => {
                        warn!(%server, %error, "what a homeserver has missed cannot be read");
                        sleep(limits::DELIVERY_RETRY.1).await;
                        self.destinations.lock().entry(server.to_owned()).or_default().is_behind =
                            true;
                        continue;
                    }
                }
            }
            let offsets: Vec<Offset> = {
                let mut all = self.destinations.lock();
                let Some(destination) = all.get_mut(server) else { return };
                let many = destination.next.len().min(limits::TRANSACTION_PDUS);
                destination.next.drain(..many).collect()
            };
            let Some(last) = offsets.last().copied() else { return };
            self.deliver(server, &offsets).await;
            let mut all = self.destinations.lock();
            let Some(destination) = all.get_mut(server) else { return };
            destination.up_to = destination.up_to.max(last);
            destination.failing = None;
        }
    }

    /// The events after `up_to` that a homeserver is to be told of: all of a room, if they are few,
    /// or else the newest, from which it finds the others.
    fn missed(&self, server: &ServerName, up_to: Offset) -> Result<BTreeSet<Offset>, ReadError> {
        let state = self.engine.state();
        let mut missed = BTreeSet::new();
        for room in state.rooms.all() {
            if room.changed() <= up_to || !room.knows_server(server) {
                continue;
            }
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
            let mut question = Question::post(format!("/_matrix/federation/v1/send/{id}"), &body);
            question.method = Method::PUT;
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
            all.iter_mut()
                .filter_map(|(server, destination)| {
                    let now = (destination.up_to, destination.failing.clone());
                    if destination.noted.as_ref() == Some(&now)
                        || (destination.noted.is_none() && now.0 == Offset::ZERO)
                    {
                        return None;
                    }
                    destination.noted = Some(now.clone());
                    let (up_to, failing) = now;
                    Some(Reached { server_name: server.clone(), up_to, failing })
                })
                .take(limits::DESTINATIONS_IN_RECORD)
                .collect()
        };
        if reached.is_empty() {
            return;
        }
        if let Err(error) = self.engine.propose(Origin::server(), NoteReached(reached)).await {
            warn!(%error, "it is not recorded what other homeservers were told");
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
