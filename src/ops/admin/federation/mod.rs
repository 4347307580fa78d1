//! Administrators' acts on other homeservers.

pub mod destinations;
mod new_key;
mod refused;
mod reset;
mod retry;
mod waiting;

pub use ruma::OwnedServerName;

pub use destinations::{
    DestinationDetails, DestinationRow, Destinations, ListDestinations, SharedRoom,
    ShowDestination, list as destinations, one as destination,
};
pub use new_key::{KeyReplaced, NewKey};
pub use refused::{ListRefusedEvents, RefusedEvents, list as refused_events};
pub use reset::{DestinationReset, ResetDestination};
pub use retry::{DestinationRetried, RetryDestination};
pub use waiting::WaitingEvents;

use super::context::{ActContext, ActError};

impl ActContext {
    /// The homeserver that an order names, if it is known here: something was delivered to it, or
    /// one of its users is or was in a local room.
    fn destination(&self, name: &str) -> Result<OwnedServerName, ActError> {
        let state = self.engine.state();
        let server = OwnedServerName::try_from(name).ok();
        let server = server.filter(|server| *server != self.engine.env().server.name);
        let server = server.filter(|server| {
            state.destinations.get(server).is_some()
                || state.rooms.all().iter().any(|room| room.knows_server(server))
        });
        server.ok_or_else(|| ActError::NoDestination(name.to_owned()))
    }
}
