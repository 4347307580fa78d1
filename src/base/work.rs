//! Counts what is looked at: events that are read, relations, rooms of a list. How long something
//! takes depends on the machine; how much it looks at does not, so that tests can hold the bounds
//! of [`limits`](crate::base::limits).
//!
//! Nothing is counted in a release build.

use std::cell::Cell;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// Counts a look.
#[inline]
pub(crate) fn look() {
    looks(1);
}

/// Counts so many looks.
#[inline]
pub(crate) fn looks(count: usize) {
    if cfg!(debug_assertions) {
        LOOKS.with(|looks| looks.set(looks.get() + count as u64));
    }
}

/// What `work` gives, and how much it looked at on this thread.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = LOOKS.with(Cell::get);
    let done = work();
    (done, LOOKS.with(Cell::get) - before)
}
