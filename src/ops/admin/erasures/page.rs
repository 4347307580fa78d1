//! Erasures page by page, newest first. A page reads a bounded number of `log.erase` records,
//! however many there are. A row is what one of them, or a few in succession, took for one cause.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use super::carried_out::{cause, erasures, takings};
use crate::admin::context::ActContext;
use logcabin_log::ReadError;
use logcabin_record::Offset;

/// How many `log.erase` records are read for one page: each names up to a thousand records.
const STEPS: usize = 200;

/// Where a page begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStart {
    /// The newest `log.erase` on it.
    pub step: Offset,
    /// How many of its causes are on the previous page.
    pub passed: usize,
}

/// Erasures that were carried out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub rows: Vec<ErasureRow>,
    /// Where the next page begins.
    pub left: Option<PageStart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErasureRow {
    /// The record that caused it; [`Offset::ZERO`] for superseded content.
    pub because: Offset,
    /// When it was appended, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    pub who: String,
    pub what: String,
    /// How many records lost content in these steps.
    pub records: u64,
    /// The first and the last `log.erase` record of them.
    pub steps: (Offset, Offset),
}

/// A page of up to `limit` causes, for which up to about `examined` runs of records are read.
pub fn page(
    context: &ActContext,
    from: Option<PageStart>,
    limit: usize,
    examined: usize,
) -> Result<Page, ReadError> {
    let from = from.unwrap_or(PageStart { step: Offset::MAX, passed: 0 });
    let mut steps = context.engine.state().erasures.until(from.step, STEPS + 1);
    let mut left = (steps.len() > STEPS).then(|| steps.pop()).flatten();
    let mut places: HashMap<Offset, usize> = HashMap::new();
    let (mut rows, mut looked) = (Vec::<ErasureRow>::new(), 0);
    for erase in erasures(context, steps.iter().copied()) {
        let (step, erase) = erase?;
        if looked >= examined {
            left = Some(step);
            break;
        }
        let mut counts: BTreeMap<Reverse<Offset>, u64> = BTreeMap::new();
        for (because, first, last) in takings(&erase) {
            looked += 1;
            let records = (last.get() + 1).saturating_sub(first.get());
            *counts.entry(Reverse(because)).or_default() += records;
        }
        let passed = if step == from.step { from.passed } else { 0 };
        for (number, (Reverse(because), records)) in counts.into_iter().enumerate().skip(passed) {
            let place = places.get(&because).and_then(|place| rows.get_mut(*place));
            if let Some(row) = place {
                row.records += records;
                row.steps.0 = step;
                continue;
            }
            if rows.len() >= limit {
                let place = PageStart { step, passed: number };
                return Ok(Page { rows, left: Some(place) });
            }
            let (who, what, time_ms) = cause(context, because)?;
            places.insert(because, rows.len());
            rows.push(ErasureRow { because, time_ms, who, what, records, steps: (step, step) });
        }
    }
    Ok(Page { rows, left: left.map(|step| PageStart { step, passed: 0 }) })
}

/// What is still to be erased.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingErasures {
    /// By cause, the newest first: who did what, and how many of the examined records wait for it.
    pub causes: Vec<(Offset, String, String, u64)>,
    /// How many records wait in all.
    pub records: u64,
    /// The users whose records are yet to be found, each with the record that demands it.
    pub users: Vec<(String, Offset)>,
    /// Whether there are more causes or users than these.
    pub is_cut: bool,
}

/// What is still to be erased without delay: up to `limit` causes and users, and the causes of the
/// first `examined` records.
pub fn waiting(
    context: &ActContext,
    limit: usize,
    examined: usize,
) -> Result<PendingErasures, ReadError> {
    let state = context.engine.state();
    let (condemned, mut owed) = (state.erasures.condemned(examined), state.erasures.owed());
    let mut counts: BTreeMap<Reverse<Offset>, u64> = BTreeMap::new();
    for (_, because) in &condemned {
        *counts.entry(Reverse(*because)).or_default() += 1;
    }
    let is_cut = condemned.len() >= examined || counts.len() > limit || owed.len() > limit;
    owed.truncate(limit);
    let row = |(Reverse(because), records): (Reverse<Offset>, u64)| {
        let (who, what, _) = cause(context, because)?;
        Ok((because, who, what, records))
    };
    Ok(PendingErasures {
        causes: counts.into_iter().take(limit).map(row).collect::<Result<_, ReadError>>()?,
        records: state.erasures.condemned_count(),
        users: owed.into_iter().map(|(id, owed)| (id.to_string(), owed.because)).collect(),
        is_cut,
    })
}
