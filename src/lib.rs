//! Logcabin: a Matrix-compatible homeserver whose only truth is an append-only log.

pub mod cli;
pub mod clock;
pub mod config;
#[allow(dead_code, reason = "the endpoints to come use the rest of what handlers are offered")]
mod http;
mod limits;
pub mod log;
pub mod record;
pub mod server;
mod shutdown;
pub mod telemetry;
