//! Decisions that are made through an engine.
#![allow(clippy::unwrap_used, reason = "clippy exempts tests, not their helpers")]

mod account;
mod oauth;
mod quota;
mod threepid;
