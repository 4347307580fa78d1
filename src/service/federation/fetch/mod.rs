//! Fetches events that an event of another homeserver depends on.
//!
//! | File | Whom it asks | For what |
//! |---|---|---|
//! | [`ancestors`] | the origin of the event | the events between the known ones and it |
//! | [`auth_events`] | the origin | the event's auth events and theirs |
//! | [`state`], for [`place`] | the origin | the state before an event whose past cannot be fetched |
//! | [`senders`] | the homeserver of an event's sender | the event, when another one altered it |
//! | [`event`] | either of them | one event by its id |

mod ancestors;
mod auth_events;
mod budget;
mod event;
mod place;
mod request;
mod senders;
mod state;

pub(super) use budget::Allowance;
pub use budget::Budget;
pub(super) use request::{as_many_as_state, not_fetched};
pub(super) use state::StateResponse;
