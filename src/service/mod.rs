//! What takes several steps, or memory of its own, between the endpoints and the engine.

pub(crate) mod accounts;
pub mod erasure;
pub(crate) mod last_seen;
pub(crate) mod passwords;
pub(crate) mod presence;
pub(crate) mod rendezvous;
