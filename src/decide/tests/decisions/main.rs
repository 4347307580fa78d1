//! Decisions as the engine has them made.
#![allow(clippy::unwrap_used, reason = "helpers of tests, which clippy does not know to be such")]

mod account;
mod oauth;
mod quota;
