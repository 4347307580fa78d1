//! The projections in service, and how others that were made beside them take their place.

use std::{ops::Deref, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::{Engine, OpenError, replay_onto};
use crate::{
    decide::Env,
    record::{Offset, Record},
    state::{ApplyError, State},
};

/// The projections in service. A reader takes them once for each answer; those that it has stay
/// what they were if others take their place meanwhile.
#[derive(Debug)]
pub(super) struct Service {
    env: ArcSwap<Env>,
    /// Held while records are applied, and by whoever needs that none is. In it are the records
    /// that the projections [beside](Beside) those in service lack, if there are such. The log is
    /// not read by whoever holds it: a log may call its follower while it holds what it is read
    /// with.
    turn: Mutex<Option<Vec<Arc<Record>>>>,
}

impl Service {
    pub(super) fn new(env: Env) -> Self {
        Self { env: ArcSwap::from_pointee(env), turn: Mutex::default() }
    }

    pub(super) fn env(&self) -> InService {
        InService(self.env.load())
    }

    /// Has `apply` change the projections by `records`.
    pub(super) fn apply(&self, records: &[Arc<Record>], apply: impl FnOnce(&Arc<State>)) {
        let mut turn = self.turn.lock();
        apply(&self.env.load().state);
        if let Some(lacking) = &mut *turn {
            lacking.extend_from_slice(records);
        }
    }
}

/// What is in service at this moment. To be held for an answer, not while something is waited for:
/// what comes then may be told of others.
#[derive(Debug)]
pub struct InService(Guard<Arc<Env>>);

impl Deref for InService {
    type Target = Env;

    fn deref(&self) -> &Env {
        &self.0
    }
}

/// The projections of what is in service.
#[derive(Debug)]
pub struct StateInService(InService);

impl Deref for StateInService {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0.state
    }
}

impl StateInService {
    /// The same, to be kept.
    #[must_use]
    pub fn share(&self) -> Arc<State> {
        Arc::clone(&self.0.state)
    }
}

impl Engine {
    /// What decisions rest on, as is in service now.
    #[must_use]
    pub fn env(&self) -> InService {
        self.service.env()
    }

    /// The projections in service now.
    #[must_use]
    pub fn state(&self) -> StateInService {
        StateInService(self.env())
    }

    /// Has `state`, which is being made of the same log, follow what is applied to the projections
    /// in service, up to which it is brought first. One may at a time. Blocks.
    ///
    /// # Errors
    /// When the log cannot be read or applied.
    pub(crate) fn beside(&self, state: State) -> Result<Beside<'_>, OpenError> {
        let applied = {
            let mut turn = self.service.turn.lock();
            if turn.is_some() {
                return Err(OpenError::Beside);
            }
            *turn = Some(Vec::new());
            self.service.env.load().state.applied()
        };
        let beside = Beside { service: &self.service, state: Arc::new(state) };
        replay_onto(&beside.state, &*self.log, applied, |_| Ok::<_, OpenError>(()))?;
        Ok(beside)
    }
}

/// Projections that follow those in service, and may take their place.
#[derive(Debug)]
pub(crate) struct Beside<'a> {
    service: &'a Service,
    state: Arc<State>,
}

impl Beside<'_> {
    /// Has `look` look at the projections in service and at these, which hold the same records,
    /// while nothing is applied: what is written waits.
    ///
    /// # Errors
    /// When a record cannot be applied.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&State, &State) -> T) -> Result<T, ApplyError> {
        let mut turn = self.service.turn.lock();
        self.catch_up(&mut turn)?;
        Ok(look(&self.service.env.load().state, &self.state))
    }

    /// Takes the place of the projections in service. Gives those, which stay as they are, and the
    /// last record that both hold; `None` in the place of those if the two do not agree on where
    /// each stream ends. The log goes by that since it was started: then all stays as it is, and
    /// only a start can put it right.
    ///
    /// # Errors
    /// When a record cannot be applied; nothing has changed then.
    pub(crate) fn replace(self) -> Result<(Option<Arc<State>>, Offset), ApplyError> {
        let mut turn = self.service.turn.lock();
        self.catch_up(&mut turn)?;
        let env = Env::clone(&self.service.env.load());
        let applied = self.state.applied();
        if env.state.streams.heads() != self.state.streams.heads() {
            return Ok((None, applied));
        }
        let before = Arc::clone(&env.state);
        self.state.succeed(&before);
        self.service.env.store(Arc::new(Env { state: Arc::clone(&self.state), ..env }));
        // Nothing is applied to them twice: they follow nothing any more.
        *turn = None;
        Ok((Some(before), applied))
    }

    fn catch_up(&self, turn: &mut Option<Vec<Arc<Record>>>) -> Result<(), ApplyError> {
        for record in std::mem::take(turn.get_or_insert_default()) {
            // What it means to others was told when it was applied first.
            drop(self.state.apply(&record)?);
        }
        Ok(())
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        *self.service.turn.lock() = None;
    }
}
