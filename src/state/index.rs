//! Indexes into the log: where an event is, what a transaction sent, what a stretch of the log
//! touched.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasherDefault, Hasher},
};

use parking_lot::RwLock;
use ruma::EventId;
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::{Offset, Stream, command::Transaction};

/// Where each event is. Holds 8 bytes of hash for each event, so that a look-up gives candidates;
/// the caller compares the id in the log.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct EventIndex(#[serde(with = "kept::locked")] RwLock<Offsets>);

/// Where each transaction's event is, by session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Transactions(#[serde(with = "kept::locked")] RwLock<BTreeMap<Offset, Offsets>>);

/// From a 64-bit hash to offsets.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Offsets {
    #[serde(with = "kept::sorted")]
    first: HashMap<u64, Offset, Hashed>,
    /// The rest where several things have the same hash.
    more: BTreeMap<u64, Vec<Offset>>,
}

/// Hashes a number that is a hash already: by taking it.
type Hashed = BuildHasherDefault<Taken>;

#[derive(Clone, Copy, Debug, Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Offsets {
    fn insert(&mut self, key: u64, offset: Offset) {
        match self.first.entry(key) {
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(offset);
            }
            std::collections::hash_map::Entry::Occupied(_) => {
                self.more.entry(key).or_default().push(offset);
            }
        }
    }

    fn get(&self, key: u64) -> Vec<Offset> {
        let mut found: Vec<_> = self.first.get(&key).copied().into_iter().collect();
        if !found.is_empty() {
            found.extend(self.more.get(&key).into_iter().flatten());
        }
        found
    }

    fn digest(&self, digest: &mut super::digest::Digest) {
        let mut offsets: Vec<_> = self.first.iter().map(|(key, offset)| (*key, *offset)).collect();
        offsets.sort_unstable();
        digest.add(&offsets);
        digest.add(&self.more);
    }
}

pub(super) fn hash(parts: &[&str]) -> u64 {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_be_bytes()).update(part.as_bytes());
    }
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_be_bytes(first)
}

impl EventIndex {
    /// The offsets at which the event may be: nearly always one.
    #[must_use]
    pub fn candidates(&self, event_id: &EventId) -> Vec<Offset> {
        self.0.read().get(hash(&[event_id.as_str()]))
    }

    pub(super) fn insert(&self, offset: Offset, event_id: &EventId) {
        self.0.write().insert(hash(&[event_id.as_str()]), offset);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        self.0.read().digest(digest);
    }
}

impl Transactions {
    /// The offsets at which the event of a transaction may be: nearly always none or one.
    #[must_use]
    pub fn candidates(&self, session: Offset, scope: &str, id: &str) -> Vec<Offset> {
        let sessions = self.0.read();
        sessions.get(&session).map_or_else(Vec::new, |offsets| offsets.get(hash(&[scope, id])))
    }

    /// Notes that `transaction`, if there is one, did what the record at `offset` says.
    pub(super) fn note(&self, offset: Offset, transaction: Option<&Transaction>) {
        if let Some(Transaction { session, id, scope }) = transaction {
            self.0.write().entry(*session).or_default().insert(hash(&[scope, id]), offset);
        }
    }

    /// A session that ended sends nothing more.
    pub(super) fn end(&self, session: Offset) {
        self.0.write().remove(&session);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        for (session, offsets) in &*self.0.read() {
            digest.add(session);
            offsets.digest(digest);
        }
    }
}

/// The last offset of every stream, and which stream each record belongs to, so that "what changed
/// after this offset" costs what changed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Streams(#[serde(with = "kept::locked")] RwLock<StreamsInner>);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "KeptStreams")]
struct StreamsInner {
    #[serde(skip)]
    numbers: HashMap<Stream, u32>,
    streams: Vec<(Stream, Offset)>,
    /// By offset - 1, the number of the record's stream.
    journal: Vec<u32>,
}

/// [`StreamsInner`] as it is written.
type KeptStreams = (Vec<(Stream, Offset)>, Vec<u32>);

impl From<KeptStreams> for StreamsInner {
    fn from((streams, journal): KeptStreams) -> Self {
        let numbers = streams.iter().zip(0..).map(|((stream, _), n)| (stream.clone(), n)).collect();
        Self { numbers, streams, journal }
    }
}

impl Streams {
    /// The last offset of `stream`; [`Offset::ZERO`] if it has no record.
    #[must_use]
    pub fn head(&self, stream: &Stream) -> Offset {
        let inner = self.0.read();
        let number = inner.numbers.get(stream).copied();
        number.and_then(|n| inner.streams.get(n as usize)).map_or(Offset::ZERO, |(_, last)| *last)
    }

    /// The last offset of every stream.
    #[must_use]
    pub fn heads(&self) -> HashMap<Stream, Offset> {
        self.0.read().streams.iter().cloned().collect()
    }

    /// The streams with records after `since`, up to and with `to`, each once.
    #[must_use]
    pub fn touched(&self, since: Offset, to: Offset) -> Vec<Stream> {
        let inner = self.0.read();
        let index = |offset: Offset| usize::try_from(offset.get()).unwrap_or(usize::MAX);
        let end = index(to).min(inner.journal.len());
        let start = index(since).min(end);
        let mut numbers = inner.journal[start..end].to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let stream = |number: u32| inner.streams.get(number as usize).map(|(name, _)| name.clone());
        numbers.into_iter().filter_map(stream).collect()
    }

    pub(super) fn record(&self, offset: Offset, stream: &Stream) {
        let mut inner = self.0.write();
        let number = match inner.numbers.get(stream) {
            Some(number) => *number,
            None => {
                // Bounded by the number of records, which memory bounds far below 2^32.
                let number = u32::try_from(inner.streams.len()).unwrap_or(u32::MAX);
                inner.numbers.insert(stream.clone(), number);
                inner.streams.push((stream.clone(), offset));
                number
            }
        };
        if let Some((_, last)) = inner.streams.get_mut(number as usize) {
            *last = offset;
        }
        inner.journal.push(number);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let inner = self.0.read();
        digest.add(&inner.streams);
        digest.add(&inner.journal);
    }
}
