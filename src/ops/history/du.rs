//! Storage use: of records by room, user, kind and day; of the projections; and of the data
//! directory's parts on disk.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
};

use serde::Serialize;

use super::{History, HistoryError, Source, moment::Time};
use logcabin_base::metrics::Label as _;
use logcabin_record::Record;
use logcabin_service::{observe::Directories, tally::sizes};
use logcabin_state::{SECTIONS, Section};

/// How many rooms, and how many users, are listed at most.
const MOST_LISTED: usize = 20;

/// The storage use of a server.
#[derive(Clone, Debug, Serialize)]
pub struct Usage {
    /// All records together.
    pub log: RecordTotals,
    /// The parts of the data directory and their sizes on disk; empty unless a data directory was
    /// opened.
    pub disk: Vec<NamedSize>,
    /// Records by kind, the largest first.
    pub kinds: Vec<RecordTotals>,
    /// Records by room, the largest first; only the largest are listed.
    pub rooms: Vec<RecordTotals>,
    /// Records by the user who caused them, without those that were imported; with the user's
    /// uploads, the largest first; only the largest are listed.
    pub users: Vec<UserTotals>,
    /// Records by day, in order.
    pub days: Vec<RecordTotals>,
    /// The projections, the largest first: the size of each in a snapshot, which is less than in
    /// memory.
    pub projections: Vec<NamedSize>,
}

/// The totals of records with something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RecordTotals {
    /// What they have in common, such as a room id; `log` for all.
    pub name: String,
    /// The number of records.
    pub records: u64,
    /// The bytes of their frames before compression, without what was erased.
    pub bytes: u64,
    /// The bytes that were erased from their payloads.
    pub erased: u64,
}

/// The totals of a user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UserTotals {
    /// The user's records.
    #[serde(flatten)]
    pub share: RecordTotals,
    /// The number of uploads.
    pub files: u64,
    /// The bytes of the uploads: every one counts, even of identical files.
    pub file_bytes: u64,
}

/// A named size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NamedSize {
    pub name: String,
    pub bytes: u64,
}

impl RecordTotals {
    fn add(&mut self, record: &Record) {
        let (bytes, erased) = sizes(record);
        self.records += 1;
        self.bytes += bytes;
        self.erased += erased;
    }
}

/// Reads every record of `source`, and measures its data directory, if it has one.
pub fn usage(source: &Source, directories: Option<&Directories>) -> Result<Usage, HistoryError> {
    let mut log = RecordTotals { name: "log".to_owned(), ..RecordTotals::default() };
    let (mut kinds, mut rooms, mut users, mut days) = (
        TotalsByName::default(),
        TotalsByName::default(),
        TotalsByName::default(),
        TotalsByName::default(),
    );
    let history = History::walk(source, |record| {
        let header = &record.header;
        log.add(record);
        kinds.add(&header.kind, record);
        if let Some(room_id) = header.stream.room_id() {
            rooms.add(room_id.as_str(), record);
        }
        if let Some(user) = header.origin.person() {
            users.add(user, record);
        }
        days.add(&Time(header.time_ms).date(), record);
    })?;
    let mut users: BTreeMap<String, UserTotals> = users
        .0
        .into_iter()
        .map(|(name, share)| (name, UserTotals { share, ..UserTotals::default() }))
        .collect();
    for file in history.media(None) {
        let Some(user_id) = file.user_id else { continue };
        let user = users.entry(user_id.clone()).or_default();
        user.share.name = user_id;
        user.files += 1;
        user.file_bytes += file.size;
    }
    let mut users: Vec<_> = users.into_values().collect();
    users.sort_by_key(|user| std::cmp::Reverse(user.share.bytes + user.file_bytes));
    users.truncate(MOST_LISTED);
    let mut rooms = rooms.largest_first();
    rooms.truncate(MOST_LISTED);
    let mut days: Vec<_> = days.0.into_values().collect();
    days.sort_by(|a, b| a.name.cmp(&b.name));
    let state = history.state();
    let part = |section: &Section| NamedSize {
        name: section.name.to_owned(),
        bytes: section.bytes(state),
    };
    let mut projections: Vec<_> = SECTIONS.iter().map(part).collect();
    projections.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    Ok(Usage {
        log,
        disk: source.dir().map(|dir| on_disk(dir, directories)).unwrap_or_default(),
        kinds: kinds.largest_first(),
        rooms,
        users,
        days,
        projections,
    })
}

/// Records by a common property.
#[derive(Default)]
struct TotalsByName(HashMap<String, RecordTotals>);

impl TotalsByName {
    fn add(&mut self, name: &str, record: &Record) {
        if !self.0.contains_key(name) {
            let share = RecordTotals { name: name.to_owned(), ..RecordTotals::default() };
            self.0.insert(name.to_owned(), share);
        }
        if let Some(share) = self.0.get_mut(name) {
            share.add(record);
        }
    }

    fn largest_first(self) -> Vec<RecordTotals> {
        let mut shares: Vec<_> = self.0.into_values().collect();
        shares.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        shares
    }
}

/// The size on disk of each part of a data directory, 0 if it is missing.
fn on_disk(data_dir: &Path, directories: Option<&Directories>) -> Vec<NamedSize> {
    let sizes = directories.map_or_else(|| Directories::of(data_dir).sizes(), Directories::sizes);
    sizes
        .into_iter()
        .map(|(part, bytes)| NamedSize { name: part.name().to_owned(), bytes })
        .collect()
}
