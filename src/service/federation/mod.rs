//! Rooms with users of several homeservers: operations of several steps between an endpoint and a
//! decision.

mod admission;
pub(crate) mod asking;
mod devices;
mod edus;
mod enter;
pub(crate) mod entering;
mod fetch;
mod history;
mod invite;
mod outliers;
mod pdu;
pub(crate) mod presence;
mod receive;

pub(crate) use devices::{HandedOut, Wanted, by_server, known_devices};
pub(crate) use enter::{Act, EnterError, Wish};
pub(crate) use fetch::Budget;
pub(crate) use pdu::{Pdu, PduError};
pub(crate) use receive::Receiving;
