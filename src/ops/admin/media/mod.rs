//! Acts on uploaded files.

mod delete;
mod list;
mod protect;
mod quarantine;
mod remote;
mod select;
mod statistics;

pub(crate) use delete::{DeleteMedia, MediaDeleted};
pub(crate) use list::{ListMedia, Media, MediaSummary, list};
pub(crate) use protect::{ProtectMedia, Protected};
pub(crate) use quarantine::{QuarantineMedia, Quarantined};
pub(crate) use remote::{PurgeRemoteMedia, RemoteMediaPurged};
pub(crate) use select::MediaOf;
pub(crate) use statistics::{MediaStatistics, MediaUsage, statistics};
