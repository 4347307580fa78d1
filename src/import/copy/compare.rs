//! At the end, each room is compared with what the source says of it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{
    changes::last_change, index::Status, known::KnownRoom, progress::Pass, writer::Writer,
};
use crate::{
    ImportError,
    facts::{CurrentState, ForwardExtremity, Key, Origin},
};
use logcabin_record::Offset;

/// How many rooms are named. All are counted.
const NAMED: usize = 1000;

/// How many differences of one room are listed.
const LISTED: usize = 20;

/// A room that is not what the source says it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DifferingRoom {
    pub room_id: String,
    /// How many keys of the state have another event.
    pub state: u64,
    /// Whether the forward extremities are others.
    pub extremities: bool,
}

/// What the comparison found so far.
#[derive(Debug, Default)]
pub(super) struct Comparison {
    /// How many rooms were compared.
    pub(super) compared: u64,
    pub(super) differing: u64,
    pub(super) rooms: Vec<DifferingRoom>,
    /// How many rooms have more forward extremities in the source than are kept.
    pub(super) cut: u64,
    state: Option<StateOfRoom>,
    tips: Option<(String, BTreeSet<String>)>,
}

#[derive(Debug)]
struct StateOfRoom {
    room_id: String,
    keys: usize,
    differing: u64,
}

impl Comparison {
    fn differs(&mut self, room: DifferingRoom) {
        let known = self.rooms.iter_mut().find(|of| of.room_id == room.room_id);
        if let Some(known) = known {
            known.state += room.state;
            known.extremities |= room.extremities;
            return;
        }
        self.differing += 1;
        if self.rooms.len() < NAMED {
            self.rooms.push(room);
        }
    }
}

impl Writer<'_> {
    /// Notes a difference. What differs while the source is in use is compared again.
    fn differs(&mut self, line: &str) -> Result<(), ImportError> {
        match self.progress.pass {
            Pass::Finish => self.list.note(&mut self.progress.counts, line),
            _ => Ok(()),
        }
    }

    /// Compares an entry of a room's state. They come room by room.
    pub(super) fn compare_state(
        &mut self,
        so_far: &mut Comparison,
        entry: &CurrentState,
    ) -> Result<(), ImportError> {
        if so_far.state.as_ref().is_none_or(|of| of.room_id != entry.room_id) {
            self.end_state(so_far)?;
            let room_id = entry.room_id.clone();
            so_far.state = Some(StateOfRoom { room_id, keys: 0, differing: 0 });
        }
        let Some(of) = &mut so_far.state else { return Ok(()) };
        of.keys += 1;
        self.known.look_at(&entry.room_id);
        let wanted = self.known.seen(&entry.event_id).map(|seen| seen.offset);
        let room = self.known.room(&entry.room_id);
        let held = room.and_then(|room| room.holder(&entry.event_type, &entry.state_key));
        if wanted.is_some() && (held == wanted || self.is_event(held, &entry.event_id)?) {
            return Ok(());
        }
        of.differing += 1;
        if of.differing <= LISTED as u64 {
            let CurrentState { room_id, event_type, state_key, event_id, .. } = entry;
            let line = format!(
                "room {room_id}: {event_id} holds {event_type} `{state_key}` in the source only"
            );
            self.differs(&line)?;
        }
        Ok(())
    }

    /// Whether a record has this event. Of an event that was an outlier and found its place in the
    /// past there are two.
    fn is_event(&mut self, record: Option<Offset>, event_id: &str) -> Result<bool, ImportError> {
        let Some(record) = record else { return Ok(false) };
        Ok(self.event_at(record)?.is_some_and(|event| event.event_id == event_id))
    }

    /// Ends the comparison of the states.
    pub(super) fn end_state(&mut self, so_far: &mut Comparison) -> Result<(), ImportError> {
        let Some(of) = so_far.state.take() else { return Ok(()) };
        so_far.compared += 1;
        let at = self.known.room(&of.room_id).map(last_change);
        let count = |room: &KnownRoom| room.state.values().map(|keys| keys.len()).sum::<usize>();
        let here = self.known.room(&of.room_id).map_or(0, count);
        // Keys that only this side has.
        let more = (here as u64).saturating_sub(of.keys as u64);
        let state = of.differing + more;
        if state > 0 {
            if more > 0 {
                let line = format!("room {}: {more} keys of the state are only here", of.room_id);
                self.differs(&line)?;
            }
            self.marks.rooms.remove(&of.room_id);
            so_far.differs(DifferingRoom { room_id: of.room_id, state, extremities: false });
        } else if let Some(at) = at {
            self.marks.rooms.insert(of.room_id, at);
        }
        Ok(())
    }

    /// Lists the rooms that are here and that nobody can use.
    pub(super) fn note_useless_rooms(&mut self) -> Result<(), ImportError> {
        let all = self.known.all.rooms.iter();
        let useless = all.filter(|(_, room)| {
            !room.here.is_empty() && room.holder("m.room.create", "").is_none()
        });
        let useless: Vec<String> = useless.map(|(room_id, _)| room_id.to_string()).collect();
        for room_id in useless {
            let line = format!("room {room_id}: it has no m.room.create event, and cannot be used");
            self.list.note(&mut self.progress.counts, &line)?;
        }
        Ok(())
    }

    /// Compares a forward extremity. They come room by room.
    pub(super) fn compare_tip(
        &mut self,
        so_far: &mut Comparison,
        tip: ForwardExtremity,
    ) -> Result<(), ImportError> {
        if so_far.tips.as_ref().is_none_or(|(room_id, _)| *room_id != tip.room_id) {
            self.end_tips(so_far)?;
            so_far.tips = Some((tip.room_id.clone(), BTreeSet::new()));
        }
        if let Some((_, tips)) = &mut so_far.tips {
            tips.insert(tip.event_id);
        }
        Ok(())
    }

    /// Ends the comparison of the extremities.
    pub(super) fn end_tips(&mut self, so_far: &mut Comparison) -> Result<(), ImportError> {
        let Some((room_id, tips)) = so_far.tips.take() else { return Ok(()) };
        let of = |room: &KnownRoom| -> BTreeSet<String> {
            room.tips.iter().map(|tip| tip.event_id.to_string()).collect()
        };
        let here = self.known.room(&room_id).map(of).unwrap_or_default();
        // A room that nobody here is in has no other state to be wrong about.
        let is_in = self.known.room(&room_id).is_some_and(|room| !room.here.is_empty());
        if here == tips || !is_in {
            return Ok(());
        }
        self.known.look_at(&room_id);
        let is_known = |event_id: &String| {
            let seen = self.known.seen(event_id);
            seen.is_some_and(|seen| seen.status == Status::Timeline)
        };
        let mut others = tips.difference(&here);
        if !here.is_empty() && here.is_subset(&tips) && others.all(is_known) {
            // Only the newest come along: the next event of this server names all that are kept.
            so_far.cut += 1;
            let key = Key::Text(room_id.as_str().into());
            let origin = Origin { table: "event_forward_extremities", key };
            let why = format!("the room has {} of them; {} are kept", tips.len(), here.len());
            for _ in tips.difference(&here) {
                self.leave(&origin, "a room keeps its newest forward extremities only", &why)?;
            }
            return Ok(());
        }
        let line = format!("room {room_id}: its forward extremities are others here");
        self.differs(&line)?;
        so_far.differs(DifferingRoom { room_id, state: 0, extremities: true });
        Ok(())
    }
}
