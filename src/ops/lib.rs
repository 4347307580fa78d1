//! Tools for operators: administration, backups, exports, and inspection of the log.

pub mod admin;
pub mod backup;
#[cfg(feature = "nats")]
pub mod cluster;
pub mod export;
pub mod history;
pub mod proof;
pub mod restore;
pub mod socket;
pub mod source;
