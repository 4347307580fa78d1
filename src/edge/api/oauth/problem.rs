//! Errors as OAuth 2.0 has them (RFC 6749, section 5.2).

use http::{
    HeaderValue, StatusCode,
    header::{CACHE_CONTROL, PRAGMA, WWW_AUTHENTICATE},
};
use serde_json::{Value, json};

use super::parameters::Unreadable;
use crate::http::{ApiError, Reply};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) code: &'static str,
    /// A sentence for developers.
    pub(super) description: String,
    status: StatusCode,
}

impl Problem {
    pub(super) fn new(code: &'static str, description: impl Into<String>) -> Self {
        let status = match code {
            "invalid_client" => StatusCode::UNAUTHORIZED,
            _ => StatusCode::BAD_REQUEST,
        };
        Self { code, description: description.into(), status }
    }

    /// `invalid_request`.
    pub(super) fn request(description: impl Into<String>) -> Self {
        Self::new("invalid_request", description)
    }

    /// `invalid_grant`.
    pub(super) fn grant(description: impl Into<String>) -> Self {
        Self::new("invalid_grant", description)
    }

    fn reply(&self) -> Reply {
        let body = json!({ "error": self.code, "error_description": self.description });
        let reply = answer(&body).with_status(self.status);
        if self.code == "invalid_client" {
            let scheme = HeaderValue::from_static("Basic realm=\"oauth2\"");
            return reply.with_header(WWW_AUTHENTICATE, scheme);
        }
        reply
    }
}

impl From<Unreadable> for Problem {
    fn from(unreadable: Unreadable) -> Self {
        Self::request(unreadable.to_string())
    }
}

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// It is refused.
    Problem(Problem),
    /// It fails as any other request may.
    Error(ApiError),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

impl From<Unreadable> for Failure {
    fn from(unreadable: Unreadable) -> Self {
        Self::Problem(unreadable.into())
    }
}

/// The reply with the result of a request.
pub(super) fn replied(result: Result<Reply, Failure>) -> Result<Reply, ApiError> {
    match result {
        Ok(reply) => Ok(reply),
        Err(Failure::Problem(problem)) => Ok(problem.reply()),
        Err(Failure::Error(error)) => Err(error),
    }
}

/// JSON that nobody stores on the way (RFC 6749, section 5.1).
pub(super) fn answer(body: &Value) -> Reply {
    Reply::json(body.to_string())
        .with_header(CACHE_CONTROL, HeaderValue::from_static("no-store"))
        .with_header(PRAGMA, HeaderValue::from_static("no-cache"))
}

/// Shows an error of the server in this form.
pub(super) fn refusal(error: &ApiError) -> Reply {
    let code = match error.status() {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            "temporarily_unavailable"
        }
        status if status.is_server_error() => "server_error",
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "access_denied",
        _ => "invalid_request",
    };
    let mut body = json!({ "error": code, "error_description": error.message() });
    // For clients of Matrix, which look for it to know whether OAuth 2.0 is offered.
    body["errcode"] = error.errcode().into();
    answer(&body).with_status(error.status())
}
