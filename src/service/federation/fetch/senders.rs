//! Asks the homeserver of an event's sender for the event, when another one altered its content.

use std::time::Instant;

use futures_util::{StreamExt as _, stream};
use ruma::ServerName;

use super::Budget;
use crate::federation::{Pdu, PduError, PduReceiver, receive::Verified};
use logcabin_base::limits;
use logcabin_state::Room;

impl PduReceiver<'_> {
    /// Replaces events that lost their content, because `origin` sent content that does not match
    /// their hashes, by the versions of their senders' homeservers. (A redacted event lost its
    /// content everywhere.) Otherwise a homeserver could strip the content of others' events by
    /// passing them on first.
    pub(super) async fn ask_senders(
        &self,
        origin: &ServerName,
        room: &Room,
        events: &mut [Verified],
        budget: &mut Budget,
    ) -> Result<(), PduError> {
        let (requests, time) = &mut budget.senders;
        let mut lacking = Vec::new();
        for (at, event) in events.iter().enumerate() {
            let pdu = Pdu::of_room(room, &event.pdu)?;
            let sender = pdu.sender().map(|sender| sender.server_name().to_owned());
            let asked = sender.filter(|server| server != self.federation.client.own_name());
            if let Some(server) = asked.filter(|_| !pdu.is_whole_from(origin)) {
                lacking.push((at, server, pdu.event_id));
            }
        }
        lacking.truncate(*requests);
        if lacking.is_empty() || time.is_zero() {
            return Ok(());
        }
        *requests -= lacking.len();
        let missing = &budget.missing;
        let began = Instant::now();
        let until = began + *time;
        let asked = stream::iter(lacking).map(|(at, server, event_id)| async move {
            let mut budget = missing.for_one(until);
            let fetched = self.fetch_one(&server, room, &event_id, &mut budget).await;
            (at, fetched, budget.in_use)
        });
        let asked = asked.buffer_unordered(limits::SENDERS_AT_ONCE);
        let late = tokio::time::sleep(*time);
        let asked: Vec<_> = asked.take_until(late).collect().await;
        *time = time.saturating_sub(began.elapsed());
        for (at, fetched, in_use) in asked {
            match fetched {
                Ok(Some(whole)) => {
                    events[at] = whole;
                    budget.missing.in_use.extend(in_use);
                }
                Err(error @ PduError::NotRecorded(_)) => return Err(error),
                // It stays as it is.
                Ok(None) | Err(_) => {}
            }
        }
        Ok(())
    }
}
