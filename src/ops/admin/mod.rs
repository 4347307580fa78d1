//! Administration from the same machine: reading the log of a running server, and acts of its
//! operator.
//!
//! The store admits one process at a time, so a running server serves its records and acts over a
//! Unix socket in its data directory (mode 0600, in a directory of mode 0700). An act has a file of
//! its own: the type with its parameters, what it does ([`act::Act::perform`]), what it would do
//! ([`act::Act::effect`]), and its result. The running server performs it or, while none runs, the
//! command line does ([`offline`]). [`registry`] lists the acts that the socket takes. The protocol
//! is in [`socket`](crate::socket).

pub mod act;
pub mod actor;
pub mod cluster;
pub mod console;
pub mod context;
pub mod doctor;
pub mod erasures;
pub mod federation;
pub mod form;
pub mod media;
pub mod notices;
pub mod offline;
pub mod policies;
pub mod proofs;
pub mod registry;
pub mod reports;
pub mod rooms;
mod serve;
pub mod snapshots;
pub mod tokens;
pub mod undo;
pub mod users;
pub mod work;

pub use serve::serve;
pub use serve::serve_until;
