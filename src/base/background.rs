//! Runs background work so that it does not delay requests.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tracing::warn;

/// Lowers this thread's priority, but not so far that a busy machine starves it. Only on Linux:
/// elsewhere this would affect the priority of the whole process.
pub(crate) fn stand_back() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, 10) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or_default();
        warn!(%error, name, "a background thread runs at normal priority");
    }
}

/// Uses at most half of a processor: rests for as long as it has worked since the last rest.
#[derive(Debug)]
pub(crate) struct Pace(Instant);

impl Pace {
    /// Begins now.
    pub(crate) fn begin() -> Self {
        Self(Instant::now())
    }

    /// Rests. Blocks.
    pub(crate) fn rest(&mut self) {
        std::thread::sleep(self.0.elapsed().min(Duration::from_secs(1)));
        self.0 = Instant::now();
    }
}

/// Runs work that may take long (it grows with a room's members or a user's rooms), and lets the
/// thread's other tasks continue elsewhere meanwhile.
pub(crate) fn at_length<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    // Without a runtime there are no other tasks.
    let flavor = Handle::try_current().map(|handle| handle.runtime_flavor());
    if matches!(flavor, Ok(RuntimeFlavor::MultiThread)) {
        tokio::task::block_in_place(work)
    } else {
        work()
    }
}

/// Locks a mutex that another thread may hold for long.
pub(crate) fn lock_at_length<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.try_lock().unwrap_or_else(|| at_length(|| mutex.lock()))
}
