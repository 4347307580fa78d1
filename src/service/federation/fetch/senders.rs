//! Asks the homeserver of an event's sender for the event, when another one altered its content.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream};
use ruma::ServerName;

use super::Allowance;
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
        (requests, time): &mut (usize, Duration),
    ) -> Result<(), PduError> {
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
        let began = Instant::now();
        let until = began + *time;
        let asked = stream::iter(lacking).map(|(at, server, event_id)| async move {
            let bytes = limits::ONE_EVENT_BYTES;
            let budget = &mut Allowance { requests: 1, events: 1, bytes, until };
            (at, self.fetch_one(&server, room, &event_id, budget).await)
        });
        let asked = asked.buffer_unordered(limits::SENDERS_AT_ONCE);
        let late = tokio::time::sleep(*time);
        let asked: Vec<_> = asked.take_until(late).collect().await;
        *time = time.saturating_sub(began.elapsed());
        for (at, fetched) in asked {
            match fetched {
                Ok(Some(whole)) => events[at] = whole,
                Err(error @ PduError::NotRecorded(_)) => return Err(error),
                // It stays as it is.
                Ok(None) | Err(_) => {}
            }
        }
        Ok(())
    }
}
