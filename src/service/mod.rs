//! Operations that take several steps, or keep state of their own, between the endpoints and the
//! engine.

pub(crate) mod accounts;
pub mod erasure;
pub(crate) mod federation;
pub(crate) mod growth;
pub(crate) mod health;
pub(crate) mod last_seen;
pub(crate) mod oauth;
pub(crate) mod observe;
pub(crate) mod passwords;
pub(crate) mod policies;
pub(crate) mod presence;
pub(crate) mod remote_names;
pub(crate) mod rendezvous;
pub(crate) mod samples;
pub(crate) mod tally;
pub(crate) mod typing;
