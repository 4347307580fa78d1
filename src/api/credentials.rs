//! What a session is made of: tokens, device id, password, display name, each within its bounds.

use std::time::Duration;

use ruma::OwnedDeviceId;

use super::Server;
use crate::{
    clock::{random_letters, random_token},
    config,
    http::ApiError,
    limits,
    passwords::policy,
    record::command::{TokenHash, Tokens},
};

/// Tokens that have just been made: the only place where they are in the clear.
pub(crate) struct NewTokens {
    pub(crate) access: String,
    pub(super) refresh: Option<String>,
    pub(super) expires_in: Option<Duration>,
    expires_ms: Option<u64>,
}

impl NewTokens {
    /// New tokens for a client that logs in. Those of one that can refresh expire.
    pub(super) fn make(app: &Server, can_refresh: bool) -> Self {
        let now_ms = app.engine.clock().now_ms();
        Self::until(&app.config.tokens, can_refresh, now_ms, now_ms)
    }

    /// New tokens in exchange for a refresh token, for a session that began at `login_ms`.
    pub(super) fn refreshed(app: &Server, login_ms: u64) -> Self {
        Self::until(&app.config.tokens, true, login_ms, app.engine.clock().now_ms())
    }

    fn until(config: &config::Tokens, can_refresh: bool, login_ms: u64, now_ms: u64) -> Self {
        let expires_ms = if can_refresh {
            Some(now_ms.saturating_add(config.access_lifetime_seconds.saturating_mul(1000)))
        } else {
            config.unrefreshable_lifetime_seconds.end_ms(now_ms)
        };
        let session_ms = config.session_lifetime_seconds.end_ms(login_ms);
        let expires_ms = expires_ms.into_iter().chain(session_ms).min();
        Self {
            access: format!("lca_{}", random_token()),
            refresh: can_refresh.then(|| format!("lcr_{}", random_token())),
            expires_in: expires_ms.map(|at| Duration::from_millis(at.saturating_sub(now_ms))),
            expires_ms,
        }
    }

    /// A new access token that is good until then, or for ever.
    pub(crate) fn good_until(expires_ms: Option<u64>) -> Self {
        let access = format!("lca_{}", random_token());
        Self { access, refresh: None, expires_in: None, expires_ms }
    }

    /// What is stored of them.
    pub(crate) fn hashes(&self) -> Tokens {
        Tokens {
            access: TokenHash::of(&self.access),
            expires_ms: self.expires_ms,
            refresh: self.refresh.as_deref().map(TokenHash::of),
        }
    }
}

/// The device id that a client asks for, within its bound, or a new one.
pub(crate) fn device_id_or_new(asked: Option<OwnedDeviceId>) -> Result<OwnedDeviceId, ApiError> {
    match asked {
        Some(id) if id.as_str().is_empty() || id.as_str().len() > limits::IDENTIFIER_BYTES => {
            Err(ApiError::invalid_param("A device id has 1 to 255 bytes."))
        }
        // They are keys, file names, parts of other ids: nothing that a terminal or a parser acts on.
        Some(id) if id.as_str().chars().any(char::is_control) => {
            Err(ApiError::invalid_param("A device id holds no control characters."))
        }
        Some(id) => Ok(id),
        None => Ok(random_letters(10).into()),
    }
}

/// Whether the user with this localpart may have this password, new.
pub(super) fn check_password(
    app: &Server,
    localpart: &str,
    password: &str,
) -> Result<(), ApiError> {
    Ok(policy::check(&app.config.passwords, localpart, password)?)
}

/// A display name within its bound.
pub(crate) fn short_name(name: Option<String>) -> Result<Option<String>, ApiError> {
    match name {
        Some(name) if name.len() > limits::DISPLAY_NAME_BYTES => {
            Err(ApiError::too_large("The display name is too long."))
        }
        name => Ok(name),
    }
}
