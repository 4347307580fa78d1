//! Reads the source in a thread of its own, one slice ahead of the writer, and prepares its events
//! there: so that the source, its JSON and the log keep two processors busy.

use std::{
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

enum Order {
    Read(Section, Cursor),
    ReadOf(Section, Vec<String>, Cursor),
    State(StateGroup),
    Step(StateGroup),
    Head,
    ChangedRooms(i64),
    Stopped,
}

enum Answer {
    Slice(Result<ReadySlice, SourceError>),
    /// One that was not ordered ahead.
    SliceOf(Result<ReadySlice, SourceError>),
    State(Result<Vec<StateEntry>, SourceError>),
    Step(Result<StateStep, SourceError>),
    Number(Result<i64, SourceError>),
    Rooms(Result<Vec<String>, SourceError>),
}

/// The source, as the writer asks it.
pub(super) struct Feeder {
    orders: Sender<Order>,
    answers: Receiver<Answer>,
    /// The slice that was ordered ahead.
    ahead: Option<(Section, Cursor)>,
    /// The same, if it came before it was wanted.
    kept: Option<Result<ReadySlice, SourceError>>,
}

/// Calls `work` with the source. `own` is the name of its server.
pub(super) fn feed<T>(
    source: &mut dyn Source,
    own: &OwnedServerName,
    work: impl FnOnce(&mut Feeder) -> Result<T, ImportError>,
) -> Result<T, ImportError> {
    thread::scope(|scope| {
        let (orders, taken) = mpsc::channel();
        let (given, answers) = mpsc::channel();
        let spawned = thread::Builder::new()
            .name("import-reader".to_owned())
            .spawn_scoped(scope, move || serve(source, own, &taken, &given));
        if let Err(error) = spawned {
            return Err(ImportError::Refused(format!("no thread can be started: {error}")));
        }
        let mut feeder = Feeder { orders, answers, ahead: None, kept: None };
        work(&mut feeder)
        // The thread ends with the orders.
    })
}

fn serve(
    source: &mut dyn Source,
    own: &OwnedServerName,
    orders: &Receiver<Order>,
    answers: &Sender<Answer>,
) {
    for order in orders {
        let answer = match order {
            Order::Read(section, cursor) => {
                let slice = patiently(|| source.read(section, &cursor));
                Answer::Slice(slice.map(|slice| ReadySlice::new(slice, own)))
            }
            Order::ReadOf(section, owners, cursor) => {
                let slice = patiently(|| source.read_of(section, &owners, &cursor));
                Answer::SliceOf(slice.map(|slice| ReadySlice::new(slice, own)))
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
    /// The slice after a cursor. The next one is read meanwhile.
    pub(super) fn slice(
        &mut self,
        section: Section,
        after: &Cursor,
    ) -> Result<ReadySlice, ImportError> {
        let wanted = (section, after.clone());
        let slice = match self.ahead.take() {
            Some(ahead) if ahead == wanted => self.next_slice()?,
            ahead => {
                if ahead.is_some() {
                    // It was read for nothing.
                    let _ = self.next_slice();
                }
                self.order(Order::Read(section, after.clone()))?;
                self.next_slice()?
            }
        };
        if let Some(next) = &slice.next {
            self.order(Order::Read(section, next.clone()))?;
            self.ahead = Some((section, next.clone()));
        }
        Ok(slice)
    }

    /// The slice after a cursor of what belongs to these users or rooms: see [`Source::read_of`].
    /// Nothing is read ahead. It waits for the slice that is being read.
    pub(super) fn slice_of(
        &mut self,
        section: Section,
        owners: &[String],
        after: &Cursor,
    ) -> Result<ReadySlice, ImportError> {
        self.order(Order::ReadOf(section, owners.to_vec(), after.clone()))?;
        loop {
            match self.answer()? {
                Answer::SliceOf(slice) => return Ok(slice?),
                Answer::Slice(slice) => self.kept = Some(slice),
                _ => {}
            }
        }
    }

    /// A whole state. It waits for the slice that is being read.
    pub(super) fn state(&mut self, group: StateGroup) -> Result<Vec<StateEntry>, ImportError> {
        self.order(Order::State(group))?;
        loop {
            match self.answer()? {
                Answer::State(state) => return Ok(state?),
                Answer::Slice(slice) => self.kept = Some(slice),
                _ => {}
            }
        }
    }

    /// What a state adds to the one that it was made from.
    pub(super) fn step(&mut self, group: StateGroup) -> Result<StateStep, ImportError> {
        self.order(Order::Step(group))?;
        loop {
            match self.answer()? {
                Answer::Step(step) => return Ok(step?),
                Answer::Slice(slice) => self.kept = Some(slice),
                _ => {}
            }
        }
    }

    /// The newest position of the source.
    pub(super) fn head(&mut self) -> Result<i64, ImportError> {
        self.number(Order::Head)
    }

    /// The rooms whose state has changed after a position: see [`Source::changed_rooms`].
    pub(super) fn changed_rooms(&mut self, after: i64) -> Result<Vec<String>, ImportError> {
        self.order(Order::ChangedRooms(after))?;
        loop {
            match self.answer()? {
                Answer::Rooms(rooms) => return Ok(rooms?),
                Answer::Slice(slice) => self.kept = Some(slice),
                _ => {}
            }
        }
    }

    /// The source's program has stopped: see [`Source::stopped`].
    pub(super) fn stopped(&mut self) -> Result<(), ImportError> {
        self.order(Order::Stopped)
    }

    fn number(&mut self, order: Order) -> Result<i64, ImportError> {
        self.order(order)?;
        loop {
            match self.answer()? {
                Answer::Number(number) => return Ok(number?),
                Answer::Slice(slice) => self.kept = Some(slice),
                _ => {}
            }
        }
    }

    fn next_slice(&mut self) -> Result<ReadySlice, ImportError> {
        if let Some(kept) = self.kept.take() {
            return Ok(kept?);
        }
        loop {
            if let Answer::Slice(slice) = self.answer()? {
                return Ok(slice?);
            }
        }
    }

    fn order(&self, order: Order) -> Result<(), ImportError> {
        self.orders.send(order).map_err(|_| gone())
    }

    fn answer(&self) -> Result<Answer, ImportError> {
        self.answers.recv().map_err(|_| gone())
    }
}

fn gone() -> ImportError {
    ImportError::Refused("reading the source ended unexpectedly".to_owned())
}
