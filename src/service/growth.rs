//! How full the disk was over the last year, and when it will be full at this rate.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use logcabin_base::metrics::{Disk, Label as _, metrics};

/// How often it is noted how full the disk is.
const EVERY_MS: u64 = 6 * 3_600_000;

/// What is noted in a year.
const YEAR: usize = 366 * 4;

/// A rate is that of the last month.
const RECENT_MS: u64 = 30 * DAY_MS;

/// From less, there is no rate: a single day is like no other.
const LEAST_MS: u64 = 2 * DAY_MS;

const DAY_MS: u64 = 86_400_000;

/// How full the disk was at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sizes {
    /// In milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The bytes that each part of the server's data takes.
    pub used: [u64; Disk::ALL.len()],
    /// The free bytes on the disk of the log.
    pub free: u64,
}

impl Sizes {
    /// As the metrics have it.
    pub fn take(at_ms: u64) -> Self {
        let metrics = metrics();
        let bytes = |gauge: &prometheus::IntGauge| u64::try_from(gauge.get()).unwrap_or_default();
        let mut used = [0; Disk::ALL.len()];
        for (to, part) in used.iter_mut().zip(Disk::ALL) {
            *to = bytes(metrics.disk_used.of_value(*part));
        }
        Self { at_ms, used, free: bytes(&metrics.disk_free) }
    }

    /// What all parts take together.
    pub fn all(&self) -> u64 {
        self.used.iter().sum()
    }
}

/// How full the disk was, from the oldest moment on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Growth(VecDeque<Sizes>);

impl Growth {
    /// Notes how full the disk is, if it is time.
    pub(super) fn add(&mut self, sizes: Sizes) {
        let is_time = |last: &Sizes| {
            // The clock may have been set back.
            sizes.at_ms >= last.at_ms.saturating_add(EVERY_MS) || sizes.at_ms < last.at_ms
        };
        if self.0.back().is_none_or(is_time) {
            self.0.push_back(sizes);
        }
        self.bound();
    }

    pub(super) fn bound(&mut self) {
        self.0.drain(..self.0.len().saturating_sub(YEAR));
    }

    /// All that is known.
    pub fn all(&self) -> &VecDeque<Sizes> {
        &self.0
    }

    /// How many bytes more the data takes each day: the line that fits the last month and `now`
    /// best. None if too little is known.
    pub fn daily(&self, now: &Sizes) -> Option<f64> {
        let from = now.at_ms.saturating_sub(RECENT_MS);
        let known = self.0.iter().chain([now]).filter(|of| (from..=now.at_ms).contains(&of.at_ms));
        let points: Vec<(f64, f64)> = known
            .map(|of| (of.at_ms.saturating_sub(from) as f64 / DAY_MS as f64, of.all() as f64))
            .collect();
        let (first, last) = (points.first()?.0, points.last()?.0);
        if last - first < LEAST_MS as f64 / DAY_MS as f64 {
            return None;
        }
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
        let spread = sum(&|point| (point.0 - x).powi(2));
        Some(sum(&|point| (point.0 - x) * (point.1 - y)) / spread)
    }
}

/// After how many days there will be no more than `reserve` bytes left, if the data grows by so
/// much each day. None if it does not grow.
pub fn days_left(free: u64, reserve: u64, daily: f64) -> Option<f64> {
    (daily > 0.0).then(|| free.saturating_sub(reserve) as f64 / daily)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(day: u64, bytes: u64) -> Sizes {
        let mut used = [0; Disk::ALL.len()];
        used[0] = bytes;
        Sizes { at_ms: day * DAY_MS, used, free: 0 }
    }

    #[test]
    fn the_rate_is_that_of_the_last_month_and_needs_two_days() {
        let mut growth = Growth::default();
        assert_eq!(growth.daily(&sizes(1, 5)), None);
        growth.add(sizes(1, 0));
        assert_eq!(growth.daily(&sizes(2, 100)), None);
        for day in 2..100 {
            growth.add(sizes(day, 1_000 * day));
        }
        let daily = growth.daily(&sizes(100, 100_000)).unwrap();
        assert!((daily - 1_000.0).abs() < 0.001, "{daily}");
        // It has stopped growing.
        for day in 100..150 {
            growth.add(sizes(day, 100_000));
        }
        let daily = growth.daily(&sizes(150, 100_000)).unwrap();
        assert_eq!((daily, days_left(500, 0, daily)), (0.0, None));
        assert_eq!(days_left(1_000_000, 200_000, 1_000.0), Some(800.0));
        assert_eq!(days_left(100, 200, 1_000.0), Some(0.0));
    }

    #[test]
    fn it_is_noted_four_times_a_day_for_a_year_and_after_the_clock_was_set_back() {
        let mut growth = Growth::default();
        for minute in 0..3 * 24 * 60 {
            growth.add(Sizes { at_ms: minute * 60_000, ..Sizes::default() });
        }
        assert_eq!(growth.all().len(), 12);
        growth.add(sizes(1, 1));
        assert_eq!(growth.all().len(), 13);
        for day in 2..3 * YEAR as u64 {
            growth.add(sizes(day, 1));
        }
        assert_eq!(growth.all().len(), YEAR);
    }
}
