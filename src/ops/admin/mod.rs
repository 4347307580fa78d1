//! Administration from the same machine: reading the log of a running server, and acts of its
//! operator.
//!
//! The store admits one process at a time, so a running server serves its records and acts over a
//! Unix socket in its data directory (mode 0600, in a directory of mode 0700). An act has a file of
//! its own: the type with its parameters, what it does ([`act::Act::perform`]), what it would do
//! ([`act::Act::effect`]), and its result. The running server performs it or, while none runs, the
//! command line does ([`offline`]). [`registry`] lists the acts that the socket takes. The protocol
//! is in [`socket`](crate::ops::socket).

pub(crate) mod act;
pub(crate) mod actor;
pub(crate) mod cluster;
pub(crate) mod console;
pub(crate) mod erasures;
pub(crate) mod federation;
pub(crate) mod form;
pub(crate) mod media;
pub(crate) mod notices;
pub(crate) mod office;
pub(crate) mod offline;
pub(crate) mod proofs;
pub(crate) mod registry;
pub(crate) mod reports;
pub(crate) mod rooms;
mod serve;
pub(crate) mod snapshots;
pub(crate) mod tokens;
pub(crate) mod users;
pub(crate) mod work;

pub(crate) use serve::serve;
pub use serve::serve_until;
