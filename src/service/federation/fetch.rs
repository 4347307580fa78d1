//! Fetches events that others depend on from the homeserver that sent the latter (server-server
//! API, "Backfilling and retrieving missing events", "Retrieving events").

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    marker::PhantomData,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt as _, stream};
use ruma::{EventId, OwnedEventId, RoomId, ServerName};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _, SeqAccess, Visitor},
};
use serde_json::{json, value::RawValue};
use tracing::debug;

use super::{
    pdu::{Pdu, PduError},
    receive::{Receiving, Verified},
};
use logcabin_base::{bodies::Urgency, limits, text::encoded};
use logcabin_decide::federation::{PlaceOutlier, Taken};
use logcabin_outside::federation::{Answer, Question, Unreachable};
use logcabin_record::Origin;
use logcabin_state::Room;

/// The limits on fetches for one transaction of a homeserver, or for one event that is sent alone.
pub struct Budget {
    /// For ancestors and authorities.
    missing: Allowance,
    /// For the room's state at events whose past is not fetched.
    state: Allowance,
    /// The number and the time of requests for events that other homeservers passed on with altered
    /// content.
    senders: (usize, Duration),
    /// The time for keys with which events are signed.
    pub(super) keys: Duration,
    /// The number of requests to policy servers.
    pub(super) policy: usize,
    /// The deadline of those requests.
    pub(super) policy_until: Instant,
}

pub(super) struct Allowance {
    pub(super) requests: usize,
    pub(super) events: usize,
    pub(super) bytes: usize,
    pub(super) until: Instant,
}

impl Budget {
    pub fn full() -> Self {
        let (requests, events, bytes, time) = limits::MISSING_EVENTS;
        let now = Instant::now();
        Self {
            missing: Allowance { requests, events, bytes, until: now + time },
            state: Allowance {
                requests: 3 * limits::EVENTS_ONE_BY_ONE,
                events: usize::MAX,
                bytes: limits::FEDERATION_STATE_BYTES,
                until: now + limits::FEDERATION_STATE_TIMEOUT,
            },
            senders: limits::SENDERS_ASKED,
            keys: limits::TRANSACTION_KEYS_TIME,
            policy: limits::TRANSACTION_PDUS,
            policy_until: now + limits::POLICY_TIME,
        }
    }
}

/// The error for events that depend on events that cannot be fetched.
pub(super) fn not_fetched(server: &ServerName, error: &Unreachable) -> PduError {
    debug!(%server, %error, "missing events cannot be fetched");
    PduError::Missing
}

impl Allowance {
    fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (self.requests > 0 && self.events > 0 && self.bytes > 0 && !left.is_zero()).then_some(left)
    }
}

#[derive(Deserialize)]
struct Events {
    #[serde(default, deserialize_with = "as_many_as_state")]
    events: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Chain {
    #[serde(default, deserialize_with = "as_many_as_state")]
    auth_chain: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct One {
    #[serde(deserialize_with = "as_many_as_state")]
    pdus: Vec<Box<RawValue>>,
}

/// The ids of a room's state.
#[derive(Deserialize)]
pub(super) struct StateIds {
    #[serde(deserialize_with = "as_many_as_state")]
    pub(super) pdu_ids: Vec<OwnedEventId>,
    #[serde(deserialize_with = "as_many_as_state")]
    auth_chain_ids: Vec<OwnedEventId>,
}

/// The events of a room's state, which are parts of the answer.
#[derive(Deserialize)]
pub(super) struct Whole<'a> {
    #[serde(borrow, deserialize_with = "as_many_as_state")]
    pub(super) pdus: Vec<&'a RawValue>,
    #[serde(borrow, deserialize_with = "as_many_as_state")]
    auth_chain: Vec<&'a RawValue>,
}

/// A list of at most [`limits::STATE_EVENTS`] items. A longer list is not read to its end: an item
/// may be as short as two bytes, and takes many more in memory.
pub(super) fn as_many_as_state<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct Items<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a list of at most {} items", limits::STATE_EVENTS)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
            let mut all = Vec::new();
            while let Some(item) = items.next_element()? {
                if all.len() >= limits::STATE_EVENTS {
                    return Err(A::Error::invalid_length(all.len() + 1, &self));
                }
                all.push(item);
            }
            Ok(all)
        }
    }

    deserializer.deserialize_seq(Items(PhantomData))
}

/// The events whose authorities were asked for while one event was judged, so that none is asked
/// for twice.
#[derive(Default)]
struct Asked {
    /// For all of them at once.
    chains: BTreeSet<OwnedEventId>,
    /// In other ways.
    others: BTreeSet<OwnedEventId>,
}

fn state_path(what: &str, room: &Room, event_id: &EventId) -> String {
    let (room_id, event_id) = (encoded(room.id.as_str()), encoded(event_id.as_str()));
    format!("/_matrix/federation/v1/{what}/{room_id}?event_id={event_id}")
}

/// Takes the events out that come after this one.
fn followers(waiting: &mut HashMap<OwnedEventId, Verified>, event_id: &EventId) -> Vec<Verified> {
    let follows =
        |event: &Verified| event.prev_events().iter().any(|prev| prev == event_id.as_str());
    let ids: Vec<_> = waiting
        .values()
        .filter(|event| follows(event))
        .map(|event| event.event_id.clone())
        .collect();
    ids.iter().filter_map(|event_id| waiting.remove(event_id)).collect()
}

impl Receiving<'_> {
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        server: &ServerName,
        mut question: Question,
        budget: &mut Allowance,
    ) -> Result<T, PduError> {
        question.max_bytes = budget.bytes;
        let answer = self.answer(server, question, budget).await?;
        answer.json().map_err(|error| not_fetched(server, &error))
    }

    /// An answer of at most the question's size.
    async fn answer(
        &self,
        server: &ServerName,
        mut question: Question,
        budget: &mut Allowance,
    ) -> Result<Answer, PduError> {
        let left = budget.left().ok_or(PduError::Missing)?;
        budget.requests -= 1;
        question.timeout = left.min(question.timeout);
        question.max_bytes = budget.bytes.min(question.max_bytes);
        let answer = self.federation.peers.ask(server, question).await;
        let answer = answer.map_err(|error| not_fetched(server, &error))?;
        budget.bytes = budget.bytes.saturating_sub(answer.body.len());
        Ok(answer)
    }

    /// The ids of a room's state before an event.
    pub(super) async fn state_ids(
        &self,
        server: &ServerName,
        path: String,
        budget: &mut Allowance,
    ) -> Result<StateIds, PduError> {
        let mut question = Question::get(path);
        question.max_bytes = limits::FEDERATION_IDS_BYTES;
        let answer = self.answer(server, question, budget).await?;
        answer.json().map_err(|error| not_fetched(server, &error))
    }

    /// The answer with a room's state before an event: a [`Whole`].
    pub(super) async fn state(
        &self,
        server: &ServerName,
        path: String,
        budget: &mut Allowance,
    ) -> Result<Answer, PduError> {
        self.answer(server, Question::get(path).of_state(Urgency::Caused), budget).await
    }

    /// Records an event whose ancestors or authorities are not all known, after those that can be
    /// fetched.
    pub(super) async fn with_ancestors(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event: Verified,
        budget: &mut Budget,
    ) -> Result<Taken, PduError> {
        let target = event.event_id.clone();
        let mut waiting = HashMap::from([(target.clone(), event)]);
        let (mut placed, mut fetched) = (BTreeSet::new(), BTreeSet::new());
        let mut asked = Asked::default();
        loop {
            let mut order: Vec<_> =
                waiting.values().map(|event| (event.depth, event.event_id.clone())).collect();
            order.sort_unstable();
            let (mut missing, mut has_taken) = (BTreeSet::new(), false);
            let mut lacking = BTreeMap::new();
            for (_, event_id) in order {
                let Some(event) = waiting.get(&event_id) else { continue };
                let mut taken = self.propose(origin, event, false).await?;
                if matches!(&taken, Taken::Missing { auth, .. } if !auth.is_empty())
                    && asked.chains.insert(event_id.clone())
                {
                    self.fetch_chain(origin, room, &event_id, &mut budget.missing).await?;
                    taken = self.propose(origin, event, false).await?;
                }
                if taken == Taken::Unresolved {
                    match self.place_known(origin, room, event, &mut budget.state).await {
                        Ok(()) => taken = Taken::Outlier,
                        // The event after it continues from the state before that event.
                        Err(PduError::Missing | PduError::Rejected(_)) if event_id != target => {
                            waiting.remove(&event_id);
                            missing.insert(event_id);
                            continue;
                        }
                        Err(error) => return Err(error),
                    }
                }
                match taken {
                    Taken::Missing { auth, prev } => {
                        missing.extend(prev);
                        if !auth.is_empty() {
                            lacking.insert(event_id, auth);
                        }
                    }
                    taken if event_id == target => return Ok(taken),
                    _ => has_taken |= waiting.remove(&event_id).is_some(),
                }
            }
            missing.retain(|event_id| !waiting.contains_key(event_id));
            let unknown: BTreeSet<_> =
                missing.iter().chain(lacking.values().flatten()).cloned().collect();
            if unknown.is_empty() {
                return Err(PduError::Missing);
            }
            // If they are still missing afterwards, they cannot be fetched, and no other request,
            // perhaps at another node, has recorded them meanwhile.
            if unknown != fetched {
                let latest = waiting.keys();
                let between = self.fetch_between(origin, room, latest, &mut budget.missing).await;
                let mut between = between.unwrap_or_default();
                between.retain(|event| !waiting.contains_key(&event.event_id));
                self.ask_senders(origin, room, &mut between, &mut budget.senders).await?;
                for mut event in between {
                    self.ask_policy_server(room, &mut event, budget).await?;
                    waiting.insert(event.event_id.clone(), event);
                }
                fetched = unknown;
                continue;
            }
            if has_taken {
                continue;
            }
            let mut has_asked = false;
            for (event_id, auth) in lacking {
                if asked.others.insert(event_id.clone()) {
                    has_asked = true;
                    let budget = &mut budget.state;
                    self.fetch_authorities(origin, room, &event_id, auth, budget).await?;
                }
            }
            if has_asked {
                continue;
            }
            if missing.is_empty() {
                return Err(PduError::Missing);
            }
            // The past cannot be fetched, or is too long: the room continues from its state there.
            for event_id in missing {
                if placed.len() >= limits::PREDECESSORS || !placed.insert(event_id.clone()) {
                    return Err(PduError::Missing);
                }
                match self.place(origin, room, &event_id, &mut budget.state).await {
                    // Nobody has it, or nobody can use it: the room continues from the state before
                    // what follows it.
                    Err(PduError::Missing | PduError::Form(_) | PduError::Rejected(_)) => {
                        for event in followers(&mut waiting, &event_id) {
                            let state = &mut budget.state;
                            self.place_known(origin, room, &event, state).await?;
                            if event.event_id == target {
                                return Ok(Taken::Outlier);
                            }
                        }
                    }
                    placed => placed?,
                }
            }
        }
    }

    /// The events between the known ones and these.
    async fn fetch_between(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        latest: impl Iterator<Item = &OwnedEventId>,
        budget: &mut Allowance,
    ) -> Result<Vec<Verified>, PduError> {
        let latest: Vec<_> = latest.take(limits::PREDECESSORS).collect();
        let earliest: Vec<_> = room.extremities().into_iter().map(|tip| tip.event_id).collect();
        let limit = limits::EVENTS_FOR_SERVER.min(budget.events);
        let body = json!({ "earliest_events": earliest, "latest_events": latest, "limit": limit });
        let path =
            format!("/_matrix/federation/v1/get_missing_events/{}", encoded(room.id.as_str()));
        let answered: Events = self.ask(origin, Question::post(path, &body), budget).await?;
        let mut events = answered.events;
        events.truncate(limit);
        budget.events = budget.events.saturating_sub(events.len());
        self.verify_all(room, &events).await
    }

    /// Replaces events that lost their content, because `origin` sent content that does not match
    /// their hashes, by the versions of their senders' homeservers. (A redacted event lost its
    /// content everywhere.) Otherwise a homeserver could strip the content of others' events by
    /// passing them on first.
    async fn ask_senders(
        &self,
        origin: &ServerName,
        room: &Room,
        events: &mut [Verified],
        (requests, time): &mut (usize, Duration),
    ) -> Result<(), PduError> {
        let mut lacking = Vec::new();
        for (at, event) in events.iter().enumerate() {
            let pdu = Pdu::of_room(room, &event.pdu)?;
            let sender = pdu.sender().map(|sender| sender.server_name().to_owned());
            let asked = sender.filter(|server| server != self.federation.peers.own_name());
            if let Some(server) = asked.filter(|_| !pdu.is_whole_from(origin)) {
                lacking.push((at, server, pdu.event_id));
            }
        }
        lacking.truncate(*requests);
        if lacking.is_empty() || time.is_zero() {
            return Ok(());
        }
        *requests -= lacking.len();
        let began = Instant::now();
        let until = began + *time;
        let asked = stream::iter(lacking).map(|(at, server, event_id)| async move {
            let bytes = limits::ONE_EVENT_BYTES;
            let budget = &mut Allowance { requests: 1, events: 1, bytes, until };
            (at, self.fetch_one(&server, room, &event_id, budget).await)
        });
        let asked = asked.buffer_unordered(limits::SENDERS_AT_ONCE);
        let late = tokio::time::sleep(*time);
        let asked: Vec<_> = asked.take_until(late).collect().await;
        *time = time.saturating_sub(began.elapsed());
        for (at, fetched) in asked {
            match fetched {
                Ok(Some(whole)) => events[at] = whole,
                Err(error @ PduError::Rejected(_)) => return Err(error),
                // It stays as it is.
                Ok(None) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Records the authorities of an event and theirs, if the homeserver has them in one answer.
    async fn fetch_chain(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let path = format!(
            "/_matrix/federation/v1/event_auth/{}/{}",
            encoded(room.id.as_str()),
            encoded(event_id.as_str())
        );
        let events = match self.auth_chain(origin, path, budget).await {
            Err(PduError::Missing) => return Ok(()),
            events => events?,
        };
        let events = self.verify_all(room, &events).await?;
        self.charge_events(origin, &events);
        self.record_outliers(origin, room, events, true).await
    }

    /// Records the authorities of an event that are not known, and theirs, from a homeserver that
    /// does not answer with all of them at once: each by itself, or else the state that the event
    /// comes after, among which they must be.
    async fn fetch_authorities(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        auth: Vec<OwnedEventId>,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let mut seen: BTreeSet<_> = auth.iter().cloned().collect();
        let (mut open, mut events, mut is_all) = (auth, Vec::new(), true);
        while let Some(of) = open.pop() {
            if self.knows(room, &of)? {
                continue;
            }
            if events.len() >= limits::EVENTS_ONE_BY_ONE {
                is_all = false;
                break;
            }
            match self.fetch_one(origin, room, &of, budget).await {
                Ok(Some(event)) => {
                    let further = event.auth_events();
                    let further = further.iter().filter_map(|id| EventId::parse(id).ok());
                    open.extend(further.filter(|id| seen.insert(id.clone())));
                    events.push(event);
                }
                Ok(None) | Err(PduError::Missing) => {
                    is_all = false;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if is_all {
            self.charge_events(origin, &events);
            return self.record_outliers(origin, room, events, true).await;
        }
        let state = match self.fetch_state_ids(origin, room, event_id, budget).await {
            Err(PduError::Missing) => return Ok(()),
            state => state?,
        };
        match self.fetch_state(origin, room, event_id, &state, budget).await {
            Err(PduError::Missing) => Ok(()),
            fetched => fetched,
        }
    }

    /// The events of an auth chain, up to the limit.
    pub(super) async fn auth_chain(
        &self,
        origin: &ServerName,
        path: String,
        budget: &mut Allowance,
    ) -> Result<Vec<Box<RawValue>>, PduError> {
        let chain: Chain = self.ask(origin, Question::get(path), budget).await?;
        let mut events = chain.auth_chain;
        events.truncate(budget.events);
        budget.events = budget.events.saturating_sub(events.len());
        Ok(events)
    }

    pub(super) async fn fetch_one(
        &self,
        origin: &ServerName,
        room: &Room,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<Option<Verified>, PduError> {
        let raw = self.fetch_raw(origin, event_id, budget).await?;
        let found = self.verify_all(room, raw.as_slice()).await?.pop();
        Ok(found.filter(|event| event.event_id == event_id))
    }

    /// What a homeserver answers when it is asked for this event.
    async fn fetch_raw(
        &self,
        origin: &ServerName,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<Option<Box<RawValue>>, PduError> {
        let path = format!("/_matrix/federation/v1/event/{}", encoded(event_id.as_str()));
        let mut question = Question::get(path);
        question.max_bytes = limits::ONE_EVENT_BYTES;
        let answer = self.answer(origin, question, budget).await?;
        let one: One = answer.json().map_err(|error| not_fetched(origin, &error))?;
        Ok(one.pdus.into_iter().next())
    }

    /// Gives an event with an unknown past its place in the room, by the state before it.
    async fn place(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        if self.knows(room, event_id)? {
            return self.place_recorded(origin, room, event_id, budget).await;
        }
        match self.fetch_one(origin, room, event_id, budget).await? {
            Some(event) => self.place_known(origin, room, &event, budget).await,
            // Another request has recorded it meanwhile.
            None if self.knows(room, event_id)? => {
                self.place_recorded(origin, room, event_id, budget).await
            }
            None => Err(PduError::Missing),
        }
    }

    async fn place_known(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event: &Verified,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let event_id = &event.event_id;
        let mut taken = self.propose(origin, event, true).await?;
        if matches!(taken, Taken::Missing { .. }) {
            self.fetch_chain(origin, room, event_id, budget).await?;
            taken = self.propose(origin, event, true).await?;
        }
        if let Taken::Missing { auth, .. } = taken {
            self.fetch_authorities(origin, room, event_id, auth, budget).await?;
            self.propose(origin, event, true).await?;
        }
        self.place_recorded(origin, room, event_id, budget).await
    }

    async fn place_recorded(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let state = self.fetch_state_ids(origin, room, event_id, budget).await?;
        self.fetch_state(origin, room, event_id, &state, budget).await?;
        let place = PlaceOutlier {
            room_id: RoomId::to_owned(&room.id),
            event_id: event_id.to_owned(),
            from: origin.to_owned(),
            state: state.pdu_ids.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        };
        let placed = self.engine.propose(Origin::server(), place).await?;
        self.charged(origin, placed);
        Ok(())
    }

    /// The ids of the state before an event.
    async fn fetch_state_ids(
        &self,
        origin: &ServerName,
        room: &Room,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<StateIds, PduError> {
        self.state_ids(origin, state_path("state_ids", room, event_id), budget).await
    }

    /// Records the events of this state that are not known, and their authorities.
    async fn fetch_state(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        state: &StateIds,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let mut unknown = BTreeSet::new();
        for event_id in state.pdu_ids.iter().chain(&state.auth_chain_ids) {
            if !self.knows(room, event_id)? {
                unknown.insert(event_id);
            }
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let mut each = None;
        if unknown.len() < limits::EVENTS_ONE_BY_ONE {
            each = self.fetch_each(origin, unknown, budget).await?;
        }
        let events = match each {
            Some(each) => self.verify_all(room, &each).await?,
            None => {
                let path = state_path("state", room, event_id);
                let answer = self.state(origin, path, budget).await?;
                let whole: Whole<'_> =
                    answer.parts().map_err(|error| not_fetched(origin, &error))?;
                let mut events = whole.auth_chain;
                events.extend(whole.pdus);
                self.verify_all(room, &events).await?
            }
        };
        self.charge_events(origin, &events);
        self.record_outliers(origin, room, events, true).await
    }

    /// These events, one by one; `None` if the homeserver does not answer so.
    async fn fetch_each(
        &self,
        origin: &ServerName,
        ids: BTreeSet<&OwnedEventId>,
        budget: &mut Allowance,
    ) -> Result<Option<Vec<Box<RawValue>>>, PduError> {
        let mut events = Vec::new();
        for event_id in ids {
            match self.fetch_raw(origin, event_id, budget).await {
                Ok(event) => events.extend(event),
                Err(PduError::Missing) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(events))
    }
}
