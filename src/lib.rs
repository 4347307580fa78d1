//! Logcabin: a Matrix-compatible homeserver whose only truth is an append-only log.

pub mod clock;
pub mod log;
pub mod record;
