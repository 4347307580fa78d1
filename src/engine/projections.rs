//! The live projections, and how others that were made beside them take their place.

use std::{ops::Deref, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::{Engine, OpenError, replay_onto};
use crate::{
    decide::Env,
    record::{Offset, Record},
    state::{ApplyError, State},
};

/// The projections that answers are made from. A reader takes them once for each answer, and keeps
/// what it took if others take their place meanwhile.
#[derive(Debug)]
pub(super) struct Live {
    env: ArcSwap<Env>,
    /// Held while records are applied, and by whoever needs that none is. In it are the records
    /// that the projections [beside](Beside) the live ones lack, if there are such. The log is not
    /// read by whoever holds it: a log may call its follower while it holds what it is read with.
    applying: Mutex<Option<Vec<Arc<Record>>>>,
}

impl Live {
    pub(super) fn new(env: Env) -> Self {
        Self { env: ArcSwap::from_pointee(env), applying: Mutex::default() }
    }

    pub(super) fn env(&self) -> LiveEnv {
        LiveEnv(self.env.load())
    }

    /// Has `apply` change the projections by `records`.
    pub(super) fn apply<E>(
        &self,
        records: &[Arc<Record>],
        apply: impl FnOnce(&Arc<State>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut lacking = self.applying.lock();
        apply(&self.env.load().state)?;
        if let Some(lacking) = &mut *lacking {
            lacking.extend_from_slice(records);
        }
        Ok(())
    }
}

/// The live projections and what else decisions rest on, taken at one moment. To be held for one
/// answer, not across a wait: others may have taken their place by then.
#[derive(Debug)]
pub struct LiveEnv(Guard<Arc<Env>>);

impl Deref for LiveEnv {
    type Target = Env;

    fn deref(&self) -> &Env {
        &self.0
    }
}

/// The live projections, taken at one moment.
#[derive(Debug)]
pub struct LiveState(LiveEnv);

impl Deref for LiveState {
    type Target = State;

    fn deref(&self) -> &State {
        &self.0.state
    }
}

impl LiveState {
    /// The same, to be kept.
    #[must_use]
    pub fn share(&self) -> Arc<State> {
        Arc::clone(&self.0.state)
    }
}

impl Engine {
    /// What decisions rest on now.
    #[must_use]
    pub fn env(&self) -> LiveEnv {
        self.live.env()
    }

    /// The live projections now.
    #[must_use]
    pub fn state(&self) -> LiveState {
        LiveState(self.env())
    }

    /// Has `state`, which is being made of the same log, follow what is applied to the live
    /// projections, up to which it is brought first. One may at a time. Blocks.
    ///
    /// # Errors
    /// When the log cannot be read or applied.
    pub(crate) fn beside(&self, state: State) -> Result<Beside<'_>, OpenError> {
        let applied = {
            let mut lacking = self.live.applying.lock();
            if lacking.is_some() {
                return Err(OpenError::Beside);
            }
            *lacking = Some(Vec::new());
            self.live.env.load().state.applied()
        };
        let beside = Beside { live: &self.live, state: Arc::new(state) };
        replay_onto(&beside.state, &*self.log, applied, |_| Ok::<_, OpenError>(()))?;
        Ok(beside)
    }
}

/// Projections that follow the live ones, and may take their place.
#[derive(Debug)]
pub(crate) struct Beside<'a> {
    live: &'a Live,
    state: Arc<State>,
}

impl Beside<'_> {
    /// Has `look` look at the live projections and at these, which hold the same records, while
    /// nothing is applied: what is written waits.
    ///
    /// # Errors
    /// When a record cannot be applied.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&State, &State) -> T) -> Result<T, ApplyError> {
        let mut lacking = self.live.applying.lock();
        self.catch_up(&mut lacking)?;
        Ok(look(&self.live.env.load().state, &self.state))
    }

    /// Takes the place of the live projections. Gives those, which stay as they are, and the
    /// last record that both hold; `None` in the place of those if the two do not agree on where
    /// each stream ends. The log goes by that since it was started: then all stays as it is, and
    /// only a start can put it right.
    ///
    /// # Errors
    /// When a record cannot be applied; nothing has changed then.
    pub(crate) fn replace(self) -> Result<(Option<Arc<State>>, Offset), ApplyError> {
        let mut lacking = self.live.applying.lock();
        self.catch_up(&mut lacking)?;
        let env = Env::clone(&self.live.env.load());
        let applied = self.state.applied();
        if env.state.streams.heads() != self.state.streams.heads() {
            return Ok((None, applied));
        }
        let before = Arc::clone(&env.state);
        self.state.succeed(&before);
        self.live.env.store(Arc::new(Env { state: Arc::clone(&self.state), ..env }));
        // Nothing is applied to them twice: they follow nothing any more.
        *lacking = None;
        Ok((Some(before), applied))
    }

    fn catch_up(&self, lacking: &mut Option<Vec<Arc<Record>>>) -> Result<(), ApplyError> {
        for record in std::mem::take(lacking.get_or_insert_default()) {
            // What it means to others was told when it was applied first.
            drop(self.state.apply(&record)?);
        }
        Ok(())
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        *self.live.applying.lock() = None;
    }
}
