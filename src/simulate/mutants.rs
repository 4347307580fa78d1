//! Where each fault that is planted on purpose is found: the smallest world, and the claim.

use logcabin_base::planted::Fault;

use super::world::Plan;

/// A world in which a fault is found.
pub(crate) struct Mutant {
    pub(crate) fault: Fault,
    pub(crate) seed: u64,
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

const fn mutant(
    fault: Fault,
    (seed, actions, kind): (u64, usize, Kind),
    claim: &'static str,
) -> Mutant {
    Mutant { fault, seed, actions, kind, claim }
}

/// All of them. The table in `docs/simulation.md` has the same.
pub(crate) const ALL: [Mutant; Fault::ALL.len()] = {
    use Fault as F;
    use Kind::{Calm, Troubled};
    [
        mutant(F::AnsweredBeforeSync, (300, 15, Troubled), "each request is answered in time"),
        mutant(F::BatchForgotten, (304, 15, Troubled), "each event is seen once"),
        mutant(F::WakeUpDropped, (300, 15, Calm), "news arrive promptly"),
        mutant(F::TransactionForgotten, (300, 15, Calm), "a transaction id makes one event"),
        mutant(F::TokenTooFar, (300, 15, Calm), "a client can sync"),
        mutant(F::KeyGivenAgain, (300, 15, Calm), "each one-time key is given once"),
        mutant(F::MessageTakenAgain, (300, 15, Troubled), "each to-device message arrives once"),
        mutant(F::MissedForgotten, (300, 15, Troubled), "what was acknowledged arrives"),
        mutant(F::GapNotFilled, (314, 25, Troubled), "what was acknowledged arrives"),
        mutant(F::RulesNotChecked, (300, 15, Calm), "what the rules forbid is refused"),
        mutant(F::BanIsKick, (301, 15, Calm), "who is banned cannot come back"),
        mutant(F::SoftFailSkipped, (300, 15, Calm), "who is not in a room is not heard there"),
        mutant(F::RedactedShown, (300, 15, Calm), "what was redacted is shown to nobody"),
        mutant(
            F::RedactionOfOthersIgnored,
            (300, 15, Calm),
            "what was redacted is shown to nobody",
        ),
        mutant(F::ReceiptGoesBack, (300, 15, Calm), "a receipt does not go back"),
        mutant(F::ReceiptNotTold, (300, 15, Calm), "receipts arrive"),
        mutant(F::RoomNotWoken, (300, 15, Calm), "news arrive promptly"),
        mutant(F::BackOffAtOnce, (300, 15, Troubled), "what was acknowledged arrives"),
        mutant(F::MissedEduForgotten, (303, 15, Troubled), "what was acknowledged arrives"),
        mutant(F::StaleExtremity, (302, 15, Calm), "what was acknowledged arrives"),
        mutant(F::InviteNotShown, (300, 15, Calm), "what was acknowledged arrives"),
        mutant(F::RemovalNotTold, (300, 15, Calm), "what was acknowledged arrives"),
        mutant(F::TypingNeverEnds, (300, 15, Calm), "typing ends"),
        mutant(
            F::FallbackKeyNotGiven,
            (300, 15, Calm),
            "a device with a fallback key has a key for all",
        ),
        mutant(F::LogoutForgotten, (300, 15, Calm), "a session that has ended is refused"),
        mutant(F::DevicesNotTold, (300, 15, Calm), "what was acknowledged arrives"),
        mutant(F::DevicesNotShown, (300, 15, Calm), "what was acknowledged arrives"),
        mutant(F::AccountDataNotShown, (300, 15, Calm), "what was acknowledged arrives"),
        mutant(F::OwnStateWins, (300, 15, Calm), "no correct request is refused"),
        mutant(F::EventLeftOut, (300, 15, Calm), "what was acknowledged arrives"),
    ]
};

impl Mutant {
    pub(crate) fn plan(&self) -> Plan {
        Plan {
            actions: self.actions,
            has_faults: self.kind == Kind::Troubled,
            is_hostile: self.kind == Kind::Hostile,
            planted: Some(self.fault),
            ..Plan::of(self.seed)
        }
    }

    /// Its row in the table.
    pub(crate) fn row_end(&self) -> String {
        let kind = match self.kind {
            Kind::Calm => ", calm",
            Kind::Troubled => "",
            Kind::Hostile => ", calm, hostile",
        };
        format!("| {}, {} actions{kind} | {} |", self.seed, self.actions, self.claim)
    }
}
