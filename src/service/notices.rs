//! Limits emails and SMS that anyone can trigger. `requestToken` requests are not limited
//! themselves, because repeating one that sends nothing is free. Instead each message is counted
//! for the caller's address when it is about to be sent. (`decide::threepid` limits the messages to
//! one recipient, no matter who asks.)

use std::{net::IpAddr, time::Duration};

use logcabin_base::rate::{Limiter, network_prefix};
use logcabin_config::RateLimits;

/// The recent messages.
pub struct Notices(Option<Limiter<IpAddr>>);

impl Notices {
    /// A limiter with the configured rate.
    pub fn new(config: &RateLimits) -> Self {
        Self(config.enabled.then(|| Limiter::new(config.notices)))
    }

    /// Counts a message that another node has sent for `client`.
    pub fn counted_elsewhere(&self, client: IpAddr) {
        if let Some(askers) = &self.0 {
            let _ = askers.take(&network_prefix(client));
        }
    }

    /// Counts a message that is about to be sent for `client`.
    ///
    /// # Errors
    /// The time to wait if it must not be sent now.
    pub fn count(&self, client: IpAddr) -> Result<(), Duration> {
        let Some(askers) = &self.0 else { return Ok(()) };
        askers.take(&network_prefix(client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_limited_by_address() {
        let config =
            RateLimits { notices: "1/h burst 3".parse().unwrap(), ..RateLimits::default() };
        let notices = Notices::new(&config);
        let sent = |last: u8| notices.count(IpAddr::from([10, 0, 0, last])).is_ok();
        assert!(sent(1) && sent(1) && sent(1));
        assert!(!sent(1));
        assert!(sent(2));
        let unlimited = Notices::new(&RateLimits { enabled: false, ..config });
        assert!((0..9).all(|_| unlimited.count(IpAddr::from([10, 0, 0, 1])).is_ok()));
    }
}
