//! Acts on snapshots of the projections, and on backups.

mod backups;
mod compare;
mod list;
mod note_backup;
mod status;
mod write;

pub(crate) use backups::{BackupRow, Backups, ListBackups, page as backups};
pub(crate) use compare::CompareSnapshots;
pub(crate) use list::{ListSnapshots, Snapshots, list};
pub(crate) use note_backup::NoteBackup;
pub(crate) use status::SnapshotStatus;
pub(crate) use write::WriteSnapshot;
