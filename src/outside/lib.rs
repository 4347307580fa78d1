//! Clients of other services, and what the server sends them: mail, text messages, notifications,
//! transactions.

#![cfg_attr(all(feature = "sso", not(test)), warn(unused_crate_dependencies))]

pub mod acme;
pub mod appservice;
pub mod certificate;
mod connector;
pub mod delivery;
pub mod exits;
pub mod federation;
mod line;
pub mod livekit;
pub mod mail;
pub mod oidc;
pub mod outbound;
mod proxy;
mod public_only;
pub mod pushers;
pub mod turn;
