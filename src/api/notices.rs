//! Mails and text messages that anyone can have sent: how many. What the specification calls
//! `requestToken` is not limited by request (those that send nothing anew cost nothing), so each message
//! is counted where it is about to be sent: for who asked, and for who gets it.

use std::net::IpAddr;

use crate::{
    config::RateLimits,
    http::ApiError,
    rate::{Limiter, household},
};

/// The messages of late.
pub(crate) struct Notices(Option<(Limiter<IpAddr>, Limiter<String>)>);

impl Notices {
    /// As many as the configuration allows.
    pub(crate) fn new(config: &RateLimits) -> Self {
        let limited = || (Limiter::new(config.notices), Limiter::new(config.notices));
        Self(config.enabled.then(limited))
    }

    /// Counts a message to `recipient`, an address or number in its canonical form, that is about to be
    /// sent because `client` asked.
    ///
    /// # Errors
    /// 429 if it should not be sent now.
    pub(crate) fn count(&self, client: IpAddr, recipient: &str) -> Result<(), ApiError> {
        let Some((askers, recipients)) = &self.0 else { return Ok(()) };
        askers.take(&household(client)).map_err(ApiError::limit_exceeded)?;
        recipients.take(&recipient.to_owned()).map_err(ApiError::limit_exceeded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neither_asker_nor_recipient_is_sent_too_many() {
        let config =
            RateLimits { notices: "1/h burst 3".parse().unwrap(), ..RateLimits::default() };
        let notices = Notices::new(&config);
        let sent = |last: u8, recipient: &str| {
            notices.count(IpAddr::from([10, 0, 0, last]), recipient).is_ok()
        };
        assert!(
            sent(1, "ann@example.org") && sent(1, "bob@example.org") && sent(1, "eve@example.org")
        );
        assert!(!sent(1, "zoe@example.org"));
        assert!(sent(2, "ann@example.org") && sent(3, "ann@example.org"));
        assert!(!sent(4, "ann@example.org"));
        assert!(sent(4, "bob@example.org"));
    }
}
