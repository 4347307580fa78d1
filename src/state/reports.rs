//! The reports that nobody has dealt with yet: who reported what. Their reasons are in the log, at their
//! offsets.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, RoomId};
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::{
    Offset,
    command::{ReportCreate, ReportRemove},
};

/// All open reports, by the offset of their records.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reports(#[serde(with = "kept::locked")] RwLock<BTreeMap<Offset, Report>>);

/// What is looked for in reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// When it was made, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who reports.
    pub reporter: OwnedUserId,
    /// The room that is reported, or the room of the event.
    pub room_id: Option<OwnedRoomId>,
    /// The event that is reported.
    pub event_id: Option<OwnedEventId>,
    /// The user who is reported.
    pub user_id: Option<OwnedUserId>,
}

impl Reports {
    /// The report of this record, if it is open.
    #[must_use]
    pub fn get(&self, offset: Offset) -> Option<Report> {
        self.0.read().get(&offset).cloned()
    }

    /// All that are open, the oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<(Offset, Report)> {
        self.0.read().iter().map(|(offset, report)| (*offset, report.clone())).collect()
    }

    /// The records of those that are open and are about a room, or an event in it.
    #[must_use]
    pub fn of_room(&self, room_id: &RoomId) -> Vec<Offset> {
        let reports = self.0.read();
        let of_room =
            reports.iter().filter(|(_, report)| report.room_id.as_deref() == Some(room_id));
        of_room.map(|(offset, _)| *offset).collect()
    }

    pub(super) fn add(&self, offset: Offset, time_ms: u64, body: ReportCreate) {
        let ReportCreate { reporter, room_id, event_id, user_id, .. } = body;
        let report = Report { time_ms, reporter, room_id, event_id, user_id };
        self.0.write().insert(offset, report);
    }

    pub(super) fn remove(&self, body: &ReportRemove) {
        self.0.write().remove(&body.report);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
