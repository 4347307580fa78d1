//! Sync: what is new for a user between two offsets, and the long-poll that waits for it.

pub mod v3;

pub use v3::{Request, Response, RoomFilters, SyncFilter};
