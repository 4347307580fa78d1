//! Transactions: their contents, and their delivery to a homeserver.

use std::{collections::BTreeMap, sync::Arc};

use ruma::ServerName;
use serde::Deserialize;
use serde_json::{json, value::RawValue};
use tokio::time::{Duration, sleep};
use tracing::{debug, warn};

use super::{Sender, edus::Edu, is_told};
use crate::{
    base::{
        clock::{millis, random_letters},
        limits,
        metrics::{Tried, metrics},
    },
    log::ReadError,
    outside::federation::{Question, Unreachable},
    read::events::as_shown,
    record::Offset,
    state::State,
};

/// The contents of a transaction.
#[derive(Default)]
struct Contents {
    pdus: Vec<Box<RawValue>>,
    edus: Vec<Edu>,
    /// The number of records that they come from.
    records: usize,
}

#[derive(Deserialize)]
struct Outcomes {
    #[serde(default)]
    pdus: BTreeMap<String, Outcome>,
}

#[derive(Deserialize)]
struct Outcome {
    #[serde(default)]
    error: Option<String>,
}

impl Sender {
    /// Sends a transaction with these records to a homeserver, as many as fit, and retries until it
    /// has arrived. Transient EDUs are sent at the first attempt only.
    pub(super) async fn deliver(&self, server: &ServerName, offsets: &[Offset]) {
        let id = random_letters(20);
        if !offsets.is_empty() {
            self.until_due(server).await;
        }
        let mut transient = match self.destinations.lock().get_mut(server) {
            Some(destination) => destination.take_transient(),
            None => return,
        };
        let mut offsets = offsets;
        loop {
            if !offsets.is_empty() && self.is_reset(server, offsets) {
                return;
            }
            let contents = match self.contents(&self.engine.state(), server, offsets) {
                Ok(contents) => contents,
                Err(error) => {
                    warn!(%server, %error, "the records for a homeserver cannot be read");
                    sleep(limits::DELIVERY_RETRY.1).await;
                    continue;
                }
            };
            let Contents { pdus, mut edus, records } = contents;
            // The same id stands for the same records.
            offsets = &offsets[..records];
            let room = limits::TRANSACTION_EDUS.saturating_sub(edus.len());
            edus.extend(transient.drain(..).rev().take(room));
            if pdus.is_empty() && edus.is_empty() {
                break;
            }
            let body = json!({
                "origin": self.peers.own_name(),
                "origin_server_ts": self.engine.clock().now_ms(),
                "pdus": pdus,
                "edus": edus,
            });
            let mut question = Question::put(format!("/_matrix/federation/v1/send/{id}"), &body);
            question.timeout = limits::DESTINATION_TIMEOUT;
            let asked = {
                // Tasks get a slot in the order in which they asked.
                let Ok(_place) = self.places.acquire().await else { return };
                self.peers.ask(server, question).await
            };
            let outcomes = asked.and_then(|answer| answer.json::<Outcomes>());
            count(&outcomes, pdus.len(), edus.len());
            match outcomes {
                Ok(outcomes) => {
                    for (event_id, outcome) in outcomes.pdus {
                        if let Some(error) = outcome.error {
                            debug!(%server, event_id, error, "a homeserver refused an event");
                        }
                    }
                    break;
                }
                // One of the two servers will never federate with the other.
                Err(Unreachable::Denied | Unreachable::Own | Unreachable::Name) => break,
                Err(_) if !offsets.is_empty() && self.is_reset(server, offsets) => return,
                Err(error) => {
                    let (pause, back) = self.note_failure(server, &error);
                    if offsets.is_empty() {
                        return;
                    }
                    if self.is_lost(server) {
                        break;
                    }
                    tokio::select! {
                        () = sleep(pause) => {}
                        () = back.notified() => sleep(Duration::from_millis(200)).await,
                    }
                }
            }
        }
        if let Some(destination) = self.destinations.lock().get_mut(server) {
            destination.told(offsets);
        }
    }

    /// Waits until the retry of an unreachable homeserver is due, perhaps one from before a
    /// restart.
    async fn until_due(&self, server: &ServerName) {
        let due = {
            let all = self.destinations.lock();
            let now_ms = self.engine.clock().now_ms();
            all.get(server).and_then(|destination| {
                let left = destination.failing.as_ref()?.again_ms.checked_sub(now_ms)?;
                Some((Duration::from_millis(left), Arc::clone(&destination.back)))
            })
        };
        if let Some((left, back)) = due {
            tokio::select! {
                () = sleep(left) => {}
                () = back.notified() => {}
            }
        }
    }

    /// Whether what waits for an unreachable homeserver is dropped: users wrote to it, it shares no
    /// room with this one, and perhaps it never existed.
    fn is_lost(&self, server: &ServerName) -> bool {
        let now_ms = self.engine.clock().now_ms();
        self.destinations.lock().get(server).is_some_and(|destination| {
            let since_ms = destination.failing.as_ref().map(|failing| failing.since_ms);
            let longest = millis(limits::STRANGER_TIME);
            destination.rooms.is_empty()
                && since_ms.is_some_and(|since_ms| now_ms.saturating_sub(since_ms) > longest)
        })
    }

    /// The contents of a transaction with the first of these records, as many as fit.
    fn contents(
        &self,
        state: &State,
        server: &ServerName,
        offsets: &[Offset],
    ) -> Result<Contents, ReadError> {
        let events = self.engine.events();
        let (mut contents, mut bytes) = (Contents::default(), 0);
        for offset in offsets {
            let (mut pdu, mut edus) = (None, Vec::new());
            if let Some(event) = events.get(*offset)? {
                if let Some(room) = state.rooms.get(&event.room_id) {
                    edus = self.edus_of_join(state, server, &room, &event)?;
                    if is_told(&event, server) {
                        let shown = as_shown(&room, event, Offset::MAX);
                        pdu = Some(events.in_federation_format(&room, &shown));
                    }
                }
            } else if let Some(command) = events.command(*offset)? {
                edus = self.edus(state, server, *offset, command)?;
            }
            edus.truncate(limits::TRANSACTION_EDUS);
            bytes += edus.iter().map(|edu| edu.get().len()).sum::<usize>();
            let is_full = contents.pdus.len() + usize::from(pdu.is_some())
                > limits::TRANSACTION_PDUS
                || contents.edus.len() + edus.len() > limits::TRANSACTION_EDUS
                || (bytes > limits::TRANSACTION_EDU_BYTES && contents.records > 0);
            if is_full {
                break;
            }
            contents.pdus.extend(pdu);
            contents.edus.extend(edus);
            contents.records += 1;
        }
        Ok(contents)
    }
}

/// Counts a transaction, and if it arrived, its contents. A transaction that was not to be sent is
/// not counted.
fn count(outcomes: &Result<Outcomes, Unreachable>, pdus: usize, edus: usize) {
    let metrics = metrics();
    let outcome = match outcomes {
        Ok(_) => Tried::Done,
        Err(Unreachable::Denied | Unreachable::Own | Unreachable::Name) => return,
        Err(_) => Tried::Failed,
    };
    metrics.federation_transactions_sent.of_value(outcome).inc();
    if outcome == Tried::Done {
        metrics.federation_pdus_sent.inc_by(pdus as u64);
        metrics.federation_edus_sent.inc_by(edus as u64);
    }
}
