//! The sweep: it runs in the background, and erases what is due: expired events and files, the data
//! of erased users ([`super::due`]), redacted events after their grace period, and superseded
//! payloads.
//!
//! What is due follows from the log (`state::Erasures`, `state::lifetimes`), so a restart forgets
//! nothing. The sweep proposes its erasures (`decide::erasure`), and the commit decides again what
//! is due. Each step of a sweep is one `log.erase` record, which erases the payloads.

use super::due::{self, SweepError};
use logcabin_base::{
    clock::millis,
    progress::{self, Work},
};
use logcabin_decide::{erasure::EraseDue, retention::SweepPolicy};
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::{Offset, Origin};

/// What a sweep erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Events that had expired, or were sent by an erased user.
    pub expired: u64,
    /// Files that were removed.
    pub files: u64,
    /// Records whose payloads were reduced or erased.
    pub erased: u64,
    /// Records with superseded payloads, which were erased.
    pub superseded: u64,
}

/// Whether a sweep by `policy` is due.
pub fn sweep_is_due(engine: &Engine, policy: &SweepPolicy) -> Result<bool, ReadError> {
    let state = engine.state();
    let erasures = &state.erasures;
    if erasures.is_urgent() {
        return Ok(true);
    }
    let now_ms = engine.clock().now_ms();
    if now_ms < erasures.last().1.saturating_add(millis(policy.every)) {
        return Ok(false);
    }
    let redacted = policy.redacted_until(now_ms);
    Ok(redacted.is_some_and(|until| !erasures.redacted(until, 1).is_empty())
        || erasures.superseded_count() > 0
        || !state.validations.ended(now_ms, 1).is_empty()
        || due::anything_expired(engine, policy)?)
}

/// Erases everything that is due by `policy`, in the records up to `archived`: the archive must get
/// a record complete before the log erases it. Otherwise it would lack a payload for no recorded
/// reason.
///
/// # Errors
/// When the log fails. What was erased until then stays erased.
pub async fn sweep(
    engine: &Engine,
    policy: &SweepPolicy,
    archived: Offset,
) -> Result<Swept, SweepError> {
    let mut swept = Swept {
        expired: due::expire_events(engine, policy).await? + due::erase_users(engine).await?,
        files: due::expire_media(engine, policy).await?,
        ..Swept::default()
    };
    let now_ms = engine.clock().now_ms();
    let due = EraseDue { until_ms: policy.redacted_until(now_ms), archived, now_ms };
    let waiting = engine.state().erasures.due(due.until_ms);
    let work = Work::begin(progress::ERASURE, 0, waiting);
    loop {
        let erased = engine.propose(Origin::server(), due).await?.into_inner();
        if erased.records == 0 {
            return Ok(swept);
        }
        work.add(erased.records);
        swept.superseded += erased.superseded;
        swept.erased += erased.records - erased.superseded;
    }
}
