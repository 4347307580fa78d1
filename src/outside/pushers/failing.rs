//! The push gateways that could not be reached at the last attempt.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use logcabin_base::limits;

/// A push gateway that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingGateway {
    /// Scheme, host and port: paths may hold secrets.
    pub origin: String,
    /// In milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Why the last attempt failed.
    pub error: String,
}

/// Those that fail, by their origins.
#[derive(Debug, Default)]
pub(super) struct FailingGateways(Mutex<BTreeMap<String, (u64, String)>>);

impl FailingGateways {
    pub(super) fn failed(&self, origin: String, now_ms: u64, error: &str) {
        let mut all = self.0.lock();
        // Users choose gateways: their number is theirs, too.
        if all.len() >= limits::FAILING_GATEWAYS && !all.contains_key(&origin) {
            return;
        }
        let error = error.chars().take(limits::DOCTOR_TEXT).collect();
        all.entry(origin).or_insert((now_ms, String::new())).1 = error;
    }

    pub(super) fn answered(&self, origin: &str) {
        self.0.lock().remove(origin);
    }

    /// The one that has failed for longest first.
    pub(super) fn all(&self) -> Vec<FailingGateway> {
        let all = self.0.lock();
        let all = all.iter().map(|(origin, (since_ms, error))| FailingGateway {
            origin: origin.clone(),
            since_ms: *since_ms,
            error: error.clone(),
        });
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|of| of.since_ms);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_fails_until_it_answers_and_only_so_many_are_remembered() {
        let failing = FailingGateways::default();
        failing.failed("https://b".to_owned(), 1, "no");
        failing.failed("https://a".to_owned(), 2, "none");
        failing.failed("https://b".to_owned(), 3, "late");
        let [b, a] = &failing.all()[..] else { panic!("{failing:?}") };
        assert_eq!((b.origin.as_str(), b.since_ms, b.error.as_str()), ("https://b", 1, "late"));
        assert_eq!(a.origin, "https://a");
        failing.answered("https://b");
        assert_eq!(failing.all().len(), 1);
        for number in 0..2 * limits::FAILING_GATEWAYS {
            failing.failed(format!("https://{number}"), 1, "no");
        }
        assert_eq!(failing.all().len(), limits::FAILING_GATEWAYS);
    }
}
