//! What becomes of an event: its place in the room, and what it does to the room's state.

use std::collections::HashSet;

use ruma::{OwnedEventId, OwnedServerName, events::TimelineEventType};

use super::{
    index::{Member, Status},
    known::{KnownRoom, KnownTip, is_plain},
    late::forgotten,
    prepare::ReadyEvent,
    progress::WaitingChange,
    states::{FullState, follows_all},
    writer::Writer,
};
use crate::{
    ImportError,
    facts::{Event, Judged, Origin, StateDelta},
};
use logcabin_base::limits;
use logcabin_log::MAX_BATCH_BYTES;
use logcabin_record::{
    Command, NewRecord, Offset, Stream,
    command::{
        Extremity, Outcome, Received, Resolved, RoomEvent, RoomPdu, RoomState, StateBase,
        StateBefore, StateChange, Transaction,
    },
    division::{bare, bytes, parts},
    event_format::has_chosen_ids,
};

/// The row of records that only describe states.
const STATES: &str = "state_groups";

/// How many events of a room a change waits for its own event. The source writes at most some
/// hundred at once.
const PASSING: u32 = 1000;

/// The changes of a room's state that come with an event.
#[derive(Default)]
struct Deltas {
    /// Whether the event holds its key.
    own: bool,
    /// Changes of keys by events that are known, or to none.
    others: Vec<((String, String), Option<Offset>)>,
    /// Whether they are a whole state, as when a server enters a room.
    is_whole: bool,
}

impl Writer<'_> {
    /// Keeps a change of a room's state for its event.
    pub(super) fn delta(&mut self, origin: &Origin, delta: StateDelta) -> Result<(), ImportError> {
        if self.progress.waiting.count >= limits::IMPORT_WAITING_CHANGES {
            return self.leave(
                origin,
                "too many changes wait for their events",
                "there are too many",
            );
        }
        self.progress.waiting.add(delta);
        Ok(())
    }

    /// Writes an event, or leaves it.
    pub(super) fn event(
        &mut self,
        origin: &Origin,
        event: &Event,
        ready: ReadyEvent,
    ) -> Result<(), ImportError> {
        self.known.look_at(ready.room_id.as_str());
        let known = self.known.seen(ready.event_id.as_str());
        let is_outlier =
            matches!(event.judged, Judged::Outlier { .. } | Judged::Rejected { outlier: true, .. });
        match known.map(|known| known.status) {
            Some(Status::Outlier) if !is_outlier => {}
            // It was taken already: a source tells some events twice.
            Some(_) => return Ok(()),
            None => {}
        }
        let ready = match event.judged {
            Judged::Timeline | Judged::Backfilled => self.as_shown(event, ready)?,
            _ => ready,
        };
        match &event.judged {
            Judged::Timeline => self.in_timeline(origin, event, ready),
            Judged::Backfilled => self.aside(origin, event, ready, Outcome::Outlier, None),
            Judged::Outlier { out_of_band } => match *out_of_band && self.is_outside(&ready) {
                true => self.membership(origin, event, ready),
                false => self.aside(origin, event, ready, Outcome::Outlier, None),
            },
            Judged::SoftFailed => {
                let before = self.state_before(event, &ready)?;
                if self.redacts(event, &ready)?.is_some()
                    && let Some(extremities) = self.tips(&ready)
                {
                    return self.redaction_beside(origin, event, ready, (extremities, before));
                }
                let reason = "the room's state did not allow it when it came".to_owned();
                self.aside(origin, event, ready, Outcome::SoftFailed { reason }, before)
            }
            Judged::Rejected { reason, outlier } => {
                let before = match outlier {
                    true => None,
                    false => self.state_before(event, &ready)?,
                };
                let outcome = Outcome::Rejected { reason: reason.clone() };
                self.aside(origin, event, ready, outcome, before)
            }
        }
    }

    /// Whether an event is a membership of a user of this server in a room that it is not in.
    fn is_outside(&self, ready: &ReadyEvent) -> bool {
        let facts = &ready.facts;
        let user_id = facts.state_key.as_deref().filter(|_| facts.member.is_some());
        let is_own =
            |id: &str| id.split_once(':').is_some_and(|(_, server)| self.own.as_str() == server);
        let is_in = |room: &KnownRoom| !room.here.is_empty();
        user_id.is_some_and(is_own)
            && facts.member != Some(Member::Join)
            && !self.known.room(ready.room_id.as_str()).is_some_and(is_in)
    }

    /// An invite, a knock, or the end of one, in a room that this server is not in.
    fn membership(
        &mut self,
        origin: &Origin,
        event: &Event,
        ready: ReadyEvent,
    ) -> Result<(), ImportError> {
        let received = Received {
            stripped: ready.stripped.clone(),
            ..Received::new(ready.sender.server_name().to_owned())
        };
        self.write_event(origin, event, ready, Some(received), (Vec::new(), None))
    }

    /// An event that is not in the timeline.
    fn aside(
        &mut self,
        origin: &Origin,
        event: &Event,
        ready: ReadyEvent,
        outcome: Outcome,
        before: Option<StateBefore>,
    ) -> Result<(), ImportError> {
        let (mut records, before) = self.described(&ready, before);
        let ReadyEvent { room_id, event_id, sender, version, pdu, facts, .. } = ready;
        let is_known = self.known.room(room_id.as_str()).is_some();
        let from = sender.server_name().to_owned();
        let stream = Stream::room(&room_id);
        let room_version = (!is_known).then_some(version);
        let body = RoomPdu { room_id, event_id, sender, from, room_version, outcome, before, pdu };
        let command = Command::RoomPdu(body);
        records.push(self.record(stream, &row(event), event.received_ms, &command));
        match self.append(records)? {
            Err((reason, why)) => self.leave(origin, reason, &why),
            Ok(appended) => {
                if let Command::RoomPdu(body) = command {
                    self.note_pdu(appended.last, &body, &facts, event);
                }
                Ok(())
            }
        }
    }

    /// All forward extremities of a room; `None` if there are none.
    fn tips(&self, ready: &ReadyEvent) -> Option<Vec<Extremity>> {
        let room = self.known.room(ready.room_id.as_str())?;
        let of = |tip: &KnownTip| {
            let event_id = OwnedEventId::try_from(&*tip.event_id).ok()?;
            Some(Extremity { event_id, depth: tip.depth })
        };
        let tips: Vec<Extremity> = room.tips.iter().filter_map(of).collect();
        (!tips.is_empty()).then_some(tips)
    }

    /// A redaction that soft-failed: the source carries it out all the same. It does not change the
    /// room's forward extremities.
    fn redaction_beside(
        &mut self,
        origin: &Origin,
        event: &Event,
        ready: ReadyEvent,
        (extremities, before): (Vec<Extremity>, Option<StateBefore>),
    ) -> Result<(), ImportError> {
        let received = Received {
            extremities,
            beside: true,
            before,
            ..Received::new(ready.sender.server_name().to_owned())
        };
        self.write_event(origin, event, ready, Some(received), (Vec::new(), None))
    }

    /// An event in the timeline.
    fn in_timeline(
        &mut self,
        origin: &Origin,
        event: &Event,
        ready: ReadyEvent,
    ) -> Result<(), ImportError> {
        let facts = &ready.facts;
        let none = KnownRoom::default();
        let room_id = ready.room_id.to_string();
        let deltas = self.deltas(&room_id, event)?;
        let followed = self.followed(&facts.prev_events)?;
        let room = self.known.room(&room_id).unwrap_or(&none);
        let is_own =
            |id: &str| id.split_once(':').is_some_and(|(_, server)| self.own.as_str() == server);
        let is_own_join =
            facts.member == Some(Member::Join) && facts.state_key.as_deref().is_some_and(is_own);
        // The server comes back, or for the first time. What it knew of the room's branches counts
        // no more.
        let enters = !facts.prev_events.is_empty()
            && !follows_all(room, facts)
            && (room.tips.is_empty() || (is_own_join && room.here.is_empty()));
        let mut others: Vec<(u64, Extremity)> = Vec::new();
        if !enters {
            for tip in room.tips.iter().filter(|tip| !followed.contains(&*tip.event_id)) {
                if let Ok(event_id) = OwnedEventId::try_from(&*tip.event_id) {
                    others.push((tip.depth, Extremity { event_id, depth: tip.depth }));
                }
            }
            // The newest ones stay, in their order: with the event itself, as many as there may be.
            while others.len() >= limits::EXTREMITIES {
                let oldest = others
                    .iter()
                    .enumerate()
                    .min_by_key(|(at, (depth, _))| (*depth, usize::MAX - *at));
                let Some(oldest) = oldest.map(|(at, _)| at) else { break };
                others.remove(oldest);
            }
        }
        let mut missing = Vec::new();
        for event_id in facts.prev_events.iter().take(limits::PREDECESSORS) {
            let seen = self.known.seen(event_id.as_str());
            if seen.is_none_or(|seen| seen.status == Status::Outlier) {
                missing.push(event_id.clone());
            }
        }
        let extremities: Vec<Extremity> = others.into_iter().map(|(_, tip)| tip).collect();
        let (changes, before) = match enters {
            true => (self.entered(&room_id, event, &ready, &deltas)?, None),
            false => (Vec::new(), self.state_before(event, &ready)?),
        };
        let is_linear = extremities.is_empty() && before.is_none();
        let resolved = match enters {
            true => None,
            false => self.resolved(&room_id, &ready, deltas, is_linear)?,
        };
        let from: OwnedServerName = ready.sender.server_name().to_owned();
        let is_of_own = from == self.own;
        let is_sent_on = event.metadata.send_on_behalf_of.is_some();
        let mut received = Received {
            relayed: is_of_own || is_sent_on,
            extremities,
            missing,
            before,
            resolved,
            ..Received::new(from)
        };
        let received = if is_of_own {
            received.relayed = false;
            let is_plain = is_plain(&received);
            received.relayed = true;
            (!is_plain).then_some(received)
        } else {
            Some(received)
        };
        let origin_of_state = received.as_ref().map(|received| received.from.clone());
        self.write_event(origin, event, ready, received, (changes, origin_of_state))
    }

    /// What an event follows that names these as its predecessors: of one that was not accepted,
    /// its own predecessors, too, as no other event will name them.
    fn followed(&mut self, prev: &[OwnedEventId]) -> Result<HashSet<OwnedEventId>, ImportError> {
        let mut followed = HashSet::new();
        let mut next = prev.to_vec();
        while let Some(event_id) = next.pop() {
            let seen = self.known.seen(event_id.as_str());
            let is_aside = |status| matches!(status, Status::Aside | Status::Rejected);
            if followed.insert(event_id)
                && let Some(seen) = seen.filter(|seen| is_aside(seen.status))
            {
                let facts = self.facts_at(seen.offset)?;
                next.extend(facts.into_iter().flat_map(|facts| facts.prev_events));
            }
        }
        Ok(followed)
    }

    /// What must change in a room's state before the server enters it with an event.
    fn entered(
        &mut self,
        room_id: &str,
        event: &Event,
        ready: &ReadyEvent,
        deltas: &Deltas,
    ) -> Result<Vec<StateChange>, ImportError> {
        let mut state = FullState::new();
        if deltas.is_whole {
            for (key, event) in &deltas.others {
                state.extend(event.map(|event| (key.clone(), event)));
            }
        } else {
            match self.group_beside(event, &ready.facts) {
                Some(group) => match self.full_state(group)? {
                    Some(full) => state = full,
                    None => return Ok(Vec::new()),
                },
                None => return Ok(Vec::new()),
            }
        }
        let own = ready.facts.key().map(|(of, key)| (of.to_owned(), key.to_owned()));
        if let Some(own) = &own {
            // The event sets it itself.
            state.remove(own);
        }
        let mut changes = self.differences(room_id, &state, true)?;
        changes.retain(|change| {
            own.as_ref().is_none_or(|(event_type, state_key)| {
                (&change.event_type, &change.state_key) != (event_type, state_key)
            })
        });
        // That users of this server are in the room is in the batch of the event.
        let server = self.own.clone();
        changes.sort_by_key(|change| {
            change.event_type == "m.room.member"
                && change.state_key.split_once(':').is_some_and(|(_, of)| server.as_str() == of)
        });
        Ok(changes)
    }

    /// What an event did to the room's state, if that is not just that it set its own key.
    fn resolved(
        &mut self,
        room_id: &str,
        ready: &ReadyEvent,
        deltas: Deltas,
        is_linear: bool,
    ) -> Result<Option<Resolved>, ImportError> {
        let key = ready.facts.key();
        let takes_effect = is_linear || deltas.own || !self.progress.waiting.began;
        let mut changed = Vec::new();
        let none = KnownRoom::default();
        let room = self.known.room(room_id).unwrap_or(&none);
        for ((event_type, state_key), event) in deltas.others {
            let is_own = key == Some((&*event_type, &*state_key));
            if room.holder(&event_type, &state_key) != event && !(is_own && takes_effect) {
                changed.push(((event_type, state_key), event));
            }
        }
        let mut changes = Vec::with_capacity(changed.len());
        for (key, event) in changed {
            changes.push(self.change(key, event, true)?);
        }
        let is_usual = changes.is_empty() && (takes_effect || key.is_none());
        Ok((!is_usual).then(|| Resolved { takes_effect, changes, conflicts: Vec::new() }))
    }

    /// Takes the changes of the room's state that came with an event.
    fn deltas(&mut self, room_id: &str, event: &Event) -> Result<Deltas, ImportError> {
        let waiting = self.progress.waiting.take(room_id, event.stream);
        let forgotten = forgotten(&waiting);
        let mut deltas = Deltas::default();
        let mut later: Vec<WaitingChange> = Vec::new();
        for mut change in waiting {
            let key = (change.event_type.clone(), change.state_key.clone());
            match change.event_id.as_deref() {
                None if forgotten.contains(&change.stream) => deltas.own = true,
                None => deltas.others.push((key, None)),
                Some(event_id) if event_id == event.event_id => deltas.own = true,
                Some(event_id) => match self.known.seen(event_id) {
                    Some(seen) => deltas.others.push((key, Some(seen.offset))),
                    None => {
                        // A later event of the same batch holds it: until then, this one does.
                        deltas.own |= event.state_key.as_deref() == Some(&*change.state_key)
                            && event.event_type == change.event_type;
                        change.passed += 1;
                        if change.passed < PASSING {
                            later.push(change);
                        } else {
                            self.leave_change(&change)?;
                        }
                    }
                },
            }
        }
        self.progress.waiting.put_back(room_id, later);
        deltas.is_whole = deltas
            .others
            .iter()
            .any(|((event_type, _), event)| event_type == "m.room.create" && event.is_some());
        Ok(deltas)
    }

    /// What the record of an event says of the state before it. What does not fit there is in
    /// records before it, with the event as an outlier, which its own record replaces.
    fn described(
        &self,
        ready: &ReadyEvent,
        before: Option<StateBefore>,
    ) -> (Vec<NewRecord>, Option<StateBefore>) {
        let mut records = Vec::new();
        let Some(before) = before else { return (records, None) };
        if bytes(&before.changes) <= limits::EVENT_STATE_BYTES {
            return (records, Some(before));
        }
        let StateBefore { mut base, changes, mut links } = before;
        let pdu = bare(&ready.pdu, &ready.rules);
        for (part, changes) in (1..).zip(parts(changes, limits::STATE_CHANGES_BYTES)) {
            let body = RoomPdu {
                room_id: ready.room_id.clone(),
                event_id: ready.event_id.clone(),
                sender: ready.sender.clone(),
                from: ready.sender.server_name().to_owned(),
                room_version: None,
                outcome: Outcome::Outlier,
                before: Some(StateBefore { base, changes, links }),
                pdu: pdu.clone(),
            };
            records.push(self.record(Stream::room(&ready.room_id), STATES, None, &body.into()));
            (base, links) = (StateBase::Part(part), links + 1);
        }
        (records, Some(StateBefore { base, changes: Vec::new(), links }))
    }

    /// Changes of a room's state as records before the event that makes them.
    fn states(
        &self,
        ready: &ReadyEvent,
        from: &OwnedServerName,
        changes: Vec<StateChange>,
    ) -> Vec<RoomState> {
        let of = |changes| RoomState {
            room_id: ready.room_id.clone(),
            from: from.clone(),
            changes,
            unverified: None,
        };
        parts(changes, limits::STATE_CHANGES_BYTES).into_iter().map(of).collect()
    }

    /// Appends an event to the timeline, after changes of the room's state.
    fn write_event(
        &mut self,
        origin: &Origin,
        event: &Event,
        ready: ReadyEvent,
        received: Option<Received>,
        (changes, from): (Vec<StateChange>, Option<OwnedServerName>),
    ) -> Result<(), ImportError> {
        let room_version =
            self.known.room(ready.room_id.as_str()).is_none().then(|| ready.version.clone());
        let from = from.unwrap_or_else(|| ready.sender.server_name().to_owned());
        let mut states = self.states(&ready, &from, changes);
        let stream = Stream::room(&ready.room_id);
        let mut received = received;
        if let Some(received) = &mut received
            && let Some(resolved) = &mut received.resolved
            && bytes(&resolved.changes) > limits::EVENT_STATE_BYTES
        {
            // They do not fit into its own record.
            let room = self.known.room(ready.room_id.as_str());
            let now = room.map_or(Offset::ZERO, |room| room.last_change(Offset::MAX));
            received.before.get_or_insert_with(|| StateBefore::same_as(StateBase::At(now)));
            let changes = std::mem::take(&mut resolved.changes);
            states.extend(self.states(&ready, &from, changes));
        }
        // Whatever does not fit into the batch of the event comes in batches before it.
        let fitting = MAX_BATCH_BYTES / 2 / limits::STATE_CHANGES_BYTES;
        while states.len() > fitting {
            let first: Vec<RoomState> = states.drain(..fitting).collect();
            if !self.put_states(origin, &stream, first)? {
                return Ok(());
            }
        }
        let before = received.as_mut().and_then(|received| received.before.take());
        let (described, before) = self.described(&ready, before);
        if let Some(received) = &mut received {
            received.before = before;
        }
        let mut records = Vec::with_capacity(states.len() + described.len() + 1);
        let states: Vec<Command> = states.into_iter().map(Command::RoomState).collect();
        records.extend(states.iter().map(|body| self.record(stream.clone(), STATES, None, body)));
        records.extend(described);
        let redacts = self.redacts(event, &ready)?;
        let transaction = self.transaction(event, &ready);
        let ReadyEvent { room_id, event_id, pdu, unsigned, facts, .. } = ready;
        let pdu = match (&received, unsigned) {
            (None, Some(unsigned)) => unsigned,
            _ => pdu,
        };
        let body = RoomEvent {
            room_version,
            transaction,
            redacts,
            received,
            ..RoomEvent::new(room_id, event_id, pdu)
        };
        let command = Command::RoomEvent(body);
        records.push(self.record(stream, &row(event), event.received_ms, &command));
        let appended = match self.append(records)? {
            Ok(appended) => appended,
            Err((reason, why)) => return self.leave(origin, reason, &why),
        };
        for (at, state) in (appended.first.get()..).zip(states) {
            if let Command::RoomState(body) = state {
                self.known.note_state(Offset::new(at), &body);
            }
        }
        if let Command::RoomEvent(body) = command {
            self.note_event(appended.last, &body, &facts, event);
        }
        Ok(())
    }

    /// Appends changes of a room's state as a batch. Returns whether the log took them.
    pub(super) fn put_states(
        &mut self,
        origin: &Origin,
        stream: &Stream,
        states: Vec<RoomState>,
    ) -> Result<bool, ImportError> {
        let states: Vec<Command> = states.into_iter().map(Command::RoomState).collect();
        let records =
            states.iter().map(|body| self.record(stream.clone(), STATES, None, body)).collect();
        match self.append(records)? {
            Err((reason, why)) => {
                self.leave(origin, reason, &why)?;
                Ok(false)
            }
            Ok(appended) => {
                for (at, state) in (appended.first.get()..).zip(states) {
                    if let Command::RoomState(body) = state {
                        self.known.note_state(Offset::new(at), &body);
                    }
                }
                Ok(true)
            }
        }
    }

    /// The event that a redaction redacts, if it takes effect.
    fn redacts(
        &mut self,
        event: &Event,
        ready: &ReadyEvent,
    ) -> Result<Option<Offset>, ImportError> {
        let Some(target_id) = self.redacted_by(ready)? else { return Ok(None) };
        let seen = self.known.seen(target_id.as_str());
        let seen = seen.filter(|seen| seen.status == Status::Timeline);
        let Some(offset) = seen.map(|seen| seen.offset) else { return Ok(None) };
        let Some(target) = self.event_at(offset)? else { return Ok(None) };
        // The source never redacts the first event of a room.
        let is_of_room = target.room_id == ready.room_id
            && target.event_id == target_id
            && target.event_type != TimelineEventType::RoomCreate;
        // Whoever may not redact events of others may redact those of their own server.
        let is_of_server = if has_chosen_ids(&ready.rules) {
            ready.event_id.server_name() == target.event_id.server_name()
        } else {
            ready.sender.server_name() == target.sender.server_name()
        };
        let takes_effect = is_of_room && (!event.metadata.recheck_redaction || is_of_server);
        Ok(takes_effect.then_some(offset))
    }

    /// What the client called the event, if its device is known by now.
    fn transaction(&self, event: &Event, ready: &ReadyEvent) -> Option<Transaction> {
        let id = event.transaction_id.clone()?;
        let device_id = event.device_id.as_deref()?;
        let device: (Box<str>, Box<str>) = (ready.sender.as_str().into(), device_id.into());
        let session = *self.known.all.sessions.get(&device)?;
        let facts = &ready.facts;
        if facts.state_key.is_some() {
            return None;
        }
        let scope = match &facts.redacts {
            Some(target) => format!("redact/{}/{target}", ready.room_id),
            None => format!("send/{}/{}", ready.room_id, facts.event_type),
        };
        Some(Transaction { session, id, scope })
    }
}

/// What the record of an event says of where it comes from.
fn row(event: &Event) -> String {
    format!("event {}", event.stream)
}
