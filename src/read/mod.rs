//! Reads: events as clients see them, rooms as of an offset, sync, and notifications.

pub(crate) mod branches;
pub mod events;
pub(crate) mod keyring;
pub mod notifications;
pub(crate) mod policy;
pub(crate) mod servers;
pub mod sync;
pub mod view;
