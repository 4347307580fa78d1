//! Reads the source in a thread of its own, some slices ahead of the writer, and prepares its
//! events in another one: so that the source, its JSON and the log keep several processors busy.

use std::{
    collections::VecDeque,
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use ruma::OwnedServerName;

use super::prepare::Ready;
use crate::{
    ImportError,
    facts::{Bad, Cursor, Section, Slice, Source, SourceError, StateEntry, StateGroup, StateStep},
};
use logcabin_base::limits;

/// How many slices are read and prepared ahead of the writer: one is read while another is
/// prepared. Each takes some megabytes.
const AHEAD: usize = 2;

/// A slice whose events are prepared.
pub(super) struct ReadySlice {
    pub(super) facts: Vec<Ready>,
    pub(super) bad: Vec<Bad>,
    pub(super) next: Option<Cursor>,
    pub(super) end: Cursor,
    pub(super) partial: Option<Vec<String>>,
}

impl ReadySlice {
    fn new(slice: Slice, own: &OwnedServerName) -> Self {
        let Slice { facts, bad, next, end, partial } = slice;
        let facts = facts.into_iter().map(|told| Ready::new(told, own)).collect();
        Self { facts, bad, next, end, partial }
    }
}

/// Where a slice begins.
type Place = (Section, Cursor);

enum Order {
    /// The slice there.
    Read(Place),
    /// The slice after the one that was read last, if there is one.
    More,
    ReadOf(Section, Vec<String>, Cursor),
    State(StateGroup),
    Step(StateGroup),
    Head,
    ChangedRooms(i64),
    Stopped,
}

/// What an order brings. `S` is a slice.
enum Answer<S> {
    Slice(Place, Result<S, SourceError>),
    /// Nothing follows the last slice.
    End,
    /// One that was not ordered ahead.
    SliceOf(Result<S, SourceError>),
    State(Result<Vec<StateEntry>, SourceError>),
    Step(Result<StateStep, SourceError>),
    Number(Result<i64, SourceError>),
    Rooms(Result<Vec<String>, SourceError>),
}

/// The source, as the writer asks it.
pub(super) struct Feeder {
    orders: Sender<Order>,
    answers: Receiver<Answer<ReadySlice>>,
    /// How many slices were ordered that have not come.
    coming: usize,
    /// Those that came before they were wanted.
    kept: VecDeque<(Place, Result<ReadySlice, SourceError>)>,
}

/// Calls `work` with the source. `own` is the name of its server.
pub(super) fn feed<T>(
    source: &mut dyn Source,
    own: &OwnedServerName,
    work: impl FnOnce(&mut Feeder) -> Result<T, ImportError>,
) -> Result<T, ImportError> {
    thread::scope(|scope| {
        let (orders, taken) = mpsc::channel();
        let (read, raw) = mpsc::channel();
        let (given, answers) = mpsc::channel();
        let failed = |error| ImportError::Refused(format!("no thread can be started: {error}"));
        let thread = |name: &str| thread::Builder::new().name(name.to_owned());
        thread("import-reader")
            .spawn_scoped(scope, move || serve(source, &taken, &read))
            .map_err(failed)?;
        thread("import-prepare")
            .spawn_scoped(scope, move || prepare(own, &raw, &given))
            .map_err(failed)?;
        let mut feeder = Feeder { orders, answers, coming: 0, kept: VecDeque::new() };
        work(&mut feeder)
        // The threads end with the orders.
    })
}

fn serve(source: &mut dyn Source, orders: &Receiver<Order>, answers: &Sender<Answer<Slice>>) {
    // What follows the last slice.
    let mut follows: Option<Place> = None;
    let read = |source: &mut dyn Source, place: Place, follows: &mut Option<Place>| {
        let (section, cursor) = &place;
        let slice = patiently(|| source.read(*section, cursor));
        let next = slice.as_ref().ok().and_then(|slice| slice.next.clone());
        *follows = next.map(|next| (*section, next));
        Answer::Slice(place, slice)
    };
    for order in orders {
        let answer = match order {
            Order::Read(place) => read(source, place, &mut follows),
            Order::More => match follows.take() {
                Some(place) => read(source, place, &mut follows),
                None => Answer::End,
            },
            Order::ReadOf(section, owners, cursor) => {
                Answer::SliceOf(patiently(|| source.read_of(section, &owners, &cursor)))
            }
            Order::State(group) => Answer::State(patiently(|| source.state(group))),
            Order::Step(group) => Answer::Step(patiently(|| source.state_step(group))),
            Order::Head => Answer::Number(patiently(|| source.head())),
            Order::ChangedRooms(after) => Answer::Rooms(patiently(|| source.changed_rooms(after))),
            Order::Stopped => {
                source.stopped();
                continue;
            }
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

fn prepare(
    own: &OwnedServerName,
    answers: &Receiver<Answer<Slice>>,
    prepared: &Sender<Answer<ReadySlice>>,
) {
    let ready = |slice: Result<Slice, SourceError>| slice.map(|slice| ReadySlice::new(slice, own));
    for answer in answers {
        let answer = match answer {
            Answer::Slice(place, slice) => Answer::Slice(place, ready(slice)),
            Answer::SliceOf(slice) => Answer::SliceOf(ready(slice)),
            Answer::End => Answer::End,
            Answer::State(state) => Answer::State(state),
            Answer::Step(step) => Answer::Step(step),
            Answer::Number(number) => Answer::Number(number),
            Answer::Rooms(rooms) => Answer::Rooms(rooms),
        };
        if prepared.send(answer).is_err() {
            return;
        }
    }
}

/// Asks again while the source does not answer: it may be restarting.
fn patiently<T>(mut ask: impl FnMut() -> Result<T, SourceError>) -> Result<T, SourceError> {
    let mut tries = 0;
    loop {
        match ask() {
            Err(SourceError::Away { place, why }) if tries < limits::IMPORT_RETRIES => {
                if tries == 0 {
                    tracing::warn!(%place, %why, "the source does not answer; trying again");
                }
                tries += 1;
                thread::sleep(limits::IMPORT_RETRY);
            }
            other => return other,
        }
    }
}

impl Feeder {
    /// The slice after a cursor. The next ones are read meanwhile.
    pub(super) fn slice(
        &mut self,
        section: Section,
        after: &Cursor,
    ) -> Result<ReadySlice, ImportError> {
        let wanted = (section, after.clone());
        let slice = loop {
            match self.kept.pop_front() {
                Some((place, slice)) if place == wanted => break slice?,
                // It was read for nothing.
                Some(_) => {}
                None if self.coming > 0 => drop(self.other_answer()?),
                None => self.order_slice(Order::Read(wanted.clone()))?,
            }
        };
        if slice.next.is_some() {
            while self.coming + self.kept.len() < AHEAD {
                self.order_slice(Order::More)?;
            }
        }
        Ok(slice)
    }

    /// The slice after a cursor of what belongs to these users or rooms: see [`Source::read_of`].
    /// Nothing is read ahead. It waits for the slices that are being read.
    pub(super) fn slice_of(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<ReadySlice, ImportError> {
        self.order(Order::ReadOf(section, owners.to_vec(), after.clone()))?;
        loop {
            if let Some(Answer::SliceOf(slice)) = self.other_answer()? {
                return Ok(slice?);
            }
        }
    }

    /// A whole state. It waits for the slices that are being read.
    pub(super) fn state(&mut self, group: StateGroup) -> Result<Vec<StateEntry>, ImportError> {
        self.order(Order::State(group))?;
        loop {
            if let Some(Answer::State(state)) = self.other_answer()? {
                return Ok(state?);
            }
        }
    }

    /// What a state adds to the one that it was made from.
    pub(super) fn step(&mut self, group: StateGroup) -> Result<StateStep, ImportError> {
        self.order(Order::Step(group))?;
        loop {
            if let Some(Answer::Step(step)) = self.other_answer()? {
                return Ok(step?);
            }
        }
    }

    /// The newest position of the source.
    pub(super) fn head(&mut self) -> Result<i64, ImportError> {
        self.order(Order::Head)?;
        loop {
            if let Some(Answer::Number(number)) = self.other_answer()? {
                return Ok(number?);
            }
        }
    }

    /// The rooms whose state has changed after a position: see [`Source::changed_rooms`].
    pub(super) fn changed_rooms(&mut self, after: i64) -> Result<Vec<String>, ImportError> {
        self.order(Order::ChangedRooms(after))?;
        loop {
            if let Some(Answer::Rooms(rooms)) = self.other_answer()? {
                return Ok(rooms?);
            }
        }
    }

    /// The source's program has stopped: see [`Source::stopped`].
    pub(super) fn stopped(&mut self) -> Result<(), ImportError> {
        self.order(Order::Stopped)
    }

    fn order(&self, order: Order) -> Result<(), ImportError> {
        self.orders.send(order).map_err(|_| gone())
    }

    fn order_slice(&mut self, order: Order) -> Result<(), ImportError> {
        self.order(order)?;
        self.coming += 1;
        Ok(())
    }

    /// The next answer, unless it is a slice that was ordered ahead, which is kept.
    fn other_answer(&mut self) -> Result<Option<Answer<ReadySlice>>, ImportError> {
        match self.answers.recv().map_err(|_| gone())? {
            Answer::Slice(place, slice) => {
                self.coming -= 1;
                self.kept.push_back((place, slice));
                Ok(None)
            }
            Answer::End => {
                self.coming -= 1;
                Ok(None)
            }
            other => Ok(Some(other)),
        }
    }
}

fn gone() -> ImportError {
    ImportError::Refused("reading the source ended unexpectedly".to_owned())
}
