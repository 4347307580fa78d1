//! What a session is made of: tokens, device id, password, display name, each within its bounds.

use std::time::Duration;

use ruma::OwnedDeviceId;

use super::Server;
use crate::{
    clock::{random_letters, random_token},
    http::{ApiError, ErrorCode},
    limits,
    record::command::{TokenHash, Tokens},
};

/// Tokens that have just been made: the only place where they are in the clear.
pub(super) struct NewTokens {
    pub(super) access: String,
    pub(super) refresh: Option<String>,
    pub(super) expires_in: Option<Duration>,
    expires_ms: Option<u64>,
}

impl NewTokens {
    /// New tokens for a client. Those of one that can refresh expire.
    pub(super) fn make(app: &Server, can_refresh: bool) -> Self {
        let lifetime = Duration::from_secs(app.config.tokens.access_lifetime_seconds);
        let lifetime_ms = u64::try_from(lifetime.as_millis()).unwrap_or(u64::MAX);
        let now_ms = app.engine.clock().now_ms();
        Self {
            access: format!("lca_{}", random_token()),
            refresh: can_refresh.then(|| format!("lcr_{}", random_token())),
            expires_in: can_refresh.then_some(lifetime),
            expires_ms: can_refresh.then(|| now_ms.saturating_add(lifetime_ms)),
        }
    }

    /// What is stored of them.
    pub(super) fn hashes(&self) -> Tokens {
        Tokens {
            access: TokenHash::of(&self.access),
            expires_ms: self.expires_ms,
            refresh: self.refresh.as_deref().map(TokenHash::of),
        }
    }
}

/// The device id that a client asks for, within its bound, or a new one.
pub(super) fn device_id_or_new(asked: Option<OwnedDeviceId>) -> Result<OwnedDeviceId, ApiError> {
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

/// The bounds on a new password.
pub(crate) fn check_password(password: &str) -> Result<(), ApiError> {
    if password.is_empty() {
        return Err(ApiError::new(ErrorCode::WeakPassword, "A password cannot be empty."));
    }
    if password.len() > limits::PASSWORD_BYTES {
        return Err(ApiError::invalid_param("This password is too long."));
    }
    Ok(())
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
