//! The projections by name, each with the version of its content: how snapshots write them and read
//! those of earlier versions, and how each is hashed and inspected.

use std::{
    io::{self, BufWriter, Write},
    num::NonZero,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use ciborium::Value;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Epoch, History, ServerIdentity, State, digest::Digest};
use logcabin_record::Offset;

/// Moves a projection that was read into the state.
type Put = Box<dyn FnOnce(&mut State) + Send>;

/// Reads a projection from the bytes of some version.
type Read = fn(&[u8]) -> Result<Put, postcard::Error>;

/// A projection.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Its name in snapshots.
    pub name: &'static str,
    /// The version of its content. It must be increased with every change of the bytes or of their
    /// meaning; a test says when.
    pub version: u32,
    /// Readers for earlier versions, sufficient until the projection has been rebuilt from the log:
    /// everything that decisions depend on must be there.
    upcasts: &'static [(u32, Read)],
    /// No decision depends on it, so it may be empty until it has been rebuilt from the log.
    may_begin_empty: bool,
    write: fn(&State, &mut dyn Write) -> io::Result<()>,
    read: Read,
    digest: fn(&State, &mut Digest),
    outline: fn(&State) -> Value,
}

impl Section {
    /// Writes the projection in `state`: equal projections have equal bytes. This method and the
    /// following ones must be called while nothing is being applied.
    pub fn write(&self, state: &State, out: &mut dyn Write) -> io::Result<()> {
        (self.write)(state, out)
    }

    /// The length of the projection in `state`, in bytes.
    pub fn bytes(&self, state: &State) -> u64 {
        /// Counts the bytes written.
        struct Count(u64);
        impl Write for Count {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0 += bytes.len() as u64;
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut count = Count(0);
        // Counting cannot fail.
        let _ = self.write(state, &mut count);
        count.0
    }

    /// A hash of the projection in `state`.
    pub fn digest(&self, state: &State) -> blake3::Hash {
        let mut digest = Digest::default();
        self.add_to(state, &mut digest);
        digest.finish()
    }

    pub(super) fn add_to(&self, state: &State, digest: &mut Digest) {
        (self.digest)(state, digest);
    }

    /// The projection as a tree, to look for differences.
    pub fn outline(&self, state: &State) -> Value {
        (self.outline)(state)
    }
}

/// The data that everything else builds on.
#[derive(Serialize, Deserialize)]
struct Base {
    applied: Offset,
    server: Option<ServerIdentity>,
    epochs: History<Epoch>,
}

impl Base {
    fn of(state: &State) -> Self {
        Self {
            applied: state.applied(),
            server: state.server().as_deref().cloned(),
            epochs: state.epochs.read().clone(),
        }
    }

    fn put(self, state: &mut State) {
        *state.applied.get_mut() = self.applied.get();
        *state.server.get_mut() = self.server.map(Into::into);
        *state.epochs.get_mut() = self.epochs;
    }
}

fn to_io(value: &impl Serialize, out: &mut dyn Write) -> io::Result<()> {
    let buffered = postcard::to_io(value, BufWriter::with_capacity(1 << 16, out));
    buffered.map_err(io::Error::other)?.flush()
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    let (value, left) = postcard::take_from_bytes(bytes)?;
    if left.is_empty() { Ok(value) } else { Err(postcard::Error::DeserializeBadEncoding) }
}

/// Every projection can be serialized.
fn tree(value: &impl Serialize) -> Value {
    Value::serialized(value).unwrap_or(Value::Null)
}

macro_rules! sections {
    ($(
        $field:ident, $name:literal, $version:literal
        $(, may begin $empty:ident)?
        $(, reads $old:literal as $former:ty)* ;
    )*) => {
        /// All projections, in the order of writing and hashing.
        pub const SECTIONS: &[Section] = &[
            Section {
                name: "base",
                version: 1,
                upcasts: &[],
                may_begin_empty: false,
                write: |state, out| to_io(&Base::of(state), out),
                read: |bytes| {
                    let base: Base = from_bytes(bytes)?;
                    Ok(Box::new(move |state| base.put(state)))
                },
                digest: |state, digest| {
                    digest.add(&state.applied());
                    digest.add(&state.server());
                    digest.add(&*state.epochs.read());
                },
                outline: |state| tree(&Base::of(state)),
            },
            $(Section {
                name: $name,
                version: $version,
                upcasts: &[$(($old, |bytes| {
                    let part: $former = from_bytes(bytes)?;
                    Ok(Box::new(move |state| state.$field = part.into()))
                })),*],
                may_begin_empty: sections!(@empty $($empty)?),
                write: |state, out| to_io(&state.$field, out),
                read: |bytes| {
                    let part = from_bytes(bytes)?;
                    Ok(Box::new(move |state| state.$field = part))
                },
                digest: |state, digest| state.$field.digest(digest),
                outline: |state| tree(&state.$field),
            },)*
        ];

        /// Fails to compile if a projection is in no section.
        const _: fn(State) = |state| {
            let State { applied: _, generation: _, server: _, epochs: _, $($field: _,)* } = state;
        };
    };
    (@empty) => { false };
    (@empty empty) => { true };
}

sections! {
    accounts, "accounts", 2, reads 1 as super::accounts::former::V1;
    oauth, "oauth", 1;
    registration_tokens, "registration tokens", 1;
    names, "names", 1, may begin empty;
    rooms, "rooms", 4, reads 3 as super::rooms::former::V3, reads 2 as super::rooms::former::V2,
        reads 1 as super::rooms::former::V1;
    closures, "closures", 1;
    redactions, "redactions", 1, may begin empty;
    sender_redactions, "redactions of senders", 1, may begin empty;
    history_purges, "history purges", 1, may begin empty;
    policy_lists, "policy lists", 1, may begin empty;
    notices, "notices", 1;
    reports, "reports", 2, reads 1 as super::reports::former::V1;
    memberships, "memberships", 1;
    undone, "undone memberships", 1;
    usage, "usage", 2, may begin empty;
    keys, "keys", 4, reads 1 as super::keys::former::V2, reads 2 as super::keys::former::V2,
        reads 3 as super::keys::Keys;
    key_backups, "key backups", 2, reads 1 as super::key_backups::former::V1;
    to_device, "messages to devices", 3, reads 1 as super::to_device::former::V1,
        reads 2 as super::to_device::former::V2;
    seen, "devices in use", 1;
    reads, "reads", 1;
    aliases, "aliases", 1;
    threepids, "addresses", 1;
    validations, "validations", 1;
    presence, "presence", 1;
    delayed, "scheduled events", 1;
    deliveries, "deliveries", 2, reads 1 as super::deliveries::former::V1;
    federation_keys, "peers", 1, may begin empty;
    destinations, "destinations", 2, may begin empty,
        reads 1 as super::destinations::former::V1;
    device_lists, "device lists of others", 2, may begin empty,
        reads 1 as super::device_lists::former::V1;
    media, "media", 1;
    remote_media, "media of others", 1, may begin empty;
    pushers, "pushers", 1;
    erasures, "erasures", 1;
    backups, "backups", 1;
    imports, "imports", 1, may begin empty;
    events, "index of events", 1;
    transactions, "transactions", 1;
    streams, "streams", 1;
    tree, "tree", 1;
}

/// A section as written by some version.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    pub name: &'a str,
    /// The version of its content.
    pub version: u32,
    pub bytes: &'a [u8],
    /// Their blake3, in hex.
    pub blake3: &'a str,
}

/// Why projections cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SectionError {
    /// A section is missing, or has a version that this one cannot convert.
    #[error("its section `{0}` is of another version")]
    Version(&'static str),
    /// A section was altered after it was written.
    #[error("its section `{0}` {1}")]
    Damaged(&'static str, String),
}

/// The projections in `written`, and the names of those that are provisional because another
/// version wrote them: these must be rebuilt from the log. Reads several concurrently. Blocks.
///
/// # Errors
/// When it lacks data that decisions depend on.
pub fn read(written: &[Written<'_>]) -> Result<(State, Vec<&'static str>), SectionError> {
    read_as(SECTIONS, written)
}

/// The bytes of all sections of `state`. Must be called while nothing is being applied.
pub fn bytes(state: &State) -> Vec<u8> {
    let mut bytes = Vec::new();
    for section in SECTIONS {
        // Writing to memory cannot fail.
        let _ = section.write(state, &mut bytes);
    }
    bytes
}

/// A copy of the projections, by writing and reading. Must be called while nothing is being
/// applied.
pub fn copy(state: &State) -> Result<State, SectionError> {
    let mut sections = Vec::new();
    for section in SECTIONS {
        let mut bytes = Vec::new();
        let _ = section.write(state, &mut bytes);
        let hash = blake3::hash(&bytes).to_hex();
        sections.push((section, bytes, hash));
    }
    let written: Vec<_> = sections
        .iter()
        .map(|(Section { name, version, .. }, bytes, hash)| Written {
            name,
            version: *version,
            bytes,
            blake3: hash,
        })
        .collect();
    read(&written).map(|(state, _)| state)
}

fn read_as(
    sections: &'static [Section],
    written: &[Written<'_>],
) -> Result<(State, Vec<&'static str>), SectionError> {
    let mut provisional = Vec::new();
    let mut todo: Vec<(&Section, Read, Written<'_>)> = Vec::new();
    for section in sections {
        let found = written.iter().find(|written| written.name == section.name);
        let upcast = |version| section.upcasts.iter().find(|(from, _)| *from == version);
        match found.map(|found| (found, upcast(found.version))) {
            Some((found, _)) if found.version == section.version => {
                todo.push((section, section.read, *found));
            }
            Some((found, Some((_, upcast)))) => {
                provisional.push(section.name);
                todo.push((section, *upcast, *found));
            }
            _ if section.may_begin_empty => provisional.push(section.name),
            _ => return Err(SectionError::Version(section.name)),
        }
    }
    // The largest first, so that no thread has to read it alone at the end.
    todo.sort_by_key(|(_, _, written)| std::cmp::Reverse(written.bytes.len()));
    let (next, parts) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((section, read, written)) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
            let part = if blake3::hash(written.bytes).to_hex().as_str() == written.blake3 {
                read(written.bytes).map_err(|error| format!("cannot be read: {error}"))
            } else {
                Err("has another hash".to_owned())
            };
            let part = part.map_err(|what| SectionError::Damaged(section.name, what));
            parts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(part);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(todo.len());
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut state = State::default();
    for part in parts.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        part?(&mut state);
    }
    Ok((state, provisional))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Section = SECTIONS[0];
    const NAMES: Section = Section { name: "names", may_begin_empty: true, ..BASE };
    /// The value was only the offset, and has more fields now.
    const GROWN: &[Section] = &[
        Section {
            version: 2,
            upcasts: &[(1, |bytes| {
                let applied: Offset = from_bytes(bytes)?;
                Ok(Box::new(move |state| *state.applied.get_mut() = applied.get()))
            })],
            ..BASE
        },
        NAMES,
    ];

    fn written<'a>(parts: &'a [(&'a str, u32, Vec<u8>, String)]) -> Vec<Written<'a>> {
        let written = |(name, version, bytes, blake3): &'a (&'a str, u32, Vec<u8>, String)| {
            Written { name, version: *version, bytes, blake3 }
        };
        parts.iter().map(written).collect()
    }

    fn part<'a>(
        name: &'a str,
        version: u32,
        value: &impl Serialize,
    ) -> (&'a str, u32, Vec<u8>, String) {
        let mut bytes = Vec::new();
        to_io(value, &mut bytes).unwrap();
        let hash = blake3::hash(&bytes).to_hex().to_string();
        (name, version, bytes, hash)
    }

    #[test]
    fn sections_of_other_versions_are_loaded_as_far_as_possible() {
        let base = || Base { applied: Offset::new(7), server: None, epochs: History::default() };
        let read = |parts: &[_]| read_as(GROWN, &written(parts));
        let names = || part("names", 1, &base());

        let (state, provisional) = read(&[part("base", 2, &base()), names()]).unwrap();
        assert_eq!((state.applied(), provisional), (Offset::new(7), vec![]));
        let (state, provisional) = read(&[names(), part("base", 1, &Offset::new(8))]).unwrap();
        assert_eq!((state.applied(), provisional), (Offset::new(8), vec!["base"]));
        // Sections that no decision depends on may be missing, or have a later version.
        let (_, provisional) = read(&[part("base", 2, &base())]).unwrap();
        assert_eq!(provisional, ["names"]);
        let later = part("names", 9, &base());
        assert_eq!(read(&[part("base", 2, &base()), later]).unwrap().1, ["names"]);
        // Sections that decisions depend on may not.
        let later = part("base", 3, &base());
        assert!(matches!(read(&[later, names()]), Err(SectionError::Version("base"))));
        assert!(matches!(read(&[names()]), Err(SectionError::Version("base"))));

        let mut damaged = part("base", 2, &base());
        damaged.2[0] ^= 1;
        assert!(matches!(read(&[damaged, names()]), Err(SectionError::Damaged("base", _))));
        let longer = part("base", 2, &(base(), 1_u8));
        assert!(matches!(read(&[longer, names()]), Err(SectionError::Damaged("base", _))));
    }

    #[test]
    fn section_names_are_unique() {
        let names: std::collections::BTreeSet<_> = SECTIONS.iter().map(|s| s.name).collect();
        assert_eq!(names.len(), SECTIONS.len());
    }
}
