//! Show what was erased because of one record.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::carried_out::{erasures, in_words, takings};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_log::{ReadError, archive};
use logcabin_record::{
    Command, Offset,
    command::{BackupMoment, MediaRemove},
};
use logcabin_state::Backup;

/// How much is read for one receipt.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Only `log.erase` records after this one are read…
    pub after: Offset,
    /// …and at most this many.
    pub steps: usize,
    /// At most this many records are counted by kind.
    pub counted: usize,
}

impl Bounds {
    /// A complete receipt, except that of very many records only the first are counted.
    const WHOLE: Self = Self { after: Offset::ZERO, steps: usize::MAX, counted: 1_000_000 };
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowErasure {
    pub because: Offset,
}

/// What was erased for one record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErasureReceipt {
    /// That record, or a `log.erase` for all that it took.
    pub because: Offset,
    /// When it was appended, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who did it.
    pub who: String,
    /// What they did, in words, with their reason.
    pub what: String,
    /// How many records lost content, by kind. If they are very many, only the first are counted.
    pub kinds: BTreeMap<String, u64>,
    /// Which records: runs, each with its first and last offset.
    pub records: Vec<(Offset, Offset)>,
    /// How many records have yet to lose content.
    pub waiting: u64,
    /// How many addresses of files were removed.
    pub files: u64,
    /// The `log.erase` records that carried it out.
    pub carried_out: Vec<Offset>,
    /// Whether the erased content has left the files of the log, which were rewritten since.
    pub off_the_log: bool,
    /// Whether it has left the archive; none without one.
    pub off_the_archive: Option<bool>,
    /// The earlier backups, which still hold what was erased.
    pub backups: Vec<String>,
    /// The last `log.erase` that was read, if there are too many to read all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_up_to: Option<Offset>,
}

impl Act for ShowErasure {
    const NAME: &'static str = "show-erasure";
    const DONE: &'static str = "receipt";
    type Done = Box<ErasureReceipt>;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        receipt(context, self.because, Bounds::WHOLE)
    }
}

/// What was erased because of a record, or by a `log.erase`.
pub fn receipt(
    context: &ActContext,
    because: Offset,
    bounds: Bounds,
) -> Result<Box<ErasureReceipt>, ActError> {
    let no_record = || ActError::Invalid(format!("there is no record {because}"));
    let record = context.engine.log().get(because)?.ok_or_else(no_record)?;
    let mut taken = BTreeSet::new();
    let mut carried_out = Vec::new();
    // Nothing is erased before its cause.
    let mut steps = context.engine.state().erasures.since(bounds.after.max(because.prev()));
    let is_cut = steps.len() > bounds.steps;
    steps.truncate(bounds.steps);
    let looked_up_to = steps.last().copied().filter(|_| is_cut);
    for erase in erasures(context, steps) {
        let (offset, erase) = erase?;
        let of_it = takings(&erase);
        let of_it: Vec<_> = of_it.filter(|(of, ..)| offset == because || *of == because).collect();
        if !of_it.is_empty() {
            carried_out.push(offset);
        }
        taken.extend(of_it.into_iter().map(|(_, first, last)| (first, last)));
    }
    let waiting = context.engine.state().erasures.condemned_for(because);
    if taken.is_empty() && waiting == 0 && bounds.after == Offset::ZERO && looked_up_to.is_none() {
        let why = format!("nothing was erased for record {because}, or by it");
        return Err(ActError::Invalid(why));
    }
    let records = joined(taken);
    let (who, what, time_ms) = in_words(&record);
    let files = match record.command() {
        Ok(Some(Command::MediaRemove(MediaRemove { media_ids, .. }))) => media_ids.len() as u64,
        _ => 0,
    };
    let end = carried_out.last().copied().unwrap_or_default();
    Ok(Box::new(ErasureReceipt {
        because,
        time_ms,
        who,
        what,
        kinds: kinds(context, &records, bounds.counted)?,
        backups: backups_with(context, &records, end),
        records,
        waiting,
        files,
        off_the_log: context.engine.log().off_disk()? >= end,
        off_the_archive: context
            .archive
            .as_deref()
            .map(|dir| archive::has_erased(dir, end, carried_out.contains(&because))),
        carried_out,
        looked_up_to,
    }))
}

/// The backups that still contain some of the records: those made before the record at `end`
/// erased the last of them.
fn backups_with(context: &ActContext, records: &[(Offset, Offset)], end: Offset) -> Vec<String> {
    let Some((first, _)) = records.first() else { return Vec::new() };
    let held = context.engine.state().backups.holding(*first, end);
    let named = |copy: Backup| {
        let BackupMoment { epoch, offset } = copy.moment;
        format!("{}, up to record {offset} of epoch {}", copy.destination, epoch.0)
    };
    held.into_iter().map(named).collect()
}

fn kinds(
    context: &ActContext,
    records: &[(Offset, Offset)],
    counted: usize,
) -> Result<BTreeMap<String, u64>, ReadError> {
    let mut kinds = BTreeMap::new();
    let all = records.iter().flat_map(|(first, last)| first.get()..=last.get());
    for offset in all.take(counted) {
        if let Some(record) = context.engine.log().get(Offset::new(offset))? {
            *kinds.entry(record.header.kind.to_string()).or_default() += 1;
        }
    }
    Ok(kinds)
}

/// Runs in ascending order, with adjacent ones merged.
fn joined(runs: BTreeSet<(Offset, Offset)>) -> Vec<(Offset, Offset)> {
    let mut joined: Vec<(Offset, Offset)> = Vec::new();
    for (first, last) in runs {
        match joined.last_mut() {
            Some((_, end)) if first <= end.next() => *end = last.max(*end),
            _ => joined.push((first, last)),
        }
    }
    joined
}
