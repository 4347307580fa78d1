//! Reset a homeserver: clear its failures and drop the events that wait for it.
//!
//! An event that a homeserver cannot process blocks all later ones. After a reset, the homeserver
//! receives only later events. It asks for the missing ones if it can: each event names those
//! before it.

use ruma::OwnedServerName;
use serde::{Deserialize, Serialize};

use super::destinations::row;
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::{background::at_length, limits};
use logcabin_decide::federation;
use logcabin_record::command::Failing;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ResetDestination {
    /// The homeserver's name.
    pub server: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DestinationReset {
    pub server_name: OwnedServerName,
    /// The number of dropped events.
    pub events: usize,
    /// There may be more: the search has a limit.
    pub and_more: bool,
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

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Self::Done, ActError> {
        let server_name = context.destination(&self.server)?;
        let waiting = at_length(|| row(context, &server_name))?.waiting;
        let reset = federation::ResetDestination { server_name: server_name.clone() };
        context.propose(by, reset).await?;
        let (events, and_more) = (waiting.events, waiting.and_more);
        Ok(DestinationReset { server_name, events, and_more })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let server = context.destination(&self.server)?;
        let row = at_length(|| row(context, &server))?;
        let more = if row.waiting.and_more { " or more" } else { "" };
        let lost = (row.waiting.events > 0).then(|| {
            format!(
                "{}{more} event(s) that wait for {server} are dropped; it asks for them if it \
                 needs them and can",
                row.waiting.events
            )
        });
        let forgotten = row.failing.map(|failing| {
            let Failing { attempts, .. } = failing;
            format!("{attempts} failed attempt(s) to reach {server} are cleared")
        });
        let aside = (row.set_aside > 0).then(|| {
            format!("the list of {} item(s) that were set aside is cleared", row.set_aside)
        });
        let letters = context.engine.state().to_device.waiting_outside(
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
        Ok(lost.into_iter().chain(letters).chain(forgotten).chain(aside).collect())
    }
}
