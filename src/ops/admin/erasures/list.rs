//! List the causes of erasures, newest first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::carried_out::{cause, erasures, takings};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_record::Offset;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListErasures {
    /// How many of the newest.
    pub last: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErasureReceipts {
    pub rows: Vec<ReceiptRow>,
}

/// The cause of an erasure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiptRow {
    /// The record that caused it; [`Offset::ZERO`] for superseded content.
    pub because: Offset,
    /// When it was appended, in milliseconds since the Unix epoch.
    pub time_ms: u64,
    /// Who did it.
    pub who: String,
    /// What they did, in words.
    pub what: String,
    /// How many records lost content.
    pub records: u64,
}

impl Act for ListErasures {
    const NAME: &'static str = "list-erasures";
    const DONE: &'static str = "receipts";
    type Done = ErasureReceipts;

    async fn perform(
        self,
        context: &ActContext,
        _: Attribution,
    ) -> Result<ErasureReceipts, ActError> {
        let mut counts: BTreeMap<Offset, u64> = BTreeMap::new();
        for erase in erasures(context, context.engine.state().erasures.since(Offset::ZERO)) {
            let (_, erase) = erase?;
            for (because, first, last) in takings(&erase) {
                let records = last.get().saturating_sub(first.get()) + 1;
                *counts.entry(because).or_default() += records;
            }
        }
        for (_, because) in context.engine.state().erasures.condemned(usize::MAX) {
            counts.entry(because).or_default();
        }
        let mut rows = Vec::new();
        for (because, records) in counts.into_iter().rev().take(self.last) {
            let (who, what, time_ms) = cause(context, because)?;
            rows.push(ReceiptRow { because, time_ms, who, what, records });
        }
        Ok(ErasureReceipts { rows })
    }
}
