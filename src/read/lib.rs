//! Reads: events as clients see them, rooms as of an offset, sync, and notifications.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod branches;
pub mod events;
pub mod invites;
pub mod keyring;
pub mod notifications;
pub mod policy_lists;
pub mod policy_server;
pub mod servers;
pub mod sync;
pub mod view;
