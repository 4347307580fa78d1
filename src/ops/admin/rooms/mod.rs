//! Acts on rooms.

mod block;
mod join;
mod list;
mod make_admin;
pub(crate) mod names;
mod purge;
mod show;
mod shut_down;
pub(crate) mod shutdown;
mod summary;
mod upgrade;

pub(crate) use block::{BlockRoom, Blocked, block_status};
pub(crate) use join::{JoinRoom, Joined};
pub(crate) use list::{ListRooms, RoomOrder, Rooms, RoomsWanted, list};
pub(crate) use make_admin::{Empowered, MakeRoomAdmin};
pub(crate) use purge::{PurgeRoom, RoomPurged};
pub(crate) use show::{RoomDetails, ShowRoom, details};
pub(crate) use shut_down::{NewRoom, ShutDownRoom};
pub(crate) use shutdown::ShutdownStatus;
pub(crate) use summary::RoomSummary;
pub(crate) use upgrade::{UpgradeRoom, Upgraded};
