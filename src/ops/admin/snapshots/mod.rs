//! Acts on snapshots of the projections, and on backups.

pub mod backups;
mod compare;
mod list;
mod note_backup;
mod status;
mod write;

pub use backups::{BackupRow, Backups, ListBackups, page as backups};
pub use compare::CompareSnapshots;
pub use list::{ListSnapshots, Snapshots, list};
pub use note_backup::NoteBackup;
pub use status::SnapshotStatus;
pub use write::WriteSnapshot;
