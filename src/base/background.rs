//! Runs background work so that it does not delay requests.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use parking_lot::{Mutex, MutexGuard};

/// Lowers this thread's priority, but not so far that a busy machine starves it. Only on Linux:
/// elsewhere this would affect the priority of the whole process.
pub fn stand_back() {
    #[cfg(all(target_os = "linux", not(feature = "simulate")))]
    if let Err(error) = rustix::process::setpriority_process(None, 10) {
        let thread = thread::current();
        let name = thread.name().unwrap_or_default();
        tracing::warn!(%error, name, "a background thread runs at normal priority");
    }
}

/// Uses at most half of a processor: rests for as long as it has worked since the last rest.
#[derive(Debug)]
pub struct Pace(Instant);

impl Pace {
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Blocks for as long as the work since the last rest took, at most for a second.
    pub fn rest(&mut self) {
        thread::sleep(self.0.elapsed().min(Duration::from_secs(1)));
        self.0 = Instant::now();
    }
}

/// Runs work that may take long (it grows with a room's members or a user's rooms), and lets the
/// thread's other tasks continue elsewhere meanwhile.
pub fn at_length<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    // Without a runtime there are no other tasks.
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    if matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// How many processors work that can wait may use at a time.
pub fn half_of_processors() -> usize {
    (thread::available_parallelism().map_or(1, usize::from) / 2).max(1)
}

/// Applies `work` to each item on all processors, at low priority, and keeps the order. Blocks.
pub fn in_parallel<T: Sync, U: Send>(all: &[T], work: impl Fn(&T) -> U + Sync) -> Vec<U> {
    // Small enough that all processors end at about the same time.
    const PIECE: usize = 32;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let worker = || {
        stand_back();
        let mut done = Vec::new();
        loop {
            let piece = next.fetch_add(1, Ordering::Relaxed);
            let Some(things) = all.chunks(PIECE).nth(piece) else { return done };
            done.push((piece, things.iter().map(&work).collect::<Vec<_>>()));
        }
    };
    let mut done: Vec<_> = thread::scope(|scope| {
        let mut workers = Vec::with_capacity(processors);
        for _ in 0..processors {
            workers.push(scope.spawn(worker));
        }
        let done = workers.into_iter().map(thread::ScopedJoinHandle::join);
        done.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    done.sort_unstable_by_key(|(piece, _)| *piece);
    done.into_iter().flat_map(|(_, piece)| piece).collect()
}

/// Locks a mutex that another thread may hold for long.
pub fn lock_at_length<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| at_length(|| mutex.lock()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_in_parallel_keeps_the_order_and_does_everything_once() {
        let done = AtomicUsize::new(0);
        for count in [0, 1, 31, 32, 33, 1000] {
            let all: Vec<_> = (0..count).collect();
            let twice = in_parallel(&all, |number| {
                done.fetch_add(1, Ordering::Relaxed);
                2 * number
            });
            assert_eq!(twice, all.iter().map(|number| 2 * number).collect::<Vec<_>>());
            assert_eq!(done.swap(0, Ordering::Relaxed), count);
        }
    }
}
