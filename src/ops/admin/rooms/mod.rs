//! Acts on rooms.

mod block;
mod join;
mod largest;
pub mod list;
mod make_admin;
pub(crate) mod names;
mod purge;
mod purge_history;
mod redact;
mod show;
mod shut_down;
pub mod shutdown;
mod summary;
mod upgrade;

pub use block::{BlockRoom, Blocked, block_status};
pub use join::{JoinRoom, Joined};
pub use largest::largest;
pub use list::{ListRooms, RoomOrder, RoomSearch, Rooms, list};
pub use make_admin::{Empowered, MakeRoomAdmin};
pub use purge::{PurgeRoom, RoomPurged};
pub use purge_history::{HistoryPurgeStatus, PurgeHistory, history_purge_status};
pub(super) use redact::SAY_BYTES;
pub use redact::{EventRedacted, RedactEvent};
pub use show::{RoomDetails, ShowRoom, details};
pub use shut_down::{NewRoom, ShutDownRoom};
pub use shutdown::ShutdownStatus;
pub use summary::RoomSummary;
pub use upgrade::{UpgradeRoom, Upgraded};
