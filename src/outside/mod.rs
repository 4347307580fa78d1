//! Clients of other services, and what the server sends them: mail, text messages, notifications,
//! transactions.

pub(crate) mod appservice;
pub(crate) mod delivery;
pub(crate) mod federation;
pub(crate) mod mail;
pub(crate) mod oidc;
pub(crate) mod outbound;
pub(crate) mod pushers;
