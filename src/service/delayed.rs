//! Sends delayed events (MSC4140) when they are due.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;
use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedEventId, OwnedRoomId, events::TimelineEventType,
};
use serde_json::value::RawValue;

use logcabin_base::{limits, timers::Timed};
use logcabin_decide::{
    Refusal, canonical,
    delayed::{GiveUp, PreviousOutcome, SendDelayed},
    send::SendEvent,
};
use logcabin_engine::{Engine, ProposeError, Work};
use logcabin_log::ReadError;
use logcabin_read::events::EventStore;
use logcabin_record::{Command, Origin, command::DelayedOutcome};
use logcabin_state::{DelayedEvent, Effect};

/// Why a delayed event cannot be sent.
#[derive(Debug, thiserror::Error)]
pub enum Unsendable {
    #[error("The content of the delayed event is gone.")]
    Gone,
    #[error("A redaction names the event in `redacts`.")]
    NoRedacts,
    #[error("`redacts` is not an event id.")]
    BadRedacts,
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// The parts of an event to send.
pub fn parts(
    event_type: &str,
    state_key: Option<&str>,
    content: &RawValue,
) -> Result<(CanonicalJsonObject, Option<OwnedEventId>), Unsendable> {
    let mut content = canonical(content)?;
    let is_redaction = TimelineEventType::from(event_type) == TimelineEventType::RoomRedaction
        && state_key.is_none();
    let redacts = is_redaction.then(|| redacts(&mut content)).transpose()?;
    Ok((content, redacts))
}

/// The target of a redaction that is sent as an ordinary event, in its content.
pub fn redacts(content: &mut CanonicalJsonObject) -> Result<OwnedEventId, Unsendable> {
    let Some(CanonicalJsonValue::String(event_id)) = content.remove("redacts") else {
        return Err(Unsendable::NoRedacts);
    };
    event_id.try_into().map_err(|_| Unsendable::BadRedacts)
}

/// The content of a delayed event, unless it was erased.
pub fn content(
    events: &EventStore,
    event: &DelayedEvent,
) -> Result<Option<Box<RawValue>>, ReadError> {
    Ok(match events.command(event.offset)? {
        Some(Command::DelayedSchedule(body)) => Some(body.content),
        _ => None,
    })
}

pub fn to_send(
    event: &DelayedEvent,
    content: Option<Box<RawValue>>,
    ts: u64,
) -> Result<SendEvent, Unsendable> {
    let content = content.ok_or(Unsendable::Gone)?;
    let (content, redacts) = parts(&event.event_type, event.state_key.as_deref(), &content)?;
    let ts = ruma::UInt::try_from(ts).unwrap_or(ruma::UInt::MAX);
    Ok(SendEvent {
        room_id: event.room_id.clone(),
        sender: event.user_id.clone(),
        event_type: event.event_type.as_str().into(),
        state_key: event.state_key.clone(),
        content: content.into(),
        redacts,
        transaction: None,
        ts: ruma::MilliSecondsSinceUnixEpoch(ts),
    })
}

/// Sends due events. After a start, first those that became due while the server was stopped.
pub struct Sender {
    engine: Arc<Engine>,
    work: Work,
    /// The outcome to record of an event that cannot be sent: clients are shown it as an error.
    given_up: fn(Unsendable) -> DelayedOutcome,
}

impl Sender {
    pub fn new(engine: Arc<Engine>, given_up: fn(Unsendable) -> DelayedOutcome) -> Self {
        let work = engine.head().work();
        Self { engine, work, given_up }
    }

    /// Sends an event that is due, or gives it up with the reason.
    ///
    /// # Errors
    /// When neither can be recorded now.
    async fn send_due(&self, event: &DelayedEvent) -> Result<(), ProposeError> {
        let (delay_id, user_id) = (event.delay_id.clone(), event.user_id.clone());
        let ts = self.engine.clock().now_ms();
        let content = content(self.engine.events(), event).map_err(Refusal::Read)?;
        let unsendable = match to_send(event, content, ts) {
            Ok(event) => {
                let (delay_id, user_id) = (delay_id.clone(), user_id.clone());
                let proposal = SendDelayed { delay_id, user_id, event, by_action: false, ts };
                match self.engine.propose(Origin::server(), proposal).await {
                    Ok(sent) => {
                        // It was sent; or something else finished or restarted it meanwhile.
                        let _: PreviousOutcome = sent.into_inner();
                        return Ok(());
                    }
                    // The log does not accept writes now; the event is not to blame.
                    Err(error @ (ProposeError::Log(_) | ProposeError::Broken)) => {
                        return Err(error);
                    }
                    Err(ProposeError::Refused(Refusal::Read(error))) => {
                        return Err(Refusal::Read(error).into());
                    }
                    Err(ProposeError::Refused(refusal)) => refusal.into(),
                }
            }
            Err(unsendable) => unsendable,
        };
        let outcome = (self.given_up)(unsendable);
        let given_up = GiveUp { delay_id, user_id, outcome, ts };
        let _: PreviousOutcome =
            self.engine.propose(Origin::server(), given_up).await?.into_inner();
        Ok(())
    }
}

impl Timed for Sender {
    fn next_ms(&self) -> Option<u64> {
        self.engine.state().delayed.next_due_ms()
    }

    async fn changed(&mut self) {
        // A subscriber that lagged looks at the state, too.
        let _ = self.work.next(|effect| matches!(effect, Effect::Delayed).then_some(())).await;
    }

    async fn fire(&self, now_ms: u64) {
        let due = self.engine.state().delayed.due(now_ms, limits::DELAYED_BATCH);
        let mut rooms: BTreeMap<OwnedRoomId, Vec<Arc<DelayedEvent>>> = BTreeMap::new();
        for event in due {
            rooms.entry(event.room_id.clone()).or_default().push(event);
        }
        // In order within each room: a client's scheduled events may depend on each other.
        let in_room = async |events: Vec<Arc<DelayedEvent>>| {
            for event in events {
                if let Err(error) = self.send_due(&event).await {
                    tracing::warn!(%error, "a delayed event was not sent; retrying later");
                    return false;
                }
            }
            true
        };
        if !join_all(rooms.into_values().map(in_room)).await.into_iter().all(|sent| sent) {
            tokio::time::sleep(limits::TIMER_RETRY).await;
        }
    }
}
