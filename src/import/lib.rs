//! Moving from other homeservers.
//!
//! A reader of a source tells what it holds as [`facts`]; what becomes records knows nothing of the
//! source. `docs/decisions/import-seam.md` has the reasons.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod check;
pub mod compare;
pub mod copy;
mod error;
pub mod facts;
mod former;
pub mod mas;
pub mod proposal;
mod sql;
pub mod synapse;
mod yaml;

pub use error::ImportError;
pub use former::former_server;
