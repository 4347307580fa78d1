//! Logcabin: a Matrix-compatible homeserver whose only truth is an append-only log.

pub mod clock;
pub mod decide;
pub mod engine;
pub mod events;
pub mod limits;
pub mod log;
pub mod record;
pub mod state;
pub mod sync;
pub mod view;
