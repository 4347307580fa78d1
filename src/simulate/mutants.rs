//! Where each fault that is planted on purpose is found: the kind of world, and the claim.

use logcabin_base::planted::Fault;

use super::world::Plan;

/// The seeds of the worlds in which faults are looked for, one after the other. In which of them
/// one is found changes with everything that the program does.
pub(crate) const SEEDS: std::ops::Range<u64> = 300..316;

/// The kind of worlds in which a fault is found.
pub(crate) struct Mutant {
    pub(crate) fault: Fault,
    actions: usize,
    kind: Kind,
    /// How the claim that it breaks begins.
    pub(crate) claim: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Calm,
    Troubled,
    Hostile,
}

const fn mutant(fault: Fault, (actions, kind): (usize, Kind), claim: &'static str) -> Mutant {
    Mutant { fault, actions, kind, claim }
}

/// All of them. The table in `docs/simulation.md` has the same.
pub(crate) const ALL: [Mutant; Fault::ALL.len()] = {
    use Fault as F;
    use Kind::{Calm, Troubled};
    [
        mutant(F::AnsweredBeforeSync, (15, Troubled), "each request is answered in time"),
        mutant(F::BatchForgotten, (15, Troubled), "each event is seen once"),
        mutant(F::WakeUpDropped, (15, Calm), "news arrive promptly"),
        mutant(F::TransactionForgotten, (15, Calm), "a transaction id makes one event"),
        mutant(F::TokenTooFar, (15, Calm), "a client can sync"),
        mutant(F::KeyGivenAgain, (15, Calm), "each one-time key is given once"),
        mutant(F::MessageTakenAgain, (15, Troubled), "each to-device message arrives once"),
        mutant(F::MissedForgotten, (15, Troubled), "what was acknowledged arrives"),
        mutant(F::GapNotFilled, (25, Troubled), "what was acknowledged arrives"),
        mutant(F::RulesNotChecked, (15, Calm), "what the rules forbid is refused"),
        mutant(F::BanIsKick, (15, Calm), "who is banned cannot come back"),
        mutant(F::SoftFailSkipped, (15, Calm), "who is not in a room is not heard there"),
        mutant(F::RedactedShown, (15, Calm), "what was redacted is shown to nobody"),
        mutant(F::RedactionOfOthersIgnored, (15, Calm), "what was redacted is shown to nobody"),
        mutant(F::ReceiptGoesBack, (15, Calm), "a receipt does not go back"),
        mutant(F::ReceiptNotTold, (15, Calm), "receipts arrive"),
        mutant(F::RoomNotWoken, (15, Calm), "news arrive promptly"),
        mutant(F::BackOffAtOnce, (15, Troubled), "what was acknowledged arrives"),
        mutant(F::MissedEduForgotten, (15, Troubled), "what was acknowledged arrives"),
        mutant(F::StaleExtremity, (15, Calm), "what was acknowledged arrives"),
        mutant(F::InviteNotShown, (15, Calm), "what was acknowledged arrives"),
        mutant(F::RemovalNotTold, (15, Calm), "what was acknowledged arrives"),
        mutant(F::TypingNeverEnds, (15, Calm), "typing ends"),
        mutant(
            F::FallbackKeyNotGiven,
            (15, Calm),
            "a device with a fallback key has a key for all",
        ),
        mutant(F::LogoutForgotten, (15, Calm), "a session that has ended is refused"),
        mutant(F::DevicesNotTold, (15, Calm), "what was acknowledged arrives"),
        mutant(F::DevicesNotShown, (15, Calm), "what was acknowledged arrives"),
        mutant(F::AccountDataNotShown, (15, Calm), "what was acknowledged arrives"),
        mutant(F::OwnStateWins, (15, Calm), "no correct request is refused"),
        mutant(F::EventLeftOut, (15, Calm), "what was acknowledged arrives"),
    ]
};

impl Mutant {
    pub(crate) fn plan(&self, seed: u64) -> Plan {
        Plan {
            actions: self.actions,
            has_faults: self.kind == Kind::Troubled,
            is_hostile: self.kind == Kind::Hostile,
            planted: Some(self.fault),
            ..Plan::of(seed)
        }
    }

    /// Its row in the table.
    pub(crate) fn row_end(&self) -> String {
        let kind = match self.kind {
            Kind::Calm => ", calm",
            Kind::Troubled => "",
            Kind::Hostile => ", calm, hostile",
        };
        format!("| {} actions{kind} | {} |", self.actions, self.claim)
    }
}
