//! What the metrics were over the last hour, day, week and month, for the plots of the console.
//!
//! A sample is taken every ten seconds. Those of the last hour are kept; of the last day one in
//! two minutes, of the last week one in a quarter of an hour, and of the last month one in an hour.
//! They are in memory and, every five minutes and when the server stops, written to one file of a
//! bounded size. It also has when the server was started, and with which version. Of the last year,
//! only how full the disk was is kept ([`super::growth`]).

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

use super::{
    growth::{Growth, Sizes},
    observe::Observer,
};
use logcabin_base::{
    background::at_length,
    disk,
    metrics::{self, LATENCY, STAGE, WriteStage},
    shutdown::Shutdown,
};

/// How often a sample is taken.
const EVERY: Duration = Duration::from_secs(10);

/// A sample may come so much early.
const EARLY_MS: u64 = 5_000;

/// One of so many samples has all of them written to disk.
const KEPT: usize = 30;

/// The starts of the server that are kept.
const STARTS: usize = 100;

const FILE: &str = "console.samples";

/// A stretch of time that ends now, of which there are samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    Hour,
    Day,
    Week,
    Month,
}

impl Range {
    pub const ALL: [Self; 4] = [Self::Hour, Self::Day, Self::Week, Self::Month];

    /// How long it is, in milliseconds.
    pub const fn length_ms(self) -> u64 {
        match self {
            Self::Hour => 3_600_000,
            Self::Day => 24 * 3_600_000,
            Self::Week => 7 * 24 * 3_600_000,
            Self::Month => 31 * 24 * 3_600_000,
        }
    }

    /// The time from one of its samples to the next, in milliseconds.
    pub const fn every_ms(self) -> u64 {
        match self {
            Self::Hour => 10_000,
            Self::Day => 120_000,
            Self::Week => 900_000,
            Self::Month => 3_600_000,
        }
    }
}

/// The metrics at a moment, as sums over their labels. Those that count begin again when the server
/// starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// In milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The first sample of the same process.
    pub begun_ms: u64,
    pub requests: f64,
    /// Requests that failed because of the server.
    pub errors: f64,
    pub records: f64,
    /// How many requests were answered within each of [`LATENCY`], and how many there were, without
    /// those that wait for news.
    pub requests_within: Within<LATENCIES>,
    /// How many writes waited for the disk no longer than each of [`STAGE`], and all.
    pub writes_within: Within<STAGES>,
    /// How many waiting clients had what was new within each of [`LATENCY`], and all.
    pub news_within: Within<LATENCIES>,
    pub waiting: f64,
    pub cpu_seconds: f64,
    pub memory: f64,
    pub disk_used: f64,
    pub disk_free: f64,
    pub lag: f64,
}

/// Measurements within each bound of a histogram, and all of them.
pub type Within<const BOUNDS: usize> = [f64; BOUNDS];

const LATENCIES: usize = LATENCY.len() + 1;
const STAGES: usize = STAGE.len() + 1;

impl Sample {
    fn take(at_ms: u64) -> Self {
        let all = metrics::totals();
        let of = |name: &str| all.get(name).copied().unwrap_or_default();
        let metrics = metrics::metrics();
        Self {
            at_ms,
            begun_ms: 0,
            requests: of("logcabin_http_requests_total"),
            errors: of("errors"),
            records: of("logcabin_log_records_total"),
            requests_within: counts(metrics::within(&metrics.http_duration, |of| !waits(of))),
            writes_within: counts(metrics::within(
                metrics.write_stage.of_value(WriteStage::Sync),
                |_| true,
            )),
            news_within: counts(metrics::within(&metrics.sync_delay, |_| true)),
            waiting: of("logcabin_sync_waiting_users"),
            cpu_seconds: of("process_cpu_seconds_total"),
            memory: of("process_resident_memory_bytes"),
            disk_used: of("logcabin_disk_used_bytes"),
            disk_free: of("logcabin_disk_free_bytes"),
            lag: of("logcabin_delivery_lag_records"),
        }
    }
}

/// Whether requests to an endpoint wait until there is something new.
fn waits(endpoint: &str) -> bool {
    let is_for_news =
        ["/sync", "/events", "/changes", "/live"].iter().any(|end| endpoint.ends_with(end));
    is_for_news && !endpoint.ends_with("/keys/changes") && !endpoint.contains("/dehydrated_device/")
}

fn counts<const BOUNDS: usize>(measured: Vec<u64>) -> Within<BOUNDS> {
    let mut counts = [0.0; BOUNDS];
    counts.iter_mut().zip(measured).for_each(|(to, count)| *to = count as f64);
    counts
}

/// The value that a part of the measurements between two samples do not exceed, if there were any:
/// within a bucket of the histogram, they count as evenly spread.
pub fn quantile(bounds: &[f64], before: &[f64], after: &[f64], part: f64) -> Option<f64> {
    let within: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    let all = *within.last()?;
    if all <= 0.0 || within.iter().any(|count| *count < 0.0) {
        return None;
    }
    let wanted = all * part;
    let (mut lower, mut below) = (0.0, 0.0);
    for (bound, count) in bounds.iter().zip(within) {
        if count >= wanted && count > below {
            return Some(lower + (bound - lower) * (wanted - below) / (count - below));
        }
        (lower, below) = (*bound, count);
    }
    // The rest took longer than the histogram can tell.
    Some(lower)
}

/// A start of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// In milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub version: String,
}

/// The samples.
#[derive(Debug)]
pub struct Samples {
    file: PathBuf,
    rings: Mutex<Rings>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Rings {
    hour: VecDeque<Sample>,
    day: VecDeque<Sample>,
    week: VecDeque<Sample>,
    month: VecDeque<Sample>,
    starts: VecDeque<Start>,
    growth: Growth,
    #[serde(skip)]
    taken: usize,
    /// When the first sample of this process was taken.
    #[serde(skip)]
    begun_ms: u64,
}

impl Samples {
    /// Those that an earlier process kept in `data_dir`, if they can be read.
    pub fn of(data_dir: &Path) -> Self {
        let file = data_dir.join(FILE);
        let kept = std::fs::read(&file).ok().and_then(|bytes| unpacked(&bytes));
        let samples = Self { file, rings: Mutex::new(kept.unwrap_or_default()) };
        samples.rings.lock().bound();
        samples
    }

    /// Takes samples until the server stops.
    pub async fn collect(self: Arc<Self>, observer: Arc<Observer>, shutdown: Shutdown) {
        loop {
            observer.look().await;
            let now_ms = observer.engine.clock().now_ms();
            at_length(|| self.add(Sample::take(now_ms), Sizes::take(now_ms)));
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = shutdown.given() => return at_length(|| self.keep()),
            }
        }
    }

    fn add(&self, sample: Sample, sizes: Sizes) {
        let is_to_be_kept = self.rings.lock().add(sample, sizes);
        if is_to_be_kept {
            self.keep();
        }
    }

    fn keep(&self) {
        let packed = serde_json::to_vec(&*self.rings.lock()).map_err(std::io::Error::other);
        let packed = packed.and_then(|json| zstd::bulk::compress(&json, 1));
        // They are worth no more than a note if they are lost.
        if let Err(error) = packed.and_then(|packed| disk::write_whole(&self.file, &packed)) {
            warn!(%error, "the samples for the console cannot be kept");
        }
    }

    /// The samples of a range, from the oldest on.
    pub fn over(&self, range: Range) -> Vec<Sample> {
        self.rings.lock().ring(range).iter().copied().collect()
    }

    /// The last sample.
    pub fn last(&self) -> Option<Sample> {
        self.rings.lock().hour.back().copied()
    }

    /// The last starts of the server, from the oldest on.
    pub fn starts(&self) -> Vec<Start> {
        self.rings.lock().starts.iter().cloned().collect()
    }

    /// How full the disk was over the last year.
    pub fn growth(&self) -> Growth {
        self.rings.lock().growth.clone()
    }
}

/// Earlier versions did not compress what they kept.
fn unpacked(bytes: &[u8]) -> Option<Rings> {
    let json = zstd::stream::decode_all(bytes).ok();
    serde_json::from_slice(json.as_deref().unwrap_or(bytes)).ok()
}

impl Rings {
    fn ring(&mut self, range: Range) -> &mut VecDeque<Sample> {
        match range {
            Range::Hour => &mut self.hour,
            Range::Day => &mut self.day,
            Range::Week => &mut self.week,
            Range::Month => &mut self.month,
        }
    }

    /// Adds a sample. Returns whether all are to be written to disk, now and then.
    fn add(&mut self, sample: Sample, sizes: Sizes) -> bool {
        if self.taken == 0 {
            self.begun_ms = sample.at_ms;
            let version = env!("CARGO_PKG_VERSION").to_owned();
            self.starts.push_back(Start { at_ms: sample.at_ms, version });
        }
        let sample = Sample { begun_ms: self.begun_ms, ..sample };
        for range in Range::ALL {
            let ring = self.ring(range);
            if ring.back().is_none_or(|last| is_due(range, last, &sample)) {
                ring.push_back(sample);
            }
        }
        self.growth.add(sizes);
        self.bound();
        self.taken += 1;
        self.taken % KEPT == 1
    }

    fn bound(&mut self) {
        for range in Range::ALL {
            let most = usize::try_from(range.length_ms() / range.every_ms()).unwrap_or_default();
            let ring = self.ring(range);
            ring.drain(..ring.len().saturating_sub(most));
        }
        self.starts.drain(..self.starts.len().saturating_sub(STARTS));
        self.growth.bound();
    }
}

/// Whether a sample is the next one of a range.
fn is_due(range: Range, last: &Sample, sample: &Sample) -> bool {
    // What counts began again with the process: without its first sample, nothing would be known of
    // it until the second one. A server that is started again and again does not fill the ring.
    let is_first = sample.begun_ms != last.begun_ms;
    let every = if is_first { range.every_ms() / 6 } else { range.every_ms() };
    // The clock may have been set back.
    range == Range::Hour
        || sample.at_ms + EARLY_MS >= last.at_ms.saturating_add(every)
        || sample.at_ms < last.at_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(samples: &Samples, from: u64, number: u64) {
        for number in from..from + number {
            let at_ms = number * 10_000;
            let sample = Sample { at_ms, ..Sample::default() };
            samples.rings.lock().add(sample, Sizes { at_ms, ..Sizes::default() });
        }
    }

    fn lengths(samples: &Samples) -> [usize; 4] {
        Range::ALL.map(|range| samples.over(range).len())
    }

    #[test]
    fn each_range_is_bounded_and_kept_across_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let samples = Samples::of(dir.path());
        let days = 40 * 24 * 360;
        add(&samples, 0, days);
        assert_eq!(lengths(&samples), [360, 720, 672, 744]);
        for range in Range::ALL {
            let all = samples.over(range);
            let (first, last) = (all[0].at_ms, all.last().unwrap().at_ms);
            let even = (all.len() as u64 - 1) * range.every_ms();
            assert_eq!(last - first, even, "{range:?}");
            assert!(last + range.every_ms() >= days * 10_000, "{range:?} ends at {last}");
        }
        samples.keep();
        let size = std::fs::metadata(dir.path().join(FILE)).unwrap().len();
        assert!(size < 1_000_000, "{size} bytes");

        let again = Samples::of(dir.path());
        for range in Range::ALL {
            assert_eq!(again.over(range), samples.over(range), "{range:?}");
        }
        assert_eq!((again.growth(), again.growth().all().len()), (samples.growth(), 160));
        // The new process is known by its first sample, in every range that has had none for long.
        add(&again, days + 200, 2);
        let begun = again.over(Range::Day).last().unwrap().begun_ms;
        assert_eq!(begun, (days + 200) * 10_000);
        assert_eq!(again.over(Range::Month).last().unwrap().begun_ms, begun);
        assert_eq!(again.starts().len(), 2);
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(Samples::of(dir.path()).over(Range::Hour), []);
    }

    #[test]
    fn what_an_earlier_version_kept_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let old = r#"{"hour":[{"at_ms":5,"requests":7.0,"syncs":2.0,"sync_seconds":1.0,
            "delays_within":[0,1]}],"day":[{"at_ms":5}],"growth":[]}"#;
        std::fs::write(dir.path().join(FILE), old).unwrap();
        let samples = Samples::of(dir.path());
        assert_eq!(lengths(&samples), [1, 1, 0, 0]);
        assert_eq!(samples.last().unwrap().requests, 7.0);
        add(&samples, 1, 1);
        samples.keep();
        assert_eq!(lengths(&Samples::of(dir.path())), [2, 1, 1, 1]);
    }

    #[test]
    fn a_server_that_is_started_again_and_again_pushes_nothing_out() {
        let dir = tempfile::tempdir().unwrap();
        for start in 0..300 {
            let samples = Samples::of(dir.path());
            add(&samples, start * 2, 1);
            samples.keep();
        }
        let samples = Samples::of(dir.path());
        assert_eq!(samples.starts().len(), STARTS);
        assert!(samples.over(Range::Month).len() <= 12, "{:?}", lengths(&samples));
    }

    #[test]
    fn a_quantile_is_of_what_was_measured_between_two_samples() {
        let bounds = [0.1, 0.2, 0.4];
        let (before, after) = ([5.0, 5.0, 5.0, 5.0], [55.0, 95.0, 103.0, 105.0]);
        let of = |part| quantile(&bounds, &before, &after, part);
        assert_eq!(of(0.5), Some(0.1));
        assert_eq!(of(0.25), Some(0.05));
        assert!((of(0.7).unwrap() - 0.15).abs() < 1e-9, "{:?}", of(0.7));
        assert_eq!(of(0.99), Some(0.4), "some took longer than the last bound");
        assert_eq!(quantile(&bounds, &after, &before, 0.5), None, "it was started again");
        assert_eq!(quantile(&bounds, &after, &after, 0.5), None, "nothing was measured");
        assert_eq!(quantile(&bounds, &[], &[], 0.5), None);
    }

    #[test]
    fn what_waits_for_news_is_not_slow() {
        for endpoint in ["/_matrix/client/v3/sync", "/_logcabin/console/live"] {
            assert!(waits(endpoint), "{endpoint}");
        }
        assert!(!waits("/_matrix/client/v3/rooms/{room_id}/messages"));
    }
}
