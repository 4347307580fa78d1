//! Whether this server offers OAuth 2.0.

use crate::{
    api::{addresses::is_offered, server::Server},
    http::{ApiError, ErrorCode},
};

/// Refuses requests where OAuth 2.0 is not offered.
pub(super) fn must_be_offered(app: &Server) -> Result<(), ApiError> {
    if is_offered(&app.config.oauth, &app.config.server) {
        return Ok(());
    }
    let text = "This server does not offer OAuth 2.0.";
    Err(ApiError::new(ErrorCode::Unrecognized, text))
}
