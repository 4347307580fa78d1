//! What is read: events as clients see them, rooms as of an offset, what is new, and what notifies.

pub mod events;
pub mod push;
pub mod sync;
pub mod view;
