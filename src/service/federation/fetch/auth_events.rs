//! Asks the origin of an event for its auth events and theirs (server-server API, "Retrieving
//! events").

use std::{collections::BTreeSet, sync::Arc};

use ruma::{EventId, OwnedEventId, ServerName};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Allowance, request::as_many_as_state};
use crate::federation::{PduError, PduReceiver};
use logcabin_base::{limits, text::encoded};
use logcabin_outside::federation::FederationRequest;
use logcabin_state::Room;

#[derive(Deserialize)]
struct AuthChain {
    #[serde(default, deserialize_with = "as_many_as_state")]
    auth_chain: Vec<Box<RawValue>>,
}

impl PduReceiver<'_> {
    /// Records the auth events of an event and theirs, if the homeserver has them in one answer.
    pub(super) async fn fetch_auth_chain(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let events = match self.auth_chain(origin, room, event_id, budget).await {
            Err(PduError::Missing) => return Ok(()),
            events => events?,
        };
        let events = self.verify_all(room, &events).await?;
        self.charge_events(origin, &events);
        self.record_outliers(origin, room, events, true).await
    }

    /// Records the auth events of an event that are not known, and theirs, from a homeserver that
    /// does not answer with all of them at once: each by itself, or else the state that the event
    /// comes after, among which they must be.
    pub(super) async fn fetch_auth_events(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        auth: Vec<OwnedEventId>,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let mut seen: BTreeSet<_> = auth.iter().cloned().collect();
        let (mut open, mut events, mut is_all) = (auth, Vec::new(), true);
        while let Some(of) = open.pop() {
            if self.knows(room, &of)? {
                continue;
            }
            if events.len() >= limits::EVENTS_ONE_BY_ONE {
                is_all = false;
                break;
            }
            match self.fetch_one(origin, room, &of, budget).await {
                Ok(Some(event)) => {
                    let further = event.auth_events();
                    let further = further.iter().filter_map(|id| EventId::parse(id).ok());
                    open.extend(further.filter(|id| seen.insert(id.clone())));
                    events.push(event);
                }
                Ok(None) | Err(PduError::Missing) => {
                    is_all = false;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if is_all {
            self.charge_events(origin, &events);
            return self.record_outliers(origin, room, events, true).await;
        }
        let state = match self.state_ids(origin, room, event_id, budget).await {
            Err(PduError::Missing) => return Ok(()),
            state => state?,
        };
        match self.fetch_state(origin, room, event_id, state, budget).await {
            Err(PduError::Missing) => Ok(()),
            fetched => fetched.map(drop),
        }
    }

    /// The events of an event's auth chain, up to the limit.
    pub(in crate::federation) async fn auth_chain(
        &self,
        server: &ServerName,
        room: &Room,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<Vec<Box<RawValue>>, PduError> {
        let path = format!(
            "/_matrix/federation/v1/event_auth/{}/{}",
            encoded(room.id.as_str()),
            encoded(event_id.as_str())
        );
        let answered: AuthChain = self.ask(server, FederationRequest::get(path), budget).await?;
        let mut events = answered.auth_chain;
        events.truncate(budget.events);
        budget.events = budget.events.saturating_sub(events.len());
        Ok(events)
    }
}
