//! The open reports, and which were closed last. Their reasons are in the log, at their offsets.

use std::collections::{BTreeMap, HashMap, VecDeque};

use parking_lot::RwLock;
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_base::limits;
use logcabin_record::{
    Offset,
    command::{ReportCreate, ReportRemove, ReportReopen},
};

/// All open reports, by the offset of their records.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reports(#[serde(with = "serializers::locked")] RwLock<Open>);

/// The open reports, counts derived from them, and the reports that were closed last.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "(BTreeMap<Offset, Report>, VecDeque<ClosedReport>)")]
struct Open {
    pub reports: BTreeMap<Offset, Report>,
    /// Oldest first; at most [`limits::CLOSED_REPORTS`].
    closed: VecDeque<ClosedReport>,
    /// The number of reports by reporter.
    #[serde(skip)]
    by_reporter: HashMap<OwnedUserId, usize>,
}

/// A report that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedReport {
    pub report: Offset,
    /// The record that closed it.
    pub by: Offset,
}

impl From<(BTreeMap<Offset, Report>, VecDeque<ClosedReport>)> for Open {
    fn from((reports, closed): (BTreeMap<Offset, Report>, VecDeque<ClosedReport>)) -> Self {
        let mut by_reporter = HashMap::new();
        for report in reports.values() {
            *by_reporter.entry(report.reporter.clone()).or_default() += 1;
        }
        Self { reports, closed, by_reporter }
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

    /// The reports that were closed last, the last first.
    pub fn closed(&self) -> Vec<ClosedReport> {
        self.0.read().closed.iter().rev().copied().collect()
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
        open.closed.retain(|closed| closed.report != offset);
        open.reports.insert(offset, report);
    }

    pub(super) fn remove(&self, by: Offset, body: &ReportRemove) {
        let open = &mut *self.0.write();
        let Some(removed) = open.reports.remove(&body.report) else { return };
        open.closed.push_back(ClosedReport { report: body.report, by });
        if open.closed.len() > limits::CLOSED_REPORTS {
            open.closed.pop_front();
        }
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

pub(super) mod former {
    use super::*;

    /// Version 1, which did not know which reports were closed.
    #[derive(Deserialize)]
    pub(crate) struct V1(BTreeMap<Offset, Report>);

    impl From<V1> for Reports {
        fn from(V1(reports): V1) -> Self {
            Self(RwLock::new(Open::from((reports, VecDeque::new()))))
        }
    }
}

#[cfg(test)]
mod tests {
    use ruma::user_id;

    use super::*;

    fn report() -> ReportCreate {
        let reporter = user_id!("@ann:a.example").to_owned();
        let user_id = Some(user_id!("@eve:a.example").to_owned());
        ReportCreate { reporter, room_id: None, event_id: None, user_id, reason: None, score: None }
    }

    fn closed(reports: &Reports) -> Vec<(u64, u64)> {
        reports.closed().iter().map(|closed| (closed.report.get(), closed.by.get())).collect()
    }

    #[test]
    fn the_last_closed_reports_are_known_until_they_are_open_again() {
        let reports = Reports::default();
        let most = limits::CLOSED_REPORTS as u64;
        for offset in 1..=most + 1 {
            reports.add(Offset::new(offset), 7, report());
            let body = ReportRemove { report: Offset::new(offset) };
            reports.remove(Offset::new(offset + 1_000_000), &body);
            // Whoever closes it at the same time changes nothing.
            reports.remove(Offset::new(offset + 2_000_000), &body);
        }
        let all = closed(&reports);
        assert_eq!(all.len(), limits::CLOSED_REPORTS);
        assert_eq!(all.first(), Some(&(most + 1, most + 1_000_001)));
        assert_eq!(all.last(), Some(&(2, 1_000_002)));
        let ReportCreate { reporter, user_id, .. } = report();
        let report = Offset::new(2);
        let (room_id, event_id) = (None, None);
        reports.reopen(ReportReopen { report, time_ms: 7, reporter, room_id, event_id, user_id });
        assert_eq!(closed(&reports).last(), Some(&(3, 1_000_003)));
        let bytes = postcard::to_allocvec(&reports).expect("they can be written");
        let read: Reports = postcard::from_bytes(&bytes).expect("they can be read");
        assert_eq!((closed(&read), read.all()), (closed(&reports), reports.all()));
        let former = postcard::to_allocvec(&BTreeMap::from_iter(reports.all()));
        let former: former::V1 = postcard::from_bytes(&former.expect("bytes")).expect("version 1");
        assert_eq!(Reports::from(former).all(), reports.all());
    }
}
