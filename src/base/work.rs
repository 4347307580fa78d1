//! Counts the items that a request examines: events, relations, rooms of a list. Timing depends on
//! the machine but these counts do not, so tests can enforce [`limits`](crate::limits) with
//! them.
//!
//! Nothing is counted in a release build.

use std::cell::Cell;

thread_local! {
    static LOOKS: Cell<u64> = const { Cell::new(0) };
}

/// Counts one item.
#[inline]
pub fn look() {
    looks(1);
}

/// Counts `count` items.
#[inline]
pub fn looks(count: usize) {
    if cfg!(debug_assertions) {
        LOOKS.with(|looks| looks.set(looks.get() + count as u64));
    }
}

/// The result of `work`, and how many items it examined on this thread.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = LOOKS.with(Cell::get);
    let done = work();
    (done, LOOKS.with(Cell::get) - before)
}
