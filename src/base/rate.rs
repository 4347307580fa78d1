//! Rate limits: rates as configured, and the limiters that enforce them.

use std::{
    fmt,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    str::FromStr,
    time::{Duration, Instant},
};

use dashmap::DashMap;
use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use parking_lot::Mutex;

use crate::limits;

/// A sustained rate and a burst: `10/s burst 100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: NonZeroU32,
    unit: Unit,
    burst: NonZeroU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Second,
    Minute,
    Hour,
}

/// The largest rate: anything above is no limit.
const MOST: u32 = 1_000_000;

impl Rate {
    pub const fn per_second(count: u32, burst: u32) -> Self {
        Self { count: at_least_one(count), unit: Unit::Second, burst: at_least_one(burst) }
    }

    pub const fn per_minute(count: u32, burst: u32) -> Self {
        Self { count: at_least_one(count), unit: Unit::Minute, burst: at_least_one(burst) }
    }

    pub const fn per_hour(count: u32, burst: u32) -> Self {
        Self { count: at_least_one(count), unit: Unit::Hour, burst: at_least_one(burst) }
    }

    /// This rate and burst, multiplied.
    #[must_use]
    pub const fn times(self, factor: u32) -> Self {
        let factor = at_least_one(factor);
        Self {
            count: self.count.saturating_mul(factor),
            burst: self.burst.saturating_mul(factor),
            unit: self.unit,
        }
    }

    /// The time in which one unit is regained.
    pub fn interval(&self) -> Duration {
        let unit = match self.unit {
            Unit::Second => 1,
            Unit::Minute => 60,
            Unit::Hour => 3600,
        };
        Duration::from_secs(unit) / self.count.get()
    }

    /// How many may be used at once.
    pub const fn burst(&self) -> NonZeroU32 {
        self.burst
    }
}

const fn at_least_one(number: u32) -> NonZeroU32 {
    match NonZeroU32::new(number) {
        Some(number) => number,
        None => NonZeroU32::MIN,
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.unit {
            Unit::Second => 's',
            Unit::Minute => 'm',
            Unit::Hour => 'h',
        };
        write!(f, "{}/{unit} burst {}", self.count, self.burst)
    }
}

impl FromStr for Rate {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| {
            let number: NonZeroU32 = text.trim().parse().map_err(|_| ())?;
            if number.get() <= MOST { Ok(number) } else { Err(()) }
        };
        let (rate, burst) = text.split_once("burst").ok_or(())?;
        let (count, unit) = rate.split_once('/').ok_or(())?;
        let unit = match unit.trim() {
            "s" => Unit::Second,
            "m" => Unit::Minute,
            "h" => Unit::Hour,
            _ => return Err(()),
        };
        Ok(Self { count: number(count)?, unit, burst: number(burst)? })
    }
}

/// Limits each key to a rate. A key is dropped once it has its full allowance again.
pub struct Limiter<K: Hash + Eq + Clone> {
    keys: DefaultKeyedRateLimiter<K>,
    burst: NonZeroU32,
    clock: DefaultClock,
    sweep: Sweep,
}

impl<K: Hash + Eq + Clone> Limiter<K> {
    pub fn new(rate: Rate) -> Self {
        let every = Quota::with_period(rate.interval());
        let quota = every.unwrap_or_else(|| Quota::per_second(NonZeroU32::MAX));
        Self {
            keys: RateLimiter::keyed(quota.allow_burst(rate.burst)),
            burst: rate.burst,
            clock: DefaultClock::default(),
            sweep: Sweep::default(),
        }
    }

    /// Takes one unit of `key`.
    ///
    /// # Errors
    /// How long to wait for the next unit.
    pub fn take(&self, key: &K) -> Result<(), Duration> {
        self.tidy();
        let taken = self.keys.check_key(key);
        taken.map_err(|refused| {
            refused.wait_time_from(self.clock.now()).max(Duration::from_millis(1))
        })
    }

    /// Takes `count` units of `key` at once. A count above the burst is treated like the burst,
    /// because it could never be allowed otherwise.
    ///
    /// # Errors
    /// How long to wait until that many are available.
    pub fn take_many(&self, key: &K, count: NonZeroU32) -> Result<(), Duration> {
        self.tidy();
        match self.keys.check_key_n(key, count.min(self.burst)) {
            Ok(Ok(())) | Err(_) => Ok(()),
            Ok(Err(refused)) => {
                Err(refused.wait_time_from(self.clock.now()).max(Duration::from_millis(1)))
            }
        }
    }

    fn tidy(&self) {
        if self.sweep.is_due(|| self.keys.len()) {
            self.keys.retain_recent();
            self.keys.shrink_to_fit();
        }
    }
}

/// Limits each key to a rate of events that are counted in hindsight: units can be given back, or
/// taken beyond what is allowed, which the buckets of [`Limiter`] do not allow.
pub struct Refundable<K> {
    interval: Duration,
    /// How far ahead of now a key may be.
    depth: Duration,
    /// When each key has its whole allowance back.
    full_at: DashMap<K, Instant>,
    sweep: Sweep,
}

impl<K> fmt::Debug for Refundable<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refundable").finish_non_exhaustive()
    }
}

impl<K: Hash + Eq> Refundable<K> {
    pub fn new(rate: Rate) -> Self {
        let interval = rate.interval();
        let depth = interval.saturating_mul(rate.burst.get());
        Self { interval, depth, full_at: DashMap::new(), sweep: Sweep::default() }
    }

    /// Takes one unit of `key` at `now`.
    ///
    /// # Errors
    /// How long to wait for the next unit.
    pub fn take(&self, key: K, now: Instant) -> Result<(), Duration> {
        self.tidy(now);
        let mut full_at = self.full_at.entry(key).or_insert(now);
        let after = (*full_at).max(now) + self.interval;
        let ahead = after.saturating_duration_since(now);
        if ahead > self.depth {
            return Err(ahead.saturating_sub(self.depth).max(Duration::from_millis(1)));
        }
        *full_at = after;
        Ok(())
    }

    /// Takes `count` units that were used already, allowed or not.
    pub fn charge(&self, key: &K, count: u32, now: Instant)
    where
        K: Clone,
    {
        self.tidy(now);
        let cost = self.interval.saturating_mul(count);
        let mut full_at = self.full_at.entry(key.clone()).or_insert(now);
        *full_at = (*full_at).max(now) + cost;
    }

    /// How long to wait until `key` is no more than its burst ahead.
    pub fn ahead(&self, key: &K, now: Instant) -> Duration {
        let full_at = self.full_at.get(key).map_or(now, |full_at| *full_at);
        full_at.saturating_duration_since(now).saturating_sub(self.depth)
    }

    fn tidy(&self, now: Instant) {
        if self.sweep.is_due(|| self.full_at.len()) {
            self.full_at.retain(|_, full_at| *full_at > now);
            self.full_at.shrink_to_fit();
        }
    }

    /// Gives back a unit that turned out not to count.
    pub fn give_back(&self, key: &K) {
        if let Some(mut full_at) = self.full_at.get_mut(key)
            && let Some(before) = full_at.checked_sub(self.interval)
        {
            *full_at = before;
        }
    }
}

/// When to look for keys that can be dropped.
struct Sweep(Mutex<Instant>);

impl Default for Sweep {
    fn default() -> Self {
        Self(Mutex::new(Instant::now()))
    }
}

impl Sweep {
    /// Whether to clean up: every minute, and every second while there are very many keys.
    fn is_due(&self, keys: impl FnOnce() -> usize) -> bool {
        // One caller at a time cleans up.
        let Some(mut swept) = self.0.try_lock() else { return false };
        let since = swept.elapsed();
        let due = since >= limits::RATE_LIMIT_SWEEP
            || (since >= Duration::from_secs(1) && keys() > limits::RATE_LIMIT_KEYS);
        if due {
            *swept = Instant::now();
        }
        due
    }
}

/// The network that stands for `address`: an IPv6 provider gives each customer a whole /64.
pub fn network_prefix(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let [a, b, c, d, ..] = v6.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_rate_is_read_as_it_is_written() {
        for rate in
            [Rate::per_second(10, 100), Rate::per_minute(1, 1), Rate::per_second(MOST, MOST)]
        {
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        let hourly: Rate = " 5 / h  burst 7".parse().unwrap();
        assert_eq!((hourly.interval(), hourly.burst().get()), (Duration::from_secs(720), 7));
        for bad in
            ["", "5", "5/s", "0/s burst 1", "1/s burst 0", "1/d burst 1", "1/s burst 1000001"]
        {
            assert!(bad.parse::<Rate>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_burst_is_available_at_once_and_then_one_unit_in_each_interval() {
        let limiter = Limiter::new(Rate::per_second(2, 3));
        for _ in 0..3 {
            limiter.take(&'a').unwrap();
        }
        let wait = limiter.take(&'a').unwrap_err();
        assert!(wait <= Duration::from_millis(500), "{wait:?}");
        limiter.take(&'b').unwrap();

        let refundable = Refundable::new(Rate::per_second(2, 3));
        let now = Instant::now();
        for _ in 0..3 {
            refundable.take('a', now).unwrap();
        }
        assert_eq!(refundable.take('a', now), Err(Duration::from_millis(500)));
        refundable.take('b', now).unwrap();
        refundable.take('a', now + Duration::from_millis(500)).unwrap();
        refundable.take('a', now + Duration::from_millis(600)).unwrap_err();

        let charged = Refundable::new(Rate::per_second(2, 3));
        charged.charge(&'a', 3, now);
        assert_eq!(charged.ahead(&'a', now), Duration::ZERO);
        charged.charge(&'a', 5, now);
        assert_eq!(charged.ahead(&'a', now), Duration::from_millis(2500));
        assert_eq!(charged.ahead(&'b', now), Duration::ZERO);
        assert_eq!(charged.ahead(&'a', now + Duration::from_secs(3)), Duration::ZERO);
    }

    #[test]
    fn several_units_are_taken_at_once_or_not_at_all() {
        let limiter = Limiter::new(Rate::per_minute(6, 10));
        let take = |key, count| limiter.take_many(&key, NonZeroU32::new(count).unwrap());
        take('a', 7).unwrap();
        let wait = take('a', 4).unwrap_err();
        assert!(wait > Duration::from_secs(5) && wait <= Duration::from_secs(10), "{wait:?}");
        take('a', 3).unwrap();
        // A count above the burst takes all of it.
        take('b', 1000).unwrap();
        take('b', 1).unwrap_err();
    }

    proptest! {
        #[test]
        fn units_that_are_given_back_leave_no_trace(taken in 0_u32..20, burst in 1_u32..10) {
            let refundable = Refundable::new(Rate::per_minute(6, burst));
            let now = Instant::now();
            for _ in 0..taken {
                refundable.take("x", now).unwrap();
                refundable.give_back(&"x");
            }
            let left = (0..20).take_while(|_| refundable.take("x", now).is_ok()).count();
            prop_assert_eq!(left, burst as usize);
        }
    }

    #[test]
    fn neighbours_in_a_prefix_are_one_caller() {
        let one: IpAddr = "2001:db8:1:2::1".parse().unwrap();
        let other: IpAddr = "2001:db8:1:2:ffff::9".parse().unwrap();
        let elsewhere: IpAddr = "2001:db8:1:3::1".parse().unwrap();
        assert_eq!(network_prefix(one), network_prefix(other));
        assert_ne!(network_prefix(one), network_prefix(elsewhere));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(network_prefix(mapped), IpAddr::from([10, 0, 0, 1]));
    }
}
