//! The turns of large answers.
//!
//! The state of a large room takes more than the share of the homeserver that is asked for it. Such
//! answers go one after the other (with a larger budget, a few at a time). Those for a user who
//! joins a room wait for the one under way; those that events of other homeservers cause also wait
//! for each other. Each homeserver and each user has at most one in the queue, so a flood of them
//! delays only its sender.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use ruma::OwnedUserId;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::sleep,
};

use super::Payer;
use crate::limits;

/// Who waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// This user of this server.
    Asked(OwnedUserId),
    /// Nobody: another homeserver was the cause.
    Caused,
}

#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    caused: Arc<Semaphore>,
    by_payer: Mutex<HashMap<Payer, Weak<Semaphore>>>,
}

/// One turn, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _turn: Option<OwnedSemaphorePermit>,
    _caused: Option<OwnedSemaphorePermit>,
    _of_payer: Option<OwnedSemaphorePermit>,
}

impl Turns {
    pub(super) fn new(at_once: usize) -> Self {
        let places = || Arc::new(Semaphore::new(at_once));
        Self { all: places(), caused: places(), by_payer: Mutex::default() }
    }

    fn of_payer(&self, payer: Payer) -> Arc<Semaphore> {
        let mut by_payer = self.by_payer.lock();
        by_payer.retain(|_, place| place.strong_count() > 0);
        let place = by_payer.entry(payer).or_default();
        place.upgrade().unwrap_or_else(|| {
            let new = Arc::new(Semaphore::new(1));
            *place = Arc::downgrade(&new);
            new
        })
    }

    /// Waits for a turn. While an urgent answer waits, calls `hurry` now and then.
    pub(super) async fn take(
        &self,
        asked: Option<Payer>,
        urgency: Urgency,
        hurry: impl Fn(),
    ) -> Turn {
        let is_urgent = matches!(urgency, Urgency::Asked(_));
        let payer = match urgency {
            Urgency::Asked(user_id) => Some(Payer::User(user_id)),
            Urgency::Caused => asked,
        };
        // These semaphores are never closed.
        let of_payer = match payer {
            Some(payer) => self.of_payer(payer).acquire_owned().await.ok(),
            None => None,
        };
        let caused = match is_urgent {
            true => None,
            false => Arc::clone(&self.caused).acquire_owned().await.ok(),
        };
        let mut turn = std::pin::pin!(Arc::clone(&self.all).acquire_owned());
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => {
                    return Turn { _turn: turn.ok(), _caused: caused, _of_payer: of_payer };
                }
                () = sleep(limits::LARGE_ANSWER_LOOK), if is_urgent => hurry(),
            }
        }
    }
}
