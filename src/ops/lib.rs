//! Tools for operators: administration, backups, exports, and inspection of the log.

#![cfg_attr(all(feature = "nats", not(test)), warn(unused_crate_dependencies))]

pub mod admin;
pub mod backup;
#[cfg(feature = "nats")]
pub mod cluster;
pub mod doctor;
pub mod export;
pub mod former;
pub mod history;
pub mod proof;
pub mod restore;
pub mod setup;
pub mod socket;
pub mod source;
