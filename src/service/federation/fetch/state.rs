//! Asks a homeserver for the room's state before an event (server-server API, "Retrieving
//! events").

use std::{collections::BTreeSet, sync::Arc};

use ruma::{EventId, OwnedEventId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{
    Allowance,
    budget::Charge,
    request::{as_many_as_state, not_fetched},
};
use crate::federation::{
    PduError, PduReceiver,
    outliers::{CheckedEvent, ID_BYTES},
};
use logcabin_base::{bodies::Urgency, limits, text::encoded};
use logcabin_outside::federation::{FederationRequest, FederationResponse};
use logcabin_state::Room;

/// The ids of a room's state.
#[derive(Deserialize)]
pub(in crate::federation) struct StateIds {
    #[serde(deserialize_with = "as_many_as_state")]
    pub(in crate::federation) pdu_ids: Vec<OwnedEventId>,
    #[serde(deserialize_with = "as_many_as_state")]
    auth_chain_ids: Vec<OwnedEventId>,
    #[serde(skip)]
    charge: Option<Charge>,
}

/// The events of a room's state, which are parts of the answer.
#[derive(Deserialize)]
pub(in crate::federation) struct StateResponse<'a> {
    #[serde(borrow, deserialize_with = "as_many_as_state")]
    pub(in crate::federation) pdus: Vec<&'a RawValue>,
    #[serde(borrow, deserialize_with = "as_many_as_state")]
    auth_chain: Vec<&'a RawValue>,
}

fn path(what: &str, room: &Room, event_id: &EventId) -> String {
    let (room_id, event_id) = (encoded(room.id.as_str()), encoded(event_id.as_str()));
    format!("/_matrix/federation/v1/{what}/{room_id}?event_id={event_id}")
}

impl PduReceiver<'_> {
    /// The ids of a room's state before an event.
    pub(in crate::federation) async fn state_ids(
        &self,
        server: &ServerName,
        room: &Room,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<StateIds, PduError> {
        let mut question = FederationRequest::get(path("state_ids", room, event_id)).paced();
        question.max_bytes = limits::FEDERATION_IDS_BYTES;
        let answer = self.answer(server, question, budget).await?;
        let ids: StateIds = answer.json().map_err(|error| not_fetched(server, &error))?;
        let bytes = (ids.pdu_ids.len() + ids.auth_chain_ids.len()) * ID_BYTES;
        Ok(StateIds { charge: budget.charge(answer.into_charge(), bytes), ..ids })
    }

    /// The answer with a room's state before an event: [`StateResponse`].
    pub(in crate::federation) async fn state(
        &self,
        server: &ServerName,
        room: &Room,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<FederationResponse, PduError> {
        let question =
            FederationRequest::get(path("state", room, event_id)).of_state(Urgency::Caused);
        self.answer(server, question, budget).await
    }

    /// Records the events of this state that are not known, and their auth events. Returns the ids
    /// of the state, and their charge.
    pub(super) async fn fetch_state(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        state: StateIds,
        budget: &mut Allowance,
    ) -> Result<(Vec<OwnedEventId>, Option<Charge>), PduError> {
        let mut unknown = BTreeSet::new();
        for event_id in state.pdu_ids.iter().chain(&state.auth_chain_ids) {
            if !self.knows(room, event_id)? {
                unknown.insert(event_id);
                if unknown.len() >= limits::EVENTS_ONE_BY_ONE {
                    break;
                }
            }
        }
        if unknown.is_empty() {
            return Ok((state.pdu_ids, state.charge));
        }
        if unknown.len() < limits::EVENTS_ONE_BY_ONE
            && let Some(each) = self.fetch_each(origin, unknown, budget).await?
        {
            let events = self.verify_all(room, &each).await?;
            self.charge_events(origin, &events);
            self.record_outliers(origin, room, events, true).await?;
            return Ok((state.pdu_ids, state.charge));
        }
        // The whole state may have to wait for its turn.
        drop(state);
        self.fetch_whole_state(origin, room, event_id, budget).await
    }

    /// The same from the answer with all events.
    async fn fetch_whole_state(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<(Vec<OwnedEventId>, Option<Charge>), PduError> {
        let answer = self.state(origin, room, event_id, budget).await?;
        let whole: StateResponse<'_> =
            answer.parts().map_err(|error| not_fetched(origin, &error))?;
        let places = [&whole.auth_chain, &whole.pdus].map(|events| answer.places(events));
        let ([chain, pdus], mut answer) = answer.take_apart(places);
        let charge = |checked: &CheckedEvent| {
            if let CheckedEvent::Valid(event) = checked {
                self.charge_events(origin, std::slice::from_ref(event));
            }
        };
        // Those whose authorities come later in the answer.
        let mut waiting = Vec::new();
        self.take_in(origin, room, chain, &mut answer, &mut waiting, charge).await?;
        let mut state = Vec::with_capacity(pdus.len());
        let found = |checked: &CheckedEvent| {
            charge(checked);
            match checked {
                CheckedEvent::Known(event_id) => state.push(event_id.clone()),
                CheckedEvent::Valid(event) => state.push(event.event_id.clone()),
                CheckedEvent::Unverified(..) => {}
            }
        };
        self.take_in(origin, room, pdus, &mut answer, &mut waiting, found).await?;
        self.record_outliers(origin, room, waiting, true).await?;
        let bytes = state.len() * ID_BYTES;
        Ok((state, budget.charge(answer.into_charge(), bytes)))
    }

    /// These events, one by one; `None` if the homeserver does not answer so.
    async fn fetch_each(
        &self,
        origin: &ServerName,
        ids: BTreeSet<&OwnedEventId>,
        budget: &mut Allowance,
    ) -> Result<Option<Vec<Box<RawValue>>>, PduError> {
        let mut events = Vec::new();
        for event_id in ids {
            match self.fetch_raw(origin, event_id, budget).await {
                Ok(event) => events.extend(event),
                Err(PduError::Missing) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(events))
    }
}
