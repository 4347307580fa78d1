//! History.
pub mod source;
