//! Makes checkpoints on schedule.

use std::{sync::Arc, time::Duration};

use tracing::warn;

use logcabin_base::shutdown::Shutdown;
use logcabin_config as config;
use logcabin_decide::maintenance::SignCheckpoint;
use logcabin_engine::{Engine, ProposeError};
use logcabin_record::{Offset, Origin};
use logcabin_state::State;

/// How often the schedule is checked.
const TICK: Duration = Duration::from_secs(5);

/// When the server signs a checkpoint, in addition to the one when it stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// After this many records.
    pub every_records: Option<u64>,
    /// After this long, if anything was written.
    pub every: Option<Duration>,
}

impl Policy {
    /// The policy of the configuration; `None` for checkpoints on request only.
    pub fn of(config: &config::Proofs) -> Option<Self> {
        let config::Proofs { every_records, every_minutes } = *config;
        let policy = Self {
            every_records: (every_records > 0).then_some(every_records),
            every: (every_minutes > 0).then(|| Duration::from_secs(every_minutes * 60)),
        };
        (policy.every_records.is_some() || policy.every.is_some()).then_some(policy)
    }
}

/// Makes checkpoints until the server stops.
pub async fn keep(engine: Arc<Engine>, policy: Option<Policy>, shutdown: Shutdown) {
    let Some(policy) = policy else { return };
    let mut failed = false;
    loop {
        tokio::select! {
            () = tokio::time::sleep(TICK) => {}
            () = shutdown.given() => return,
        }
        if !is_due(&engine.state(), policy, engine.clock().now_ms()) {
            continue;
        }
        match checkpoint(&engine, Origin::server()).await {
            Ok(_) => failed = false,
            // The disk may be full; other messages say more.
            Err(error) if !failed => {
                warn!(%error, "no checkpoint could be signed; retrying later");
                failed = true;
            }
            Err(_) => {}
        }
    }
}

/// Makes the last checkpoint of a server that stops, if anything was written since the one before.
pub async fn keep_last(engine: &Engine, policy: Option<Policy>) {
    let always = Policy { every_records: Some(1), every: None };
    if policy.is_some()
        && is_due(&engine.state(), always, 0)
        && let Err(error) = checkpoint(engine, Origin::server()).await
    {
        warn!(%error, "the server stops without a checkpoint");
    }
}

/// Whether a checkpoint by `policy` is due at `now_ms`; never right after another one.
fn is_due(state: &State, policy: Policy, now_ms: u64) -> bool {
    let last = state.tree.checkpoint(Offset::MAX).map_or(Offset::ZERO, |covered| covered.record);
    let new = state.applied().get().saturating_sub(last.get());
    let waited = Duration::from_millis(now_ms.saturating_sub(state.tree.since_ms()));
    new > 0
        && (policy.every_records.is_some_and(|every| new >= every)
            || policy.every.is_some_and(|every| waited >= every))
}

/// Signs a checkpoint of everything that is applied; returns its record.
pub async fn checkpoint(engine: &Engine, origin: Origin) -> Result<Offset, ProposeError> {
    let sign = SignCheckpoint { time_ms: engine.clock().now_ms() };
    // It is the only record of its commit.
    engine.propose(origin, sign).await.map(|signed| signed.offset())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::Witness;
    use logcabin_base::clock::Clock;
    use logcabin_engine::Options;
    use logcabin_log::{Batch, memory::MemoryLog};
    use logcabin_record::{Command, NewRecord, Stream, command::RoomTyping};

    const POLICY: Policy = Policy { every_records: Some(3), every: Some(Duration::from_secs(60)) };

    #[tokio::test]
    async fn a_checkpoint_is_due_after_records_or_time_and_never_for_itself() {
        let clock = Clock::manual(1_000_000);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Engine::open(log, Options::small(clock.clone())).await.unwrap();
        let since = engine.state().tree.since_ms();
        assert!(!is_due(&engine.state(), POLICY, since + 59_999), "one record, just now");
        assert!(is_due(&engine.state(), POLICY, since + 60_000), "a minute later");
        checkpoint(&engine, Origin::server()).await.unwrap();
        assert!(
            !is_due(&engine.state(), POLICY, u64::MAX),
            "nothing but the checkpoint was written"
        );
        let by_records = Policy { every: None, ..POLICY };
        for number in 0..3 {
            assert!(!is_due(&engine.state(), by_records, u64::MAX), "after {number} records");
            let typing = RoomTyping {
                room_id: "!r:test".try_into().unwrap(),
                user_id: "@ann:test".try_into().unwrap(),
                until_ms: number,
                since: None,
            };
            let stream = Stream::ephemeral(&typing.room_id);
            let record = NewRecord::new(stream, Origin::server(), &Command::from(typing));
            engine.log().append(Batch { expect: vec![], records: vec![record] }).await.unwrap();
        }
        assert!(is_due(&engine.state(), by_records, 0));
        keep_last(&engine, None).await;
        assert!(is_due(&engine.state(), by_records, 0), "no policy, no checkpoint");
        keep_last(&engine, Some(by_records)).await;
        let end = engine.state().applied();
        keep_last(&engine, Some(by_records)).await;
        assert_eq!(engine.state().applied(), end, "once is enough");
    }

    #[tokio::test]
    async fn checkpoints_that_are_made_at_once_are_in_order() {
        let clock = Clock::manual(1_000_000);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Engine::open(log, Options::small(clock)).await.unwrap();
        let all = (0..10).map(|_| checkpoint(&engine, Origin::server()));
        for made in futures_util::future::join_all(all).await {
            made.unwrap();
        }
        let mut witness = Witness::default();
        for record in engine.log().read(Offset::new(1), 100).unwrap() {
            witness.take(&record, engine.state().server().as_deref()).unwrap();
        }
        assert_eq!((witness.checked(), witness.vouched()), (10, Some(Offset::new(10))));
    }
}
