//! Do both give the same answers? What a source holds is read once more, as facts, and looked for
//! in the projections of the log, which every answer of the server is made from.
//!
//! It reads, and changes nothing on either side. The log is looked at as of the end of the import,
//! so that what users did afterwards is no difference, as far as projections have a past: keys have
//! none, so devices that went on may differ.

mod grants;
mod rooms;
mod unread;
mod users;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
    sync::Arc,
};

use serde::Serialize;

use logcabin_log::{
    Log, ReadError,
    store::{SledLog, SledOptions, has_log},
};
use logcabin_read::events::EventStore;
use logcabin_record::{Offset, command::ImportSource};
use logcabin_snapshot as snapshot;
use logcabin_state::State;

use crate::{
    ImportError,
    facts::{Cursor, Fact, Section, Source, Told},
};

/// The most differences that are listed; the others are counted.
const LISTED: usize = 1000;

/// What comes along and is not compared: its sections, and what a person calls it.
pub const NOT_COMPARED: &[(&[Section], &str)] = &[
    (&[Section::RegistrationTokens], "registration tokens"),
    (&[Section::Threepids, Section::ThreepidBindings], "email addresses and phone numbers"),
    (&[Section::ExternalIds], "identities at providers"),
    (&[Section::OauthClients], "OAuth clients"),
    (&[Section::Transactions], "what clients called the events that they sent"),
    (&[Section::Devices, Section::DehydratedDevices], "names of devices, dehydrated devices"),
    (&[Section::FallbackKeys, Section::KeySignatures], "fallback keys and signatures"),
    (&[Section::Outliers, Section::Backfilled, Section::BackwardExtremities], "earlier history"),
    (&[Section::ForwardExtremities], "forward extremities, which `finish` has compared"),
    (&[Section::Memberships], "invites, knocks and forgotten rooms"),
    (&[Section::Directory, Section::RoomBlocks], "the directory and blocked rooms"),
    (&[Section::Pushers, Section::Filters, Section::Presence], "pushers, filters and presence"),
    (&[Section::ThreadSubscriptions], "thread subscriptions, which do not come along"),
    (&[Section::DelayedEvents, Section::Reports], "scheduled events and reports"),
    (&[Section::RemoteMedia], "quarantines"),
    (
        &[
            Section::PeerKeys,
            Section::PeerCrossSigningKeys,
            Section::PeerDeviceLists,
            Section::PeerDevices,
        ],
        "keys and devices of other servers",
    ),
    (
        &[
            Section::Destinations,
            Section::DeviceChanges,
            Section::AppServiceTransactions,
            Section::AppServices,
        ],
        "how far other servers and bridges were told",
    ),
    (&[Section::ToDevice, Section::ToPeerDevice], "messages to devices"),
];

/// The memory for events that are looked at, in bytes.
const CACHE_BYTES: u64 = 16 * 1024 * 1024;

/// How much is compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// So many users, evenly among all; all without it.
    pub users: Option<usize>,
    /// The same for rooms.
    pub rooms: Option<usize>,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    Accounts,
    Sessions,
    Grants,
    Profiles,
    Rooms,
    Members,
    State,
    LastEvents,
    Aliases,
    Receipts,
    Unread,
    AccountData,
    PushRules,
    DeviceKeys,
    OneTimeKeys,
    CrossSigningKeys,
    KeyBackups,
    Media,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accounts => "accounts",
            Self::Sessions => "sessions",
            Self::Grants => "grants to clients",
            Self::Profiles => "profiles",
            Self::Rooms => "rooms",
            Self::Members => "members",
            Self::State => "state",
            Self::LastEvents => "last events",
            Self::Aliases => "aliases",
            Self::Receipts => "receipts",
            Self::Unread => "unread counts",
            Self::AccountData => "account data",
            Self::PushRules => "push rules",
            Self::DeviceKeys => "device keys",
            Self::OneTimeKeys => "one-time keys",
            Self::CrossSigningKeys => "cross-signing keys",
            Self::KeyBackups => "key backups",
            Self::Media => "media",
        })
    }
}

/// Something that is not the same.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    pub subject: Subject,
    /// Whom or what it is about: the id of a user or a room, and what of it.
    pub of: String,
    /// What differs, as a sentence without its full stop.
    pub what: String,
    /// Why that is as it should be; a fault without it.
    pub because: Option<&'static str>,
}

/// The result.
#[derive(Debug, Default, Serialize)]
pub struct Compared {
    /// How many answers were the same.
    pub same: BTreeMap<Subject, u64>,
    pub differences: Vec<Difference>,
    /// How many more differences there are.
    pub more: u64,
    /// How many of all have no reason.
    pub faults: u64,
    /// What of the source has moved since it was imported: it was in use.
    pub moved: Vec<String>,
}

impl Compared {
    fn same(&mut self, subject: Subject) {
        *self.same.entry(subject).or_default() += 1;
    }

    fn differs(&mut self, difference: Difference) {
        self.faults += u64::from(difference.because.is_none());
        if self.differences.len() < LISTED {
            self.differences.push(difference);
        } else {
            self.more += 1;
        }
    }

    /// Notes that an answer is the same, or what differs.
    fn is(&mut self, subject: Subject, of: impl Into<String>, found: Result<(), Reason>) {
        match found {
            Ok(()) => self.same(subject),
            Err(Reason { what, because }) => {
                self.differs(Difference { subject, of: of.into(), what, because });
            }
        }
    }
}

/// Why an answer is not the same.
#[derive(Debug)]
struct Reason {
    what: String,
    because: Option<&'static str>,
}

impl Reason {
    fn fault(what: impl Into<String>) -> Self {
        Self { what: what.into(), because: None }
    }

    fn explained(what: impl Into<String>, because: &'static str) -> Self {
        Self { what: what.into(), because: Some(because) }
    }
}

/// One side of the comparison: the log, and what it adds up to.
struct Imported {
    state: State,
    events: EventStore,
    /// The end of the import.
    at: Offset,
}

/// Compares a source with the log in a data directory that no server uses. `media` is the source's
/// directory of files.
///
/// # Errors
/// When one of the two cannot be read.
pub fn compare(
    source: &mut dyn Source,
    media: Option<&Path>,
    data_dir: &Path,
    extent: Extent,
) -> Result<Compared, ImportError> {
    let refused = |error: &dyn fmt::Display| {
        ImportError::Refused(format!("the log in {} cannot be read: {error}", data_dir.display()))
    };
    if !has_log(data_dir) {
        return Err(refused(&"there is none; `logcabin import-synapse finish` makes it"));
    }
    let log = SledLog::open(SledOptions::new(data_dir)).map_err(|error| refused(&error))?;
    let log: Arc<dyn Log> = Arc::new(log);
    let recalled = snapshot::recall(&snapshot::directory(data_dir), &*log);
    let (state, _) = recalled.map_err(|error| refused(&error))?;
    let ended = state.imports.newest(ImportSource::Synapse).and_then(|import| import.ended);
    let at = ended.unwrap_or_else(|| state.applied());
    let events = EventStore::new(Arc::clone(&log), CACHE_BYTES);
    let copy = Imported { state, events, at };
    let mut compared = Compared::default();
    users::compare(source, media, &copy, extent.users, &mut compared)?;
    rooms::compare(source, &copy, extent.rooms, &mut compared)?;
    drop(copy);
    log.close();
    Ok(compared)
}

/// Calls `each` with all facts of a section, in their order.
fn each(
    source: &mut dyn Source,
    section: Section,
    mut each: impl FnMut(Fact) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    let mut after = Cursor::START;
    loop {
        let slice = source.read(section, &after)?;
        for Told { fact, .. } in slice.facts {
            each(fact)?;
        }
        match slice.next {
            Some(next) => after = next,
            None => return Ok(()),
        }
    }
}

/// So many of all, evenly; all of them without a number.
fn sample(all: Vec<String>, number: Option<usize>) -> BTreeSet<String> {
    let Some(number) = number.filter(|number| *number < all.len()) else {
        return all.into_iter().collect();
    };
    let every = all.len().div_ceil(number.max(1));
    all.into_iter().step_by(every).take(number).collect()
}

/// The log could not be read in the middle.
fn lost(error: ReadError) -> ImportError {
    ImportError::Refused(format!("the log cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_taken_from_all_parts() {
        let all = || (0..10).map(|number| number.to_string()).collect::<Vec<_>>();
        assert_eq!(sample(all(), None).len(), 10);
        assert_eq!(sample(all(), Some(20)).len(), 10);
        let some: Vec<_> = sample(all(), Some(3)).into_iter().collect();
        assert_eq!(some, ["0", "4", "8"]);
        assert!(sample(all(), Some(0)).is_empty());
    }

    #[test]
    fn differences_are_counted_beyond_those_that_are_listed() {
        let mut compared = Compared::default();
        for number in 0..LISTED + 5 {
            let found = Err(Reason::fault("it is not there"));
            compared.is(Subject::Rooms, number.to_string(), found);
        }
        let explained = Err(Reason::explained("it is not there", "it was purged"));
        compared.is(Subject::Rooms, "x", explained);
        compared.is(Subject::Rooms, "y", Ok(()));
        assert_eq!((compared.differences.len(), compared.more), (LISTED, 6));
        assert_eq!((compared.faults, compared.same[&Subject::Rooms]), (LISTED as u64 + 5, 1));
    }
}
