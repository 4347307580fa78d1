//! What the process counts and measures of itself, for Prometheus.
//!
//! The metrics are those of the process, like its log output: the code that does something counts
//! it ([`metrics`]). What can be read at any time, such as the free space on the disk, is read when
//! somebody asks (`service::observe`). [`list`] declares every metric once.
//!
//! No label takes a value that a client chooses: their values are names in the program or the
//! configuration.

mod list;
mod process;

use std::{collections::HashMap, marker::PhantomData, sync::LazyLock, time::Instant};

pub use prometheus::{Counter, Histogram, IntCounter, IntGauge};
use prometheus::{
    HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder,
    core::Collector, proto::MetricFamily,
};

pub use list::{
    Background, CacheName, Disk, LATENCY, LoginRefusal, Metrics, NONE, PduOutcome, Reachable,
    STAGE, SyncStage, Transfer, Tried, Withheld, WriteStage,
};

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// The metrics of the process.
pub fn metrics() -> &'static Metrics {
    &METRICS
}

impl Metrics {
    /// Records how long background work took that began at `began`, or that it failed.
    pub fn worked(&self, work: Background, began: Instant, done: bool) {
        if done {
            self.work.since(work, began);
        } else {
            self.work_failures.of_value(work).inc();
        }
    }

    /// Counts a look-up in a cache.
    pub fn looked_up(&self, cache: CacheName, found: bool) {
        let counters = if found { &self.cache_hits } else { &self.cache_misses };
        counters.of_value(cache).inc();
    }
}

/// Everything that was counted, in the text format of Prometheus.
///
/// # Errors
/// When a metric cannot be encoded, which is a bug.
pub fn text() -> Result<String, prometheus::Error> {
    TextEncoder::new().encode_to_string(&gather())
}

/// All metrics of the process.
pub fn gather() -> Vec<MetricFamily> {
    metrics().registry.gather()
}

/// The sum of each metric over all of its labels, by its name. For a histogram this is the sum of
/// what was measured, and the name with `_count` has the number of measurements. `errors` are the
/// requests that failed because of the server.
pub fn totals() -> HashMap<String, f64> {
    let mut totals = HashMap::new();
    for family in gather() {
        let name = family.name();
        let (mut sum, mut count) = (0.0, None::<u64>);
        for metric in family.get_metric() {
            let histogram = metric.get_histogram();
            sum += metric.get_counter().get_value()
                + metric.get_gauge().get_value()
                + histogram.get_sample_sum();
            *count.get_or_insert_default() += histogram.get_sample_count();
        }
        if let Some(count) = count {
            totals.insert(format!("{name}_count"), count as f64);
        }
        if name == "logcabin_http_requests_total" {
            let failed = family.get_metric().iter().filter(|metric| {
                let status = metric.get_label().iter().find(|label| label.name() == "status");
                status.is_some_and(|status| status.value().starts_with('5'))
            });
            totals.insert("errors".to_owned(), failed.map(|m| m.get_counter().get_value()).sum());
        }
        totals.insert(name.to_owned(), sum);
    }
    totals
}

/// The cumulative counts of a histogram's buckets, in the order of their bounds, and at last the
/// number of all measurements: sums over the endpoints that are wanted, if it has several.
pub fn within(histogram: &impl Collector, is_wanted: impl Fn(&str) -> bool) -> Vec<u64> {
    let mut counts = Vec::new();
    for metric in histogram.collect().iter().flat_map(|family| family.get_metric()) {
        let endpoint = metric.get_label().iter().find(|label| label.name() == "endpoint");
        if endpoint.is_some_and(|endpoint| !is_wanted(endpoint.value())) {
            continue;
        }
        let histogram = metric.get_histogram();
        let buckets = histogram.get_bucket().iter().map(|bucket| bucket.cumulative_count());
        for (place, count) in buckets.chain([histogram.get_sample_count()]).enumerate() {
            match counts.get_mut(place) {
                Some(sum) => *sum += count,
                None => counts.push(count),
            }
        }
    }
    counts
}

/// A label whose values are fixed in the program.
pub trait Label: Copy + 'static {
    const ALL: &'static [Self];
    /// The place of this value in [`Self::ALL`].
    fn index(self) -> usize;
    /// The label's value.
    fn name(self) -> &'static str;
}

/// Makes an enum of the values of a label, each with its text.
macro_rules! label {
    ($(#[$doc:meta])* $Label:ident { $($(#[$value_doc:meta])* $Value:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $Label {
            $($(#[$value_doc])* $Value,)+
        }

        impl $crate::metrics::Label for $Label {
            const ALL: &'static [Self] = &[$(Self::$Value),+];

            fn index(self) -> usize {
                self as usize
            }

            fn name(self) -> &'static str {
                match self {
                    $(Self::$Value => $name,)+
                }
            }
        }
    };
}
use label;

/// A metric for each value of a label.
#[derive(Debug)]
pub struct Each<L, M> {
    each: Vec<M>,
    label: PhantomData<L>,
}

impl<L: Label, M: Clone> Each<L, M> {
    fn of(make: impl Fn(&'static str) -> M) -> Self {
        let each = L::ALL.iter().map(|value| make(value.name())).collect();
        Self { each, label: PhantomData }
    }

    /// The metric of this value.
    pub fn of_value(&self, value: L) -> &M {
        // `index` is the place in `ALL`.
        &self.each[value.index()]
    }
}

impl<L: Label> Each<L, Histogram> {
    /// Records the time since `began`.
    pub fn since(&self, value: L, began: Instant) {
        self.of_value(value).observe(began.elapsed().as_secs_f64());
    }
}

fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    made: Result<M, prometheus::Error>,
) -> M {
    // The list is constant, and a test makes all of it.
    let metric = made.expect("a metric is declared correctly");
    registry.register(Box::new(metric.clone())).expect("no two metrics have the same name");
    metric
}

fn counter(registry: &Registry, name: &str, help: &str) -> IntCounter {
    registered(registry, IntCounter::new(name, help))
}

fn gauge(registry: &Registry, name: &str, help: &str) -> IntGauge {
    registered(registry, IntGauge::new(name, help))
}

fn seconds(registry: &Registry, name: &str, help: &str) -> Counter {
    registered(registry, Counter::new(name, help))
}

fn histogram(registry: &Registry, name: &str, help: &str, buckets: &[f64]) -> Histogram {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, Histogram::with_opts(options))
}

fn counters(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
    registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
}

fn gauges(registry: &Registry, name: &str, help: &str, labels: &[&str]) -> IntGaugeVec {
    registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
}

fn histograms(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
    buckets: &[f64],
) -> HistogramVec {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    registered(registry, HistogramVec::new(options, labels))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_can_be_made_and_is_named_as_prometheus_wants() {
        let text = text().unwrap();
        let names: Vec<_> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        assert!(names.len() > 30, "{text}");
        for (name, kind) in names {
            assert!(name.starts_with("logcabin_") || name.starts_with("process_"), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name} is a {kind}");
        }
    }

    #[test]
    fn the_chapter_on_monitoring_names_every_metric_and_no_other() {
        let chapter = include_str!("../../../docs/monitoring.md");
        let quoted = |text: &'static str| text.split('`').skip(1).step_by(2);
        let documented: std::collections::BTreeSet<_> = quoted(chapter)
            .filter_map(|name| name.split('{').next())
            .filter(|name| name.starts_with("logcabin_") || name.starts_with("process_"))
            .map(ToOwned::to_owned)
            .collect();
        let declared: std::collections::BTreeSet<_> =
            list::NAMES.iter().chain(process::NAMES).map(ToString::to_string).collect();
        assert_eq!(documented, declared);
    }
}
