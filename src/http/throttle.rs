//! Rate limits for the endpoints that the specification marks as limited: a token bucket for each
//! user, and one for each address of callers who are not logged in.

use std::{
    net::{IpAddr, Ipv6Addr},
    num::NonZeroU32,
    time::{Duration, Instant},
};

use governor::{
    DefaultKeyedRateLimiter, Quota, RateLimiter,
    clock::{Clock as _, DefaultClock},
};
use parking_lot::Mutex;
use ruma::OwnedUserId;

use super::{ApiError, Session};
use crate::{config::RateLimits, limits};

/// The rate limiters.
pub(super) struct Throttle(Option<Limiters>);

struct Limiters {
    users: DefaultKeyedRateLimiter<OwnedUserId>,
    addresses: DefaultKeyedRateLimiter<IpAddr>,
    clock: DefaultClock,
    swept: Mutex<Instant>,
}

impl Throttle {
    /// The limiters that the configuration asks for.
    pub(super) fn new(config: &RateLimits) -> Self {
        Self(config.enabled.then(|| Limiters {
            users: RateLimiter::keyed(quota(config.user_per_second, config.user_burst)),
            addresses: RateLimiter::keyed(quota(config.address_per_second, config.address_burst)),
            clock: DefaultClock::default(),
            swept: Mutex::new(Instant::now()),
        }))
    }

    /// Counts one request; refuses it when the caller has made too many.
    pub(super) fn check(&self, session: Option<&Session>, client: IpAddr) -> Result<(), ApiError> {
        let Some(limiters) = &self.0 else { return Ok(()) };
        limiters.sweep();
        let checked = match session {
            Some(session) => limiters.users.check_key(&session.user_id),
            None => limiters.addresses.check_key(&household(client)),
        };
        checked.map_err(|refused| {
            let wait = refused.wait_time_from(limiters.clock.now());
            ApiError::limit_exceeded(wait.max(Duration::from_millis(1)))
        })
    }
}

impl Limiters {
    fn sweep(&self) {
        // Whoever comes while another sweeps has nothing to do.
        let Some(mut swept) = self.swept.try_lock() else { return };
        if swept.elapsed() >= limits::RATE_LIMIT_SWEEP {
            *swept = Instant::now();
            drop(swept);
            self.users.retain_recent();
            self.addresses.retain_recent();
        }
    }
}

fn quota(per_second: u32, burst: u32) -> Quota {
    let at_least_one = |number| NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN);
    Quota::per_second(at_least_one(per_second)).allow_burst(at_least_one(burst))
}

/// The address of whoever holds `address`: one customer of a provider is given a whole /64 of IPv6.
pub(crate) fn household(address: IpAddr) -> IpAddr {
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
    use super::*;

    #[test]
    fn a_burst_is_allowed_and_then_refused_with_the_time_to_wait() {
        let config =
            RateLimits { address_per_second: 2, address_burst: 3, ..RateLimits::default() };
        let throttle = Throttle::new(&config);
        let here = IpAddr::from([10, 0, 0, 1]);
        for _ in 0..3 {
            throttle.check(None, here).unwrap();
        }
        let wait = throttle.check(None, here).unwrap_err().retry_after().unwrap();
        assert!(wait <= Duration::from_millis(500), "{wait:?}");
        throttle.check(None, IpAddr::from([10, 0, 0, 2])).unwrap();
    }

    #[test]
    fn neighbours_in_a_prefix_are_one_caller() {
        let one: IpAddr = "2001:db8:1:2::1".parse().unwrap();
        let other: IpAddr = "2001:db8:1:2:ffff::9".parse().unwrap();
        let else_where: IpAddr = "2001:db8:1:3::1".parse().unwrap();
        assert_eq!(household(one), household(other));
        assert_ne!(household(one), household(else_where));
        let mapped: IpAddr = "::ffff:10.0.0.1".parse().unwrap();
        assert_eq!(household(mapped), IpAddr::from([10, 0, 0, 1]));
    }
}
