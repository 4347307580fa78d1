//! Gives an event whose past cannot be fetched its place in the room, by the state before it, for
//! which its origin is asked.

use std::{collections::BTreeSet, sync::Arc};

use ruma::{EventId, RoomId, ServerName};

use super::Allowance;
use crate::federation::{PduError, PduReceiver, receive::Verified};
use logcabin_decide::federation::{PlaceOutlier, ReceiveOutcome};
use logcabin_record::Origin;
use logcabin_state::Room;

impl PduReceiver<'_> {
    /// Gives an event with an unknown past its place in the room, by the state before it.
    pub(super) async fn place(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        if self.knows(room, event_id)? {
            return self.place_recorded(origin, room, event_id, budget).await;
        }
        match self.fetch_one(origin, room, event_id, budget).await? {
            Some(event) => self.place_known(origin, room, &event, budget).await,
            // Another request has recorded it meanwhile.
            None if self.knows(room, event_id)? => {
                self.place_recorded(origin, room, event_id, budget).await
            }
            None => Err(PduError::Missing),
        }
    }

    pub(super) async fn place_known(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event: &Verified,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let event_id = &event.event_id;
        let mut outcome = self.propose(origin, event, true).await?;
        if matches!(outcome, ReceiveOutcome::Missing { .. }) {
            self.fetch_auth_chain(origin, room, event_id, budget).await?;
            outcome = self.propose(origin, event, true).await?;
        }
        if let ReceiveOutcome::Missing { auth, .. } = outcome {
            self.fetch_auth_events(origin, room, event_id, auth, budget).await?;
            self.propose(origin, event, true).await?;
        }
        self.place_recorded(origin, room, event_id, budget).await
    }

    async fn place_recorded(
        &self,
        origin: &ServerName,
        room: &Arc<Room>,
        event_id: &EventId,
        budget: &mut Allowance,
    ) -> Result<(), PduError> {
        let ids = self.state_ids(origin, room, event_id, budget).await?;
        let (state, _charge) = self.fetch_state(origin, room, event_id, ids, budget).await?;
        let place = PlaceOutlier {
            room_id: RoomId::to_owned(&room.id),
            event_id: event_id.to_owned(),
            from: origin.to_owned(),
            state: state.into_iter().collect::<BTreeSet<_>>().into_iter().collect(),
        };
        let placed = self.engine.propose(Origin::server(), place).await?;
        self.charged(origin, placed);
        Ok(())
    }
}
