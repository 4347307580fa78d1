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
    /// What a user of this server sends is not checked by the rules of the room.
    RulesNotChecked = 10,
    /// Who is banned can come back.
    BanIsKick = 11,
    /// What the current state does not allow is shown.
    SoftFailSkipped = 12,
    /// What was redacted is shown.
    RedactedShown = 13,
    /// A redaction by another homeserver's user has no effect.
    RedactionOfOthersIgnored = 14,
    /// A receipt moves back to an earlier event.
    ReceiptGoesBack = 15,
    /// Other homeservers are not told of receipts.
    ReceiptNotTold = 16,
    /// Those in a room are not woken by what happens in it.
    RoomNotWoken = 17,
    /// A homeserver that fails once is tried again after hours.
    BackOffAtOnce = 18,
    /// Of what a destination has missed, EDUs are left out.
    MissedEduForgotten = 19,
    /// What another homeserver sends is not what comes next after.
    StaleExtremity = 20,
    /// An invite is in no sync.
    InviteNotShown = 21,
    /// The homeserver of a removed user is not told.
    RemovalNotTold = 22,
    /// Typing that is not ended does not end by itself.
    TypingNeverEnds = 23,
    /// A fallback key is not given.
    FallbackKeyNotGiven = 24,
    /// A session goes on after its logout.
    LogoutForgotten = 25,
    /// Other homeservers are not told of changes of devices.
    DevicesNotTold = 26,
    /// A change of devices is in no sync.
    DevicesNotShown = 27,
    /// A change of account data is in no sync.
    AccountDataNotShown = 28,
    /// Where branches meet, the state of this homeserver counts.
    OwnStateWins = 29,
    /// Of several new events in a room, the first is left out of a sync.
    EventLeftOut = 30,
}

impl Fault {
    pub const ALL: [Self; 30] = [
        Self::AnsweredBeforeSync,
        Self::BatchForgotten,
        Self::WakeUpDropped,
        Self::TransactionForgotten,
        Self::TokenTooFar,
        Self::KeyGivenAgain,
        Self::MessageTakenAgain,
        Self::MissedForgotten,
        Self::GapNotFilled,
        Self::RulesNotChecked,
        Self::BanIsKick,
        Self::SoftFailSkipped,
        Self::RedactedShown,
        Self::RedactionOfOthersIgnored,
        Self::ReceiptGoesBack,
        Self::ReceiptNotTold,
        Self::RoomNotWoken,
        Self::BackOffAtOnce,
        Self::MissedEduForgotten,
        Self::StaleExtremity,
        Self::InviteNotShown,
        Self::RemovalNotTold,
        Self::TypingNeverEnds,
        Self::FallbackKeyNotGiven,
        Self::LogoutForgotten,
        Self::DevicesNotTold,
        Self::DevicesNotShown,
        Self::AccountDataNotShown,
        Self::OwnStateWins,
        Self::EventLeftOut,
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
