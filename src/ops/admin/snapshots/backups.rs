//! List the backups that the log knows of.
//!
//! Every backup is recorded in the log when it is made. Whether it still exists and is intact, only
//! its directory shows, which the server may not reach.

use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_state::Backup;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListBackups {
    /// How many of the newest to skip.
    #[serde(default)]
    pub from: usize,
    /// How many to list.
    pub limit: usize,
}

/// Backups, the newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backups {
    pub backups: Vec<BackupRow>,
    /// How many there are in all.
    pub total: usize,
    /// The last record of the log.
    pub end: Offset,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupRow {
    #[serde(flatten)]
    pub copy: Backup,
    /// When it was noted, in milliseconds since the Unix epoch.
    pub noted_ms: u64,
    /// Who made it.
    pub who: String,
}

impl Act for ListBackups {
    const NAME: &'static str = "list-backups";
    const DONE: &'static str = "backups";
    type Done = Backups;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Backups, ActError> {
        Ok(page(context, self.from, self.limit)?)
    }
}

/// Up to `limit` of the newest backups after the first `from`.
pub fn page(context: &ActContext, from: usize, limit: usize) -> Result<Backups, ReadError> {
    let state = context.engine.state();
    let mut all = state.backups.all();
    let total = all.len();
    all.sort_unstable_by_key(|copy| std::cmp::Reverse((copy.record, copy.moment)));
    let row = |copy: Backup| {
        let (noted_ms, who) = (context.time_of(copy.record)?, context.author_of(copy.record)?);
        Ok::<_, ReadError>(BackupRow { copy, noted_ms, who })
    };
    let backups =
        all.into_iter().skip(from).take(limit).map(row).collect::<Result<_, ReadError>>()?;
    Ok(Backups { backups, total, end: state.applied() })
}
