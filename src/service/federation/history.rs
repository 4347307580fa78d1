//! Filling gaps in a room's history (server-server API, "Backfilling and retrieving missing
//! events").
//!
//! None of this affects a room's state: an event for a gap is judged by its auth events alone, and
//! the state before other events is never taken from it.

use std::{
    collections::{BTreeSet, BinaryHeap, HashMap, HashSet},
    time::Instant,
};

use ruma::{CanonicalJsonValue, OwnedEventId, OwnedServerName, ServerName, UserId, api::Direction};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout_at;
use tracing::debug;

use super::{
    fetch::{Allowance, StateResponse, as_many_as_state, not_fetched},
    memory::GapMemory,
    outliers::parts,
    pdu::{Pdu, PduError},
    receive::{PduReceiver, Verified},
};
use logcabin_base::{limits, text::encoded};
use logcabin_decide::federation::{FillGap, OutlierOutcome};
use logcabin_outside::federation::FederationRequest;
use logcabin_read::{
    events::{EventRef, StoredEvent},
    servers::admits,
};
use logcabin_record::{Offset, Origin, event_format::named};
use logcabin_state::{
    Room,
    rooms::{gaps::GapNow, graph::OffTimeline},
};

const VISIBILITY: &str = "m.room.history_visibility";

#[derive(Deserialize)]
struct BackfillResponse {
    #[serde(default, deserialize_with = "as_many_as_state")]
    pdus: Vec<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Closest {
    event_id: OwnedEventId,
}

/// An event on the way back from a gap.
struct Step {
    event_id: OwnedEventId,
    depth: u64,
    prev_events: Vec<OwnedEventId>,
    is_visibility: bool,
    /// The event as it was sent, unless it is known already.
    sent: Option<Pdu>,
}

impl PduReceiver<'_> {
    /// Fetches more for a gap for a user who reads there. `known` is the gap as last seen. True if
    /// it has changed: it has more events, is closed, or is given up.
    pub async fn fill_gap(
        &self,
        user_id: &UserId,
        room: &Room,
        gap: Offset,
        known: &GapNow,
        until: Instant,
    ) -> Result<bool, PduError> {
        let filling = async {
            let mut turn = self.federation.gaps.turn(user_id, &room.id, gap).await;
            match room.gap(gap) {
                Some(now) if now == *known => {}
                // Another request was faster.
                _ => return Ok(true),
            }
            self.fill_by_one_of(room, gap, until, &mut turn.memory).await
        };
        timeout_at(until.into(), Box::pin(filling)).await.unwrap_or(Ok(false))
    }

    async fn fill_by_one_of(
        &self,
        room: &Room,
        gap: Offset,
        until: Instant,
        memory: &mut GapMemory,
    ) -> Result<bool, PduError> {
        if room.gap_bytes() >= limits::ROOM_GAP_BYTES {
            return self.give_up(room, gap).await;
        }
        let servers = self.servers_for(room, gap)?;
        let mut are_busy = false;
        for server in &servers {
            if !memory.may_ask(server) {
                continue;
            }
            // Leave time for the next homeserver.
            let part = |part| {
                let now = Instant::now();
                now + until.saturating_duration_since(now).mul_f32(part)
            };
            let Some(_place) = self.federation.gaps.place(server, part(0.4)).await else {
                are_busy = true;
                continue;
            };
            let budget = GapBudget::until(part(0.6));
            match Box::pin(self.fill_from(server, room, gap, budget)).await {
                Ok(true) => {
                    memory.helped();
                    return Ok(true);
                }
                Ok(false) => memory.had_nothing(server),
                Err(error @ PduError::NotRecorded(_)) => return Err(error),
                Err(error) => {
                    debug!(%server, room_id = %room.id, %gap, %error, "a gap is not filled");
                    memory.could_not_be_asked(server);
                }
            }
        }
        // A homeserver that was too busy to be asked may still have something.
        if !are_busy && memory.is_hopeless(&servers, limits::GAP_GIVEN_UP.0) {
            memory.helped();
            return self.give_up(room, gap).await;
        }
        Ok(false)
    }

    /// The homeservers to ask about a gap: the one that sent the event after it, then others in the
    /// room.
    fn servers_for(&self, room: &Room, gap: Offset) -> Result<Vec<OwnedServerName>, PduError> {
        let after = self.engine.events().get(gap).map_err(super::receive::read)?;
        let from = after.and_then(|event| event.received.as_ref().map(|by| by.from.clone()));
        let present = room.servers();
        let first = from.filter(|from| present.contains(from));
        let others = present.into_iter().filter(|server| Some(server) != first.as_ref());
        let mut servers: Vec<_> = first.iter().cloned().chain(others).collect();
        let own = self.federation.client.own_name();
        let events = self.engine.events();
        servers.retain(|server| {
            server != own
                && self.federation.client.permits(server)
                && admits(events, room, server).unwrap_or(false)
        });
        servers.truncate(limits::GAP_SERVERS);
        Ok(servers)
    }

    /// The event of a room that is closest to a time, according to other homeservers in it.
    pub async fn closest_elsewhere(
        &self,
        room: &Room,
        gap: Offset,
        ts: u64,
        direction: Direction,
    ) -> Result<Option<OwnedEventId>, PduError> {
        let dir = if direction == Direction::Forward { "f" } else { "b" };
        let room_id = encoded(room.id.as_str());
        let path = format!("/_matrix/federation/v1/timestamp_to_event/{room_id}?ts={ts}&dir={dir}");
        for server in self.servers_for(room, gap)? {
            let mut question = FederationRequest::get(path.clone());
            question.timeout = limits::OUTBOUND_TIMEOUT;
            let answer = self.federation.client.send(&server, question).await;
            match answer.and_then(|answer| answer.json::<Closest>()) {
                Ok(closest) => return Ok(Some(closest.event_id)),
                Err(error) => debug!(%server, %error, "an event close to a time is not found"),
            }
        }
        Ok(None)
    }

    async fn give_up(&self, room: &Room, gap: Offset) -> Result<bool, PduError> {
        let pause = u64::try_from(limits::GAP_GIVEN_UP.1.as_millis()).unwrap_or(u64::MAX);
        let until_ms = self.engine.clock().now_ms().saturating_add(pause);
        let fill = FillGap {
            room_id: room.id.clone(),
            gap,
            from: None,
            events: Vec::new(),
            passed: Vec::new(),
            bytes: 0,
            given_up_until_ms: Some(until_ms),
        };
        Ok(self.engine.propose(Origin::server(), fill).await?.into_inner())
    }

    async fn fill_from(
        &self,
        server: &ServerName,
        room: &Room,
        gap: Offset,
        mut budget: GapBudget,
    ) -> Result<bool, PduError> {
        let Some(now) = room.gap(gap) else { return Ok(false) };
        let sent = self.earlier_events(server, room, &now.missing, &mut budget.asking).await?;
        let steps = self.steps(room, &now.missing, sent)?;
        let mut verified = self.verify_steps(room, &steps).await;
        verified.sort_by_key(|event| event.depth);
        let bytes: usize = verified.iter().map(|event| event.pdu.get().len()).sum();
        if !self.federation.gaps.admits(server, u64::try_from(bytes).unwrap_or(u64::MAX)) {
            return Err(PduError::Missing);
        }
        let valid: HashSet<_> = verified.iter().map(|event| event.event_id.clone()).collect();
        let judged = self.record_history(server, room, verified, &mut budget).await?;
        let bytes = bytes.saturating_add(budget.recorded);
        // Events that cannot be judged now, and all earlier ones, are left for the next request.
        let waits = |id: &OwnedEventId| valid.contains(id) && !judged.contains_key(id);
        let end = steps.iter().position(|step| waits(&step.event_id)).unwrap_or(steps.len());
        let (mut events, mut passed) = (Vec::new(), Vec::new());
        for step in steps.into_iter().take(end) {
            let is_shown = step.sent.is_none() || matches!(judged.get(&step.event_id), Some(true));
            if !is_shown {
                passed.push((step.event_id, step.prev_events));
                continue;
            }
            let before = if step.is_visibility {
                match self.visibility_before(server, room, &step.event_id, &mut budget).await {
                    Ok(name) => Some(name),
                    // Earlier events cannot be shown to anybody.
                    Err(_) if !events.is_empty() => break,
                    Err(error) => return Err(error),
                }
            } else {
                None
            };
            events.push((step.event_id, before));
        }
        let fill = FillGap {
            room_id: room.id.clone(),
            gap,
            from: Some(server.to_owned()),
            events,
            passed,
            bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            given_up_until_ms: None,
        };
        Ok(self.engine.propose(Origin::server(), fill).await?.into_inner())
    }

    /// A homeserver's answer for these events and earlier ones.
    async fn earlier_events(
        &self,
        server: &ServerName,
        room: &Room,
        missing: &[OwnedEventId],
        budget: &mut Allowance,
    ) -> Result<HashMap<OwnedEventId, Pdu>, PduError> {
        let from = missing.iter().take(limits::PREDECESSORS);
        let from: Vec<_> =
            from.map(|event_id| format!("v={}", encoded(event_id.as_str()))).collect();
        let path = format!(
            "/_matrix/federation/v1/backfill/{}?limit={}&{}",
            encoded(room.id.as_str()),
            limits::GAP_EVENTS,
            from.join("&")
        );
        let answered: BackfillResponse =
            self.ask(server, FederationRequest::get(path), budget).await?;
        let mut sent = HashMap::new();
        // Some homeservers also send the events that were named in the request.
        for raw in answered.pdus.iter().take(limits::GAP_EVENTS + limits::PREDECESSORS) {
            match Pdu::of_room(room, raw) {
                Ok(pdu) => drop(sent.insert(pdu.event_id.clone(), pdu)),
                Err(error) => debug!(%server, %error, room_id = %room.id, "an event is not used"),
            }
        }
        Ok(sent)
    }

    /// The events reachable from the missing ones, both sent and known ones without a position: the
    /// latest first.
    fn steps(
        &self,
        room: &Room,
        missing: &[OwnedEventId],
        mut sent: HashMap<OwnedEventId, Pdu>,
    ) -> Result<Vec<Step>, PduError> {
        let mut reached: HashSet<OwnedEventId> = HashSet::new();
        let mut next: BinaryHeap<(u64, OwnedEventId)> = BinaryHeap::new();
        let mut found: HashMap<OwnedEventId, Step> = HashMap::new();
        let mut todo = missing.to_vec();
        let mut steps = Vec::new();
        loop {
            for event_id in todo.drain(..) {
                if !reached.insert(event_id.clone()) {
                    continue;
                }
                let known = self.without_place(room, &event_id)?;
                let step = match (known, sent.remove(&event_id)) {
                    (EventLookup::Shown, _) => continue,
                    (EventLookup::Aside(event), _) => Step::known(&event),
                    (EventLookup::Nothing, Some(pdu)) => Step::sent(pdu),
                    (EventLookup::Nothing, None) => continue,
                };
                next.push((step.depth, event_id.clone()));
                found.insert(event_id, step);
            }
            let Some((_, event_id)) = next.pop() else { break };
            let Some(step) = found.remove(&event_id) else { continue };
            todo.clone_from(&step.prev_events);
            steps.push(step);
            if steps.len() >= limits::GAP_EVENTS {
                break;
            }
        }
        steps.sort_by(|a, b| b.depth.cmp(&a.depth).then_with(|| a.event_id.cmp(&b.event_id)));
        Ok(steps)
    }

    fn without_place(&self, room: &Room, event_id: &OwnedEventId) -> Result<EventLookup, PduError> {
        let (state, events) = (self.engine.state(), self.engine.events());
        if events.find_shown(&state, event_id).map_err(super::receive::read)?.is_some() {
            return Ok(EventLookup::Shown);
        }
        let known = events.find_known(&state, room, event_id).map_err(super::receive::read)?;
        Ok(match known {
            Some(event) if room.aside(event.offset) == Some(OffTimeline::Outlier) => {
                EventLookup::Aside(event)
            }
            Some(_) => EventLookup::Shown,
            None => EventLookup::Nothing,
        })
    }

    async fn verify_steps(&self, room: &Room, steps: &[Step]) -> Vec<Verified> {
        let mut verified = Vec::new();
        for step in steps {
            let Some(pdu) = step.sent.clone() else { continue };
            match self.verify(room, pdu).await.and_then(|event| self.without_erased(room, event)) {
                Ok(event) => verified.push(event),
                Err(error) => {
                    debug!(%error, room_id = %room.id, event_id = %step.event_id, "not shown");
                }
            }
        }
        verified
    }

    /// Removes the content of an event of a local user whose messages were erased.
    fn without_erased(&self, room: &Room, event: Verified) -> Result<Verified, PduError> {
        #[derive(Deserialize)]
        struct SenderOf {
            sender: ruma::OwnedUserId,
        }
        let form = |error: &dyn std::fmt::Display| PduError::Form(error.to_string());
        let of: SenderOf = serde_json::from_str(event.pdu.get()).map_err(|error| form(&error))?;
        if self.engine.state().accounts.erased(&of.sender).is_none() {
            return Ok(event);
        }
        event.redacted(room)
    }

    /// Records events and their auth events. Returns whether each event may be shown, except for
    /// those that cannot be judged now.
    async fn record_history(
        &self,
        server: &ServerName,
        room: &Room,
        events: Vec<Verified>,
        budget: &mut GapBudget,
    ) -> Result<HashMap<OwnedEventId, bool>, PduError> {
        let mut judged = HashMap::new();
        let mut left = events;
        let mut asked: BTreeSet<OwnedEventId> = BTreeSet::new();
        while !left.is_empty() {
            let mut waiting = Vec::new();
            for part in parts(left) {
                let outcomes = self.record_part(server, room, &part, false).await?;
                for (event, outcome) in part.into_iter().zip(outcomes) {
                    match outcome {
                        OutlierOutcome::Recorded => drop(judged.insert(event.event_id, true)),
                        OutlierOutcome::Rejected(_) => drop(judged.insert(event.event_id, false)),
                        OutlierOutcome::NeedsAuthEvents => waiting.push(event),
                    }
                }
            }
            // The oldest first: its auth events may authorise others.
            let next = waiting.iter().find(|event| !asked.contains(&event.event_id));
            let Some(next) = next.map(|event| event.event_id.clone()) else {
                // Their auth events cannot be fetched.
                judged.extend(waiting.into_iter().map(|event| (event.event_id, false)));
                break;
            };
            if self.fetch_for_history(server, room, &next, budget).await.is_err() {
                break;
            }
            asked.insert(next);
            left = waiting;
        }
        Ok(judged)
    }

    /// Fetches the auth events of an event, recursively.
    async fn fetch_for_history(
        &self,
        server: &ServerName,
        room: &Room,
        event_id: &OwnedEventId,
        budget: &mut GapBudget,
    ) -> Result<(), PduError> {
        let events = self.auth_chain(server, room, event_id, &mut budget.asking).await?;
        let verified = self.verify_all(room, &events).await?;
        let bytes: usize = verified.iter().map(|event| event.pdu.get().len()).sum();
        if !self.federation.gaps.admits(server, u64::try_from(bytes).unwrap_or(u64::MAX)) {
            return Err(PduError::Missing);
        }
        budget.recorded = budget.recorded.saturating_add(bytes);
        self.record_outliers(server, room, verified, false).await
    }

    /// The history visibility before an event that changes it, taken from a homeserver's answer for
    /// the state before the event.
    async fn visibility_before(
        &self,
        server: &ServerName,
        room: &Room,
        event_id: &OwnedEventId,
        budget: &mut GapBudget,
    ) -> Result<String, PduError> {
        let ids = self.state_ids(server, room, event_id, &mut budget.state).await?;
        if ids.pdu_ids.is_empty() {
            return Err(PduError::Missing);
        }
        let (state, events) = (self.engine.state(), self.engine.events());
        let mut unknown = Vec::new();
        for event_id in &ids.pdu_ids {
            match events.find_known(&state, room, event_id).map_err(super::receive::read)? {
                Some(event)
                    if is_visibility(&event)
                        && !matches!(
                            room.aside(event.offset),
                            Some(OffTimeline::Rejected | OffTimeline::SoftFailed)
                        ) =>
                {
                    return Ok(setting(event.content.get()));
                }
                Some(_) => {}
                None => unknown.push(event_id),
            }
        }
        if unknown.len() < limits::EVENTS_ONE_BY_ONE {
            for event_id in unknown {
                let event = self.fetch_one(server, room, event_id, &mut budget.state).await?;
                if let Some(event) = event
                    && let Some(setting) = visibility_in(&event.pdu)
                {
                    return self.allowed(server, room, event, setting, budget).await;
                }
            }
            return Ok(setting("{}"));
        }
        let answer = self.state(server, room, event_id, &mut budget.state).await?;
        let whole: StateResponse<'_> =
            answer.parts().map_err(|error| not_fetched(server, &error))?;
        // Only one of them is needed.
        let found = whole.pdus.iter().find(|raw| visibility_in(raw).is_some());
        let found = found.and_then(|raw| Pdu::of_room(room, raw).ok());
        drop(whole);
        drop(answer);
        let Some(pdu) = found else { return Ok(setting("{}")) };
        let event = self.verify(room, pdu).await?;
        match visibility_in(&event.pdu) {
            Some(setting) => self.allowed(server, room, event, setting, budget).await,
            None => Ok(setting("{}")),
        }
    }

    /// The setting in an event, if its auth events allow it: anybody can sign a setting that makes
    /// history public.
    async fn allowed(
        &self,
        server: &ServerName,
        room: &Room,
        event: Verified,
        setting: String,
        budget: &mut GapBudget,
    ) -> Result<String, PduError> {
        let event_id = event.event_id.clone();
        let judged = Box::pin(self.record_history(server, room, vec![event], budget)).await?;
        match judged.get(&event_id) {
            Some(true) => Ok(setting),
            _ => Err(PduError::Missing),
        }
    }
}

enum EventLookup {
    /// It has a position, or may not have one.
    Shown,
    /// It is known as an auth event for others.
    Aside(EventRef),
    Nothing,
}

/// The limits on fetches of one request that fills a gap.
struct GapBudget {
    asking: Allowance,
    /// For the state before a change of the history visibility, which is not recorded.
    state: Allowance,
    /// The size of the recorded auth events.
    recorded: usize,
}

impl GapBudget {
    fn until(until: Instant) -> Self {
        let (requests, events) = (limits::GAP_REQUESTS, limits::GAP_AUTH_EVENTS);
        let asking = Allowance::new(requests, events, limits::GAP_BYTES, until);
        Self { asking, state: Allowance::of_state(until), recorded: 0 }
    }
}

impl Step {
    fn known(event: &StoredEvent) -> Self {
        Self {
            event_id: event.event_id.clone(),
            depth: event.depth,
            prev_events: event.prev_events.clone(),
            is_visibility: is_visibility(event),
            sent: None,
        }
    }

    fn sent(pdu: Pdu) -> Self {
        let text = |name: &str| pdu.object.get(name).and_then(CanonicalJsonValue::as_str);
        let depth = pdu.object.get("depth").and_then(CanonicalJsonValue::as_integer);
        let before = named(&pdu.object, "prev_events");
        Self {
            event_id: pdu.event_id.clone(),
            depth: depth.and_then(|depth| u64::try_from(i64::from(depth)).ok()).unwrap_or(0),
            prev_events: before.filter_map(|id| id.try_into().ok()).collect(),
            is_visibility: text("type") == Some(VISIBILITY) && text("state_key") == Some(""),
            sent: Some(pdu),
        }
    }
}

fn is_visibility(event: &StoredEvent) -> bool {
    event.event_type.to_string() == VISIBILITY && event.state_key.as_deref() == Some("")
}

/// The setting in the content of such an event.
fn setting(content: &str) -> String {
    #[derive(Deserialize)]
    struct Content {
        history_visibility: String,
    }
    let content = serde_json::from_str::<Content>(content);
    content.map_or_else(|_| "shared".to_owned(), |content| content.history_visibility)
}

/// The setting in an event in federation format, if it is such an event.
fn visibility_in(pdu: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Event {
        #[serde(rename = "type")]
        event_type: String,
        state_key: String,
        content: Box<RawValue>,
    }
    let event: Event = serde_json::from_str(pdu.get()).ok()?;
    (event.event_type == VISIBILITY && event.state_key.is_empty())
        .then(|| setting(event.content.get()))
}
