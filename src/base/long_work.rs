//! Fair scheduling of long work among callers.
//!
//! A request that reads a lot (an initial sync, a search, a long page) occupies a processor while
//! it reads. [`LongWork`] keeps one caller's requests from slowing down the others. Each caller
//! does one piece of long work at a time and has a share of one processor in the long run, and all
//! callers together use a bounded number of threads. The threads that answer short requests do none
//! of it.

use std::{
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use dashmap::DashMap;
use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::{background::at_length, clock::processor_time, limits};

/// Schedules callers' long work.
#[derive(Debug)]
pub struct LongWork<K: Hash + Eq> {
    callers: DashMap<K, Arc<Caller>>,
    /// Limits how many pieces of work are done concurrently.
    at_once: Arc<Semaphore>,
    share: Option<Share>,
}

#[derive(Debug)]
struct Caller {
    /// When the caller will have its whole allowance back. Locked by the piece of work in progress.
    full_at: Arc<Mutex<Instant>>,
    /// Requests that are waiting or working.
    requests: AtomicUsize,
}

/// The share of one processor that a caller may take.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// In percent of a processor.
    percent: u32,
}

/// The caller has exceeded its share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Busy {
    pub retry_after: Duration,
}

impl<K: Hash + Eq + Clone> LongWork<K> {
    /// Gives each caller `percent` of one processor in the long run; `None` is unlimited.
    pub fn new(percent: Option<u32>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_places(percent, limits::LONG_WORK_PER_PROCESSOR * processors)
    }

    /// The same for other homeservers, which leave most of the processors to users.
    pub fn for_servers(percent: Option<u32>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::with_places(percent, limits::LONG_WORK_FOR_SERVERS * processors)
    }

    /// The same, with this many places for all callers together.
    pub fn with_places(percent: Option<u32>, places: usize) -> Self {
        Self {
            callers: DashMap::new(),
            at_once: Arc::new(Semaphore::new(places)),
            share: percent.map(|percent| Share { percent: percent.max(1) }),
        }
    }

    /// Does `work` for `caller` once it is its turn. The work occupies this task's thread; the
    /// thread's other tasks continue elsewhere. `exempt` callers take turns, too, but have no share
    /// to exceed.
    ///
    /// # Errors
    /// When the caller has too many waiting requests, or has exceeded its share for a long time.
    pub async fn run<T>(
        &self,
        caller: &K,
        exempt: bool,
        work: impl FnOnce() -> T,
    ) -> Result<T, Busy> {
        let place = self.place(caller, exempt).await?;
        Ok(place.at_length(work))
    }

    /// Waits for the turn of `caller`, for work that is done on another thread.
    pub async fn place(&self, caller: &K, exempt: bool) -> Result<WorkPermit, Busy> {
        let caller = self.caller(caller);
        let _request = Request::of(&caller)?;
        let full_at = Arc::clone(&caller.full_at).lock_owned().await;
        let share = self.share.filter(|_| !exempt);
        if let Some(share) = share {
            let wait = share.wait(*full_at, Instant::now());
            if wait > limits::LONG_WORK_PATIENCE {
                return Err(Busy { retry_after: wait });
            }
            if !wait.is_zero() {
                tokio::time::sleep(wait).await;
            }
        }
        let permit = Arc::clone(&self.at_once).acquire_owned().await;
        // The semaphore is never closed.
        let closed = |_| Busy { retry_after: Duration::from_secs(1) };
        Ok(WorkPermit { full_at, share, _permit: permit.map_err(closed)? })
    }

    fn caller(&self, key: &K) -> Arc<Caller> {
        if let Some(caller) = self.callers.get(key) {
            return Arc::clone(&caller);
        }
        if self.callers.len() >= limits::LONG_WORK_CALLERS {
            self.forget_idle();
        }
        let new = || {
            let full_at = Arc::new(Mutex::new(Instant::now()));
            Arc::new(Caller { full_at, requests: AtomicUsize::new(0) })
        };
        Arc::clone(&self.callers.entry(key.clone()).or_insert_with(new))
    }

    /// Drops the callers that have their whole allowance.
    fn forget_idle(&self) {
        let now = Instant::now();
        self.callers.retain(|_, caller| {
            // A waiting request holds a reference, and a working one the lock.
            Arc::strong_count(caller) > 1
                || caller.full_at.try_lock().map_or(true, |full_at| *full_at > now)
        });
    }
}

/// A caller's turn.
#[derive(Debug)]
pub struct WorkPermit {
    full_at: OwnedMutexGuard<Instant>,
    share: Option<Share>,
    _permit: OwnedSemaphorePermit,
}

impl WorkPermit {
    /// Does the work on this thread, whose other tasks continue elsewhere.
    pub fn at_length<T>(self, work: impl FnOnce() -> T) -> T {
        at_length(|| self.work(work))
    }

    /// Does the work, on this thread. Blocks.
    pub fn work<T>(mut self, work: impl FnOnce() -> T) -> T {
        let (made, took) = timed(work);
        if let Some(share) = self.share {
            *self.full_at = share.after(*self.full_at, Instant::now(), took);
        }
        made
    }
}

impl Share {
    /// How far ahead of now a caller may be: the time in which it regains its whole allowance.
    fn depth(self) -> Duration {
        self.earned_in(limits::LONG_WORK_BURST)
    }

    /// The time in which a caller regains `work`.
    fn earned_in(self, work: Duration) -> Duration {
        work.saturating_mul(100) / self.percent
    }

    fn wait(self, full_at: Instant, now: Instant) -> Duration {
        full_at.saturating_duration_since(now).saturating_sub(self.depth())
    }

    fn after(self, full_at: Instant, now: Instant, took: Duration) -> Instant {
        full_at.max(now) + self.earned_in(took)
    }
}

/// Counts a request for as long as it exists.
struct Request<'a>(&'a Caller);

impl<'a> Request<'a> {
    fn of(caller: &'a Caller) -> Result<Self, Busy> {
        let request = Self(caller);
        if caller.requests.fetch_add(1, Ordering::Relaxed) >= limits::LONG_WORK_WAITING {
            return Err(Busy { retry_after: Duration::from_secs(1) });
        }
        Ok(request)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The result of `work`, and the processor time that it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let before = processor_time();
    let made = work();
    (made, processor_time().saturating_sub(before))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn one_caller_works_on_one_piece_at_a_time_and_keeps_nobody_else_waiting() {
        let work = Arc::new(LongWork::new(None));
        let (begun, has_begun) = mpsc::channel();
        let (end, may_end) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let work = Arc::clone(&work);
            async move {
                let piece = move || {
                    begun.send(()).expect("the test listens");
                    may_end.recv().expect("the test says when")
                };
                work.run(&"ann", false, piece).await
            }
        });
        tokio::task::spawn_blocking(move || has_begun.recv())
            .await
            .expect("no panic")
            .expect("it begins");
        let mut second = Box::pin(work.run(&"ann", false, || "second"));
        assert!(futures_util::poll!(&mut second).is_pending(), "a second piece began");
        assert_eq!(work.run(&"bob", false, || "other").await, Ok("other"));
        end.send(()).expect("it waits");
        assert_eq!(second.await, Ok("second"));
        first.await.expect("no panic").expect("it was not refused");
    }

    #[tokio::test]
    async fn a_caller_with_many_requests_waiting_is_refused() {
        let work = LongWork::new(None);
        let caller = work.caller(&"ann");
        let held = caller.full_at.lock().await;
        let mut waiting: Vec<_> = (0..limits::LONG_WORK_WAITING)
            .map(|_| Box::pin(work.run(&"ann", false, || ())))
            .collect();
        for request in &mut waiting {
            assert!(futures_util::poll!(request).is_pending());
        }
        assert!(work.run(&"ann", false, || ()).await.is_err());
        assert_eq!(work.run(&"bob", false, || ()).await, Ok(()));
        // Giving one up makes room for another.
        waiting.pop();
        let mut another = Box::pin(work.run(&"ann", false, || ()));
        assert!(futures_util::poll!(&mut another).is_pending());
        drop(held);
        drop(waiting);
        assert_eq!(another.await, Ok(()));
    }

    #[test]
    fn a_share_is_a_burst_and_then_a_part_of_each_second() {
        let share = Share { percent: 25 };
        let now = Instant::now();
        let used = share.after(now, now, limits::LONG_WORK_BURST);
        assert_eq!(share.wait(used, now), Duration::ZERO, "the whole burst may be had at once");
        let used = share.after(used, now, Duration::from_secs(1));
        assert_eq!(share.wait(used, now), Duration::from_secs(4), "a second takes four to earn");
        assert_eq!(share.wait(used, now + Duration::from_secs(3)), Duration::from_secs(1));
        // Unused allowance does not accumulate.
        let later = now + Duration::from_secs(3600);
        let used = share.after(now, later, limits::LONG_WORK_BURST + Duration::from_secs(1));
        assert_eq!(share.wait(used, later), Duration::from_secs(4));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_caller_that_has_used_up_its_share_waits_or_is_refused() {
        let work = LongWork::new(Some(1));
        let caller = work.caller(&"ann");
        let share = work.share.expect("there is one");
        *caller.full_at.lock().await =
            Instant::now() + share.depth() + limits::LONG_WORK_PATIENCE + Duration::from_secs(60);
        assert!(work.run(&"ann", false, || ()).await.is_err());
        assert_eq!(work.run(&"ann", true, || ()).await, Ok(()), "one that is exempt");
        assert_eq!(work.run(&"bob", false, || ()).await, Ok(()));
        let soon = Instant::now() + Duration::from_millis(50);
        *caller.full_at.lock().await = soon + share.depth();
        assert_eq!(work.run(&"ann", false, || ()).await, Ok(()));
        assert!(Instant::now() >= soon, "it did not wait");
    }

    #[test]
    fn callers_that_owe_nothing_are_forgotten() {
        let work = LongWork::new(Some(1));
        let owes = work.caller(&0);
        *owes.full_at.try_lock().expect("nobody works") += Duration::from_secs(3600);
        drop(owes);
        for caller in 1..limits::LONG_WORK_CALLERS + 10 {
            work.caller(&caller);
        }
        assert!(work.callers.len() <= limits::LONG_WORK_CALLERS);
        assert!(work.callers.contains_key(&0), "one that owes was let off");
    }
}
