//! Tools of those who run a server: administration, backups, exports, and looks into the log.

pub mod admin;
pub mod backup;
pub mod export;
pub mod history;
pub mod proof;
pub mod restore;
pub mod socket;
pub mod source;
