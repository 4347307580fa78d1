//! Acts on uploaded files.

mod delete;
pub mod list;
mod protect;
mod quarantine;
mod remote;
mod select;
mod statistics;

pub use delete::{DeleteMedia, MediaDeleted};
pub use list::{ListMedia, Media, MediaSummary, list};
pub use protect::{ProtectMedia, Protected};
pub use quarantine::{QuarantineMedia, Quarantined};
pub use remote::{PurgeRemoteMedia, RemoteMediaPurged};
pub use select::MediaOf;
pub use statistics::{MediaStatistics, MediaUsage, statistics};
