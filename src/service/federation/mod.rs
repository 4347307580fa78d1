//! Rooms with users of several homeservers: operations of several steps between an endpoint and a
//! decision.

mod admission;
pub mod asking;
mod devices;
mod edus;
mod enter;
pub mod entering;
mod fetch;
mod history;
mod invite;
mod memory;
mod outliers;
mod pdu;
pub mod presence;
mod receive;

pub use devices::{HandedOut, Wanted, by_server, known_devices};
pub use enter::{EnterError, MembershipChange, Wish};
pub use fetch::Budget;
pub use memory::{Accounts, Amounts, Federation, Kind, Site, Use};
pub use pdu::{Pdu, PduError};
pub use receive::Receiving;
