//! Redacts what a user sent, as an administrator ordered.
//!
//! The log is searched backwards from the order, so that the latest messages go first, and each
//! event is redacted by an event of its own. If the server stops meanwhile, it starts the search
//! again after the next start, and passes over what was redacted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::sent::{SentEvent, SentKind, SentQuery, SentSearch};
use logcabin_base::{
    limits,
    progress::{self, Work},
};
use logcabin_decide::{
    Proposal, Refusal,
    redaction::{FinishRedaction, Redact},
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::{AppendError, ReadError};
use logcabin_record::{Command, Offset, Origin, command::UserRedactFinish};
use logcabin_state::{State, UserRedaction};

/// The redactions that this process works on.
static UNDER_WAY: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Why a redaction did not come to its end. It continues at the next start.
#[derive(Debug, thiserror::Error)]
pub enum RedactionError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log was closed, or the end could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// Continues the redactions that the end of the server interrupted.
pub fn resume(engine: &Arc<Engine>) {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        for redaction in engine.state().redactions.under_way() {
            let user_id = redaction.user_id.clone();
            if let Err(error) = go_on(&engine, redaction).await {
                tracing::warn!(%user_id, %error, "the redaction of what a user sent could not continue");
            }
        }
    });
}

/// Does the rest of a redaction, in the name of whoever ordered it.
pub async fn go_on(engine: &Arc<Engine>, redaction: UserRedaction) -> Result<(), RedactionError> {
    let Some(_running) = Running::begin(&redaction.id) else { return Ok(()) };
    let UserRedaction { id, begun, user_id, rooms, limit, after_ms, before_ms, by, ended: _ } =
        redaction;
    let order = engine.log().get(begun)?.ok_or(ReadError::Missing(begun))?;
    let origin = order.header.origin.clone();
    let say = match order.command() {
        Ok(Some(Command::UserRedact(order))) => order.say,
        _ => None,
    };
    let work = Work::about(progress::REDACTION, user_id.as_str(), 0, begun.get());
    let (of, rooms) = (user_id.clone(), rooms.into_iter().collect());
    let kind = SentKind::Said;
    let query = SentQuery { user_id: of, kind, rooms, limit, after_ms, before_ms };
    let mut search = SentSearch::new(query, begun);
    let (redacted, failures, failed) = (0, 0, BTreeMap::new());
    let mut done = UserRedactFinish { id, user_id, redacted, failures, failed };
    while let Some((rest, sent)) = search.next(engine).await? {
        for sent in sent.chunks(limits::REDACTED_AT_ONCE) {
            let redacting = sent.iter().map(|event| {
                let redact = Redact {
                    room_id: event.room_id.clone(),
                    event_id: event.event_id.clone(),
                    by: by.clone(),
                    say: say.clone(),
                    ts: engine.clock().timestamp(),
                };
                recorded(engine, &origin, redact)
            });
            for (event, refusal) in sent.iter().zip(join_all(redacting).await) {
                count(&mut done, (&engine.state(), begun), event, refusal?.err());
            }
        }
        work.at(begun.get() - rest.until().get());
        search = rest;
    }
    recorded(engine, &origin, FinishRedaction(done)).await??;
    Ok(())
}

/// Proposes until the log takes it. Returns why it did not, if that would not change.
///
/// # Errors
/// When the log was closed.
async fn recorded<P: Proposal + Clone>(
    engine: &Engine,
    origin: &Origin,
    proposal: P,
) -> Result<Result<(), ProposeError>, ProposeError> {
    let [pauses @ .., last] = limits::REDACTION_PAUSES;
    let mut pauses = pauses.into_iter();
    loop {
        match engine.propose(origin.clone(), proposal.clone()).await {
            Ok(recorded) => {
                recorded.into_inner();
                return Ok(Ok(()));
            }
            Err(error @ ProposeError::Log(AppendError::Closed)) => return Err(error),
            Err(error) if error.is_for_now() => {
                tokio::time::sleep(pauses.next().unwrap_or(last)).await;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// Work on a redaction, until this is dropped.
struct Running(String);

impl Running {
    /// `None` if this process works on it already.
    fn begin(id: &str) -> Option<Self> {
        UNDER_WAY.lock().insert(id.to_owned()).then(|| Self(id.to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        UNDER_WAY.lock().remove(&self.0);
    }
}

/// Counts what was done with an event since the order at `begun`.
fn count(
    done: &mut UserRedactFinish,
    (state, begun): (&State, Offset),
    event: &SentEvent,
    error: Option<ProposeError>,
) {
    let room = state.rooms.get(&event.room_id);
    let redaction = room.and_then(|room| room.redaction_of(event.offset, Offset::MAX));
    match (redaction, error) {
        // Perhaps before the server stopped.
        (Some(redaction), _) => done.redacted += u64::from(redaction > begun),
        // It, or its room, is gone.
        (None, None | Some(ProposeError::Refused(Refusal::NotFound(_)))) => {}
        (None, Some(error)) => {
            done.failures += 1;
            if done.failed.len() < limits::REDACTIONS_NAMED {
                done.failed.insert(event.event_id.clone(), error.to_string());
            }
        }
    }
}
