//! Asks a homeserver for one event by its id (server-server API, "Retrieving events").

use ruma::{EventId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Allowance,
    request::{as_many_as_state, not_fetched},
};
use crate::federation::{PduError, PduReceiver, receive::Verified};
use logcabin_base::{limits, text::encoded};
use logcabin_outside::federation::FederationRequest;
use logcabin_state::Room;

#[derive(Deserialize)]
struct OneEvent {
    #[serde(deserialize_with = "as_many_as_state")]
    pdus: Vec<Box<RawValue>>,
}

impl PduReceiver<'_> {
    pub(in crate::federation) async fn fetch_one(
        &self,
        origin: &ServerName,
        room: &Room,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<Option<Verified>, PduError> {
        let raw = self.fetch_raw(origin, event_id, budget).await?;
        let found = self.verify_all(room, raw.as_slice()).await?.pop();
        Ok(found.filter(|event| event.event_id == event_id))
    }

    /// What a homeserver answers when it is asked for this event.
    pub(super) async fn fetch_raw(
        &self,
        origin: &ServerName,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<Option<Box<RawValue>>, PduError> {
        let path = format!("/_matrix/federation/v1/event/{}", encoded(event_id.as_str()));
        let mut question = FederationRequest::get(path);
        question.max_bytes = limits::ONE_EVENT_BYTES;
        let answer = self.answer(origin, question, budget).await?;
        let one: OneEvent = answer.json().map_err(|error| not_fetched(origin, &error))?;
        let event = one.pdus.into_iter().next();
        budget.keep(answer, event.as_ref().map_or(0, |event| event.get().len()));
        Ok(event)
    }
}
