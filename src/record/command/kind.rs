//! What is fixed about a kind of command, and what is said of its payloads beside their form.

use crate::record::Holds;

/// Whether a command may be undone by restoring the log to an earlier moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A restore to an earlier moment forgets it.
    Rewindable,
    /// A restore carries it over: a token that was revoked stays revoked, a key that was handed
    /// out stays handed out.
    MustNotRewind,
}

/// What is fixed about a kind of command.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The name in the record's header. Permanent.
    pub name: &'static str,
    /// The payload version that this server writes. It reads all versions up to this one.
    pub version: u16,
    /// Whether a restore may forget it.
    pub class: Class,
    /// Whether compaction may drop superseded payloads.
    pub ephemeral: bool,
    /// What is left of a payload that is erased.
    pub erased: Erased,
}

/// What is left of the payloads of a kind when they are erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    /// Payloads of this kind are not erased.
    Never,
    /// Nothing: a later record says what it said, or took back all that followed from it.
    All,
    /// An event: the redaction algorithm says what is left of its PDU.
    Event,
    /// A part: members that are there become `{}`, and members are gone.
    Members {
        /// Those that become `{}`.
        emptied: &'static [&'static str],
        /// Those that are gone.
        gone: &'static [&'static str],
        /// The one that a payload never lacks.
        required: Option<&'static str>,
    },
}

/// What is said of each payload beside its form.
pub trait Content {
    /// What is left of it when it is erased.
    const ERASED: Erased = Erased::Never;

    /// What it holds of people.
    fn holds(&self) -> Holds<'_> {
        Holds::Nothing
    }
}
