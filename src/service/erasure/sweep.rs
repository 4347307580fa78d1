//! The sweep: in the background, events that have lived long enough, what is left of users who were
//! erased, and files that were kept long enough are found ([`super::due`]) and, as redacted events
//! once their time of grace is over, lose their content; records that later ones have superseded
//! lose their payload.
//!
//! What is due is known from the log (`state::Erasures`, `state::lifetimes`), so that nothing is
//! forgotten over a restart. The sweep proposes, as everybody does (`decide::erasure`): what is due
//! is decided in the commit. Each piece of a sweep is one `log.erase` record, which takes the
//! payloads with it.

use super::due::{self, SweepError};
use crate::{
    decide::{
        erasure::EraseDue,
        retention::{SweepPolicy, millis},
    },
    engine::Engine,
    log::ReadError,
    record::{Offset, Origin},
};

/// What a sweep erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Events that were found to have lived long enough, or to be of a user who was erased.
    pub expired: u64,
    /// Files that were removed.
    pub files: u64,
    /// Records that lost their content.
    pub erased: u64,
    /// Superseded records that lost their payload.
    pub superseded: u64,
}

/// Whether a sweep by `policy` is due.
///
/// # Errors
/// When the log cannot be read.
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

/// Erases everything that is due by `policy`, of the records up to `archived`: an archive is to
/// have a record whole before the log erases it, or it would lack a payload and not know why.
///
/// # Errors
/// When the log fails. What was erased until then is.
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
    loop {
        let erased = engine.propose(Origin::server(), due).await?.into_inner();
        if erased.records == 0 {
            return Ok(swept);
        }
        swept.superseded += erased.superseded;
        swept.erased += erased.records - erased.superseded;
    }
}
