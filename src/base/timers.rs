//! Timers for work at known times.
//!
//! Nothing polls. Each kind of work knows when its next item is due; for work that must survive a
//! restart, the projections know. One task for each kind sleeps until then, or until it is told
//! that this time has changed.

use std::{panic::AssertUnwindSafe, time::Duration};

use futures_util::FutureExt;
use tracing::error;

use crate::{clock::Clock, limits, shutdown::Shutdown};

/// Work that is due at known times.
pub trait Timed: Send + Sync + 'static {
    /// When the next item is due, in milliseconds since the Unix epoch.
    fn next_ms(&self) -> Option<u64>;

    /// Resolves when [`Timed::next_ms`] may have become earlier since the last call. What happens
    /// between two calls is not lost. May be dropped before it resolves.
    fn changed(&mut self) -> impl Future<Output = ()> + Send;

    /// Does what is due at `now_ms`. It is called again at once for what is then still due, so
    /// after a failure it must wait for a while. May be dropped at any `await`.
    fn fire(&self, now_ms: u64) -> impl Future<Output = ()> + Send;
}

/// Runs due work until the server shuts down.
pub async fn keep<T: Timed>(mut timed: T, clock: Clock, shutdown: Shutdown) {
    loop {
        let now_ms = clock.now_ms();
        let sleep = match timed.next_ms() {
            Some(at_ms) if at_ms <= now_ms => {
                // A panic affects only the item in progress, not the later ones.
                let fire = AssertUnwindSafe(timed.fire(now_ms)).catch_unwind();
                let fired = tokio::select! {
                    fired = fire => fired,
                    () = shutdown.given() => return,
                };
                match fired {
                    Ok(()) => continue,
                    Err(_) => {
                        error!("a scheduled task panicked");
                        limits::TIMER_RETRY
                    }
                }
            }
            Some(at_ms) => Duration::from_millis(at_ms - now_ms).min(limits::TIMER_SLEEP),
            None => Duration::MAX,
        };
        tokio::select! {
            () = tokio::time::sleep(sleep) => {}
            () = timed.changed() => {}
            () = shutdown.given() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio::sync::Notify;

    use super::*;

    #[derive(Default)]
    struct Alarms {
        set: Mutex<Vec<u64>>,
        changed: Notify,
        rung: Mutex<Vec<(u64, u64)>>,
        done: Notify,
    }

    impl Timed for Arc<Alarms> {
        fn next_ms(&self) -> Option<u64> {
            self.set.lock().iter().min().copied()
        }

        async fn changed(&mut self) {
            self.changed.notified().await;
        }

        async fn fire(&self, now_ms: u64) {
            let mut set = self.set.lock();
            set.retain(|at_ms| {
                if *at_ms <= now_ms {
                    self.rung.lock().push((*at_ms, now_ms));
                }
                *at_ms > now_ms
            });
            if set.is_empty() {
                self.done.notify_one();
            }
        }
    }

    #[derive(Default)]
    struct Broken {
        changed: Notify,
        fired: Mutex<u32>,
        done: Notify,
    }

    impl Timed for Arc<Broken> {
        fn next_ms(&self) -> Option<u64> {
            (*self.fired.lock() < 2).then_some(0)
        }

        async fn changed(&mut self) {
            self.changed.notified().await;
        }

        async fn fire(&self, _: u64) {
            let mut fired = self.fired.lock();
            *fired += 1;
            assert!(*fired > 1, "the first time fails");
            self.done.notify_one();
        }
    }

    #[tokio::test]
    async fn a_timer_continues_after_a_failure() {
        let broken = Arc::new(Broken::default());
        let shutdown = Shutdown::when(std::future::pending());
        // The notification is kept until after the wait that follows a failure, which is too long
        // for a test.
        broken.changed.notify_one();
        let task = tokio::spawn(keep(Arc::clone(&broken), Clock::system(), shutdown));
        broken.done.notified().await;
        assert_eq!(*broken.fired.lock(), 2);
        task.abort();
    }

    #[tokio::test]
    async fn due_items_run_in_order_and_not_early() {
        let alarms = Arc::new(Alarms::default());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let shutdown = Shutdown::when(async move {
            let _ = stopped.await;
        });
        let clock = Clock::system();
        let start_ms = clock.now_ms();
        let task = tokio::spawn(keep(Arc::clone(&alarms), clock, shutdown));
        // Set later, and due earlier, than the one being waited for.
        for after in [60_u64, 0, 30] {
            alarms.set.lock().push(start_ms + after);
            alarms.changed.notify_one();
            tokio::task::yield_now().await;
        }
        alarms.done.notified().await;
        while alarms.rung.lock().len() < 3 {
            alarms.done.notified().await;
        }
        let rung = alarms.rung.lock().clone();
        assert_eq!(rung.iter().map(|(at, _)| at - start_ms).collect::<Vec<_>>(), [0, 30, 60]);
        assert!(rung.iter().all(|(at_ms, now_ms)| at_ms <= now_ms), "{rung:?}");
        drop(stop);
        task.await.unwrap();
    }
}
