//! Where each event is: the record of every event id, in 16 bytes of memory, and the same in a file
//! beside the log, with the source's number of the event.
//!
//! A log of ten million events is written in a few minutes, and each of them may be named by later
//! ones. So the table holds no ids but 69 bits of a keyed hash: nobody outside can make two ids
//! that fall together, and by chance two do so in one of ten million imports of that size.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufReader, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use logcabin_record::Offset;

use crate::facts::StateGroup;

/// What became of an event in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Timeline,
    /// Known, without a place in the room.
    Outlier,
    /// Not in the timeline, for a reason, or in a gap of it: no event comes after a hole because of
    /// it.
    Aside,
    Rejected,
}

/// The membership that a member event sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Member {
    Join,
    Invite,
    Leave,
    Ban,
    Knock,
}

impl Member {
    const ALL: [Self; 5] = [Self::Join, Self::Invite, Self::Leave, Self::Ban, Self::Knock];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Join => "join",
            Self::Invite => "invite",
            Self::Leave => "leave",
            Self::Ban => "ban",
            Self::Knock => "knock",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|member| member.as_str() == name)
    }
}

/// What is remembered of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) offset: Offset,
    pub(super) status: Status,
    pub(super) member: Option<Member>,
    /// The source's number of the state after it.
    pub(super) group: Option<StateGroup>,
}

const OFFSET_BITS: u32 = 36;
const MEMBER_BITS: u32 = 3;
const STATUS_BITS: u32 = 2;
const EXTRA_BITS: u32 = 64 - OFFSET_BITS - MEMBER_BITS - STATUS_BITS;
const EXTRA: u64 = (1 << EXTRA_BITS) - 1;

/// The source's number of a state. One that needs more bits counts as not known: no source has
/// counted that far.
const GROUP_BITS: u32 = 36;
/// The upper bits of the hash, which are beside the number.
const UPPER_BITS: u32 = 64 - GROUP_BITS;
const UPPER: u64 = (1 << UPPER_BITS) - 1;

/// The lower bits of the hash are the number of a list. With ten million events, a list has some
/// forty.
const LIST_BITS: u32 = if cfg!(test) { 3 } else { 18 };
const LISTS: usize = 1 << LIST_BITS;

/// The size of a row in the file: hash, place, state, and the source's number.
const ROW_BYTES: usize = 32;

/// One event, as the file holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Row {
    hash: u64,
    /// Offset, membership, status, and more of the hash.
    place: u64,
    /// 0 for none.
    group: u64,
    /// The source's number of the event.
    stream: i64,
}

impl Row {
    fn new((hash, extra): (u64, u64), seen: Seen, stream: i64) -> Self {
        let member = seen.member.map_or(0, |member| member as u64 + 1);
        let status = seen.status as u64;
        let place = (seen.offset.get() << (64 - OFFSET_BITS))
            | (member << (STATUS_BITS + EXTRA_BITS))
            | (status << EXTRA_BITS)
            | (extra & EXTRA);
        let group = known_group(seen.group).and_then(|group| u64::try_from(group.0).ok());
        let group = group.unwrap_or_default();
        Self { hash, place, group, stream }
    }

    const fn slot(self) -> Slot {
        Slot { place: self.place, rest: (self.group << UPPER_BITS) | (self.hash >> GROUP_BITS) }
    }

    fn bytes(self) -> [u8; ROW_BYTES] {
        let mut bytes = [0; ROW_BYTES];
        bytes[..8].copy_from_slice(&self.hash.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.place.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.group.to_be_bytes());
        bytes[24..].copy_from_slice(&self.stream.to_be_bytes());
        bytes
    }

    fn parse(bytes: &[u8; ROW_BYTES]) -> Self {
        let number = |at: usize| number(&bytes[at..at + 8]);
        let (hash, place, group) = (number(0), number(8), number(16));
        Self { hash, place, group, stream: number(24) as i64 }
    }
}

/// A state's number as it is read from the index.
pub(super) fn known_group(group: Option<StateGroup>) -> Option<StateGroup> {
    group.filter(|group| (1..1 << GROUP_BITS).contains(&group.0))
}

/// The number in eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// One event, as a list holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    /// As in [`Row`].
    place: u64,
    /// The source's number of the state, and the upper bits of the hash.
    rest: u64,
}

impl Slot {
    /// Whether it is of the event with this hash, which belongs to the same list.
    const fn is(self, (hash, extra): (u64, u64)) -> bool {
        (self.place ^ extra) & EXTRA == 0 && (self.rest ^ (hash >> GROUP_BITS)) & UPPER == 0
    }

    fn seen(self) -> Seen {
        let member = (self.place >> (STATUS_BITS + EXTRA_BITS)) & ((1 << MEMBER_BITS) - 1);
        let member = usize::try_from(member).ok().and_then(|code| code.checked_sub(1));
        let status = match (self.place >> EXTRA_BITS) & ((1 << STATUS_BITS) - 1) {
            0 => Status::Timeline,
            1 => Status::Outlier,
            2 => Status::Aside,
            _ => Status::Rejected,
        };
        let group = i64::try_from(self.rest >> UPPER_BITS).ok();
        Seen {
            offset: Offset::new(self.place >> (64 - OFFSET_BITS)),
            status,
            member: member.and_then(|code| Member::ALL.get(code)).copied(),
            group: group.filter(|group| *group > 0).map(StateGroup),
        }
    }
}

/// The events of a log by their ids.
#[derive(Debug)]
pub(super) struct EventIndex {
    key: [u8; 32],
    lists: Vec<Vec<Slot>>,
    /// How many rows the file has, and which of them are not in it yet.
    rows: u64,
    new: Vec<u8>,
}

impl EventIndex {
    /// An empty one. `secret` is what nobody else knows, and the same for the whole import.
    pub(super) fn new(secret: &[u8]) -> Self {
        Self {
            key: blake3::derive_key("logcabin 2026-11 event ids of an import", secret),
            lists: vec![Vec::new(); LISTS],
            rows: 0,
            new: Vec::new(),
        }
    }

    fn hash(&self, event_id: &str) -> (u64, u64) {
        let hash = blake3::keyed_hash(&self.key, event_id.as_bytes());
        let hash = hash.as_bytes();
        (number(&hash[..8]), number(&hash[8..16]))
    }

    pub(super) fn get(&self, event_id: &str) -> Option<Seen> {
        let hash = self.hash(event_id);
        let list = self.lists.get(list_of(hash.0))?;
        list.iter().find(|slot| slot.is(hash)).map(|slot| slot.seen())
    }

    /// Notes an event, in place of what was known of it. `stream` is the source's number for it.
    pub(super) fn put(&mut self, event_id: &str, seen: Seen, stream: i64) {
        let row = Row::new(self.hash(event_id), seen, stream);
        self.put_row(row);
        self.new.extend_from_slice(&row.bytes());
        self.rows += 1;
    }

    fn put_row(&mut self, row: Row) {
        let (slot, hash) = (row.slot(), (row.hash, row.place));
        let Some(list) = self.lists.get_mut(list_of(row.hash)) else { return };
        match list.iter_mut().find(|slot| slot.is(hash)) {
            Some(known) => *known = slot,
            None => {
                if list.len() == list.capacity() {
                    // By a quarter: most of the memory of an import is in here.
                    list.reserve_exact(list.len() / 4 + 2);
                }
                list.push(slot);
            }
        }
    }

    /// How many rows the file has after the next [`Self::save`].
    pub(super) const fn rows(&self) -> u64 {
        self.rows
    }

    /// Appends what is new to the file, and returns once it is durable.
    pub(super) fn save(&mut self, path: &Path) -> io::Result<()> {
        if self.new.is_empty() && path.exists() {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(path)?;
        file.write_all(&self.new)?;
        file.sync_all()?;
        self.new.clear();
        Ok(())
    }

    /// Reads the first `rows` rows of the file, and cuts off what follows them. Returns false, and
    /// reads nothing, if there are not so many.
    pub(super) fn load(&mut self, path: &Path, rows: u64) -> io::Result<bool> {
        let length = rows.saturating_mul(ROW_BYTES as u64);
        let file = match OpenOptions::new().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(rows == 0),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < length {
            return Ok(false);
        }
        file.set_len(length)?;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut row = [0; ROW_BYTES];
        for _ in 0..rows {
            reader.read_exact(&mut row)?;
            self.put_row(Row::parse(&row));
        }
        (self.rows, self.new) = (rows, Vec::new());
        Ok(true)
    }

    /// Replaces the file: it was lost, and its rows were found again in the log.
    pub(super) fn begin_again(&mut self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.save(path),
        }
    }
}

/// For each of these numbers of the source, the last record of an event that the source had up to
/// there: what was told up to the number was told up to the record. Events that were fetched from
/// the past do not count.
pub(super) fn offsets(path: &Path, streams: &[i64]) -> io::Result<Vec<Offset>> {
    let mut order: Vec<usize> = (0..streams.len()).collect();
    order.sort_by_key(|at| streams[*at]);
    let sorted: Vec<i64> = order.iter().map(|at| streams[*at]).collect();
    let mut best = vec![0_u64; sorted.len()];
    if let Some(mut reader) = open(path)? {
        let mut row = [0; ROW_BYTES];
        while reader.read_exact(&mut row).map_or_else(at_end, |()| Ok(true))? {
            let row = Row::parse(&row);
            let at = sorted.partition_point(|wanted| *wanted < row.stream);
            if row.stream > 0
                && let Some(best) = best.get_mut(at)
            {
                *best = (*best).max(row.slot().seen().offset.get());
            }
        }
    }
    let mut found = vec![Offset::ZERO; streams.len()];
    let mut so_far = 0;
    for (at, best) in order.into_iter().zip(best) {
        so_far = so_far.max(best);
        found[at] = Offset::new(so_far);
    }
    Ok(found)
}

fn open(path: &Path) -> io::Result<Option<BufReader<File>>> {
    match File::open(path) {
        Ok(file) => Ok(Some(BufReader::with_capacity(1 << 20, file))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn at_end(error: io::Error) -> io::Result<bool> {
    if error.kind() == io::ErrorKind::UnexpectedEof { Ok(false) } else { Err(error) }
}

/// The list of an event with this hash.
const fn list_of(hash: u64) -> usize {
    (hash & (LISTS as u64 - 1)) as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seen() -> impl Strategy<Value = Seen> {
        let status = prop_oneof![
            Just(Status::Timeline),
            Just(Status::Outlier),
            Just(Status::Aside),
            Just(Status::Rejected)
        ];
        let member = prop::option::of((0..5_usize).prop_map(|code| Member::ALL[code]));
        let group = prop::option::of((1..1_i64 << GROUP_BITS).prop_map(StateGroup));
        (1..1_u64 << OFFSET_BITS, status, member, group).prop_map(
            |(offset, status, member, group)| Seen {
                offset: Offset::new(offset),
                status,
                member,
                group,
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_put_last_is_found_before_and_after_a_restart(
            events in prop::collection::vec((0..300_u32, seen(), -500..500_i64), 0..600),
            kept: prop::sample::Index,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("events");
            let mut index = EventIndex::new(b"secret");
            let kept = if events.is_empty() { 0 } else { kept.index(events.len()) };
            let mut at_save = std::collections::BTreeMap::new();
            let mut all = std::collections::BTreeMap::new();
            for (number, (id, seen, stream)) in events.iter().enumerate() {
                if number == kept {
                    index.save(&path).unwrap();
                    prop_assert_eq!(index.rows(), kept as u64);
                    at_save = all.clone();
                }
                index.put(&format!("${id}"), *seen, *stream);
                all.insert(*id, *seen);
            }
            index.save(&path).unwrap();
            for id in 0..300 {
                prop_assert_eq!(index.get(&format!("${id}")), all.get(&id).copied());
            }
            let mut again = EventIndex::new(b"secret");
            prop_assert!(again.load(&path, kept as u64).unwrap());
            for id in 0..300 {
                prop_assert_eq!(again.get(&format!("${id}")), at_save.get(&id).copied());
            }
            prop_assert!(!EventIndex::new(b"secret").load(&path, kept as u64 + 1).unwrap());
        }

        #[test]
        fn a_number_leads_to_the_last_record_up_to_it(
            mut events in prop::collection::vec((-50..50_i64, 1..500_u64), 0..60),
            wanted in prop::collection::vec(-60..60_i64, 0..20),
        ) {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("events");
            events.retain(|(stream, _)| *stream != 0);
            let mut index = EventIndex::new(b"secret");
            for (number, (stream, offset)) in events.iter().enumerate() {
                let (status, member, group) = (Status::Timeline, None, None);
                let seen = Seen { offset: Offset::new(*offset), status, member, group };
                index.put(&format!("${number}"), seen, *stream);
            }
            index.save(&path).unwrap();
            let found = offsets(&path, &wanted).unwrap();
            for (wanted, found) in wanted.into_iter().zip(found) {
                let up_to = events.iter().filter(|(stream, _)| *stream > 0 && *stream <= wanted);
                let expected = up_to.map(|(_, offset)| *offset).max().unwrap_or_default();
                prop_assert_eq!(found.get(), expected);
            }
        }
    }
}
