//! The open reports. Their reasons are in the log, at their offsets.

use std::collections::{BTreeMap, HashMap};

use parking_lot::RwLock;
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{ReportCreate, ReportRemove, ReportReopen},
};

/// All open reports, by the offset of their records.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reports(#[serde(with = "serializers::locked")] RwLock<Open>);

/// The open reports, and counts derived from them.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "BTreeMap<Offset, Report>")]
struct Open {
    pub reports: BTreeMap<Offset, Report>,
    /// The number of reports by reporter.
    #[serde(skip)]
    by_reporter: HashMap<OwnedUserId, usize>,
}

impl From<BTreeMap<Offset, Report>> for Open {
    fn from(reports: BTreeMap<Offset, Report>) -> Self {
        let mut by_reporter = HashMap::new();
        for report in reports.values() {
            *by_reporter.entry(report.reporter.clone()).or_default() += 1;
        }
        Self { reports, by_reporter }
    }
}

/// A report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// When it was made, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    pub reporter: OwnedUserId,
    /// The reported room, or the room of the reported event.
    pub room_id: Option<OwnedRoomId>,
    /// The reported event.
    pub event_id: Option<OwnedEventId>,
    /// The reported user.
    pub user_id: Option<OwnedUserId>,
}

impl Reports {
    /// The report in this record, if it is open.
    pub fn get(&self, offset: Offset) -> Option<Report> {
        self.0.read().reports.get(&offset).cloned()
    }

    /// All open reports, oldest first.
    pub fn all(&self) -> Vec<(Offset, Report)> {
        let open = self.0.read();
        open.reports.iter().map(|(offset, report)| (*offset, report.clone())).collect()
    }

    /// The number of open reports.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks whether there are none")]
    pub fn len(&self) -> usize {
        self.0.read().reports.len()
    }

    /// The number of open reports made by `reporter`.
    pub fn count_by(&self, reporter: &UserId) -> usize {
        self.0.read().by_reporter.get(reporter).copied().unwrap_or_default()
    }

    /// The records of open reports about a room or its events.
    pub fn of_room(&self, room_id: &RoomId) -> Vec<Offset> {
        let open = self.0.read();
        let of_room =
            open.reports.iter().filter(|(_, report)| report.room_id.as_deref() == Some(room_id));
        of_room.map(|(offset, _)| *offset).collect()
    }

    pub(super) fn add(&self, offset: Offset, time_ms: u64, body: ReportCreate) {
        let ReportCreate { reporter, room_id, event_id, user_id, .. } = body;
        self.open(offset, Report { time_ms, reporter, room_id, event_id, user_id });
    }

    pub(super) fn reopen(&self, body: ReportReopen) {
        let ReportReopen { report, time_ms, reporter, room_id, event_id, user_id } = body;
        self.open(report, Report { time_ms, reporter, room_id, event_id, user_id });
    }

    fn open(&self, offset: Offset, report: Report) {
        let mut open = self.0.write();
        if open.reports.contains_key(&offset) {
            return;
        }
        *open.by_reporter.entry(report.reporter.clone()).or_default() += 1;
        open.reports.insert(offset, report);
    }

    pub(super) fn remove(&self, body: &ReportRemove) {
        let open = &mut *self.0.write();
        let Some(removed) = open.reports.remove(&body.report) else { return };
        if let Some(count) = open.by_reporter.get_mut(&removed.reporter) {
            *count -= 1;
            if *count == 0 {
                open.by_reporter.remove(&removed.reporter);
            }
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
