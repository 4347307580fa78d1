//! Acts on snapshots of the projections, and on backups.

mod compare;
mod note_backup;
mod status;
mod write;

pub(crate) use compare::CompareSnapshots;
pub(crate) use note_backup::NoteBackup;
pub(crate) use status::SnapshotStatus;
pub(crate) use write::WriteSnapshot;
