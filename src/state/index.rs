//! Indexes of the log: events by id, transactions, and streams by offset.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::{BuildHasherDefault, Hasher},
    iter::Peekable,
    slice, vec,
};

use parking_lot::RwLock;
use ruma::EventId;
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{Error, MapAccess, Visitor},
};

use super::serializers;
use logcabin_record::{
    Offset, Stream,
    command::{SentBefore, Transaction},
};

/// The offset of each event. It stores 8 bytes of hash for each event, so a lookup returns
/// candidates, and the caller compares the id in the log.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct EventIndex(#[serde(with = "serializers::locked")] RwLock<Offsets>);

/// The offset of each transaction's event, by session.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Transactions(#[serde(with = "serializers::locked")] RwLock<BTreeMap<Offset, Offsets>>);

/// From a 64-bit hash to offsets.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Offsets {
    first: First,
    /// Further offsets for hashes that several entries share.
    more: BTreeMap<u64, Vec<Offset>>,
}

impl Offsets {
    fn insert(&mut self, key: u64, offset: Offset) {
        if self.first.get(key).is_none() {
            self.first.since.insert(key, offset);
        } else {
            self.more.entry(key).or_default().push(offset);
        }
    }

    fn get(&self, key: u64) -> Vec<Offset> {
        let mut found: Vec<_> = self.first.get(key).into_iter().collect();
        if !found.is_empty() {
            found.extend(self.more.get(&key).into_iter().flatten());
        }
        found
    }

    fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&self.first);
        digest.add(&self.more);
    }
}

/// From a hash to one offset.
#[derive(Debug, Default)]
struct First {
    /// Entries from a snapshot, ordered by hash, each hash once. A list can be used as soon as it
    /// is read: building a map of ten million entries would take most of the startup time.
    read: Vec<(u64, Offset)>,
    /// Later entries. None of their hashes is in `read`.
    since: HashMap<u64, Offset, BuildIdentityHasher>,
}

/// Hashes a number that is already a hash: the identity.
type BuildIdentityHasher = BuildHasherDefault<IdentityHasher>;

#[derive(Clone, Copy, Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
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

impl First {
    fn get(&self, key: u64) -> Option<Offset> {
        self.since.get(&key).copied().or_else(|| {
            let near = self.near(key);
            let found = near.binary_search_by_key(&key, |(other, _)| *other).ok()?;
            near.get(found).map(|(_, offset)| *offset)
        })
    }

    /// The part of the list that contains `key`, if the list does. Hashes are evenly distributed,
    /// so its position is close to its proportional one.
    fn near(&self, key: u64) -> &[(u64, Offset)] {
        let length = self.read.len();
        let guess = (u128::from(key) * length as u128) >> u64::BITS;
        let (guess, off) = (usize::try_from(guess).unwrap_or(length), 4 * length.isqrt() + 1);
        let near = &self.read[guess.saturating_sub(off)..(guess + off).min(length)];
        match (near.first(), near.last()) {
            (Some((first, _)), Some((last, _))) if (*first..=*last).contains(&key) => near,
            _ => &self.read,
        }
    }

    /// All entries ordered by hash. Only the later ones are copied.
    fn in_order(&self) -> InOrder<'_> {
        let mut since: Vec<_> = self.since.iter().map(|(key, offset)| (*key, *offset)).collect();
        since.sort_unstable();
        InOrder { read: self.read.iter().peekable(), since: since.into_iter().peekable() }
    }
}

/// Merges two ordered lists.
struct InOrder<'a> {
    read: Peekable<slice::Iter<'a, (u64, Offset)>>,
    since: Peekable<vec::IntoIter<(u64, Offset)>>,
}

impl Iterator for InOrder<'_> {
    type Item = (u64, Offset);

    fn next(&mut self) -> Option<Self::Item> {
        match (self.read.peek(), self.since.peek()) {
            (Some(read), Some(since)) if since < read => self.since.next(),
            (None, _) => self.since.next(),
            (Some(_), _) => self.read.next().copied(),
        }
    }

    // A list is written with its length.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let length = self.read.len() + self.since.len();
        (length, Some(length))
    }
}

impl Serialize for First {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.in_order())
    }
}

impl<'de> Deserialize<'de> for First {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Listed;
        impl<'de> Visitor<'de> for Listed {
            type Value = First;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("offsets by hash, in order")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<First, A::Error> {
                // A claimed length is trusted only up to this.
                let length = map.size_hint().unwrap_or_default().min(1 << 24);
                let mut read = Vec::with_capacity(length);
                while let Some((key, offset)) = map.next_entry()? {
                    if read.last().is_some_and(|(last, _)| *last >= key) {
                        return Err(Error::custom("hashes are not in order"));
                    }
                    read.push((key, offset));
                }
                Ok(First { read, since: HashMap::default() })
            }
        }
        deserializer.deserialize_map(Listed)
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
    /// Candidate offsets of the event: nearly always one.
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
    /// Candidate offsets of a transaction's event: nearly always none or one.
    pub fn candidates(&self, session: Offset, scope: &str, id: &str) -> Vec<Offset> {
        let sessions = self.0.read();
        sessions.get(&session).map_or_else(Vec::new, |offsets| offsets.get(hash(&[scope, id])))
    }

    /// Records that `transaction`, if there is one, caused the record at `offset`.
    pub(super) fn note(&self, offset: Offset, transaction: Option<&Transaction>) {
        if let Some(Transaction { session, id, scope }) = transaction {
            self.0.write().entry(*session).or_default().insert(hash(&[scope, id]), offset);
        }
    }

    /// Records what a session that was imported had sent. This record says it of the events.
    pub(super) fn note_before(&self, session: Offset, sent: &[SentBefore]) {
        if sent.is_empty() {
            return;
        }
        let mut sessions = self.0.write();
        let of_session = sessions.entry(session).or_default();
        for SentBefore { scope, id, .. } in sent {
            of_session.insert(hash(&[scope, id]), session);
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

/// The last offset of every stream, and the stream of each record, so that finding the changes
/// after an offset costs only what changed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Streams(#[serde(with = "serializers::locked")] RwLock<StreamsInner>);

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "KeptStreams")]
struct StreamsInner {
    #[serde(skip)]
    numbers: HashMap<Stream, u32>,
    streams: Vec<(Stream, Offset)>,
    /// The index of the stream of each record, by offset - 1.
    journal: Vec<u32>,
}

/// The serialized form of [`StreamsInner`].
type KeptStreams = (Vec<(Stream, Offset)>, Vec<u32>);

impl From<KeptStreams> for StreamsInner {
    fn from((streams, journal): KeptStreams) -> Self {
        let numbers = streams.iter().zip(0..).map(|((stream, _), n)| (stream.clone(), n)).collect();
        Self { numbers, streams, journal }
    }
}

impl Streams {
    /// The last offset of `stream`; [`Offset::ZERO`] if it has no record.
    pub fn head(&self, stream: &Stream) -> Offset {
        let inner = self.0.read();
        let number = inner.numbers.get(stream).copied();
        number.and_then(|n| inner.streams.get(n as usize)).map_or(Offset::ZERO, |(_, last)| *last)
    }

    /// The last offset of every stream.
    pub fn heads(&self) -> HashMap<Stream, Offset> {
        self.0.read().streams.iter().cloned().collect()
    }

    /// The streams with records after `since`, up to and including `to`, each once.
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
                // Bounded by the number of records, which memory limits to far below 2^32.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_again(offsets: &Offsets) -> Offsets {
        postcard::from_bytes(&postcard::to_stdvec(offsets).unwrap()).unwrap()
    }

    /// Ordinary hashes, colliding ones, and those at the ends.
    fn hash() -> impl Strategy<Value = u64> {
        prop_oneof![any::<u64>(), 0..8_u64, (u64::MAX - 8)..=u64::MAX]
    }

    proptest! {
        #[test]
        fn lookups_do_not_depend_on_whether_entries_came_from_a_snapshot(
            stretches in prop::collection::vec(prop::collection::vec(hash(), 0..60), 0..6),
        ) {
            let (mut read, mut never) = (Offsets::default(), Offsets::default());
            let mut all: BTreeMap<u64, Vec<Offset>> = BTreeMap::new();
            let mut offset = Offset::ZERO;
            for stretch in stretches {
                for key in stretch {
                    offset = offset.next();
                    read.insert(key, offset);
                    never.insert(key, offset);
                    all.entry(key).or_default().push(offset);
                }
                read = read_again(&read);
                prop_assert!(read.first.since.is_empty());
            }
            for (key, offsets) in &all {
                prop_assert_eq!(&read.get(*key), offsets);
                prop_assert_eq!(&never.get(*key), offsets);
                let next = key.wrapping_add(1);
                prop_assert_eq!(read.get(next), all.get(&next).cloned().unwrap_or_default());
            }
            let bytes = |offsets: &Offsets| postcard::to_stdvec(offsets).unwrap();
            prop_assert_eq!(bytes(&read), bytes(&never));
        }
    }

    #[test]
    fn hashes_that_are_not_in_order_are_refused() {
        let written = postcard::to_stdvec(&(vec![(2_u64, 1_u64), (1, 2)], Vec::<u8>::new()));
        assert!(postcard::from_bytes::<Offsets>(&written.unwrap()).is_err());
    }
}
