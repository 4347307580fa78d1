//! The reports that somebody is deciding on at this moment.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use logcabin_record::Offset;

/// Those of this process. On several nodes, whoever closes a report second is told so.
static UNDER_WAY: Mutex<BTreeSet<Offset>> = Mutex::new(BTreeSet::new());

/// A decision on reports, until this is dropped.
#[derive(Debug)]
pub(super) struct Deciding(BTreeSet<Offset>);

impl Deciding {
    /// `None` if somebody is deciding on one of them already.
    pub(super) fn begin(reports: BTreeSet<Offset>) -> Option<Self> {
        let mut under_way = UNDER_WAY.lock();
        under_way.is_disjoint(&reports).then(|| {
            under_way.extend(&reports);
            Self(reports)
        })
    }
}

impl Drop for Deciding {
    fn drop(&mut self) {
        UNDER_WAY.lock().retain(|report| !self.0.contains(report));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_decided_on_by_one_at_a_time() {
        let reports = |ids: &[u64]| ids.iter().copied().map(Offset::new).collect();
        let first = Deciding::begin(reports(&[1, 2])).unwrap();
        assert!(Deciding::begin(reports(&[2, 3])).is_none());
        let other = Deciding::begin(reports(&[3])).unwrap();
        drop(first);
        assert!(Deciding::begin(reports(&[3, 4])).is_none());
        assert!(Deciding::begin(reports(&[2, 4])).is_some());
        drop(other);
        assert!(Deciding::begin(reports(&[1, 2, 3, 4])).is_some());
    }
}
