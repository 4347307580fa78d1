//! The task that erases what is due and compacts the log.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tracing::{error, info, warn};

use logcabin_base::{
    background::Pace,
    metrics::{Background, metrics},
    shutdown::Shutdown,
    threads,
};
use logcabin_decide::retention::SweepPolicy;
use logcabin_engine::Engine;
use logcabin_log::{Compacted, LocalLog};
use logcabin_record::{Command, Offset};
use logcabin_service::erasure::{self, Swept};

/// How often a sweep is considered.
const SWEEP_TICK: Duration = Duration::from_secs(60);

/// Erases what is due, and compacts the log to remove it from the disk, until the server stops.
pub(super) async fn sweep(
    engine: Arc<Engine>,
    log: Arc<dyn LocalLog>,
    archived: Option<watch::Receiver<Offset>>,
    policy: SweepPolicy,
    compact_percent: u64,
    shutdown: Shutdown,
) {
    let mut put_off = Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP_TICK.min(policy.every)) => {}
            () = shutdown.given() => return,
        }
        let upto = archived.as_ref().map_or(Offset::MAX, |archived| *archived.borrow());
        let swept = match erasure::sweep_is_due(&engine, &policy) {
            Ok(true) => {
                let began = Instant::now();
                let swept = erasure::sweep(&engine, &policy, upto).await;
                metrics().worked(Background::Sweep, began, swept.is_ok());
                swept
            }
            Ok(false) => Ok(Swept::default()),
            Err(error) => Err(error.into()),
        };
        match swept {
            // If a sweep was due, the records are not archived yet.
            Ok(swept) if swept == Swept::default() => {}
            Ok(Swept { expired, files, erased, superseded }) => {
                info!(expired, files, erased, superseded, "erased expired content");
            }
            Err(error) => warn!(%error, "expired content could not be erased; retrying later"),
        }
        if Instant::now() < put_off || !compaction_is_due(&engine, &*log, compact_percent) {
            continue;
        }
        let began = Instant::now();
        let (compacting, stopping) = (Arc::clone(&log), shutdown.clone());
        let compaction = threads::spawn_blocking(move || {
            let mut pace = Pace::begin();
            compacting.compact(&mut || {
                pace.rest();
                !stopping.is_given()
            })
        });
        let compacted = compaction.await;
        let is_done = matches!(compacted, Ok(Ok(_)));
        if is_done || !shutdown.is_given() {
            metrics().worked(Background::Compaction, began, is_done);
        }
        match compacted {
            Ok(Ok(Compacted { before, after })) => info!(before, after, "compacted the log"),
            Ok(Err(_)) if shutdown.is_given() => return,
            Ok(Err(error)) => {
                warn!(%error, "the log could not be compacted; retrying later");
                put_off = Instant::now() + policy.every;
            }
            Err(error) => {
                error!(%error, "compacting the log panicked");
                put_off = Instant::now() + policy.every;
            }
        }
    }
}

/// Whether the disk still contains erased payloads: any that were erased for a cause, or many
/// superseded ones.
fn compaction_is_due(engine: &Engine, log: &dyn LocalLog, percent: u64) -> bool {
    let Ok(compacted) = log.compacted() else { return false };
    let mut superseded = 0;
    for offset in engine.state().erasures.since(compacted) {
        match engine.events().command(offset) {
            Ok(Some(Command::LogErase(erasure))) if erasure.is_of_superseded() => {
                superseded += erasure.count();
            }
            Ok(Some(_)) => return true,
            _ => {}
        }
    }
    superseded > 0 && superseded.saturating_mul(100) >= engine.head().offset().get() * percent
}
