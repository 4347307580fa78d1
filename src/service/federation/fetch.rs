//! Events that others rest on, fetched from the homeserver that sent those (server-server API,
//! "Backfilling and retrieving missing events", "Retrieving events").

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use ruma::{EventId, OwnedEventId, RoomId, ServerName};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{json, value::RawValue};
use tracing::debug;

use super::{
    pdu::{Pdu, PduError},
    receive::{Receiving, Verified, read},
};
use crate::{
    base::limits,
    decide::federation::{PlaceOutlier, Taken},
    outside::federation::{Question, Unreachable},
    record::Origin,
    state::Room,
};

/// What may be fetched for one event that came in.
pub(super) struct Budget {
    requests: usize,
    events: usize,
    bytes: usize,
    until: Instant,
}

impl Budget {
    pub(super) fn new() -> Self {
        let (requests, events, bytes, time) = limits::MISSING_EVENTS;
        Self { requests, events, bytes, until: Instant::now() + time }
    }

    /// What it takes to enter a room.
    pub(super) fn of_a_join() -> Self {
        Self {
            requests: limits::EVENTS_ONE_BY_ONE,
            events: usize::MAX,
            bytes: limits::FEDERATION_STATE_BYTES,
            until: Instant::now() + limits::FEDERATION_STATE_TIMEOUT,
        }
    }

    fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (self.requests > 0 && self.events > 0 && self.bytes > 0 && !left.is_zero()).then_some(left)
    }
}

#[derive(Deserialize)]
struct Events {
    #[serde(default)]
    events: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Chain {
    #[serde(default)]
    auth_chain: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct One {
    pdus: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct StateIds {
    pdu_ids: Vec<OwnedEventId>,
    auth_chain_ids: Vec<OwnedEventId>,
}

#[derive(Deserialize)]
struct Whole {
    pdus: Vec<Box<RawValue>>,
    auth_chain: Vec<Box<RawValue>>,
}

/// A part of a path.
pub(super) fn part(text: &str) -> impl std::fmt::Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

impl Receiving<'_> {
    async fn ask<T: DeserializeOwned>(
        &self,
        server: &ServerName,
        mut question: Question,
        budget: &mut Budget,
    ) -> Result<T, PduError> {
        let left = budget.left().ok_or(PduError::Missing)?;
        budget.requests -= 1;
        question.timeout = left.min(question.timeout);
        question.max_bytes = budget.bytes;
        let answer = self.federation.peers.ask(server, question).await;
        let said = answer.and_then(|answer| {
            budget.bytes = budget.bytes.saturating_sub(answer.body.len());
            answer.json()
        });
        said.map_err(|error: Unreachable| {
            debug!(%server, %error, "missing events cannot be fetched");
            PduError::Missing
        })
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
        let mut placed = BTreeSet::new();
        loop {
            let mut order: Vec<_> =
                waiting.values().map(|event| (event.depth, event.event_id.clone())).collect();
            order.sort_unstable();
            let mut missing = BTreeSet::new();
            for (_, event_id) in order {
                let Some(event) = waiting.get(&event_id) else { continue };
                let mut taken = self.propose(origin, event, false).await?;
                if matches!(&taken, Taken::Missing { auth, .. } if !auth.is_empty()) {
                    self.fetch_authorities(origin, room, &event_id, budget).await?;
                    taken = self.propose(origin, event, false).await?;
                }
                match taken {
                    Taken::Missing { prev, .. } => missing.extend(prev),
                    taken if event_id == target => return Ok(taken),
                    _ => drop(waiting.remove(&event_id)),
                }
            }
            missing.retain(|event_id| !waiting.contains_key(event_id));
            if missing.is_empty() {
                return Err(PduError::Missing);
            }
            let fetched = self.fetch_between(origin, room, waiting.keys(), budget).await;
            let known = waiting.len();
            for event in fetched.unwrap_or_default() {
                waiting.entry(event.event_id.clone()).or_insert(event);
            }
            if waiting.len() > known {
                continue;
            }
            // The past is not to be had, or too long: the room goes on from its state there.
            for event_id in missing {
                if placed.len() >= limits::EXTREMITIES || !placed.insert(event_id.clone()) {
                    return Err(PduError::Missing);
                }
                self.place(origin, room, &event_id).await?;
            }
        }
    }

    /// The events between those that are known and these.
    async fn fetch_between(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        latest: impl Iterator<Item = &OwnedEventId>,
        budget: &mut Budget,
    ) -> Result<Vec<Verified>, PduError> {
        let latest: Vec<_> = latest.take(limits::EXTREMITIES).collect();
        let earliest: Vec<_> = room.extremities().into_iter().map(|tip| tip.event_id).collect();
        let limit = limits::EVENTS_FOR_SERVER.min(budget.events);
        let body = json!({ "earliest_events": earliest, "latest_events": latest, "limit": limit });
        let path = format!("/_matrix/federation/v1/get_missing_events/{}", part(room.id.as_str()));
        let answered: Events = self.ask(origin, Question::post(path, &body), budget).await?;
        let mut events = answered.events;
        events.truncate(limit);
        budget.events = budget.events.saturating_sub(events.len());
        Ok(self.verify_all(room, &events).await)
    }

    /// Verifies events; those that are not valid, or known, are left out.
    pub(super) async fn verify_all(&self, room: &Room, events: &[Box<RawValue>]) -> Vec<Verified> {
        let mut verified = Vec::new();
        for raw in events {
            let pdu = Pdu::object(raw).and_then(|object| {
                // Only the first event of a room may have no room id.
                match Pdu::room_of(&object) {
                    Ok(room_id) if room_id != room.id => Err(PduError::OtherEvent),
                    _ => Pdu::new(room.id.clone(), object, &room.rules),
                }
            });
            let is_known = |pdu: &Pdu| {
                let (state, events) = (self.engine.state(), self.engine.events());
                events.find_known(&state, room, &pdu.event_id).is_ok_and(|known| known.is_some())
            };
            let checked = match pdu {
                Ok(pdu) if is_known(&pdu) => continue,
                Ok(pdu) => self.verify(room, pdu).await,
                Err(error) => Err(error),
            };
            match checked {
                Ok(event) => verified.push(event),
                Err(error) => debug!(%error, room_id = %room.id, "an event is not used"),
            }
        }
        verified
    }

    async fn fetch_authorities(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Budget,
    ) -> Result<(), PduError> {
        let path = format!(
            "/_matrix/federation/v1/event_auth/{}/{}",
            part(room.id.as_str()),
            part(event_id.as_str())
        );
        let chain: Chain = self.ask(origin, Question::get(path), budget).await?;
        let mut events = chain.auth_chain;
        events.truncate(budget.events);
        budget.events = budget.events.saturating_sub(events.len());
        let events = self.verify_all(room, &events).await;
        self.record_outliers(origin, events).await
    }

    async fn fetch_event(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Budget,
    ) -> Result<Option<Verified>, PduError> {
        let path = format!("/_matrix/federation/v1/event/{}", part(event_id.as_str()));
        let one: One = self.ask(origin, Question::get(path), budget).await?;
        let found = self.verify_all(room, &one.pdus[..one.pdus.len().min(1)]).await.pop();
        Ok(found.filter(|event| event.event_id == event_id))
    }

    /// Gives an event of unknown past its place in the room, by the state before it.
    async fn place(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
    ) -> Result<(), PduError> {
        let mut budget = Budget::of_a_join();
        let known = |event_id: &EventId| {
            let (state, events) = (self.engine.state(), self.engine.events());
            let known = events.find_known(&state, room, event_id).map_err(read)?;
            Ok::<_, PduError>(known.is_some())
        };
        if !known(event_id)? {
            let event = self.fetch_event(origin, room, event_id, &mut budget).await?;
            let event = event.ok_or(PduError::Missing)?;
            if matches!(self.propose(origin, &event, true).await?, Taken::Missing { .. }) {
                self.fetch_authorities(origin, room, event_id, &mut budget).await?;
                self.propose(origin, &event, true).await?;
            }
        }
        let of = |what: &str| {
            format!(
                "/_matrix/federation/v1/{what}/{}?event_id={}",
                part(room.id.as_str()),
                part(event_id.as_str())
            )
        };
        let ids: StateIds = self.ask(origin, Question::get(of("state_ids")), &mut budget).await?;
        let mut unknown = Vec::new();
        for event_id in ids.pdu_ids.iter().chain(&ids.auth_chain_ids) {
            if !known(event_id)? {
                unknown.push(event_id);
            }
        }
        let events = if unknown.len() < limits::EVENTS_ONE_BY_ONE {
            let mut events = Vec::new();
            for event_id in unknown {
                events.extend(self.fetch_event(origin, room, event_id, &mut budget).await?);
            }
            events
        } else {
            let whole: Whole = self.ask(origin, Question::get(of("state")), &mut budget).await?;
            let mut events = whole.auth_chain;
            events.extend(whole.pdus);
            self.verify_all(room, &events).await
        };
        self.record_outliers(origin, events).await?;
        let mut state = Vec::new();
        for event_id in ids.pdu_ids {
            if known(&event_id)? {
                state.push(event_id);
            }
        }
        let place = PlaceOutlier {
            room_id: RoomId::to_owned(&room.id),
            event_id: event_id.to_owned(),
            from: origin.to_owned(),
            state,
        };
        self.engine.propose(Origin::server(), place).await?.into_inner();
        Ok(())
    }
}
