//! Redacts what a user sent, as an administrator ordered.
//!
//! The log is searched backwards from the order, so that the latest messages go first, and each
//! event is redacted by an event of its own. If the server stops meanwhile, it starts the search
//! again after the next start, and passes over what was redacted.

use std::{collections::BTreeMap, sync::Arc};

use futures_util::future::join_all;

use super::{
    orders::{OrderError, Running, recorded},
    sent::{SentEvent, SentKind, SentQuery, SentSearch},
};
use logcabin_base::{
    limits,
    progress::{self, Work},
};
use logcabin_decide::{
    Refusal,
    redaction::{FinishRedaction, Redact},
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::ReadError;
use logcabin_record::{Command, Offset, command::UserRedactFinish};
use logcabin_state::{State, UserRedaction};

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
pub async fn go_on(engine: &Arc<Engine>, redaction: UserRedaction) -> Result<(), OrderError> {
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
