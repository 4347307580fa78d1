//! Refused logins: each is counted, and told in one line of a form that does not change, for
//! programs that ban addresses.
//!
//! ```text
//! WARN refused login address=203.0.113.7 user="@ann:example.org" reason="password"
//! ```
//!
//! A user is named only by what may be a user id: people type passwords into the wrong field.

use std::{net::IpAddr, sync::LazyLock};

use ruma::UserId;
use tracing::warn;

pub(crate) use logcabin_base::metrics::LoginRefusal;
use logcabin_base::{
    limits,
    metrics::{Label as _, metrics},
    rate::{Limiter, Rate, network_prefix},
};

/// The lines of the process, like its log output.
static LINES: LazyLock<Lines> =
    LazyLock::new(|| Lines::bounded(limits::REFUSED_LOGIN_LINES, limits::ALL_REFUSED_LOGIN_LINES));

/// How many lines there may be.
struct Lines {
    of_address: Limiter<IpAddr>,
    of_all: Limiter<()>,
}

impl Lines {
    fn bounded(of_address: Rate, of_all: Rate) -> Self {
        Self { of_address: Limiter::new(of_address), of_all: Limiter::new(of_all) }
    }

    /// Whether there is to be a line about this address. Its own bound comes first, so that one
    /// address does not silence the others.
    fn admit(&self, address: IpAddr) -> bool {
        self.of_address.take(&network_prefix(address)).is_ok() && self.of_all.take(&()).is_ok()
    }
}

/// Counts and logs that a login was refused. `claimed` is who wanted to log in, as a client said.
pub(crate) fn refused_login(client: IpAddr, claimed: Option<&str>, reason: LoginRefusal) {
    metrics().logins_refused.of_value(reason).inc();
    // As it came over IPv4, however the listener was bound.
    let address = client.to_canonical();
    if LINES.admit(address) {
        let (user, reason) = (shown(claimed), reason.name());
        warn!(
            target: "logcabin::login",
            parent: None,
            address = %address,
            user,
            reason,
            "refused login"
        );
    }
}

/// What is shown of a claimed user id.
fn shown(claimed: Option<&str>) -> &str {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let of_localpart = |byte: u8| is_plain(byte) || b"._=/+-".contains(&byte);
    let valid = |user_id: &&str| {
        UserId::parse(*user_id).is_ok_and(|user_id| {
            let (localpart, server) = (user_id.localpart(), user_id.server_name().as_str());
            let of_server = |byte: u8| byte.is_ascii_alphanumeric() || b".:-[]".contains(&byte);
            localpart.bytes().all(of_localpart) && server.bytes().all(of_server)
        })
    };
    claimed.filter(|id| id.len() <= limits::IDENTIFIER_BYTES).filter(valid).unwrap_or("?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_be_a_user_id_is_shown() {
        for id in ["@ann:example.org", "@ann.b-c=d/e+f_1:[::1]:8448"] {
            assert_eq!(shown(Some(id)), id);
        }
        let long = format!("@{}:example.org", "a".repeat(300));
        for id in [
            "hunter2",
            "@ann",
            "@Pass Word:example.org",
            "@ann!:example.org",
            "@ann\n:example.org",
            "@ann\":example.org",
            "@ann\u{202e}:example.org",
            "@Ann:example.org",
            &long,
            "",
        ] {
            assert_eq!(shown(Some(id)), "?", "{id:?}");
        }
        assert_eq!(shown(None), "?");
    }

    #[test]
    fn a_flood_from_one_address_is_not_told_whole_and_silences_nobody() {
        let lines = Lines::bounded(Rate::per_minute(1, 3), Rate::per_minute(1, 5));
        let told = |last: u8| (0..10).filter(|_| lines.admit([203, 0, 113, last].into())).count();
        assert_eq!((told(1), told(2), told(3)), (3, 2, 0));
    }
}
