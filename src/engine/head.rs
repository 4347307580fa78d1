//! The published head of the log, and the broadcasts of what was published.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use ruma::UserId;
use tokio::sync::{broadcast, watch};

use super::{
    traced::TracedRecords,
    waker::{Listener, Listeners, Published},
};
use logcabin_record::Offset;
use logcabin_state::Effect;

/// How many publications a subscriber may lag behind before it loses some.
const CAPACITY: usize = 1024;

/// The last offset that is durable and applied, as readers may see it.
#[derive(Debug)]
pub struct Head {
    offset: AtomicU64,
    moved: watch::Sender<Offset>,
    listeners: Arc<Listeners>,
    /// Effects that wake long-polls. Sent only while one waits.
    wakes: broadcast::Sender<Published>,
    /// The other effects, which are rare.
    work: broadcast::Sender<Published>,
    /// The last records of traced requests.
    traced: TracedRecords,
}

impl Head {
    pub(super) fn new(offset: Offset) -> Self {
        Self {
            offset: AtomicU64::new(offset.get()),
            moved: watch::Sender::new(offset),
            listeners: Arc::default(),
            wakes: broadcast::Sender::new(CAPACITY),
            work: broadcast::Sender::new(CAPACITY),
            traced: TracedRecords::default(),
        }
    }

    pub const fn traced(&self) -> &TracedRecords {
        &self.traced
    }

    /// The head now.
    pub fn offset(&self) -> Offset {
        Offset::new(self.offset.load(Ordering::Acquire))
    }

    /// The head as it moves.
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<Offset> {
        self.moved.subscribe()
    }

    /// Waits until `offset` is published.
    pub(super) async fn reached(&self, offset: Offset) {
        if self.offset() < offset {
            // The sender is part of `self`: it does not go away.
            let _ = self.follow().wait_for(|head| *head >= offset).await;
        }
    }

    /// Begins to listen for effects that concern `user_id`. What is published from now on wakes
    /// [`Listener::woken`].
    #[must_use]
    pub fn listen(&self, user_id: &UserId) -> Listener {
        self.listeners.listen(user_id)
    }

    /// How many users have a long-poll open.
    pub fn waiting_users(&self) -> usize {
        self.listeners.users()
    }

    /// The effects, from now on, that are work for somebody: all but those that wake long-polls.
    #[must_use]
    pub fn work(&self) -> Work {
        Work(self.work.subscribe())
    }

    pub(super) fn wakes(&self) -> (broadcast::Receiver<Published>, Arc<Listeners>) {
        (self.wakes.subscribe(), Arc::clone(&self.listeners))
    }

    /// Publishes what was applied.
    pub(super) fn publish(&self, offset: Offset, effects: Vec<Effect>) {
        self.offset.store(offset.get(), Ordering::Release);
        self.moved.send_replace(offset);
        let at = Instant::now();
        let (wakes, work): (Vec<_>, Vec<_>) = effects.into_iter().partition(Effect::wakes);
        let send = |to: &broadcast::Sender<Published>, effects: Vec<Effect>| {
            if !effects.is_empty() {
                // Without a subscriber, nobody needs it.
                let _ = to.send(Published { offset, at, effects: effects.into() });
            }
        };
        if !self.listeners.is_empty() {
            send(&self.wakes, wakes);
        }
        send(&self.work, work);
    }
}

/// A subscription to effects: see [`Head::work`].
#[derive(Debug)]
pub struct Work(broadcast::Receiver<Published>);

/// A subscriber lagged so far behind that it lost effects. Their results are in the state.
#[derive(Debug)]
pub struct Lagged;

impl Work {
    /// The next effects that `choose` accepts. Waits until there is one.
    pub async fn next<T>(
        &mut self,
        choose: impl Fn(&Effect) -> Option<T>,
    ) -> Result<Vec<T>, Lagged> {
        loop {
            match self.0.recv().await {
                Ok(published) => {
                    let chosen: Vec<_> = published.effects.iter().filter_map(&choose).collect();
                    if !chosen.is_empty() {
                        return Ok(chosen);
                    }
                }
                Err(broadcast::error::RecvError::Lagged(_)) => return Err(Lagged),
                // The engine is gone, so there is no more work.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delayed(effect: &Effect) -> Option<()> {
        matches!(effect, Effect::Delayed).then_some(())
    }

    #[tokio::test]
    async fn a_subscriber_gets_the_effects_that_it_chooses() {
        let head = Head::new(Offset::ZERO);
        let mut work = head.work();
        let room = "!a:test".try_into().unwrap();
        head.publish(Offset::new(1), vec![Effect::GuestAccess(room), Effect::Delayed]);
        assert_eq!(work.next(delayed).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_subscriber_that_lags_too_far_is_told() {
        let head = Head::new(Offset::ZERO);
        let mut work = head.work();
        for offset in 0..=CAPACITY as u64 {
            head.publish(Offset::new(offset), vec![Effect::Delayed]);
        }
        assert!(work.next(delayed).await.is_err());
        assert_eq!(work.next(delayed).await.unwrap().len(), 1);
    }
}
