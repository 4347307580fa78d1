//! The counts themselves: what the records up to one add up to.
//!
//! They follow from the records and from what is erased of them, whatever was read when: a record
//! counts whole, and a `log.erase` record takes away from each record that it names, once.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use logcabin_record::{CHAIN_START, Chain, Offset, Payload, Record, codec};

/// So many rooms, and so many users, are counted each by themselves at least: some megabytes.
pub(super) const NAMES: usize = 10_000;

/// The days that are counted each by themselves: two years.
pub(super) const DAYS: usize = 731;

/// The hours of which it is known how busy they were: eight weeks.
pub const HOURS: u64 = 8 * 7 * 24;

const DAY_MS: u64 = 24 * HOUR_MS;
const HOUR_MS: u64 = 3_600_000;

/// Some of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// Their number.
    pub records: u64,
    /// The bytes of their frames, without what was erased.
    pub bytes: u64,
    /// The bytes that were erased of them.
    pub erased: u64,
}

impl Amount {
    /// A record of so many bytes.
    fn add(&mut self, bytes: u64) {
        self.records += 1;
        self.bytes += bytes;
    }

    /// Of the bytes, so many are erased.
    fn erase(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.erased += bytes;
    }

    fn take_in(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.erased += other.erased;
    }
}

/// The bytes of a record's frame, and the bytes that were erased from it.
pub fn sizes(record: &Record) -> (u64, u64) {
    let whole = whole(record);
    let left = match &record.payload {
        Payload::Present(_) => return (whole, 0),
        Payload::Reduced(left) => 4 + 32 + left.len() as u64,
        Payload::Erased => 0,
    };
    let erased = u64::from(record.header.payload_len).saturating_sub(left);
    (whole.saturating_sub(erased), erased)
}

/// The bytes of a record's frame before anything was erased from it.
fn whole(record: &Record) -> u64 {
    let header = codec::encode_header(&record.header).map_or(0, |header| header.len() as u64);
    // The chain value and the payload's state.
    header + 32 + 1 + u64::from(record.header.payload_len)
}

/// Records by a name that users can make more of.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NamedAmounts {
    of: BTreeMap<Box<str>, Amount>,
    /// Those that had least when there were too many, together.
    pub(crate) others: Amount,
}

impl NamedAmounts {
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Amount)) {
        if let Some(amount) = self.of.get_mut(name) {
            return change(amount);
        }
        if self.of.len() >= 2 * NAMES {
            self.bound();
        }
        change(self.of.entry(name.into()).or_default());
    }

    /// As [`NamedAmounts::change`], but what is not counted by itself stays so.
    fn change_known(&mut self, name: &str, change: impl FnOnce(&mut Amount)) {
        change(self.of.get_mut(name).unwrap_or(&mut self.others));
    }

    /// Puts the smallest together.
    fn bound(&mut self) {
        let mut sizes: Vec<u64> = self.of.values().map(|amount| amount.bytes).collect();
        let least = *sizes.select_nth_unstable_by(NAMES, |a, b| b.cmp(a)).1;
        let larger = self.of.values().filter(|amount| amount.bytes > least).count();
        let mut as_large = NAMES - larger;
        let others = &mut self.others;
        self.of.retain(|_, amount| {
            let is_as_large = amount.bytes == least && as_large > 0;
            as_large -= usize::from(is_as_large);
            let stays = is_as_large || amount.bytes > least;
            if !stays {
                others.take_in(*amount);
            }
            stays
        });
    }

    /// What is counted of this name by itself.
    pub fn get(&self, name: &str) -> Option<Amount> {
        self.of.get(name).copied()
    }

    /// The largest, from the largest on, and all others together with their number.
    pub fn largest(&self, most: usize) -> (Vec<(Box<str>, Amount)>, Amount) {
        let mut all: Vec<(&str, Amount)> =
            self.of.iter().map(|(name, amount)| (&**name, *amount)).collect();
        let by_size = |a: &(&str, Amount), b: &(&str, Amount)| b.1.bytes.cmp(&a.1.bytes);
        if all.len() > most {
            all.select_nth_unstable_by(most, by_size);
        }
        let mut others = self.others;
        all.iter().skip(most).for_each(|(_, amount)| others.take_in(*amount));
        all.truncate(most);
        all.sort_by(|a, b| by_size(a, b).then_with(|| a.0.cmp(b.0)));
        (all.into_iter().map(|(name, amount)| (name.into(), amount)).collect(), others)
    }
}

/// A set of offsets, one bit for each.
#[derive(Debug, Default, PartialEq)]
struct Bits(Vec<u64>);

impl Bits {
    /// Adds an offset. Says whether it is new.
    fn add(&mut self, offset: Offset) -> bool {
        let Ok(word) = usize::try_from(offset.get() / 64) else { return false };
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let Some(word) = self.0.get_mut(word) else { return false };
        let bit = 1 << (offset.get() % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }
}

impl Serialize for Bits {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|word| word.to_be_bytes()).collect();
        // Records are erased in runs, and most are not.
        zstd::bulk::compress(&bytes, 1).map_err(serde::ser::Error::custom)?.serialize(to)
    }
}

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let packed = <Vec<u8>>::deserialize(from)?;
        let bytes = zstd::stream::decode_all(&*packed).map_err(D::Error::custom)?;
        let words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok());
        Ok(Self(words.map(u64::from_be_bytes).collect()))
    }
}

/// Kinds of records by which only administrators change something.
const OF_ADMINISTRATORS: [&str; 17] = [
    "admin.undo",
    "keys.permit_reset",
    "media.protect",
    "media.quarantine",
    "policy.approve",
    "policy.subscribe",
    "policy.unsubscribe",
    "registration_token.remove",
    "registration_token.set",
    "report.remove",
    "report.reopen",
    "room.block",
    "room.purge",
    "room.purge_history",
    "room.shutdown",
    "user.redact",
    "user.status",
];

/// So many marks are kept at most.
pub(super) const MARKS: usize = 400;

/// Acts of one administrator within such a time are one mark.
const TOGETHER_MS: u64 = 60_000;

/// Something that an administrator or operator did, which can explain what a plot shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When the first record was written, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The last of the records.
    pub offset: Offset,
    /// The kind of the first.
    pub kind: Box<str>,
    /// The user who did it, or the operator's name on the server's machine.
    pub who: Box<str>,
    /// How many records followed the first.
    pub more: u64,
}

/// What the records up to one add up to.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// The last record that is counted.
    pub through: Offset,
    /// Its chain value.
    pub(super) chain: Chain,
    /// All records.
    pub all: Amount,
    pub kinds: BTreeMap<Box<str>, Amount>,
    pub rooms: NamedAmounts,
    /// By the user who caused them, without what was imported.
    pub users: NamedAmounts,
    /// By day since 1970.
    pub days: BTreeMap<u64, Amount>,
    /// Before these days.
    pub(crate) earlier: Amount,
    /// Events of rooms, by hour since 1970.
    pub hours: BTreeMap<u64, u64>,
    /// Files that were sent to rooms, each time that they were.
    pub files: NamedAmounts,
    /// What administrators and operators did, from the oldest mark on.
    pub marks: VecDeque<Mark>,
    /// The kind of the last record.
    last_kind: Box<str>,
    /// The records that something was erased of.
    erased: Bits,
}

impl Counts {
    /// Counts the next record.
    pub(super) fn add(&mut self, record: &Record) {
        let bytes = whole(record);
        let header = &record.header;
        self.all.add(bytes);
        match self.kinds.get_mut(&header.kind) {
            Some(amount) => amount.add(bytes),
            None => self.kinds.entry(header.kind.clone()).or_default().add(bytes),
        }
        if let Some(room_id) = header.stream.room_id() {
            self.rooms.change(room_id.as_str(), |amount| amount.add(bytes));
        }
        if let Some(user) = header.origin.person() {
            self.users.change(user, |amount| amount.add(bytes));
        }
        self.days.entry(header.time_ms / DAY_MS).or_default().add(bytes);
        while self.days.len() > DAYS {
            self.earlier.take_in(self.days.pop_first().unwrap_or_default().1);
        }
        if &*header.kind == "room.event" {
            // The hours of what was imported are those at its source, in any order.
            let hour = record.happened_ms() / HOUR_MS;
            *self.hours.entry(hour).or_default() += 1;
            let last = self.hours.last_key_value().map_or(hour, |(last, _)| *last);
            while self.hours.first_key_value().is_some_and(|(first, _)| first + HOURS <= last) {
                self.hours.pop_first();
            }
        }
        self.mark(record);
        self.last_kind.clone_from(&header.kind);
        (self.through, self.chain) = (header.offset, record.chain);
    }

    /// Notes an act: a record of an operator, one that only administrators make, or one with an
    /// administrator's reason behind it.
    fn mark(&mut self, record: &Record) {
        let header = &record.header;
        let has_reason = &*header.kind == "admin.reason";
        let kind = if has_reason { &self.last_kind } else { &header.kind };
        let is_act = |kind: &str| OF_ADMINISTRATORS.contains(&kind);
        let who = match &*header.origin.user {
            "admin" => &header.origin.device,
            person if !person.is_empty() && (has_reason || is_act(kind)) => &header.origin.user,
            _ => return,
        };
        // What one order does in many rooms would be many marks.
        let is_backup = |kind: &str| kind == "backup.made";
        let is_same = |last: &&mut Mark| {
            last.who == *who
                && is_backup(&last.kind) == is_backup(kind)
                && header.time_ms.saturating_sub(last.at_ms) < TOGETHER_MS
        };
        if let Some(last) = self.marks.back_mut().filter(is_same) {
            last.offset = header.offset;
            // A reason belongs to a record that may count already.
            let counts = has_reason && (&*header.origin.user == "admin" || is_act(kind));
            last.more += u64::from(!counts);
            return;
        }
        self.marks.push_back(Mark {
            at_ms: header.time_ms,
            offset: header.offset,
            kind: kind.clone(),
            who: who.clone(),
            more: 0,
        });
        self.marks.drain(..self.marks.len().saturating_sub(MARKS));
    }

    /// Counts what is erased of a record that is counted already.
    pub(super) fn erase(&mut self, record: &Record) {
        let (_, bytes) = sizes(record);
        let header = &record.header;
        if bytes == 0 || header.offset > self.through || !self.erased.add(header.offset) {
            return;
        }
        self.all.erase(bytes);
        if let Some(amount) = self.kinds.get_mut(&header.kind) {
            amount.erase(bytes);
        }
        if let Some(room_id) = header.stream.room_id() {
            self.rooms.change_known(room_id.as_str(), |amount| amount.erase(bytes));
        }
        if let Some(user) = header.origin.person() {
            self.users.change_known(user, |amount| amount.erase(bytes));
        }
        let day = self.days.get_mut(&(header.time_ms / DAY_MS));
        day.unwrap_or(&mut self.earlier).erase(bytes);
    }

    /// Counts a file of so many bytes that was sent to a room.
    pub(super) fn add_file(&mut self, room_id: &str, bytes: u64) {
        self.files.change(room_id, |amount| amount.add(bytes));
    }

    /// Whether these are counts of a log in which the record at `through` has this chain value.
    pub(super) fn are_of(&self, chain: Option<Chain>) -> bool {
        match self.through {
            Offset::ZERO => *self == Self::default() && self.chain == CHAIN_START,
            _ => chain == Some(self.chain),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use logcabin_base::clock::Clock;
    use logcabin_log::{Batch, Log, StreamHeads, memory::MemoryLog};
    use logcabin_record::{
        Command, NewRecord, Origin, Stream,
        command::{LogErase, RoomTyping},
    };

    fn typing(room: usize, user: &str) -> NewRecord {
        let typing = RoomTyping {
            room_id: format!("!room{room}:test").try_into().unwrap(),
            user_id: "@ann:test".try_into().unwrap(),
            until_ms: 1,
            since: None,
        };
        let origin = Origin { user: user.into(), ..Origin::default() };
        NewRecord::new(Stream::ephemeral(&typing.room_id), origin, &Command::from(typing))
    }

    fn erase(superseded: &[(u64, u64)]) -> NewRecord {
        let superseded =
            superseded.iter().map(|(a, b)| (Offset::new(*a), Offset::new(*b))).collect();
        let erase = LogErase { superseded, ..LogErase::default() };
        NewRecord::new(Stream::server(), Origin::server(), &Command::from(erase))
    }

    async fn log_of(records: Vec<NewRecord>) -> Arc<dyn Log> {
        let log: Arc<dyn Log> = Arc::new(MemoryLog::new(Clock::manual(5 * DAY_MS)));
        log.start(StreamHeads::default(), Box::new(|_| {}));
        for record in records {
            log.append(Batch { expect: Vec::new(), records: vec![record] }).await.unwrap();
        }
        log
    }

    /// The counts of the records up to one, read as they are now.
    fn counted(log: &dyn Log, from: Counts, until: u64) -> Counts {
        let mut counts = from;
        for offset in counts.through.get() + 1..=until {
            let record = log.get(Offset::new(offset)).unwrap().unwrap();
            counts.add(&record);
            for (first, last) in logcabin_log::erase::erasure(&record).iter().flat_map(|e| e.runs())
            {
                for offset in first.get()..=last.get() {
                    counts.erase(&log.get(Offset::new(offset)).unwrap().unwrap());
                }
            }
        }
        counts
    }

    #[tokio::test]
    async fn what_is_erased_counts_once_whenever_it_was_read() {
        let records = [("@ann:test", 1), ("@bob:test", 2), ("@ann:test", 1), ("", 2)];
        let mut records: Vec<_> = records.iter().map(|(user, room)| typing(*room, user)).collect();
        let log = log_of(std::mem::take(&mut records)).await;
        let early = counted(&*log, Counts::default(), 4);
        assert_eq!(early.all.erased, 0);
        let again = [&[(1, 2)][..], &[(2, 3)]];
        for runs in again {
            let records = vec![erase(runs)];
            log.append(Batch { expect: Vec::new(), records }).await.unwrap();
        }
        let whole = early.all.bytes;
        let late = counted(&*log, early, 6);
        let recounted = counted(&*log, Counts::default(), 6);
        assert_eq!(late, recounted);
        let (kept, erased) = (late.kinds["room.typing"].bytes, late.kinds["room.typing"].erased);
        assert_eq!((kept + erased, late.all.erased), (whole, erased));
        let now: u64 = (1..=6).map(|n| sizes(&log.get(Offset::new(n)).unwrap().unwrap()).0).sum();
        assert_eq!(late.all.bytes, now, "the sum of the frames as they are");
        let (rooms, others) = late.rooms.largest(1);
        assert_eq!((&*rooms[0].0, rooms[0].1.records, others.records), ("!room2:test", 2, 2));
        assert_eq!(late.users.largest(9).0.len(), 2);
        // Who caused what was imported is not known.
        let mut imported = log.get(Offset::new(1)).unwrap().unwrap();
        let origin = &mut imported.header.origin;
        (origin.user, origin.device) = ("import".into(), "synapse".into());
        let mut counts = Counts::default();
        counts.add(&imported);
        assert_eq!((counts.all.records, counts.users.largest(9).0.len()), (1, 0));
        let packed = postcard::to_stdvec(&late).unwrap();
        assert_eq!(postcard::from_bytes::<Counts>(&packed).unwrap(), late);
    }

    #[test]
    fn names_days_and_hours_are_bounded_and_nothing_is_lost() {
        let mut named = NamedAmounts::default();
        for number in 0..5 * NAMES {
            for _ in 0..if number % 1000 == 0 { 100 } else { 1 } {
                named.change(&number.to_string(), |amount| amount.add(10));
            }
        }
        assert!((NAMES..=2 * NAMES).contains(&named.of.len()));
        let (largest, others) = named.largest(50);
        assert!(largest.iter().all(|(_, amount)| amount.records == 100), "{largest:?}");
        let sum = |of: fn(&Amount) -> u64| {
            largest.iter().map(|(_, amount)| of(amount)).sum::<u64>() + of(&others)
        };
        let all = (5 * NAMES + 50 * 99) as u64;
        assert_eq!((sum(|a| a.records), sum(|a| a.bytes)), (all, 10 * all));
        named.change_known("0", |amount| amount.erase(7));
        named.change_known("nobody", |amount| amount.erase(7));
        assert_eq!((named.largest(50).1.erased, named.of["0"].erased), (7, 7));
    }

    #[tokio::test]
    async fn old_days_and_hours_are_put_together() {
        let log = log_of(vec![typing(1, "@ann:test")]).await;
        let mut record = log.get(Offset::new(1)).unwrap().unwrap();
        record.header.kind = "room.event".into();
        let mut counts = Counts::default();
        for day in 0..1000 {
            record.header.time_ms = day * DAY_MS;
            record.header.offset = Offset::new(day + 1);
            counts.add(&record);
        }
        assert_eq!((counts.days.len(), counts.earlier.records), (DAYS, 1000 - DAYS as u64));
        assert_eq!(counts.hours.len(), 56);
        assert!(counts.hours.keys().all(|hour| *hour > 999 * 24 - HOURS));
    }

    #[tokio::test]
    async fn acts_are_marked_together_and_what_users_do_is_not() {
        let log = log_of(vec![typing(1, "@ann:test")]).await;
        let mut record = log.get(Offset::new(1)).unwrap().unwrap();
        let mut counts = Counts::default();
        let mut add = |kind: &str, user: &str, at_ms: u64| {
            record.header.offset = record.header.offset.next();
            (record.header.kind, record.header.time_ms) = (kind.into(), at_ms);
            (record.header.origin.user, record.header.origin.device) = (user.into(), "ops".into());
            counts.add(&record);
        };
        add("room.event", "@ann:test", 1);
        add("room.event", "@root:test", 2);
        add("admin.reason", "@root:test", 2);
        add("room.event", "", 3);
        add("user.status", "", 3);
        add("user.status", "@root:test", 50_000);
        add("media.protect", "@root:test", 50_000);
        add("admin.reason", "@root:test", 50_000);
        add("user.register", "admin", 60_000);
        add("backup.made", "admin", 60_000);
        add("admin.reason", "admin", 60_000);
        add("backup.made", "admin", 200_000);
        let found: Vec<_> = counts.marks.iter().map(|of| (&*of.kind, &*of.who, of.more)).collect();
        let expected = [
            ("room.event", "@root:test", 2),
            ("user.register", "ops", 0),
            ("backup.made", "ops", 0),
            ("backup.made", "ops", 0),
        ];
        assert_eq!(found, expected);
        assert_eq!((counts.marks[0].at_ms, counts.marks[0].offset), (2, Offset::new(9)));
        for minute in 0..2 * MARKS as u64 {
            record.header.time_ms = 1_000_000 + minute * TOGETHER_MS;
            counts.add(&record);
        }
        assert_eq!(counts.marks.len(), MARKS);
    }

    #[test]
    fn counts_of_another_log_are_not_taken() {
        assert!(Counts::default().are_of(None));
        let counts = Counts { through: Offset::new(3), chain: [1; 32], ..Counts::default() };
        assert!(counts.are_of(Some([1; 32])) && !counts.are_of(Some([2; 32])));
        assert!(!counts.are_of(None));
    }
}
