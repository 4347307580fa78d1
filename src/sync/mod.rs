//! Sync: what is new for a user between two offsets. The waiting for it is in `api::sync`, the waking in
//! `engine::head`.

pub mod v3;

pub use v3::{Request, Response, RoomFilters, SyncFilter, is_deleted};
