//! Stands in for the C library's clock and random numbers, so that a seed decides what the whole
//! program reads of them: the keys of hash tables, the salts of passwords, the times of events.
//!
//! The linker takes these functions in place of those of the C library. Only this binary has them.
#![allow(unsafe_code, reason = "functions of the C library have no other form")]
#![allow(unreachable_pub, reason = "the linker reaches them")]

use std::{
    cell::Cell,
    ffi::{c_int, c_long, c_uint, c_void},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// When the simulated world begins: 2026-01-01, in nanoseconds since the Unix epoch.
const BEGIN_NS: u64 = 1_767_225_600_000_000_000;

/// `CLOCK_REALTIME`.
const REALTIME: c_int = 0;
/// `CLOCK_REALTIME_COARSE`.
const REALTIME_COARSE: c_int = 5;

static ELAPSED_NS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static RANDOM: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// Sets how long the world has existed.
pub(crate) fn set_elapsed(elapsed: Duration) {
    let ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
    ELAPSED_NS.store(ns, Ordering::Relaxed);
}

/// The time of the world, in milliseconds since the Unix epoch.
pub(crate) fn now_ms() -> u64 {
    (BEGIN_NS + ELAPSED_NS.load(Ordering::Relaxed)) / 1_000_000
}

/// Sets what all randomness comes from.
pub(crate) fn seed(seed: u64) {
    RANDOM.set(seed);
}

/// The next number of a sequence that its state decides (SplitMix64).
pub(crate) fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// `struct timespec` of 64-bit Linux.
#[repr(C)]
pub struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

/// See clock_gettime(2).
///
/// # Safety
/// `time` points to a `timespec`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    let elapsed = ELAPSED_NS.load(Ordering::Relaxed);
    let ns = match clock {
        REALTIME | REALTIME_COARSE => BEGIN_NS + elapsed,
        // The monotonic clocks begin somewhere.
        _ => 1_000_000_000_000 + elapsed,
    };
    let seconds = c_long::try_from(ns / 1_000_000_000).unwrap_or(c_long::MAX);
    let nanoseconds = c_long::try_from(ns % 1_000_000_000).unwrap_or(0);
    // SAFETY: the caller's promise.
    unsafe { time.write(Timespec { seconds, nanoseconds }) };
    0
}

/// See getrandom(2).
///
/// # Safety
/// `buffer` points to `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, length: usize, _: c_uint) -> isize {
    let mut state = RANDOM.get();
    for at in 0..length {
        // The upper bits are as good as the lower ones.
        let byte = next(&mut state).to_be_bytes()[0];
        // SAFETY: the caller's promise.
        unsafe { buffer.cast::<u8>().add(at).write(byte) };
    }
    RANDOM.set(state);
    isize::try_from(length).unwrap_or(isize::MAX)
}

/// The real time since some moment: what the simulation itself costs.
pub(crate) fn processor_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}
