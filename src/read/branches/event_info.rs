//! What state resolution keeps of events, without their contents: their auth events, by number,
//! their power levels, and earlier results.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use ruma::{
    EventId, OwnedEventId,
    events::{
        TimelineEventType,
        room::{member::MembershipState, power_levels::UserPowerLevel},
    },
    state_res::events::RoomMemberEvent,
};

use super::{Branches, ChainError, EventRef, Memo, memo::is_stand_in};
use logcabin_base::limits;
use logcabin_log::ReadError;
use logcabin_record::{Offset, event_format::has_chosen_ids};

#[derive(Debug)]
pub struct EventInfo {
    pub id: OwnedEventId,
    /// Its record, or a stand-in for one that it does not have yet; 0 if the event is not known.
    pub record: u64,
    /// Whether no later record can replace `record`.
    is_final: bool,
    /// The newest candidate for its record, when it was last looked up.
    checked: Offset,
    /// A hash of what may change under the same id: a homeserver may have sent it redacted.
    print: u64,
    pub rejected: bool,
    /// Whether it is a power event: see [`is_about_power`].
    pub is_about_power: bool,
    is_levels: bool,
    /// The numbers of its auth events.
    pub auth: Box<[u32]>,
    /// The power levels among them.
    pub levels: Levels,
    /// The length of the longest path through auth events to an event without any.
    pub generation: u32,
    /// The number of its state key, if it is a state event.
    pub key: Option<u32>,
    pub ts: u64,
    /// The power of its sender, once computed.
    pub power: Option<Result<UserPowerLevel, String>>,
    /// The numbers of the state keys that the auth rules read for it, once computed; the inner
    /// `None` if it is malformed.
    pub needs: Option<Option<Box<[u32]>>>,
    /// The events that held these keys when the auth rules last judged it, and the result.
    pub verdict: Option<(Box<[u32]>, bool)>,
}

/// The power levels among an event's auth events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Levels {
    None,
    Some(u32),
    /// An event listed before the power levels is not known.
    Broken,
}

/// Stands for "no event" in lists of the events that hold keys.
pub const NOBODY: u32 = u32::MAX;

/// An event that was read, until all its auth events are known.
struct UnlinkedEvent {
    known: EventInfo,
    auth: Vec<OwnedEventId>,
}

impl Memo {
    pub fn event(&self, number: u32) -> Option<&EventInfo> {
        self.events.get(number as usize)
    }

    pub fn event_mut(&mut self, number: u32) -> Option<&mut EventInfo> {
        self.events.get_mut(number as usize)
    }

    /// Whether an event is known, and allowed where it was sent.
    pub fn is_good(&self, number: u32) -> bool {
        self.event(number).is_some_and(|event| event.record != 0 && !event.rejected)
    }

    pub fn levels_named(&self, number: u32) -> Option<u32> {
        let mut auth = self.event(number)?.auth.iter();
        let is_levels = |number: &&u32| {
            self.event(**number).is_some_and(|event| event.record != 0 && event.is_levels)
        };
        auth.find(is_levels).copied()
    }

    fn add(&mut self, mut known: EventInfo) -> u32 {
        let number = u32::try_from(self.events.len()).unwrap_or(NOBODY);
        known.generation = 0;
        for auth in &known.auth {
            let above = self.event(*auth).map_or(0, |auth| auth.generation.saturating_add(1));
            known.generation = known.generation.max(above);
        }
        known.levels = self.levels_among(&known.auth);
        if known.record != 0 {
            self.records.insert(known.record, number);
        }
        self.ids.insert(known.id.clone(), number);
        self.events.push(known);
        number
    }

    fn levels_among(&self, auth: &[u32]) -> Levels {
        for number in auth {
            match self.event(*number) {
                Some(event) if event.record == 0 => return Levels::Broken,
                None => return Levels::Broken,
                Some(event) if event.is_levels => return Levels::Some(*number),
                Some(_) => {}
            }
        }
        Levels::None
    }
}

impl Branches<'_> {
    /// The number of the event with this id. Afterwards its whole auth chain is known.
    ///
    /// # Errors
    /// When that takes too much work, or an event has changed.
    pub fn know(&self, memo: &mut Memo, event_id: &EventId) -> Result<u32, ChainError> {
        if let Some(number) = memo.ids.get(event_id).copied() {
            self.refresh(memo, number)?;
            return Ok(number);
        }
        let mut sketches: HashMap<OwnedEventId, UnlinkedEvent> = HashMap::new();
        let mut todo = vec![event_id.to_owned()];
        while let Some(next) = todo.last() {
            if memo.ids.contains_key(next) {
                todo.pop();
                continue;
            }
            let known = memo.events.len() + sketches.len();
            match sketches.entry(next.clone()) {
                // All its auth events were visited. One that is still unknown depends on this one.
                Entry::Occupied(sketch) => {
                    let UnlinkedEvent { mut known, auth } = sketch.remove();
                    known.auth = auth.iter().filter_map(|id| memo.ids.get(id)).copied().collect();
                    memo.add(known);
                    todo.pop();
                }
                Entry::Vacant(place) => {
                    self.work(1)?;
                    if known >= limits::RESOLUTION_CHAIN {
                        return Err(ChainError::TooMany);
                    }
                    let sketch = place.insert(self.sketch(memo, next)?);
                    let auth = sketch.auth.clone();
                    let is_new = |id: &OwnedEventId| {
                        !memo.ids.contains_key(id) && !sketches.contains_key(id)
                    };
                    todo.extend(auth.into_iter().filter(is_new));
                }
            }
        }
        memo.ids.get(event_id).copied().ok_or(ChainError::Changed)
    }

    pub fn know_record(&self, memo: &mut Memo, record: u64) -> Result<u32, ChainError> {
        if let Some(number) = memo.records.get(&record).copied() {
            return Ok(number);
        }
        let Some(event) = self.get(Memo::offset(record))? else { return Ok(NOBODY) };
        let number = self.know(memo, &event.event_id)?;
        memo.records.insert(record, number);
        Ok(number)
    }

    /// The numbers of the auth events of the event in this record. Nothing else of the event is
    /// kept, because there may be very many.
    pub fn auth_events(&self, memo: &mut Memo, record: u64) -> Result<Arc<[u32]>, ChainError> {
        if let Some(auth) = memo.auth_events.get(&record) {
            return Ok(Arc::clone(auth));
        }
        let event = self.get(Memo::offset(record))?;
        let mut auth = Vec::new();
        for event_id in event.iter().flat_map(|event| &event.auth_events) {
            auth.push(self.know(memo, event_id)?);
        }
        let auth = Arc::from(auth);
        memo.auth_events.insert(record, Arc::clone(&auth));
        Ok(auth)
    }

    /// Looks up an event again, which may have a newer record by now.
    ///
    /// # Errors
    /// When it was decided again. Everything known of events is then forgotten.
    pub fn refresh(&self, memo: &mut Memo, number: u32) -> Result<(), ChainError> {
        let Some(known) = memo.event(number).filter(|known| !known.is_final) else {
            return Ok(());
        };
        if known.checked == self.newest(&known.id) && !is_stand_in(known.record) {
            return Ok(());
        }
        self.work(1)?;
        let id = known.id.clone();
        let UnlinkedEvent { known: now, .. } = self.sketch(memo, &id)?;
        let Some(known) = memo.event_mut(number) else { return Ok(()) };
        let is_same = (known.print, known.rejected) == (now.print, now.rejected)
            && (known.record == 0) == (now.record == 0);
        if !is_same {
            // Results for other events may depend on it.
            memo.forget_events();
            return Err(ChainError::Changed);
        }
        known.record = now.record;
        known.checked = now.checked;
        known.is_final = now.is_final;
        if now.record != 0 {
            memo.records.insert(now.record, number);
        }
        Ok(())
    }

    fn newest(&self, event_id: &EventId) -> Offset {
        // A record that is being applied may be in the index before it is in the room.
        let mut records = self.state.events.candidates(event_id);
        records.retain(|at| self.room.holds(*at));
        records.into_iter().max().unwrap_or(Offset::ZERO)
    }

    fn sketch(&self, memo: &mut Memo, event_id: &EventId) -> Result<UnlinkedEvent, ReadError> {
        let checked = self.newest(event_id);
        let Some(event) = self.look(event_id)? else {
            let known = EventInfo::unknown(event_id, checked);
            return Ok(UnlinkedEvent { known, auth: Vec::new() });
        };
        let mut print = DefaultHasher::new();
        if has_chosen_ids(&self.room.rules) {
            // Another event may have claimed the id meanwhile.
            event.pdu.get().hash(&mut print);
        } else {
            event.content.get().hash(&mut print);
        }
        let known = EventInfo {
            record: self.record_of(memo, &event),
            is_final: event.aside.is_none() && event.offset != super::PENDING,
            print: print.finish(),
            rejected: ruma::state_res::Event::rejected(&*event),
            is_about_power: is_about_power(&event),
            is_levels: event.event_type == TimelineEventType::RoomPowerLevels
                && event.state_key.as_deref() == Some(""),
            key: event.key().map(|(event_type, key)| memo.number(&event_type, &key)),
            ts: event.origin_server_ts.get().into(),
            ..EventInfo::unknown(event_id, checked)
        };
        Ok(UnlinkedEvent { known, auth: event.auth_events.clone() })
    }
}

impl EventInfo {
    fn unknown(event_id: &EventId, checked: Offset) -> Self {
        Self {
            id: event_id.to_owned(),
            record: 0,
            is_final: false,
            checked,
            print: 0,
            rejected: false,
            is_about_power: false,
            is_levels: false,
            auth: Box::default(),
            levels: Levels::None,
            generation: 0,
            key: None,
            ts: 0,
            power: None,
            needs: None,
            verdict: None,
        }
    }
}

/// Whether an event is a power event (room version 2, "Power event").
pub fn is_about_power(event: &EventRef) -> bool {
    match event.event_type {
        TimelineEventType::RoomPowerLevels
        | TimelineEventType::RoomJoinRules
        | TimelineEventType::RoomCreate => event.state_key.as_deref() == Some(""),
        TimelineEventType::RoomMember => {
            let is = RoomMemberEvent::new(EventRef::clone(event)).membership();
            is.is_ok_and(|is| matches!(is, MembershipState::Leave | MembershipState::Ban))
                && event.state_key.as_deref() != Some(event.sender.as_str())
        }
        _ => false,
    }
}
