//! The live projections, and how rebuilt ones replace them.

use std::{ops::Deref, sync::Arc};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::{Engine, OpenError, replay_onto};
use logcabin_decide::Env;
use logcabin_record::{Offset, Record};
use logcabin_state::{ApplyError, State};

/// The projections that serve requests. A reader takes them once for each answer, and keeps them
/// even if they are replaced meanwhile.
#[derive(Debug)]
pub(super) struct Live {
    env: ArcSwap<Env>,
    /// Held while records are applied, and by code that needs no record to be applied meanwhile.
    /// While projections are rebuilt [beside](StandbyProjections) the live ones, it contains the
    /// records that those still lack. The log is not read under this lock: a log may call its
    /// follower while it holds the lock for reading.
    applying: Mutex<Option<Vec<Arc<Record>>>>,
}

impl Live {
    pub(super) fn new(env: Env) -> Self {
        Self { env: ArcSwap::from_pointee(env), applying: Mutex::default() }
    }

    pub(super) fn env(&self) -> LiveEnv {
        LiveEnv(self.env.load())
    }

    /// Lets `apply` change the projections by `records`.
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

/// The live projections and whatever else decisions depend on, taken at one moment. To be held for
/// one answer, not across a wait: they may be replaced meanwhile.
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
    /// The live projections, to be held beyond one answer.
    pub fn share(&self) -> Arc<State> {
        Arc::clone(&self.0.state)
    }
}

impl Engine {
    /// What decisions currently depend on.
    pub fn env(&self) -> LiveEnv {
        self.live.env()
    }

    /// The current live projections.
    pub fn state(&self) -> LiveState {
        LiveState(self.env())
    }

    /// Brings `state`, which is being rebuilt from the same log, up to the live projections, and
    /// lets it follow what is applied to them. Only one at a time. Blocks.
    pub fn beside(&self, state: State) -> Result<StandbyProjections<'_>, OpenError> {
        let applied = {
            let mut lacking = self.live.applying.lock();
            if lacking.is_some() {
                return Err(OpenError::Beside);
            }
            *lacking = Some(Vec::new());
            self.live.env.load().state.applied()
        };
        let beside = StandbyProjections { live: &self.live, state: Arc::new(state) };
        replay_onto(&beside.state, &*self.log, applied, |_| Ok::<_, OpenError>(()))?;
        Ok(beside)
    }
}

/// Projections that follow the live ones, and may replace them.
#[derive(Debug)]
pub struct StandbyProjections<'a> {
    live: &'a Live,
    state: Arc<State>,
}

impl StandbyProjections<'_> {
    /// Calls `look` with the live projections and these. Both have applied the same records;
    /// nothing is applied meanwhile, so writes wait.
    pub fn look<T>(&self, look: impl FnOnce(&State, &State) -> T) -> Result<T, ApplyError> {
        let mut lacking = self.live.applying.lock();
        self.catch_up(&mut lacking)?;
        Ok(look(&self.live.env.load().state, &self.state))
    }

    /// Replaces the live projections. Returns the replaced ones, which no longer change, and the
    /// last record that both have applied. Returns `None` instead if the two disagree on where a
    /// stream ends: the log has relied on that since it was started, so nothing is replaced, and
    /// only a restart can repair it.
    ///
    /// # Errors
    /// When a record cannot be applied; then nothing has changed.
    pub fn replace(self) -> Result<(Option<Arc<State>>, Offset), ApplyError> {
        let mut lacking = self.live.applying.lock();
        self.catch_up(&mut lacking)?;
        let env = Env::clone(&self.live.env.load());
        let applied = self.state.applied();
        if env.state.streams.heads() != self.state.streams.heads() {
            return Ok((None, applied));
        }
        let before = Arc::clone(&env.state);
        self.state.follow_generation(&before);
        self.live.env.store(Arc::new(Env { state: Arc::clone(&self.state), ..env }));
        // The new projections stop following, so that nothing is applied to them twice.
        *lacking = None;
        Ok((Some(before), applied))
    }

    fn catch_up(&self, lacking: &mut Option<Vec<Arc<Record>>>) -> Result<(), ApplyError> {
        for record in std::mem::take(lacking.get_or_insert_default()) {
            // Its effects were published when it was applied first.
            drop(self.state.apply(&record)?);
        }
        Ok(())
    }
}

impl Drop for StandbyProjections<'_> {
    fn drop(&mut self) {
        *self.live.applying.lock() = None;
    }
}
