//! Reads: events as clients see them, rooms as of an offset, sync, and notifications.

pub mod events;
pub mod notifications;
pub mod sync;
pub mod view;
