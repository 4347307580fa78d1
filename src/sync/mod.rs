//! Sync: what is new for a user between two offsets. The waiting for it is in `api::sync`, the waking in
//! `engine::head`.

mod account_data;
pub mod device_lists;
mod ephemeral;
pub mod lazy;
mod summary;
mod timeline;
pub mod to_device;
pub mod v3;

pub use lazy::KnownMembers;
