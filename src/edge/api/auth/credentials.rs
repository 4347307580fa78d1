//! The credentials of a session: tokens, and the password policy.

use std::time::Duration;

use crate::{api::server::Server, http::ApiError};
use logcabin_config as config;
use logcabin_record::command::Tokens;
use logcabin_service::{
    accounts::token::{self, Kind},
    passwords::policy,
};

/// New tokens: the only place that has them in the clear.
pub(crate) struct NewTokens {
    pub(super) access: String,
    refresh: Option<String>,
    made_ms: u64,
    expires_ms: Option<u64>,
}

/// The tokens in a client's response.
pub(crate) struct IssuedTokens {
    pub(crate) access: String,
    pub(crate) refresh: Option<String>,
    pub(crate) expires_in: Option<Duration>,
}

impl NewTokens {
    /// New tokens for a login. If the client can refresh them, they expire.
    pub(crate) fn make(app: &Server, can_refresh: bool) -> Self {
        let now_ms = app.engine.clock().now_ms();
        Self {
            access: Kind::Access.random(),
            refresh: can_refresh.then(|| Kind::Refresh.random()),
            made_ms: now_ms,
            expires_ms: expiry(&app.config.tokens, can_refresh, now_ms, now_ms),
        }
    }

    /// The tokens in exchange for `presented`, of a session that began at `login_ms`. They are the
    /// same for every client, and every process of a client, that presents it.
    pub(crate) fn refreshed(app: &Server, presented: &str, login_ms: u64) -> Self {
        let now_ms = app.engine.clock().now_ms();
        Self {
            access: Kind::Access.derived(&app.signing.signer, presented),
            refresh: Some(Kind::Refresh.derived(&app.signing.signer, presented)),
            made_ms: now_ms,
            expires_ms: expiry(&app.config.tokens, true, login_ms, now_ms),
        }
    }

    /// The same tokens with another expiry.
    pub(crate) fn ending(self, expires_ms: Option<u64>) -> Self {
        Self { expires_ms, ..self }
    }

    /// When half of the tokens' lifetime will have passed.
    pub(crate) fn half_life_ms(&self) -> Option<u64> {
        self.expires_ms.map(|expires_ms| self.made_ms.midpoint(expires_ms))
    }

    /// The hashes to store.
    pub(crate) fn hashes(&self) -> Tokens {
        Tokens {
            access: token::hash(&self.access),
            expires_ms: self.expires_ms,
            refresh: self.refresh.as_deref().map(token::hash),
        }
    }

    /// The tokens for the client's response, once they are valid.
    pub(crate) fn told(self, app: &Server) -> IssuedTokens {
        let Self { access, refresh, made_ms, expires_ms } = self;
        let (state, hash) = (app.engine.state(), token::hash(&access));
        let session = match state.accounts.access_token(&hash) {
            Some(found) => Some(found.session),
            None => state.oauth.access_token(&hash).map(|found| found.grant.session),
        };
        let token = |kind: Kind, secret: String| match session {
            Some(session) => kind.token(&app.signing.lasting, &secret, session),
            // The device logged in again meanwhile.
            None => secret,
        };
        IssuedTokens {
            access: token(Kind::Access, access),
            refresh: refresh.map(|secret| token(Kind::Refresh, secret)),
            expires_in: expires_ms.map(|at| Duration::from_millis(at.saturating_sub(made_ms))),
        }
    }
}

/// The expiry of tokens created at `now_ms`, of a session that began at `login_ms`.
fn expiry(config: &config::Tokens, can_refresh: bool, login_ms: u64, now_ms: u64) -> Option<u64> {
    let expires_ms = if can_refresh {
        Some(now_ms.saturating_add(config.access_lifetime_seconds.saturating_mul(1000)))
    } else {
        config.unrefreshable_lifetime_seconds.end_ms(now_ms)
    };
    let session_ms = config.session_lifetime_seconds.end_ms(login_ms);
    expires_ms.into_iter().chain(session_ms).min()
}

/// Checks a new password for the user with this localpart against the policy.
pub(in crate::api) fn check_password(
    policy: &config::Passwords,
    localpart: &str,
    password: &str,
) -> Result<(), ApiError> {
    Ok(policy::check(policy, localpart, password)?)
}
