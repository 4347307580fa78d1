//! Events of a room's history that were unknown when later events arrived: they fill gaps, and do
//! not change the room's state.

use std::collections::{BTreeMap, HashSet};

use ruma::{
    EventId, OwnedEventId, OwnedRoomId, OwnedServerName,
    events::{StateEventType, TimelineEventType},
    state_res::events::RoomPowerLevelsIntField,
};

use super::receive::are_of_one_server;
use crate::{Commit, Powers, Proposal, Refusal, not_in_it};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_read::{
    branches::{Branches, ChainError},
    events::{EventRef, EventStore, StoredEvent},
};
use logcabin_record::{
    Offset, Stream,
    command::{Filled, RoomGap},
};
use logcabin_state::{Room, State, rooms::graph::OffTimeline};

/// Put events into a gap of a room's history, or give it up for some time.
#[derive(Clone, Debug)]
pub struct FillGap {
    pub room_id: OwnedRoomId,
    /// The event that follows the gap.
    pub gap: Offset,
    /// The homeserver that sent the events.
    pub from: Option<OwnedServerName>,
    /// The events, which are known, newest first. A change of the history visibility comes with the
    /// previous setting.
    pub events: Vec<(OwnedEventId, Option<String>)>,
    /// Events that are not shown, each with its predecessors.
    pub passed: Vec<(OwnedEventId, Vec<OwnedEventId>)>,
    /// The size of the records made for this, in bytes.
    pub bytes: u64,
    /// If it is given up: until when, in milliseconds since the Unix epoch.
    pub given_up_until_ms: Option<u64>,
}

impl Proposal for FillGap {
    /// Whether anything changed.
    type Outcome = bool;

    fn is_from_elsewhere(&self) -> bool {
        true
    }

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<bool, Refusal> {
        let env = commit.env;
        let room = env.state.rooms.get(&self.room_id).ok_or_else(not_in_it)?;
        let Some(now) = room.gap(self.gap) else { return Ok(false) };
        let graph = Graph { state: &env.state, events: &env.events, room: &room };
        let branches = Branches::new(&env.state, &env.events, &room);
        let mut visibility = room.visibility_at_end(self.gap);
        let is_first = visibility.is_none();
        if is_first {
            visibility = Some(visibility_before(&branches, self.gap)?);
        }
        let mut placed: Vec<Filled> = Vec::new();
        // New ones come first: perhaps no homeserver has those that were already requested.
        let mut candidates = Vec::new();
        // The redactions among them, by the events that they redact.
        let mut redactions: BTreeMap<OwnedEventId, Vec<EventRef>> = BTreeMap::new();
        let mut done: HashSet<&EventId> = self.passed.iter().map(|(id, _)| &**id).collect();
        for (event_id, earlier) in &self.events {
            if graph.shown(event_id)?.is_some() || !done.insert(event_id) {
                continue;
            }
            let Some(event) = branches.find(event_id)? else { continue };
            if room.aside(event.offset) != Some(OffTimeline::Outlier) {
                continue;
            }
            if graph.is_void(&event)? {
                // A step on the way back that clients are not shown.
                candidates.extend(event.prev_events.iter().cloned());
                continue;
            }
            let before = match earlier {
                Some(name) if is_visibility(&event) => Some(known_name(name).to_owned()),
                _ => visibility.clone(),
            };
            let says = (is_first && placed.is_empty()) || before != visibility;
            let mut filled = Filled {
                event: event.offset,
                event_id: event_id.clone(),
                ts: event.origin_server_ts.get().into(),
                visibility: before.clone().filter(|_| says),
                redacts: None,
                redacted_by: None,
            };
            visibility = before;
            if event.event_type == TimelineEventType::RoomRedaction
                && let Some(target) = &event.redacts
            {
                if let Some(shown) = graph.shown(target)?
                    && room.redaction_of(shown.offset, Offset::MAX).is_none()
                    && graph.may_redact(&event, &shown)?
                {
                    filled.redacts = Some(shown.offset);
                }
                redactions.entry(target.clone()).or_default().push(EventRef::clone(&event));
            }
            let mut by = redactions.remove(event_id).unwrap_or_default();
            for offset in room.unmet_redactions(event_id) {
                by.extend(env.events.get(offset)?.filter(|_| room.shows_event(offset)));
            }
            for redaction in by {
                if filled.redacted_by.is_none() && graph.may_redact(&redaction, &event)? {
                    filled.redacted_by = Some(redaction.offset);
                }
            }
            candidates.extend(event.prev_events.iter().cloned());
            placed.push(filled);
        }
        candidates.extend(now.missing.iter().cloned());
        // Last, because they are unverified: they must not displace the others.
        candidates.extend(self.passed.iter().flat_map(|(_, before)| before.iter().cloned()));
        let mut missing = Vec::new();
        let mut seen = HashSet::new();
        for event_id in candidates {
            if missing.len() < limits::GAP_ENDS
                && !done.contains(&*event_id)
                && seen.insert(event_id.clone())
                && graph.is_missing(&event_id)?
            {
                missing.push(event_id);
            }
        }
        if placed.is_empty() && missing == now.missing && self.given_up_until_ms.is_none() {
            return Ok(false);
        }
        // The approximate size of the record itself.
        let ids: usize = missing.iter().map(|event_id| event_id.as_str().len() + 4).sum();
        let own = ids + 160 * placed.len() + 200;
        let gap = RoomGap {
            room_id: self.room_id.clone(),
            gap: self.gap,
            from: self.from.clone(),
            events: placed,
            missing,
            bytes: self.bytes.saturating_add(own as u64),
            given_up_until_ms: self.given_up_until_ms,
        };
        commit.append(self.stream(), gap);
        Ok(true)
    }
}

/// The events of this list that a room has neither in its timeline nor in a gap: the gap before the
/// event that follows them.
pub(super) fn missing_of(
    state: &State,
    events: &EventStore,
    room: &Room,
    prev_events: &[OwnedEventId],
) -> Result<Vec<OwnedEventId>, ReadError> {
    let graph = Graph { state, events, room };
    let mut missing = Vec::new();
    for event_id in prev_events.iter().take(limits::PREDECESSORS) {
        if graph.is_missing(event_id)? {
            missing.push(event_id.clone());
        }
    }
    Ok(missing)
}

struct Graph<'a> {
    state: &'a State,
    events: &'a EventStore,
    room: &'a Room,
}

impl Graph<'_> {
    /// Whether the room does not have the event, or only as an auth event for others.
    fn is_missing(&self, event_id: &EventId) -> Result<bool, ReadError> {
        if self.shown(event_id)?.is_some() {
            return Ok(false);
        }
        let known = self.events.find_known(self.state, self.room, event_id)?;
        Ok(known.is_none_or(|event| self.room.aside(event.offset) == Some(OffTimeline::Outlier)))
    }

    /// The event of the room that clients are shown.
    fn shown(&self, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        let shown = self.events.find_shown(self.state, event_id)?;
        Ok(shown.filter(|event| event.room_id == self.room.id))
    }

    /// Whether it is a redaction of a known event on which it never takes effect.
    fn is_void(&self, event: &EventRef) -> Result<bool, ReadError> {
        let target = event.redacts.as_ref();
        let target = target.filter(|_| event.event_type == TimelineEventType::RoomRedaction);
        let Some(target) = target else { return Ok(false) };
        let Some(shown) = self.events.find_shown(self.state, target)? else { return Ok(false) };
        Ok(shown.room_id != self.room.id || !self.may_redact(event, &shown)?)
    }

    /// Whether a redaction takes effect (room version 3 and later, "Handling redactions"). Its
    /// sender must have had the power by its own auth events, and have it now: a user who lost it
    /// could otherwise invent a past in which they had it.
    fn may_redact(&self, redaction: &EventRef, target: &EventRef) -> Result<bool, ReadError> {
        if redaction.redacts.as_ref() != Some(&target.event_id) {
            return Ok(false);
        }
        if are_of_one_server(redaction, target, &self.room.rules.authorization) {
            return Ok(true);
        }
        let mut then = None;
        for event_id in &redaction.auth_events {
            let auth_event = self.events.find_known(self.state, self.room, event_id)?;
            let is_levels =
                |event: &EventRef| event.event_type == TimelineEventType::RoomPowerLevels;
            if then.is_none() {
                then = auth_event.filter(is_levels);
            }
        }
        let holder = |event_type| match self.room.state_event(&event_type, "", Offset::MAX) {
            Some(offset) => self.events.get(offset),
            None => Ok(None),
        };
        let create = holder(StateEventType::RoomCreate)?;
        let now = holder(StateEventType::RoomPowerLevels)?;
        let may = |levels| {
            let powers = Powers::new(&self.room.rules.authorization, create.clone(), levels);
            powers.has_level(&redaction.sender, RoomPowerLevelsIntField::Redact)
        };
        Ok(may(then) && may(now))
    }
}

fn is_visibility(event: &StoredEvent) -> bool {
    event.event_type == TimelineEventType::RoomHistoryVisibility
        && event.state_key.as_deref() == Some("")
}

/// The history visibility before the event at `offset` of the timeline.
fn visibility_before(branches: &Branches<'_>, offset: Offset) -> Result<String, ReadError> {
    #[derive(serde::Deserialize)]
    struct Content {
        history_visibility: String,
    }
    let event = branches.get(offset)?;
    // For an expired event, the state before it is that of the room.
    let view = event.map_or(Ok(None), |event| branches.before(&event));
    let view = match view {
        Err(ChainError::Read(error)) => return Err(error),
        view => view.ok().flatten(),
    };
    let view = view.unwrap_or_else(|| branches.as_of(offset.prev()));
    let setting = branches.holder(&view, &StateEventType::RoomHistoryVisibility, "")?;
    let content = setting.and_then(|event| event.content_as::<Content>().ok());
    Ok(known_name(content.as_ref().map_or("", |of| &of.history_visibility)).to_owned())
}

/// A history visibility; an unknown value counts as the default.
fn known_name(name: &str) -> &str {
    match name {
        "joined" | "invited" | "world_readable" => name,
        _ => "shared",
    }
}
