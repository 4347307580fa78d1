//! What the metrics were over the last hour, day and year, for the plots of the console.
//!
//! A sample is taken every ten seconds. Those of the last hour are kept, and of the last day one in
//! five minutes, in memory and, whenever one of those is taken, on disk. Of the last year, only how
//! full the disk was is kept ([`super::growth`]).

use std::{collections::VecDeque, path::PathBuf, sync::Arc, time::Duration};

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
    metrics::{self, LATENCY, WriteStage},
    shutdown::Shutdown,
};

/// How often a sample is taken.
const EVERY: Duration = Duration::from_secs(10);

/// The samples of an hour.
const HOUR: usize = 360;

/// One of so many samples is one of the day.
const OF_DAY: usize = 30;

/// The samples of a day.
const DAY: usize = 288;

const FILE: &str = "console.samples";

/// The metrics at a moment, as sums over their labels. Those that count begin again when the server
/// starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// In milliseconds since the Unix epoch.
    pub at_ms: u64,
    pub requests: f64,
    /// Requests that failed because of the server.
    pub errors: f64,
    pub records: f64,
    /// The seconds that writes waited for the disk, and how many there were.
    pub sync_seconds: f64,
    pub syncs: f64,
    /// The seconds until waiting clients had what was new, and how many there were.
    pub delay_seconds: f64,
    pub delays: f64,
    /// How many of them were within each of [`LATENCY`].
    pub delays_within: [f64; LATENCY.len()],
    pub waiting: f64,
    pub cpu_seconds: f64,
    pub memory: f64,
    pub disk_used: f64,
    pub disk_free: f64,
    pub lag: f64,
}

impl Sample {
    fn take(at_ms: u64) -> Self {
        let all = metrics::totals();
        let of = |name: &str| all.get(name).copied().unwrap_or_default();
        let sync = metrics::metrics().write_stage.of_value(WriteStage::Sync);
        let mut delays_within = [0.0; LATENCY.len()];
        let within = metrics::within(&metrics::metrics().sync_delay);
        delays_within.iter_mut().zip(within).for_each(|(to, count)| *to = count as f64);
        Self {
            at_ms,
            requests: of("logcabin_http_requests_total"),
            errors: of("errors"),
            records: of("logcabin_log_records_total"),
            sync_seconds: sync.get_sample_sum(),
            syncs: sync.get_sample_count() as f64,
            delay_seconds: of("logcabin_sync_delivery_delay_seconds"),
            delays: of("logcabin_sync_delivery_delay_seconds_count"),
            delays_within,
            waiting: of("logcabin_sync_waiting_users"),
            cpu_seconds: of("process_cpu_seconds_total"),
            memory: of("process_resident_memory_bytes"),
            disk_used: of("logcabin_disk_used_bytes"),
            disk_free: of("logcabin_disk_free_bytes"),
            lag: of("logcabin_delivery_lag_records"),
        }
    }
}

/// The samples.
#[derive(Debug)]
pub struct Samples {
    file: PathBuf,
    rings: Mutex<Rings>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Rings {
    hour: VecDeque<Sample>,
    day: VecDeque<Sample>,
    #[serde(default)]
    growth: Growth,
    #[serde(skip)]
    taken: usize,
}

impl Samples {
    /// Those that an earlier process kept in `data_dir`, if they can be read.
    pub fn of(data_dir: &std::path::Path) -> Self {
        let file = data_dir.join(FILE);
        let rings = std::fs::read(&file).ok();
        let rings = rings.and_then(|json| serde_json::from_slice::<Rings>(&json).ok());
        let samples = Self { file, rings: Mutex::new(rings.unwrap_or_default()) };
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
                () = shutdown.given() => return,
            }
        }
    }

    fn add(&self, sample: Sample, sizes: Sizes) {
        let kept = self.rings.lock().add(sample, sizes);
        // They are worth no more than a note if they are lost.
        if let Some(kept) = kept
            && let Err(error) = disk::write_whole(&self.file, &kept)
        {
            warn!(%error, "the samples for the console cannot be kept");
        }
    }

    /// The samples of the last hour, from the oldest on.
    pub fn hour(&self) -> Vec<Sample> {
        self.rings.lock().hour.iter().copied().collect()
    }

    /// Some samples of the last day, from the oldest on.
    pub fn day(&self) -> Vec<Sample> {
        self.rings.lock().day.iter().copied().collect()
    }

    /// How full the disk was over the last year.
    pub fn growth(&self) -> Growth {
        self.rings.lock().growth.clone()
    }
}

impl Rings {
    /// Adds a sample. Returns what is to be kept on disk, now and then.
    fn add(&mut self, sample: Sample, sizes: Sizes) -> Option<Vec<u8>> {
        self.hour.push_back(sample);
        self.growth.add(sizes);
        let is_of_day = self.taken.is_multiple_of(OF_DAY);
        self.taken += 1;
        if is_of_day {
            self.day.push_back(sample);
        }
        self.bound();
        is_of_day.then(|| serde_json::to_vec(self).ok())?
    }

    fn bound(&mut self) {
        self.hour.drain(..self.hour.len().saturating_sub(HOUR));
        self.day.drain(..self.day.len().saturating_sub(DAY));
        self.growth.bound();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_and_a_day_are_kept_across_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let samples = Samples::of(dir.path());
        let sample = |number: u64| Sample { at_ms: number * 10_000, ..Sample::default() };
        for number in 0..9_000 {
            samples.add(sample(number), Sizes { at_ms: number * 10_000, ..Sizes::default() });
        }
        let times = |samples: &[Sample]| (samples[0].at_ms, samples.last().unwrap().at_ms);
        assert_eq!((samples.hour().len(), samples.day().len()), (HOUR, DAY));
        assert_eq!(times(&samples.hour()), (86_400_000, 89_990_000));
        assert_eq!(times(&samples.day()), (3_600_000, 89_700_000));
        let again = Samples::of(dir.path());
        assert_eq!(again.day(), samples.day());
        assert_eq!((again.growth(), again.growth().all().len()), (samples.growth(), 5));
        std::fs::write(dir.path().join(FILE), "{").unwrap();
        assert_eq!(Samples::of(dir.path()).hour(), []);
    }
}
