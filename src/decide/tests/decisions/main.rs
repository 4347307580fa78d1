//! Decisions that are made through an engine.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which clippy does not know to be such")]

mod account;
mod oauth;
mod quota;
mod threepid;
