//! Operations that take several steps, or keep state of their own, between the endpoints and the
//! engine.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod accounts;
pub mod appservices;
pub mod delayed;
pub mod deliveries;
pub mod erasure;
pub mod federation;
pub mod filters;
pub mod growth;
pub mod guests;
pub mod health;
pub mod last_seen;
pub mod media;
pub mod nonces;
pub mod notices;
pub mod oauth;
pub mod observe;
pub mod orders;
pub mod passwords;
pub mod policies;
pub mod policy_lists;
pub mod presence;
pub mod public_rooms;
pub mod redactions;
pub mod related_redactions;
pub mod remote_names;
pub mod rendezvous;
pub mod requester;
pub mod samples;
pub mod screening;
pub mod sender_redactions;
pub mod sent;
pub mod spaces;
pub mod tally;
pub mod typing;
pub mod uiaa;
pub mod walks;
