//! What the writer remembers of the log: enough to make the next record, and far less than a server
//! keeps of the same log.
//!
//! All of it follows from the records, apart from the source's numbers of states and events, which
//! are in a file of their own ([`super::index`]). So it is saved now and then, and an interrupted
//! import only reads the records after that again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use serde::{Deserialize, Serialize};

use super::{
    index::{EventIndex, Member, Seen, Status},
    prepare::EventFacts,
};
use crate::facts::StateGroup;
use logcabin_base::limits;
use logcabin_read::events::StoredEvent;
use logcabin_record::{
    Command, Offset, Record,
    command::{
        Outcome, Received, RoomEvent, RoomGap, RoomPdu, RoomState, StateBase, StateBefore,
        StateChange,
    },
};

/// A room, as the log has it so far.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KnownRoom {
    /// The forward extremities, newest record first.
    pub(super) tips: Vec<KnownTip>,
    /// The state now, by type and key.
    pub(super) state: BTreeMap<Box<str>, BTreeMap<Box<str>, Offset>>,
    /// The records that changed the state.
    pub(super) changes: Vec<Offset>,
    /// The source's number of the state now, if it has one.
    pub(super) group: Option<i64>,
    /// How states of the room's branches can be named, newest last.
    pub(super) states: VecDeque<KnownState>,
    /// The users of this server who are in it.
    pub(super) here: BTreeSet<Box<str>>,
    /// Events with unknown predecessors, each with its depth and how many events fill the gap.
    pub(super) gaps: BTreeMap<Offset, KnownGap>,
    /// Events from the past that are in no gap yet.
    pub(super) unplaced: Vec<Unplaced>,
    /// Redactions whose events were not in the timeline, by these events.
    pub(super) unmet: BTreeMap<Box<str>, Vec<Offset>>,
}

/// A forward extremity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownTip {
    pub(super) event_id: Box<str>,
    pub(super) depth: u64,
}

/// A state by the source's number, and how a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownState {
    pub(super) group: i64,
    pub(super) base: StateBase,
    pub(super) links: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KnownGap {
    pub(super) depth: u64,
    pub(super) filled: u64,
    /// The oldest history visibility in it, once it has one.
    pub(super) visibility: Option<Box<str>>,
    pub(super) missing: Vec<Box<str>>,
}

/// An event from the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unplaced {
    pub(super) offset: Offset,
    pub(super) event_id: Box<str>,
    pub(super) depth: u64,
    pub(super) ts: u64,
    pub(super) visibility: Option<Box<str>>,
    pub(super) redacts: Option<Box<str>>,
}

impl KnownRoom {
    pub(super) fn holder(&self, event_type: &str, state_key: &str) -> Option<Offset> {
        self.state.get(event_type)?.get(state_key).copied()
    }

    /// The last record up to `at` that changed the state: the room's state is the same at both.
    pub(super) fn last_change(&self, at: Offset) -> Offset {
        let end = self.changes.partition_point(|change| *change <= at);
        let last = end.checked_sub(1).and_then(|last| self.changes.get(last));
        last.copied().unwrap_or(Offset::ZERO)
    }

    /// How a state is named by its number.
    pub(super) fn named(&self, group: StateGroup) -> Option<&KnownState> {
        self.states.iter().rev().find(|state| state.group == group.0)
    }

    fn set(&mut self, at: Offset, (event_type, state_key): (&str, &str), event: Option<Offset>) {
        if self.changes.last() != Some(&at) {
            self.changes.push(at);
        }
        let Some(event) = event else {
            if let Some(keys) = self.state.get_mut(event_type) {
                keys.remove(state_key);
            }
            return;
        };
        if let Some(holder) = self.state.get_mut(event_type).and_then(|of| of.get_mut(state_key)) {
            *holder = event;
            return;
        }
        self.state.entry(event_type.into()).or_default().insert(state_key.into(), event);
    }

    fn change(&mut self, at: Offset, change: &StateChange, own: &str) {
        let key = (&*change.event_type, &*change.state_key);
        self.set(at, key, change.event);
        if change.event_type == "m.room.member" {
            let member = change.membership.as_deref().and_then(Member::named);
            self.come_or_go(&change.state_key, member.filter(|_| change.event.is_some()), own);
        }
    }

    fn come_or_go(&mut self, user_id: &str, member: Option<Member>, own: &str) {
        if user_id.split_once(':').is_none_or(|(_, server)| server != own) {
            return;
        }
        match member {
            Some(Member::Join) => self.here.insert(user_id.into()),
            _ => self.here.remove(user_id),
        };
    }

    fn name_state(&mut self, state: KnownState) {
        let known = self.states.iter().position(|known| known.group == state.group);
        // The one with the shorter way to a state of the room stays.
        let kept = known.and_then(|at| self.states.remove(at));
        let state = kept.filter(|kept| kept.links < state.links).unwrap_or(state);
        self.states.push_back(state);
        if self.states.len() > limits::IMPORT_STATES {
            self.states.pop_front();
        }
    }

    /// How the state after an event is named that has just been noted, and has another state beside
    /// it. `before` is what its record says of the state before it.
    fn after(
        &self,
        offset: Offset,
        facts: &EventFacts,
        before: Option<&StateBefore>,
    ) -> (StateBase, u64) {
        let links = before.map_or(0, |before| before.links);
        if facts.state_key.is_some() {
            return (StateBase::After(offset), links + 1);
        }
        match before {
            None => (StateBase::At(self.last_change(offset.prev())), 0),
            // A message may expire: nothing should depend on it unnecessarily.
            Some(StateBefore { base, changes, .. })
                if changes.is_empty() && !matches!(base, StateBase::Part(_)) =>
            {
                (*base, links)
            }
            Some(_) => (StateBase::Before(offset), links + 1),
        }
    }
}

/// The part of a log that is remembered.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct KnownRooms {
    pub(super) rooms: BTreeMap<Box<str>, KnownRoom>,
    /// Hashes of the records that are not about rooms: what was written once is not repeated.
    pub(super) written: HashSet<u64>,
    /// Users with accounts.
    pub(super) accounts: HashSet<Box<str>>,
    /// Users with fields of their profiles.
    pub(super) profiles: BTreeSet<(Box<str>, Box<str>)>,
    /// Uploaded files, by their ids.
    pub(super) media: HashSet<Box<str>>,
    /// The records with keys of each user's backups.
    pub(super) backups: BTreeMap<Box<str>, Vec<Offset>>,
    /// Rooms that were purged, each with the record that did it: what is known of earlier events
    /// of the room counts no more.
    pub(super) purged: BTreeMap<Box<str>, Offset>,
    /// The session of each device, by user and device.
    pub(super) sessions: HashMap<(Box<str>, Box<str>), Offset>,
}

/// All that is remembered of a log.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) events: EventIndex,
    pub(super) all: KnownRooms,
    /// The name of this server.
    pub(super) own: Box<str>,
    /// Events up to this record are not those of the room that is looked at: see
    /// [`Known::look_at`].
    floor: Offset,
}

/// A hash of a record without its place in the log.
pub(super) fn fingerprint(kind: &str, stream: &str, payload: &[u8]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in [kind.as_bytes(), stream.as_bytes(), payload] {
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let hash = hasher.finalize();
    hash.as_bytes()[..8].iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

impl Known {
    pub(super) fn new(own: &str, secret: &[u8]) -> Self {
        let (events, all) = (EventIndex::new(secret), KnownRooms::default());
        Self { events, all, own: own.into(), floor: Offset::ZERO }
    }

    /// What is [`seen`](Self::seen) from now on is of this room.
    pub(super) fn look_at(&mut self, room_id: &str) {
        self.floor = self.all.purged.get(room_id).copied().unwrap_or_default();
    }

    /// An event of the room that is looked at.
    pub(super) fn seen(&self, event_id: &str) -> Option<Seen> {
        self.events.get(event_id).filter(|seen| seen.offset > self.floor)
    }

    pub(super) fn room(&self, room_id: &str) -> Option<&KnownRoom> {
        self.all.rooms.get(room_id)
    }

    fn room_mut(&mut self, room_id: &str) -> &mut KnownRoom {
        if !self.all.rooms.contains_key(room_id) {
            self.all.rooms.insert(room_id.into(), KnownRoom::default());
        }
        self.all.rooms.entry(room_id.into()).or_default()
    }

    /// Notes an event in the timeline of its room. Its own entry in the index must exist.
    pub(super) fn note_event(
        &mut self,
        offset: Offset,
        body: &RoomEvent,
        facts: &EventFacts,
        group: Option<StateGroup>,
    ) {
        let own = std::mem::take(&mut self.own);
        let room = self.room_mut(body.room_id.as_str());
        let received = body.received.as_ref();
        let resolved = received.and_then(|received| received.resolved.as_ref());
        let takes_effect = resolved.is_none_or(|resolved| resolved.takes_effect);
        let changes = resolved.map_or(&[][..], |resolved| &resolved.changes);
        if let Some(key) = facts.key().filter(|_| takes_effect) {
            room.set(offset, key, Some(offset));
            if key.0 == "m.room.member" {
                room.come_or_go(key.1, facts.member, &own);
            }
        }
        for change in changes {
            room.change(offset, change, &own);
        }
        let mut tips = Vec::new();
        if !received.is_some_and(|received| received.beside) {
            let event_id = body.event_id.as_str().into();
            tips.push(KnownTip { event_id, depth: facts.depth });
        }
        tips.extend(
            received
                .into_iter()
                .flat_map(|received| &received.extremities)
                .map(|tip| KnownTip { event_id: tip.event_id.as_str().into(), depth: tip.depth }),
        );
        room.tips = tips;
        let before = received.and_then(|received| received.before.as_ref());
        let is_alone = received.is_none_or(|received| received.extremities.is_empty());
        if is_alone {
            room.group = group.map(|group| group.0);
        } else if (facts.state_key.is_some() && takes_effect) || !changes.is_empty() {
            room.group = None;
        }
        if let Some(group) = group {
            let (base, links) = match is_alone {
                true => (StateBase::At(room.last_change(offset)), 0),
                false => room.after(offset, facts, before),
            };
            room.name_state(KnownState { group: group.0, base, links });
        }
        let missing = received.map_or(&[][..], |received| &received.missing);
        if !missing.is_empty() {
            let missing = missing.iter().map(|id| id.as_str().into()).collect();
            let gap = KnownGap { depth: facts.depth, missing, ..KnownGap::default() };
            room.gaps.insert(offset, gap);
        }
        if body.redacts.is_none()
            && let Some(target) = &facts.redacts
        {
            room.unmet.entry(target.as_str().into()).or_default().push(offset);
        }
        self.own = own;
    }

    /// Notes an event that is not in the timeline. Its own entry in the index must exist.
    pub(super) fn note_pdu(&mut self, offset: Offset, body: &RoomPdu, facts: &EventFacts) {
        let seen = self.events.get(body.event_id.as_str());
        let group = seen.and_then(|seen| seen.group);
        // Of several records of an event, the last one may say that it has a place in the past.
        let is_past =
            seen.is_some_and(|seen| seen.offset == offset && seen.status == Status::Aside);
        let room = self.room_mut(body.room_id.as_str());
        match &body.outcome {
            Outcome::Outlier if is_past => room.unplaced.push(Unplaced {
                offset,
                event_id: body.event_id.as_str().into(),
                depth: facts.depth,
                ts: facts.ts,
                visibility: facts.visibility.as_deref().map(Into::into),
                redacts: facts.redacts.as_ref().map(|target| target.as_str().into()),
            }),
            Outcome::Outlier | Outcome::Rejected { .. } => {}
            Outcome::SoftFailed { .. } => {
                if let Some(group) = group {
                    let (base, links) = room.after(offset, facts, body.before.as_ref());
                    room.name_state(KnownState { group: group.0, base, links });
                }
                if let Some(target) = &facts.redacts {
                    room.unmet.entry(target.as_str().into()).or_default().push(offset);
                }
            }
        }
    }

    pub(super) fn note_state(&mut self, offset: Offset, body: &RoomState) {
        let own = std::mem::take(&mut self.own);
        let room = self.room_mut(body.room_id.as_str());
        for change in &body.changes {
            room.change(offset, change, &own);
        }
        room.group = None;
        self.own = own;
    }

    pub(super) fn note_gap(&mut self, body: &RoomGap) {
        let room = self.room_mut(body.room_id.as_str());
        let placed: HashSet<Offset> = body.events.iter().map(|filled| filled.event).collect();
        room.unplaced.retain(|event| !placed.contains(&event.offset));
        if let Some(gap) = room.gaps.get_mut(&body.gap) {
            gap.filled += placed.len() as u64;
            gap.missing = body.missing.iter().map(|id| id.as_str().into()).collect();
            let last = body.events.iter().rev().find_map(|filled| filled.visibility.as_deref());
            if let Some(visibility) = last {
                gap.visibility = Some(visibility.into());
            }
        }
        let met = body.events.iter().filter(|filled| filled.redacted_by.is_some());
        for filled in met {
            room.unmet.remove(filled.event_id.as_str());
        }
    }

    /// Notes an imported record that is not an event. Those of the server itself are not imported.
    pub(super) fn note_other(
        &mut self,
        offset: Offset,
        (kind, stream, payload): (&str, &str, &[u8]),
        command: &Command,
    ) {
        self.all.written.insert(fingerprint(kind, stream, payload));
        match command {
            Command::UserRegister(body) => {
                self.all.accounts.insert(body.user_id.as_str().into());
            }
            Command::ProfileSet(body) => {
                let field = (body.user_id.as_str().into(), body.field.as_str().into());
                match body.value {
                    Some(_) => self.all.profiles.insert(field),
                    None => self.all.profiles.remove(&field),
                };
            }
            Command::MediaUpload(body) => {
                self.all.media.insert(body.media_id.as_str().into());
            }
            Command::MediaRemove(body) => {
                for media_id in &body.media_ids {
                    self.all.media.remove(media_id.as_str());
                }
            }
            Command::RoomPurge(body) => {
                self.all.rooms.remove(body.room_id.as_str());
                self.all.purged.insert(body.room_id.as_str().into(), offset);
            }
            Command::KeyBackupPut(body) => {
                let records = self.all.backups.entry(body.user_id.as_str().into());
                records.or_default().push(offset);
            }
            Command::DeviceLogin(body) => {
                let device = device(body.user_id.as_str(), body.device_id.as_str());
                self.all.sessions.insert(device, offset);
            }
            Command::DeviceRemove(body) => {
                for device_id in &body.devices {
                    let device = device(body.user_id.as_str(), device_id.as_str());
                    self.all.sessions.remove(&device);
                }
            }
            _ => {}
        }
    }

    /// Notes a record that was read from the log. With `rows`, the index lacks its event, too.
    ///
    /// # Errors
    /// When it is not a record that an import has written. The error is a sentence without its full
    /// stop.
    pub(super) fn note_record(&mut self, record: &Record, rows: bool) -> Result<(), String> {
        let offset = record.offset();
        let from = record.header.origin.import();
        let command = record.command().map_err(|error| error.to_string())?;
        let (Some(command), Some(payload)) = (command, record.payload.bytes()) else {
            return Err(format!("record {offset} was erased"));
        };
        let stream = from.and_then(|from| from.event());
        let unreadable = |error: serde_json::Error| format!("record {offset}: {error}");
        match &command {
            Command::RoomEvent(body) => {
                let event = StoredEvent::new(offset, body.clone()).map_err(unreadable)?;
                let facts = EventFacts::of(&event)?;
                if rows {
                    let seen = seen(offset, Status::Timeline, &facts, None);
                    self.events.put(body.event_id.as_str(), seen, stream.unwrap_or_default());
                }
                let group = self.events.get(body.event_id.as_str()).and_then(|seen| seen.group);
                self.note_event(offset, body, &facts, group);
            }
            Command::RoomPdu(body) => {
                let event = StoredEvent::of_pdu(offset, body.clone()).map_err(unreadable)?;
                let facts = EventFacts::of(&event)?;
                // Others only describe a state, see `Writer::described`.
                let Some(stream) = stream else { return Ok(()) };
                if rows {
                    // An event that is recorded again has found its place in the past.
                    let is_past = stream < 0 && self.events.get(body.event_id.as_str()).is_some();
                    let status = status_of(&body.outcome, is_past);
                    let seen = seen(offset, status, &facts, None);
                    self.events.put(body.event_id.as_str(), seen, stream);
                }
                self.note_pdu(offset, body, &facts);
            }
            Command::RoomState(body) => self.note_state(offset, body),
            Command::RoomGap(body) => self.note_gap(body),
            _ if from.is_none() => {}
            command => {
                let header = &record.header;
                let of = (&*header.kind, header.stream.as_str(), &payload[..]);
                self.note_other(offset, of, command);
            }
        }
        Ok(())
    }
}

fn device(user_id: &str, device_id: &str) -> (Box<str>, Box<str>) {
    (user_id.into(), device_id.into())
}

/// What the index remembers of an event.
pub(super) fn seen(
    offset: Offset,
    status: Status,
    facts: &EventFacts,
    group: Option<StateGroup>,
) -> Seen {
    Seen { offset, status, member: facts.member, group }
}

/// What the index remembers of an event that is not in the timeline. With `is_past`, it has a place
/// in the room's past.
pub(super) const fn status_of(outcome: &Outcome, is_past: bool) -> Status {
    match outcome {
        // Events from the past get into a gap: they are not what is missing.
        Outcome::Outlier if is_past => Status::Aside,
        Outcome::Outlier => Status::Outlier,
        Outcome::SoftFailed { .. } => Status::Aside,
        Outcome::Rejected { .. } => Status::Rejected,
    }
}

/// Of an event of another homeserver, with everything else empty.
pub(super) fn is_plain(received: &Received) -> bool {
    !received.relayed
        && !received.beside
        && received.extremities.is_empty()
        && received.missing.is_empty()
        && received.before.is_none()
        && received.resolved.is_none()
        && received.stripped.is_empty()
}
