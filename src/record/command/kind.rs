//! The properties of a kind of command, and what each payload declares besides its form.

use crate::Holds;

/// Whether a command may be undone by restoring the log to an earlier moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A restore to an earlier moment forgets it.
    Rewindable,
    /// A restore carries it over: a revoked token stays revoked, a key that was handed out stays
    /// handed out.
    MustNotRewind,
}

/// What a restore to an earlier moment does with a command that was recorded after that moment:
/// see `ops::restore::carry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restore {
    Dropped,
    CarriedOver,
    /// It is carried over if its user has an account.
    CarriedOverWithUser,
    /// Its content decides.
    Judged,
}

/// What people tell apart when they look through a log: see the colours of `ops::history::render`
/// and the console's time line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Events of rooms.
    Event,
    /// Receipts and typing.
    Receipt,
    /// What happens to a room besides its events.
    Room,
    Alias,
    Presence,
    /// Accounts, profiles and account data.
    Account,
    Filter,
    /// Devices, and what OAuth clients were granted.
    Device,
    /// Sign-ins at the server's pages.
    Browser,
    /// Third-party identifiers.
    Address,
    /// Encryption keys, their backups, and messages to devices.
    Keys,
    Other,
}

macro_rules! topics {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The kinds of value that a command may be about. A query for why a value is what it is
        /// returns the commands about it: see `ops::history::why`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Topic {
            $($(#[$doc])* $name,)*
        }

        /// The topics as types.
        pub mod topic {
            $($(#[$doc])*
            #[derive(Debug)]
            pub enum $name {})*
        }
    };
}

topics! {
    RoomState,
    /// What became of an event.
    Event,
    /// Whether a room is in the directory.
    Directory,
    /// How far somebody has read a room.
    Receipt,
    /// The target of an alias.
    Alias,
    /// OAuth clients, and what users granted them.
    Grants,
    /// The existence and status of an account.
    Account,
    /// The password of an account.
    Password,
    Device,
    /// A field of a profile.
    Profile,
    AccountData,
    Pusher,
    /// An e-mail address or phone number of an account.
    Address,
    /// The keys of a device, or those for cross-signing.
    Keys,
}

/// The properties of a kind of command.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The name in the record's header. Permanent.
    pub name: &'static str,
    pub family: Family,
    /// The payload version that this server writes. It reads all versions up to this one.
    pub version: u16,
    /// Whether a restore may undo it.
    pub class: Class,
    /// What a restore does with it.
    pub restore: Restore,
    /// The values it is about.
    pub about: &'static [Topic],
    /// Whether compaction may drop superseded payloads.
    pub ephemeral: bool,
    /// What is left of an erased payload.
    pub erased: Erased,
}

impl Kind {
    /// The kind of this name; `None` for one that only a newer version knows.
    pub fn named(name: &str) -> Option<&'static Self> {
        super::KINDS.iter().find(|kind| kind.name == name)
    }
}

/// What is left of the payloads of a kind when they are erased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Erased {
    /// Payloads of this kind are not erased.
    Never,
    /// Nothing: a later record repeats its content, or undid all its consequences.
    All,
    /// The PDU as the redaction algorithm leaves it.
    Event,
    /// A part: some members become `{}`, others are removed.
    Members {
        /// Those that become `{}`.
        emptied: &'static [&'static str],
        /// Those that are removed.
        gone: &'static [&'static str],
        /// The member that every payload has.
        required: Option<&'static str>,
    },
}

/// What each payload declares besides its form.
pub trait Content {
    /// What is left of it when it is erased.
    const ERASED: Erased = Erased::Never;

    /// The personal data in it.
    fn holds(&self) -> Holds<'_> {
        Holds::Nothing
    }
}
