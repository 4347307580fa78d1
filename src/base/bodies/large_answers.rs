//! The turns of large answers.
//!
//! The state of a large room takes more than the share of the homeserver that is asked for it. Such
//! answers go one after the other (with a larger budget, a few at a time). Those for a user who
//! joins a room wait for the one under way; those that events of other homeservers cause also wait
//! for each other. Each homeserver and each user has at most one in the queue, so a flood of them
//! delays only its sender.

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use ruma::OwnedUserId;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::Principal;
use crate::{counted::Counted, limits};

/// Who waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// This user of this server.
    Asked(OwnedUserId),
    /// Nobody: another homeserver was the cause.
    Caused,
}

#[derive(Debug)]
pub(super) struct LargeAnswerLimit {
    all: Arc<Semaphore>,
    caused: Arc<Semaphore>,
    by_principal: Mutex<HashMap<Principal, Weak<Semaphore>>>,
    /// How many wait for the turns of others.
    waiting: AtomicUsize,
}

/// One turn, until this is dropped.
#[derive(Debug)]
pub(super) struct LargeAnswerPermit {
    _turn: Option<OwnedSemaphorePermit>,
    _caused: Option<OwnedSemaphorePermit>,
    _of_principal: Option<OwnedSemaphorePermit>,
}

impl LargeAnswerLimit {
    pub(super) fn new(at_once: usize) -> Self {
        let places = || Arc::new(Semaphore::new(at_once));
        let (by_principal, waiting) = (Mutex::default(), AtomicUsize::new(0));
        Self { all: places(), caused: places(), by_principal, waiting }
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn of_principal(&self, principal: Principal) -> Arc<Semaphore> {
        let mut by_principal = self.by_principal.lock();
        by_principal.retain(|_, place| place.strong_count() > 0);
        let place = by_principal.entry(principal).or_default();
        place.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Semaphore::new(1));
            *place = Arc::downgrade(&new);
            new
        })
    }

    /// Waits for a turn. While an urgent answer waits, calls `hurry` now and then.
    pub(super) async fn take(
        &self,
        asked: Option<Principal>,
        urgency: Urgency,
        hurry: impl Fn(),
    ) -> LargeAnswerPermit {
        let is_urgent = matches!(urgency, Urgency::Asked(_));
        let principal = match urgency {
            Urgency::Asked(user_id) => Some(Principal::User(user_id)),
            Urgency::Caused => asked,
        };
        // These semaphores are never closed.
        let of_principal = match principal {
            Some(principal) => self.of_principal(principal).acquire_owned().await.ok(),
            None => None,
        };
        let _waiting = Counted::new(&self.waiting);
        let caused = match is_urgent {
            true => None,
            false => Arc::clone(&self.caused).acquire_owned().await.ok(),
        };
        let mut turn = std::pin::pin!(Arc::clone(&self.all).acquire_owned());
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => {
                    return LargeAnswerPermit {
                        _turn: turn.ok(),
                        _caused: caused,
                        _of_principal: of_principal,
                    };
                }
                () = sleep(limits::LARGE_ANSWER_LOOK), if is_urgent => hurry(),
            }
        }
    }
}
