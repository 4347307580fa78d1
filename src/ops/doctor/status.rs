//! The state of the server on one screen.

use serde::{Deserialize, Serialize};

use super::{
    STOPPED, Subject,
    log::{Archived, archived},
};
use crate::admin::{
    context::{ActContext, ActError},
    federation::destinations,
    snapshots::{BackupRow, backups},
};
use logcabin_base::{disk, limits};
use logcabin_log::store::log_dir;
use logcabin_record::Offset;

/// What `logcabin status` shows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    pub running: bool,
    /// The server's process.
    pub pid: Option<u32>,
    /// Since when it runs, in milliseconds since the Unix epoch.
    pub since_ms: Option<u64>,
    /// The version of the server or, of a stopped one, of this program.
    pub version: String,
    pub server_name: String,
    /// The number of accounts.
    pub users: u64,
    /// The number of rooms.
    pub rooms: u64,
    /// The last record of the log.
    pub end: Offset,
    /// The size of the log on disk.
    pub log_bytes: u64,
    /// The free bytes on its disk, if that is known.
    pub free_bytes: Option<u64>,
    /// The last backup that the log knows of.
    pub last_backup: Option<LastBackup>,
    pub archive: ArchiveState,
    pub federation: FederationState,
    /// The number of reports that nobody has dealt with.
    pub open_reports: u64,
    /// The last record in the newest snapshot of the projections; 0 if there is none.
    pub snapshot: Offset,
    /// The version of logcabin that wrote it, if it can be read.
    pub snapshot_version: Option<String>,
    /// The projections that another version wrote and that are being rebuilt.
    pub rebuilding: Vec<String>,
    /// The projections that differed from the log in the last comparison.
    pub faults: Vec<String>,
    /// Up to this record the projections matched a replay; 0 if they were not compared.
    pub verified_through: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastBackup {
    pub destination: String,
    /// The last record in it.
    pub offset: Offset,
    /// In milliseconds since the Unix epoch.
    pub made_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArchiveState {
    /// "off", "written", "failing", or "unknown" while the server is stopped.
    pub state: String,
    /// How many records it lacks, if it is written.
    pub behind: Option<u64>,
    /// Why it cannot be written, or why nothing is known.
    pub reason: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FederationState {
    pub is_on: bool,
    /// The number of other homeservers that events are delivered to.
    pub destinations: u64,
    /// How many of them cannot be reached.
    pub failing: u64,
    /// How many events wait for them.
    pub waiting: u64,
    /// Whether more may wait: the search has a limit.
    pub and_more: bool,
}

/// The state of a running server, or of a stopped one.
pub fn status(context: &ActContext) -> Result<ServerStatus, ActError> {
    let doctor = &context.doctor;
    let subject = Subject::of(context, context.engine.clock().now_ms());
    let state = context.engine.state();
    let (users, rooms) = (state.accounts.len() as u64, state.rooms.len() as u64);
    let open_reports = state.reports.len() as u64;
    let end = state.applied();
    drop(state);
    let last_backup = backups(context, 0, 1)?.backups.into_iter().next();
    let projections = context.snapshots.status();
    let snapshot = context.snapshots.list().ok().and_then(|all| all.into_iter().next());
    let log = log_dir(&doctor.config.server.data_dir);
    let running = doctor.running.as_ref();
    Ok(ServerStatus {
        running: running.is_some(),
        pid: running.map(|_| std::process::id()),
        since_ms: running.map(|running| running.since_ms),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        server_name: context.engine.env().server.name.to_string(),
        users,
        rooms,
        end,
        log_bytes: disk::tree_bytes(&log),
        free_bytes: disk::free_bytes(&log).ok(),
        last_backup: last_backup.map(|BackupRow { copy, noted_ms, .. }| LastBackup {
            destination: copy.destination,
            offset: copy.moment.offset,
            made_ms: noted_ms,
        }),
        archive: archive(&subject),
        federation: federation(context)?,
        open_reports,
        snapshot: snapshot.as_ref().map_or(Offset::ZERO, |newest| newest.offset),
        snapshot_version: snapshot.and_then(|newest| newest.version),
        rebuilding: projections.provisional,
        faults: projections.fault.map(|fault| fault.projections).unwrap_or_default(),
        verified_through: projections.verified_through,
    })
}

fn archive(of: &Subject<'_>) -> ArchiveState {
    let (state, behind, reason) = match archived(of) {
        Archived::Off => ("off", None, None),
        Archived::Behind(records) => ("written", Some(records), None),
        Archived::Failing(reason) => ("failing", None, Some(reason)),
        Archived::Unknown => ("unknown", None, Some(STOPPED.to_owned())),
    };
    ArchiveState { state: state.to_owned(), behind, reason }
}

fn federation(context: &ActContext) -> Result<FederationState, ActError> {
    let found = destinations(context, 0, limits::DESTINATION_ROWS)?;
    let waiting = found.destinations.iter().map(|row| row.waiting.events as u64).sum();
    let is_cut = found.destinations.len() < found.total;
    Ok(FederationState {
        is_on: found.is_on,
        destinations: found.total as u64,
        failing: found.failing as u64,
        waiting,
        and_more: is_cut || found.destinations.iter().any(|row| row.waiting.and_more),
    })
}
