//! Faults on purpose, which a simulation must find: it proves nothing if it cannot. A server that
//! is not simulated has none of them.

/// A fault that `simulate --mutate` switches on, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    /// A write is answered before it is synced.
    AnsweredBeforeSync = 1,
    /// A crash loses the newest batch that was synced.
    BatchForgotten = 2,
    /// Nobody is woken when something concerns them.
    WakeUpDropped = 3,
    /// A repeated transaction id makes a second event.
    TransactionForgotten = 4,
    /// `next_batch` is one record too far.
    TokenTooFar = 5,
    /// A one-time key that was given stays with the others.
    KeyGivenAgain = 6,
    /// A to-device message of another homeserver is taken again.
    MessageTakenAgain = 7,
    /// Of what a destination has missed, the first is left out.
    MissedForgotten = 8,
    /// Events that an incoming one refers to are not fetched.
    GapNotFilled = 9,
}

impl Fault {
    pub const ALL: [Self; 9] = [
        Self::AnsweredBeforeSync,
        Self::BatchForgotten,
        Self::WakeUpDropped,
        Self::TransactionForgotten,
        Self::TokenTooFar,
        Self::KeyGivenAgain,
        Self::MessageTakenAgain,
        Self::MissedForgotten,
        Self::GapNotFilled,
    ];
}

#[cfg(feature = "simulate")]
mod switch {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Fault;

    static ON: AtomicU32 = AtomicU32::new(0);

    /// Switches one fault on, and the others off.
    pub fn plant(fault: Option<Fault>) {
        ON.store(fault.map_or(0, |fault| fault as u32), Ordering::Relaxed);
    }

    /// Whether this fault is on.
    pub fn has(fault: Fault) -> bool {
        ON.load(Ordering::Relaxed) == fault as u32
    }
}

#[cfg(feature = "simulate")]
pub use switch::{has, plant};

/// Whether this fault is on: never.
#[cfg(not(feature = "simulate"))]
pub const fn has(_: Fault) -> bool {
    false
}
