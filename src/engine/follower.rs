//! What the log calls with each group of durable records.
//!
//! Records that are durable have happened. If one cannot be applied, or applying it panics, memory
//! may no longer be what the log says: part of the record may be applied and part not. Refusing
//! writes alone would not suffice: reads would continue on such memory, and a clean shutdown would
//! store it in a snapshot. So the process ends at once ([`or_end`]), and the next start computes
//! memory from the log. If the record is to blame, the start fails and names it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process,
    sync::Arc,
};

use super::{Head, projections::Live};
use logcabin_base::metrics::metrics;
use logcabin_log::erase::erasure;
use logcabin_read::events::EventStore;
use logcabin_record::{Command, Record};
use logcabin_state::{ApplyError, Effect, State};

/// Applies records and publishes the new head. It does not panic: it ends the process instead.
pub(super) fn follower(
    live: &Arc<Live>,
    events: &Arc<EventStore>,
    head: &Arc<Head>,
) -> impl FnMut(&[Arc<Record>]) + Send + use<> {
    let (live, events, head) = (Arc::clone(live), Arc::clone(events), Arc::clone(head));
    move |records| {
        or_end(&live, || live.apply(records, |state| follow(state, &events, &head, records)));
    }
}

/// Ends the process if `apply` fails or panics.
fn or_end(live: &Live, apply: impl FnOnce() -> Result<(), ApplyError>) {
    let error = match catch_unwind(AssertUnwindSafe(apply)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "it panicked".to_owned(),
    };
    let record = live.env().state.applied().next();
    tracing::error!(%record, %error, "a durable record cannot be applied; the server stops");
    process::abort();
}

/// Applies records and publishes the new head.
fn follow(
    state: &State,
    events: &EventStore,
    head: &Head,
    records: &[Arc<Record>],
) -> Result<(), ApplyError> {
    let mut effects = Vec::new();
    for record in records {
        effects.extend(take(state, events, record)?);
        count(record);
        head.traced().note(record);
        if let Some(erasure) = erasure(record) {
            events.forget(&erasure);
        }
    }
    head.publish(state.applied(), effects);
    Ok(())
}

fn count(record: &Record) {
    let header = &record.header;
    // There are few kinds: a record of an unknown kind could not be applied.
    metrics().log_records.with_label_values(&[&*header.kind]).inc();
    metrics().log_payload.inc_by(header.payload_len.into());
}

/// Applies a record that was just appended. An event is kept: it is about to be read by everyone in
/// its room.
fn take(state: &State, events: &EventStore, record: &Record) -> Result<Vec<Effect>, ApplyError> {
    let offset = record.offset();
    let command = record.command().map_err(|source| ApplyError::Command { offset, source })?;
    let event = match &command {
        Some(Command::RoomEvent(body)) => Some(body.clone()),
        _ => None,
    };
    let rotates_key = matches!(command, Some(Command::ServerKey(_)));
    let effects = state.apply_as(record, command)?;
    if let Some(event) = event {
        events.remember(record, event);
    }
    if rotates_key {
        events.rotate_key(state);
    }
    Ok(effects)
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::ExitStatusExt as _,
        process::{Command as Program, Output},
    };

    use super::*;
    use crate::{Engine, Options};
    use logcabin_base::clock::Clock;
    use logcabin_log::{Batch, memory::MemoryLog, samples::typing};

    const SIGABRT: i32 = 6;

    /// The fault that the program below is to meet.
    const FAULT: &str = "LOGCABIN_TEST_FAULT";

    #[tokio::test]
    #[ignore = "it ends the process: the tests below start it"]
    async fn program() {
        let Ok(fault) = std::env::var(FAULT) else { return };
        let clock = Clock::manual(1);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Engine::open(log, Options::small(clock)).await.unwrap();
        let mut record = typing();
        match &*fault {
            "none" => {}
            "error" => record.payload = b"{".to_vec().into(),
            _ => or_end(&engine.live, || panic!("a bug")),
        }
        engine.log().append(Batch { expect: Vec::new(), records: vec![record] }).await.unwrap();
        println!("it goes on");
    }

    fn run(fault: &str) -> (Option<i32>, bool) {
        let program = std::env::current_exe().unwrap();
        let name = "follower::tests::program";
        let Output { status, stdout, .. } = Program::new(program)
            .args([name, "--exact", "--ignored", "--nocapture"])
            .env(FAULT, fault)
            .output()
            .unwrap();
        (status.signal(), String::from_utf8_lossy(&stdout).contains("it goes on"))
    }

    #[test]
    fn a_record_that_cannot_be_applied_ends_the_process() {
        assert_eq!(run("none"), (None, true));
        assert_eq!(run("error"), (Some(SIGABRT), false));
        assert_eq!(run("panic"), (Some(SIGABRT), false));
    }
}
