//! Operations that take several steps, or keep state of their own, between the endpoints and the
//! engine.

pub(crate) mod accounts;
pub(crate) mod appservices;
pub(crate) mod delayed;
pub(crate) mod deliveries;
pub mod erasure;
pub(crate) mod federation;
pub(crate) mod filters;
pub(crate) mod growth;
pub(crate) mod guests;
pub(crate) mod health;
pub(crate) mod last_seen;
pub(crate) mod media;
pub(crate) mod nonces;
pub(crate) mod notices;
pub(crate) mod oauth;
pub(crate) mod observe;
pub(crate) mod passwords;
pub(crate) mod policies;
pub(crate) mod presence;
pub(crate) mod public_rooms;
pub(crate) mod remote_names;
pub(crate) mod rendezvous;
pub(crate) mod requester;
pub(crate) mod samples;
pub(crate) mod spaces;
pub(crate) mod tally;
pub(crate) mod typing;
pub(crate) mod uiaa;
pub(crate) mod walks;
