//! Forget that a homeserver cannot be reached, and what it has not been told of.
//!
//! An event that a homeserver cannot take holds up all that come after it. After a reset, the
//! homeserver is told of what happens from then on. It asks for what it misses, if it is able to:
//! each event names those before it.

use ruma::OwnedServerName;
use serde::{Deserialize, Serialize};

use super::destinations::row;
use crate::{
    base::{background::at_length, limits},
    decide::federation,
    ops::admin::{
        act::{Act, Attribution},
        form::{Field, Form, Kind},
        office::{ActError, Office},
    },
    record::command::Failing,
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ResetDestination {
    /// The homeserver's name.
    pub(crate) server: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DestinationReset {
    pub(crate) server_name: OwnedServerName,
    /// How many events it is not told of.
    pub(crate) events: usize,
    /// There are more: no more were looked at.
    pub(crate) and_more: bool,
}

impl Act for ResetDestination {
    const NAME: &'static str = "reset-destination";
    const DONE: &'static str = "reset";
    type Done = DestinationReset;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Reset a homeserver",
        fields: &[Field::new("server", "Homeserver", Kind::Text)],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, office: &Office, by: Attribution) -> Result<Self::Done, ActError> {
        let server_name = office.destination(&self.server)?;
        let waiting = at_length(|| row(office, &server_name))?.waiting;
        let reset = federation::ResetDestination { server_name: server_name.clone() };
        office.propose(by, reset).await?;
        let (events, and_more) = (waiting.events, waiting.and_more);
        Ok(DestinationReset { server_name, events, and_more })
    }

    async fn effect(&self, office: &Office) -> Result<Vec<String>, ActError> {
        let server = office.destination(&self.server)?;
        let row = at_length(|| row(office, &server))?;
        let more = if row.waiting.and_more { " or more" } else { "" };
        let lost = (row.waiting.events > 0).then(|| {
            format!(
                "{server} is not told of {}{more} event(s) that it has not been told of yet; it \
                 asks for them when it needs them, if it can",
                row.waiting.events
            )
        });
        let forgotten = row.failing.map(|failing| {
            let Failing { attempts, .. } = failing;
            format!("it is forgotten that {server} could not be reached, {attempts} time(s)")
        });
        let letters = office.engine.state().to_device.waiting_outside(
            &server,
            row.up_to,
            limits::DESTINATION_EVENTS,
        );
        let letters = (!letters.is_empty()).then(|| {
            format!(
                "{} message(s) to devices of users of {server} are lost, and with them keys of \
                 encrypted rooms",
                letters.len()
            )
        });
        Ok(lost.into_iter().chain(letters).chain(forgotten).collect())
    }
}
