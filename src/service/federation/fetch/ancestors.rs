//! Asks the origin of an event for the events between the known ones and it (server-server API,
//! "Backfilling and retrieving missing events"), and records the event after them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ruma::{EventId, OwnedEventId, ServerName};
use serde::Deserialize;
use serde_json::{json, value::RawValue};

use super::{Allowance, Budget, request::as_many_as_state};
use crate::federation::{PduError, PduReceiver, outliers::Lacking, pdu::Pdu, receive::Verified};
use logcabin_base::{
    limits,
    planted::{self, Fault},
    text::encoded,
};
use logcabin_decide::federation::ReceiveOutcome;
use logcabin_outside::federation::FederationRequest;
use logcabin_state::Room;

#[derive(Deserialize)]
struct MissingEvents {
    #[serde(default, deserialize_with = "as_many_as_state")]
    events: Vec<Box<RawValue>>,
}

/// The events whose auth events were asked for while one event was judged, so that none is asked
/// for twice.
#[derive(Default)]
struct RequestedAuthEvents {
    /// For all of them at once.
    chains: BTreeSet<OwnedEventId>,
    /// In other ways.
    others: BTreeSet<OwnedEventId>,
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

impl PduReceiver<'_> {
    /// Records an event whose ancestors or auth events are not all known, after those that can be
    /// fetched.
    pub(in crate::federation) async fn with_ancestors(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event: Verified,
        budget: &mut Budget,
    ) -> Result<ReceiveOutcome, PduError> {
        let target = event.event_id.clone();
        let mut waiting = HashMap::from([(target.clone(), event)]);
        let (mut placed, mut fetched) = (BTreeSet::new(), BTreeSet::new());
        let mut requested = RequestedAuthEvents::default();
        loop {
            let mut order: Vec<_> =
                waiting.values().map(|event| (event.depth, event.event_id.clone())).collect();
            order.sort_unstable();
            let (mut missing, mut has_recorded) = (BTreeSet::new(), false);
            let mut lacking = BTreeMap::new();
            for (_, event_id) in order {
                let Some(event) = waiting.get(&event_id) else { continue };
                let mut outcome = self.propose(origin, event, false).await?;
                if matches!(&outcome, ReceiveOutcome::Missing { auth, .. } if !auth.is_empty())
                    && requested.chains.insert(event_id.clone())
                {
                    self.fetch_auth_chain(origin, room, &event_id, &mut budget.missing).await?;
                    outcome = self.propose(origin, event, false).await?;
                }
                let state = &mut budget.state;
                let settled = match outcome {
                    ReceiveOutcome::Unresolved => {
                        let placed = self.place_known(origin, room, event, state).await;
                        placed.map(|()| ReceiveOutcome::Outlier)
                    }
                    ReceiveOutcome::Disputed => self.settle(room, event, state).await,
                    outcome => Ok(outcome),
                };
                let outcome = match settled {
                    Ok(outcome) => outcome,
                    // The event after it continues from the state before that event.
                    Err(PduError::Missing | PduError::NotRecorded(_)) if event_id != target => {
                        waiting.remove(&event_id);
                        missing.insert(event_id);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                match outcome {
                    ReceiveOutcome::Missing { auth, prev } => {
                        missing.extend(prev);
                        if !auth.is_empty() {
                            lacking.insert(event_id, auth);
                        }
                    }
                    outcome if event_id == target => return Ok(outcome),
                    _ => has_recorded |= waiting.remove(&event_id).is_some(),
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
            if unknown != fetched && !planted::has(Fault::GapNotFilled) {
                let latest = waiting.keys();
                let between = self.fetch_between(origin, room, latest, &mut budget.missing).await;
                let mut between = between.unwrap_or_default();
                between.retain(|event| !waiting.contains_key(&event.event_id));
                self.ask_senders(origin, room, &mut between, budget).await?;
                for mut event in between {
                    self.ask_policy_server(room, &mut event, budget).await?;
                    waiting.insert(event.event_id.clone(), event);
                }
                fetched = unknown;
                continue;
            }
            if has_recorded {
                continue;
            }
            let mut has_fetched = false;
            for (event_id, auth) in lacking {
                if requested.others.insert(event_id.clone()) {
                    has_fetched = true;
                    let budget = &mut budget.state;
                    self.fetch_auth_events(origin, room, &event_id, auth, budget).await?;
                }
            }
            if has_fetched {
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
                    Err(PduError::Missing | PduError::Form(_) | PduError::NotRecorded(_)) => {
                        for event in followers(&mut waiting, &event_id) {
                            let state = &mut budget.state;
                            self.place_known(origin, room, &event, state).await?;
                            // Its users see it: whoever spoiled the past must not silence others.
                            if event.event_id == target {
                                return self.propose_placed(origin, &event).await;
                            }
                        }
                    }
                    placed => placed?,
                }
            }
        }
    }

    /// Records an event by the state before it as its sender's homeserver tells it: what a third
    /// one told must not keep its users' events out of the room.
    async fn settle(
        &self,
        room: &Arc<Room>,
        event: &Verified,
        budget: &mut Allowance,
    ) -> Result<ReceiveOutcome, PduError> {
        let pdu = Pdu::of_room(room, &event.pdu)?;
        let server = pdu.sender().map(|sender| sender.server_name().to_owned());
        let server = server.filter(|server| server != self.federation.client.own_name());
        let server = server.ok_or(PduError::Missing)?;
        self.place_known(&server, room, event, budget).await?;
        self.propose_placed(&server, event).await
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
        let answered: MissingEvents =
            self.ask(origin, FederationRequest::post(path, &body), budget).await?;
        let mut events = answered.events;
        events.truncate(limit);
        budget.events = budget.events.saturating_sub(events.len());
        // What was fetched as an auth event is known, and its place is what is missing.
        self.verify_lacking(room, &events, Lacking::Place).await
    }
}
