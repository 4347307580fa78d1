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
pub(crate) const ALL: [Mutant; 0] = {
    use Fault as F;
    use Kind::{Calm, Hostile, Troubled};
    []
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
