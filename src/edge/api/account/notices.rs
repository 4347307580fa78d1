//! Mails and text messages that anyone can have sent: how many. What the specification calls
//! `requestToken` is not limited by request (those that send nothing anew cost nothing), so each
//! message is counted where it is about to be sent, for who asked. (How many one address is sent,
//! whoever asks, is decided with the validation itself: `decide::threepid`.)

use std::net::IpAddr;

use crate::{
    base::rate::{Limiter, household},
    config::RateLimits,
    edge::http::ApiError,
};

/// The messages of late.
pub(crate) struct Notices(Option<Limiter<IpAddr>>);

impl Notices {
    /// As many as the configuration allows.
    pub(crate) fn new(config: &RateLimits) -> Self {
        Self(config.enabled.then(|| Limiter::new(config.notices)))
    }

    /// Counts a message that is about to be sent because `client` asked.
    ///
    /// # Errors
    /// 429 if it should not be sent now.
    pub(crate) fn count(&self, client: IpAddr) -> Result<(), ApiError> {
        let Some(askers) = &self.0 else { return Ok(()) };
        askers.take(&household(client)).map_err(ApiError::limit_exceeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_too_many_messages_sent() {
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
