//! Delivers to other homeservers what concerns them (server-server API, "Transactions"): events and
//! EDUs ([`edus`]).
//!
//! There are no queues on disk. A destination has one durable number, the last record that was
//! delivered to it. One task follows the log and notes for each destination the records that
//! concern it. A destination with pending records has a task of its own, so that none delays
//! another. What cannot be sent, or is refused by a homeserver that takes other transactions, is
//! set aside, so that it delays nothing that comes after it. Records that a destination missed,
//! while it or this server was down, are found in the rooms that they share, and in the projections
//! of durable EDUs.

mod bisect;
mod destination;
mod edus;
mod items;
mod overrides;
mod pace;
mod transaction;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedServerName, ServerName};
use tokio::{
    sync::{Notify, Semaphore},
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, sleep},
};
use tracing::{debug, error, info, warn};

use self::{
    destination::{Destination, Next, pause},
    transaction::Failure,
};
use super::FederationClient;
use logcabin_base::{
    clock::millis,
    limits,
    planted::{self, Fault},
    shutdown::Shutdown,
    text::beginning,
};
use logcabin_decide::federation::NoteReached;
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_read::{
    events::EventRef,
    servers::{ServerStays, concerns, is_told, may_see, target},
};
use logcabin_record::{
    Command, Offset, Origin, Record,
    command::{Body as _, Failing, PeerReached},
};
use logcabin_state::Room;

/// The servers with users in a room, as of the last change of its state.
type RoomServers = (Offset, Arc<[OwnedServerName]>);

/// Notifies other nodes that a homeserver is reachable again.
type TellOthers = Box<dyn Fn(&ServerName) + Send + Sync>;

/// Delivers events and EDUs to other homeservers.
///
/// In a cluster, one node runs this. The other nodes report reachable homeservers to it by
/// [`Sender::tell_others_with`].
pub struct Sender {
    engine: Arc<Engine>,
    client: Arc<FederationClient>,
    /// Empty while this node does not deliver.
    destinations: Mutex<HashMap<OwnedServerName, Destination>>,
    present: Mutex<HashMap<OwnedRoomId, RoomServers>>,
    places: Semaphore,
    /// The same for homeservers that are slow to answer: others do not wait for them.
    slow_places: Semaphore,
    /// The same for homeservers that have failed for long.
    probe_places: Semaphore,
    tell_others: OnceLock<TellOthers>,
}

/// Clears the destinations when this node stops delivering: another node takes over, and its
/// positions are current.
struct DestinationsGuard<'a>(&'a Sender);

impl Drop for DestinationsGuard<'_> {
    fn drop(&mut self) {
        self.0.destinations.lock().clear();
    }
}

impl Sender {
    pub fn new(engine: &Arc<Engine>, client: &Arc<FederationClient>) -> Self {
        Self {
            engine: Arc::clone(engine),
            client: Arc::clone(client),
            destinations: Mutex::default(),
            present: Mutex::default(),
            places: Semaphore::new(limits::DESTINATIONS_AT_ONCE),
            slow_places: Semaphore::new(limits::DESTINATION_SLOW.1),
            probe_places: Semaphore::new(limits::DESTINATION_PROBES.1),
            tell_others: OnceLock::new(),
        }
    }

    /// Sets how to notify other nodes that a homeserver is reachable again. Call it once.
    pub fn tell_others_with(&self, tell: impl Fn(&ServerName) + Send + Sync + 'static) {
        // A second call has no effect.
        let _ = self.tell_others.set(Box::new(tell));
    }

    /// A request of this homeserver has arrived: it is reachable again.
    pub fn is_back(&self, server: &ServerName) {
        if self.is_back_elsewhere(server) {
            return;
        }
        if let Some(tell) = self.tell_others.get()
            && self.engine.state().destinations.get(server).is_some_and(|of| of.failing.is_some())
        {
            tell(server);
        }
    }

    /// Like [`Self::is_back`], for a request that another node received. Returns whether this node
    /// delivers to that homeserver.
    pub fn is_back_elsewhere(&self, server: &ServerName) -> bool {
        let mut destinations = self.destinations.lock();
        let destination = destinations.get_mut(server);
        destination.map(Destination::is_back).is_some()
    }

    /// Whether this homeserver was unreachable at the last attempt, and its retry is not due yet.
    pub fn is_failing(&self, server: &ServerName) -> bool {
        let now_ms = self.engine.clock().now_ms();
        let again_ms = |failing: &Failing| failing.again_ms;
        let again_ms = match self.destinations.lock().get(server) {
            Some(destination) => destination.failing.as_ref().map(again_ms),
            // Another node delivers to it, and records the result, at the latest after that time.
            None => {
                let known = self.engine.state().destinations.get(server);
                let rarely_ms = millis(limits::DESTINATION_FAILING_NOTED);
                known.and_then(|known| known.failing).map(|failing| {
                    let is_long = now_ms.saturating_sub(failing.since_ms) >= rarely_ms;
                    failing.again_ms.saturating_add(if is_long { rarely_ms } else { 0 })
                })
            }
        };
        again_ms.is_some_and(|again_ms| now_ms < again_ms)
    }

    /// Delivers until the server shuts down.
    pub async fn run(self: Arc<Self>, shutdown: Shutdown) {
        let _telling = DestinationsGuard(&self);
        // These tasks end with this one: when the lease is lost, another node delivers.
        let mut tasks = JoinSet::new();
        let mut records = self.engine.follow(self.engine.head().offset().next());
        for server in self.begin() {
            self.serve(server, &mut tasks);
        }
        let mut tick = interval(limits::DESTINATIONS_NOTED);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut look, mut told) =
            (interval(limits::PRESENCE_LOOK), edus::presence::SentPresence::new());
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.given() => break,
                _ = tick.tick() => self.note().await,
                _ = look.tick() => self.send_transient(self.presence_again(&mut told), &mut tasks),
                _ = records.wait() => {}
            }
            let mut panicked = false;
            while let Some(ended) = tasks.try_join_next() {
                panicked |= ended.is_err();
            }
            if panicked {
                error!("a delivery task panicked; all tasks restart");
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
                            warn!(%error, "the destinations of a record cannot be read; retrying");
                            self.look_again(&mut tasks);
                        }
                    }
                    Ok(None) => break,
                    Err(error) => {
                        warn!(%error, "deliveries to other homeservers are delayed");
                        sleep(limits::DELIVERY_RETRY.0).await;
                        break;
                    }
                }
            }
        }
        self.note().await;
    }

    /// Applies the recorded state of destinations. Returns those that may have missed something.
    fn begin(&self) -> Vec<OwnedServerName> {
        let state = self.engine.state();
        let mut all = self.destinations.lock();
        all.clear();
        for (server, known) in state.destinations.all() {
            all.insert(server, Destination::known(known.up_to, known.failing, known.set_aside));
        }
        for room in state.rooms.all() {
            for server in room.known_servers() {
                if server == *self.client.own_name() {
                    continue;
                }
                let destination = all.entry(server).or_default();
                destination.is_behind |= room.changed() > destination.up_to;
                destination.rooms.insert(room.id.clone());
            }
        }
        let first = all.values().map(|destination| destination.up_to);
        let first =
            first.filter(|up_to| *up_to > Offset::ZERO).min().unwrap_or_else(|| state.applied());
        for (server, last) in self.last_edus(&state, first) {
            let destination = all.entry(server).or_default();
            destination.is_behind |= last > destination.up_to;
        }
        let behind = all.iter().filter(|(_, destination)| destination.is_behind);
        behind.map(|(server, _)| server.clone()).collect()
    }

    /// Starts delivery of whatever any homeserver may have missed.
    fn look_again(self: &Arc<Self>, tasks: &mut JoinSet<()>) {
        let servers: Vec<_> = {
            let mut all = self.destinations.lock();
            all.values_mut().for_each(|destination| destination.is_behind = true);
            all.keys().cloned().collect()
        };
        for server in servers {
            self.serve(server, tasks);
        }
    }

    /// The other homeservers with a user who is joined to the room.
    fn servers_of(&self, room: &Room) -> Arc<[OwnedServerName]> {
        let changed = room.last_state_change(Offset::MAX);
        let kept = self.present.lock().get(&room.id).cloned();
        if let Some((_, servers)) = kept.filter(|(at, _)| *at == changed) {
            return servers;
        }
        let mut servers = room.servers();
        servers.retain(|server| server != self.client.own_name());
        let servers: Arc<[_]> = servers.into();
        self.present.lock().insert(room.id.clone(), (changed, Arc::clone(&servers)));
        servers
    }

    /// Notes the destinations of a record.
    fn dispatch(
        self: &Arc<Self>,
        record: &Record,
        tasks: &mut JoinSet<()>,
    ) -> Result<(), ReadError> {
        if &*record.header.kind == PeerReached::KIND.name {
            self.heed(record);
        }
        if !edus::may_concern(&record.header.kind) {
            return Ok(());
        }
        let Ok(Some(command)) = record.command() else { return Ok(()) };
        let (state, offset) = (self.engine.state(), record.offset());
        let (mut room_id, mut greetings) = (None, Vec::new());
        let mut servers = self.concerned(&state, offset, &command);
        if let Command::RoomEvent(body) = &command
            && let Some(room) = state.rooms.get(&body.room_id)
            && let Some(event) = self.engine.events().get(offset)?
        {
            servers.extend(self.told_of(&room, &event));
            servers.extend(self.new_to(&state, &room, &event));
            greetings = self.presence_at_join(&state, &room, &event);
            let newcomer = edus::presence::newcomer(&room, &event);
            if let Some(server) = newcomer.filter(|server| server != self.client.own_name()) {
                self.note_beside(&server, &room, &event)?;
                let this = Arc::clone(self);
                tasks.spawn(async move { this.greet(&server, &room).await });
            }
            room_id = Some(&body.room_id);
        }
        servers.remove(self.client.own_name());
        for server in servers {
            let mut all = self.destinations.lock();
            let destination = all.entry(server.clone()).or_default();
            if let Some(room_id) = room_id.filter(|room_id| !destination.rooms.contains(*room_id)) {
                destination.rooms.insert(room_id.clone());
            }
            destination.note(offset);
            drop(all);
            self.serve(server, tasks);
        }
        self.send_transient(self.transient(&state, &command), tasks);
        self.send_transient(greetings, tasks);
        Ok(())
    }

    /// Notes what this homeserver told others between the time when one asked to enter a room and
    /// its join, such as that others joined. The newcomer was given the state before its join, and
    /// was not in the room when these were sent.
    fn note_beside(
        &self,
        server: &ServerName,
        room: &Room,
        join: &EventRef,
    ) -> Result<(), ReadError> {
        let (state, events) = (self.engine.state(), self.engine.events());
        let mut asked = Offset::ZERO;
        for before in &join.prev_events {
            let before = events.find(&state, before)?;
            asked = asked.max(before.map_or(Offset::ZERO, |before| before.offset));
        }
        if asked == Offset::ZERO {
            return Ok(());
        }
        let mut beside = BTreeSet::new();
        for offset in room.events_backward(join.offset.prev(), asked, limits::DESTINATION_MISSED) {
            let Some(event) = events.get(offset)? else { continue };
            // The others are told by their own homeservers. Which events come before its join is
            // for the newcomer to say.
            let is_seen = event.state_key.is_some() || may_see(events, room, &event, server)?;
            if is_seen && is_told(&event, server) {
                beside.insert(offset);
            }
        }
        if !beside.is_empty() {
            self.destinations.lock().entry(server.to_owned()).or_default().add_beside(beside);
        }
        Ok(())
    }

    /// Tells a homeserver that enters a room of the presence of those in it: first when the answer
    /// to its join is likely to have arrived, and again for the join of a large room.
    async fn greet(&self, server: &ServerName, room: &Room) {
        for pause in limits::PRESENCE_AFTER_JOIN {
            sleep(pause).await;
            if !room.has_server(server) {
                return;
            }
            let now_ms = self.engine.clock().now_ms();
            for (key, edu) in self.presence_in(room) {
                let mut all = self.destinations.lock();
                let Some(destination) = all.get_mut(server) else { return };
                if !destination.add_transient(key, edu, now_ms) {
                    return;
                }
            }
            let is_served = self
                .destinations
                .lock()
                .get_mut(server)
                .is_none_or(|destination| std::mem::replace(&mut destination.is_served, true));
            if !is_served {
                self.tell(server).await;
            }
        }
    }

    /// Sends transient EDUs to the homeservers that are reachable.
    fn send_transient(
        self: &Arc<Self>,
        edus: Vec<(OwnedServerName, String, edus::Edu)>,
        tasks: &mut JoinSet<()>,
    ) {
        for (server, key, edu) in edus {
            let now_ms = self.engine.clock().now_ms();
            let mut all = self.destinations.lock();
            let is_to_come = all.entry(server.clone()).or_default().add_transient(key, edu, now_ms);
            drop(all);
            if is_to_come {
                self.serve(server, tasks);
            }
        }
    }

    /// The homeservers that receive an event.
    fn told_of(&self, room: &Room, event: &EventRef) -> BTreeSet<OwnedServerName> {
        let mut servers: BTreeSet<_> = self.servers_of(room).iter().cloned().collect();
        // A user who is removed from the room must learn of it.
        if !planted::has(Fault::RemovalNotTold) {
            servers.extend(target(event).filter(|server| room.knows_server(server)));
        }
        servers.retain(|server| is_told(event, server));
        servers
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

    /// Delivers everything pending to a homeserver.
    async fn tell(&self, server: &ServerName) {
        while let Some(next) = self.next(server) {
            match next {
                Next::Missed(since) => self.catch_up(server, since).await,
                Next::Records(offsets) => {
                    let (ready, held) = self.ready(server, offsets);
                    self.deliver(server, &ready).await;
                    if !held.is_empty() {
                        self.confirm(server, &held, ready.is_empty()).await;
                    }
                }
            }
        }
    }

    /// The next delivery to a homeserver. Without one, its task ends, and the next record for it
    /// starts another.
    fn next(&self, server: &ServerName) -> Option<Next> {
        self.destinations.lock().get_mut(server)?.next()
    }

    /// Adds the records that a homeserver missed to its pending ones.
    async fn catch_up(&self, server: &ServerName, since: Offset) {
        let missed = self.missed(server, since);
        if let Err(error) = &missed {
            warn!(%server, %error, "the records that a homeserver missed cannot be read");
            sleep(limits::DELIVERY_RETRY.1).await;
        }
        let mut all = self.destinations.lock();
        let Some(destination) = all.get_mut(server) else { return };
        match missed {
            Ok(missed) => destination.add_missed(missed),
            Err(_) => destination.missed_again(since),
        }
    }

    /// The records after `up_to` that a homeserver is to receive. Of a room's events, that is all
    /// of them if they are few, or else the newest, from which the homeserver finds the others.
    fn missed(&self, server: &ServerName, up_to: Offset) -> Result<BTreeSet<Offset>, ReadError> {
        let state = self.engine.state();
        // `dispatch` handles later records.
        let until = state.applied();
        let mut missed = self.missed_edus(&state, server, up_to);
        let rooms = self.destinations.lock().get(server).map(|of| of.rooms.clone());
        let rooms = rooms.into_iter().flatten().filter_map(|room_id| state.rooms.get(&room_id));
        let rooms: Vec<_> = rooms.filter(|room| room.changed() > up_to).collect();
        let most = most_missed(&rooms, up_to);
        for room in rooms {
            missed.extend(self.missed_receipts(&room, up_to));
            let stays = ServerStays::of(&room, server, up_to);
            if stays.is_in() {
                missed.extend(self.missed_joins(&room, up_to));
            }
            let recent = room.events_backward(stays.end(), up_to, most + 1);
            let is_all = recent.len() <= most;
            for offset in recent {
                let Some(event) = self.engine.events().get(offset)? else { continue };
                if concerns(&event, server, &stays) {
                    missed.insert(offset);
                    if !is_all {
                        break;
                    }
                }
            }
            if is_all {
                continue;
            }
            // The homeserver of a removed user learns of the removal from nobody else, however many
            // events followed it.
            for user_id in room.members_changed(up_to, Offset::MAX) {
                let own = (user_id.server_name() == server).then_some(&user_id);
                let change = own.and_then(|user_id| room.membership(user_id, Offset::MAX));
                if let Some((offset, _)) = change
                    && let Some(event) = self.engine.events().get(offset)?
                    && concerns(&event, server, &stays)
                {
                    missed.insert(offset);
                }
            }
        }
        missed.retain(|offset| *offset <= until);
        Ok(missed)
    }

    /// Notes that a homeserver is unreachable or refuses everything. Returns the pause before the
    /// retry, and a notification for when the homeserver is back sooner.
    fn note_failure(&self, server: &ServerName, error: &Failure) -> (Duration, Arc<Notify>) {
        let now_ms = self.engine.clock().now_ms();
        let mut all = self.destinations.lock();
        let Some(destination) = all.get_mut(server) else {
            // This node no longer delivers, and this task ends.
            return (limits::DESTINATION_RETRY[0], Arc::default());
        };
        let before = destination.failing.take();
        let attempts = before.as_ref().map_or(0, |before| before.attempts).saturating_add(1);
        let since_ms = before.as_ref().map_or(now_ms, |before| before.since_ms);
        let pause = pause(attempts, Duration::from_millis(now_ms.saturating_sub(since_ms)));
        let too_long = limits::DESTINATION_FAILING_NOTED;
        let pause = if planted::has(Fault::BackOffAtOnce) { too_long } else { pause };
        // No backoff for a homeserver that asks to retry later.
        let (shortest, longest) = limits::DESTINATION_PATIENCE;
        let asked = error.pause().map(|pause| pause.clamp(shortest, longest));
        let (pause, attempts) = asked.map_or((pause, attempts), |asked| (asked, attempts - 1));
        match &before {
            None if asked.is_some() => {
                debug!(%server, %error, "the delivery to a homeserver is delayed")
            }
            None if error.is_refusal() => {
                warn!(%server, %error, "a homeserver refuses transactions; retrying");
            }
            None => info!(%server, %error, "a homeserver is unreachable; retrying"),
            Some(_) => {}
        }
        let again_ms = now_ms.saturating_add(millis(pause));
        let error = beginning(&error.to_string(), limits::FAILURE_BYTES).to_owned();
        destination.fails(Failing { since_ms, attempts, again_ms, error }, now_ms);
        (pause, Arc::clone(&destination.back))
    }

    /// Records the delivery positions of destinations.
    async fn note(&self) {
        let reached: Vec<_> = {
            let (mut all, now) = (self.destinations.lock(), Instant::now());
            all.values_mut().for_each(|destination| destination.pace.settle(now));
            let changed = all.iter_mut().filter(|(_, destination)| destination.is_to_be_noted);
            let mut bytes = 0;
            changed
                .take(limits::DESTINATIONS_IN_RECORD)
                .map_while(|(server, destination)| {
                    let reached = destination.reached(server.clone());
                    bytes += serde_json::to_vec(&reached).map_or(0, |json| json.len() + 1);
                    let fits = bytes <= limits::DESTINATIONS_RECORD_BYTES;
                    destination.is_to_be_noted = !fits;
                    fits.then_some(reached)
                })
                .collect()
        };
        if reached.is_empty() {
            return;
        }
        let servers: Vec<_> = reached.iter().map(|reached| reached.server_name.clone()).collect();
        if let Err(error) = self.engine.propose(Origin::server(), NoteReached(reached)).await {
            warn!(%error, "delivery positions are not recorded yet");
            let mut all = self.destinations.lock();
            for server in servers {
                all.entry(server).or_default().is_to_be_noted = true;
            }
        }
    }
}

/// How many events of each room a homeserver is sent that has missed events of these since then:
/// more after a short absence.
fn most_missed(rooms: &[Arc<Room>], up_to: Offset) -> usize {
    let (most, mut left) = limits::DESTINATION_MISSED_BRIEFLY;
    for room in rooms {
        let missed = room.events_backward(Offset::MAX, up_to, most + 1).len();
        match left.checked_sub(missed) {
            Some(fewer) => left = fewer,
            None => return limits::DESTINATION_MISSED,
        }
    }
    most
}
