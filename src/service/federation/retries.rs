//! Tries events again that could not be placed when they arrived: a homeserver may reach this one
//! while it cannot be reached itself, and it sends an event once.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures_util::FutureExt as _;
use ruma::{EventId, ServerName};
use serde_json::value::RawValue;
use tokio::{task::JoinSet, time::Instant};
use tracing::{debug, error};

use super::{Budget, Federation, Kind, PduError, PduReceiver, memory::Trial};
use crate::typing::Typing;
use logcabin_base::{limits, shutdown::Shutdown};
use logcabin_decide::federation::ReceiveOutcome;
use logcabin_engine::Engine;

/// Tries events again when they are due, until the server stops.
pub async fn retry_unplaced(
    engine: Arc<Engine>,
    federation: Arc<Federation>,
    typing: Arc<Typing>,
    shutdown: Shutdown,
) {
    let mut trials = JoinSet::new();
    loop {
        tokio::select! {
            trial = federation.unplaced.due(), if trials.len() < limits::UNPLACED_AT_ONCE => {
                let parts = (Arc::clone(&engine), Arc::clone(&federation), Arc::clone(&typing));
                trials.spawn(async move {
                    let (engine, federation, typing) = parts;
                    PduReceiver::new(&engine, &federation, &typing).retry(trial).await;
                });
            }
            Some(_) = trials.join_next() => {}
            () = shutdown.given() => return,
        }
    }
}

impl PduReceiver<'_> {
    /// Tries an event again, as if it had come in a transaction of its own.
    async fn retry(&self, mut trial: Trial) {
        let (origin, event_id) = (trial.origin.clone(), trial.event_id.clone());
        // What was recorded for this homeserver before is charged to it here, too.
        let cost = [(Kind::Event, 1), (Kind::Recorded, 0)];
        if let Err(wait) = self.federation.accounts.admit(&origin, &cost) {
            debug!(%origin, %event_id, ?wait, "an event is not tried again yet");
            return;
        }
        let mut budget = Budget::full();
        let taken = Box::pin(self.take_once(&origin, &trial.pdu, &mut budget));
        let outcome = match AssertUnwindSafe(taken).catch_unwind().await {
            Ok(Ok((_, outcome))) => outcome,
            Ok(Err(error)) => Err(error),
            Err(_) => {
                error!(%origin, %event_id, "trying an event again panicked; it is dropped");
                trial.is_settled = true;
                return;
            }
        };
        debug!(%origin, %event_id, ?outcome, "an event was tried again");
        trial.is_settled = match &outcome {
            Err(PduError::NotRecorded(error)) => !error.is_for_now(),
            Err(error) => !error.is_for_want_of_answers(&origin),
            Ok(
                ReceiveOutcome::Missing { .. }
                | ReceiveOutcome::Unresolved
                | ReceiveOutcome::Disputed
                | ReceiveOutcome::Unprepared,
            ) => false,
            Ok(_) => true,
        };
    }

    /// Keeps an event that could not be placed now.
    pub(super) fn keep_for_later(
        &self,
        origin: &ServerName,
        event_id: &EventId,
        pdu: &RawValue,
        error: &PduError,
    ) {
        if error.is_for_want_of_answers(origin) {
            let is_kept = self.federation.unplaced.keep(origin, event_id, pdu, Instant::now());
            debug!(%origin, %event_id, %error, is_kept, "an event cannot be placed yet");
        }
    }
}
