//! Rooms with users of several homeservers: operations of several steps between an endpoint and a
//! decision.

mod admission;
mod devices;
mod edus;
mod enter;
pub mod entry_attempts;
mod fetch;
mod history;
mod invite;
mod memory;
mod outliers;
mod pdu;
pub mod presence;
pub mod query_rates;
mod receive;
mod retries;

pub use devices::{ClaimedKeys, KeyClaims, by_server, known_devices};
pub(crate) use enter::leave_alone;
pub use enter::{EnterError, EntryRequest, MembershipChange};
pub use fetch::Budget;
pub use memory::{Amounts, Federation, Kind, OriginLimits, OriginUsage, Site};
pub use pdu::{Pdu, PduError};
pub use receive::PduReceiver;
pub use retries::retry_unplaced;
