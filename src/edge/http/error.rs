//! What a client is told when a request fails.
//!
//! One type for every handler, [`ApiError`], made of an [`ErrorCode`] (which alone decides the
//! status, unless overridden), the sentence for the client, and the cause, which goes to the
//! server's log and never to the client.

use std::{borrow::Cow, error::Error, fmt, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ruma::{
    RoomVersionId,
    api::client::uiaa::{AuthFlow, AuthType},
};
use serde_json::{Map, Value, json};

use super::Reply;
use logcabin_base::clock::millis;

/// The codes of the standard error response, each with the fields it adds to the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorCode {
    BadAlias,
    BadJson,
    BadState,
    /// Another service answered with this status and this body.
    BadStatus {
        status: u16,
        body: String,
    },
    CannotLeaveServerNoticeRoom,
    CannotOverwriteMedia,
    CaptchaInvalid,
    CaptchaNeeded,
    /// Somebody else wrote first: MSC4108, and under the name of its successor, MSC4388.
    ConcurrentWrite {
        former: bool,
    },
    ConnectionFailed,
    ConnectionTimeout,
    DuplicateAnnotation,
    Exclusive,
    Forbidden,
    GuestAccessForbidden,
    IncompatibleRoomVersion {
        room_version: RoomVersionId,
    },
    InvalidParam,
    InvalidRoomState,
    InvalidSignature,
    InvalidUsername,
    InviteBlocked,
    KeyTooLarge,
    LimitExceeded {
        retry_after: Option<Duration>,
    },
    /// MSC4140. Clients of its first form expect `M_UNKNOWN`.
    MaxDelayExceeded {
        max_delay_ms: u64,
        first_form: bool,
    },
    /// MSC4140.
    MaxDelayedEventsExceeded {
        retry_after: Duration,
    },
    MissingParam,
    MissingToken,
    NotFound,
    NotJson,
    NotYetUploaded,
    ProfileTooLarge,
    ResourceLimitExceeded {
        admin_contact: String,
    },
    RoomInUse,
    ServerNotTrusted,
    ThreepidAuthFailed,
    ThreepidDenied,
    ThreepidInUse,
    ThreepidMediumNotSupported,
    ThreepidNotFound,
    TooLarge,
    UnableToAuthoriseJoin,
    UnableToGrantJoin,
    Unauthorized,
    Unknown,
    UnknownDevice,
    UnknownPos,
    UnknownToken {
        soft_logout: bool,
    },
    Unrecognized,
    /// MSC2815.
    UnredactedContentDeleted {
        /// How long the content of redacted events is kept.
        kept: Option<Duration>,
    },
    UnsupportedRoomVersion,
    UrlNotSet,
    /// MSC3866.
    UserAwaitingApproval,
    UserDeactivated,
    UserInUse,
    UserLocked,
    UserSuspended,
    WeakPassword,
    WrongRoomKeysVersion {
        current_version: String,
    },
}

impl ErrorCode {
    /// The code as clients know it.
    pub(crate) const fn as_str(&self) -> &'static str {
        self.describe().0
    }

    /// The status the code has unless [`ApiError::with_status`] says otherwise.
    pub(crate) const fn status(&self) -> StatusCode {
        self.describe().1
    }

    /// The one table of codes and their statuses.
    const fn describe(&self) -> (&'static str, StatusCode) {
        const BAD_REQUEST: StatusCode = StatusCode::BAD_REQUEST;
        const UNAUTHORIZED: StatusCode = StatusCode::UNAUTHORIZED;
        const FORBIDDEN: StatusCode = StatusCode::FORBIDDEN;
        match self {
            Self::BadAlias => ("M_BAD_ALIAS", BAD_REQUEST),
            Self::BadJson => ("M_BAD_JSON", BAD_REQUEST),
            Self::BadState => ("M_BAD_STATE", BAD_REQUEST),
            Self::BadStatus { .. } => ("M_BAD_STATUS", StatusCode::BAD_GATEWAY),
            Self::CannotLeaveServerNoticeRoom => ("M_CANNOT_LEAVE_SERVER_NOTICE_ROOM", FORBIDDEN),
            Self::CannotOverwriteMedia => ("M_CANNOT_OVERWRITE_MEDIA", StatusCode::CONFLICT),
            Self::CaptchaInvalid => ("M_CAPTCHA_INVALID", UNAUTHORIZED),
            Self::CaptchaNeeded => ("M_CAPTCHA_NEEDED", UNAUTHORIZED),
            Self::ConcurrentWrite { former: true } => {
                ("M_CONCURRENT_WRITE", StatusCode::PRECONDITION_FAILED)
            }
            Self::ConcurrentWrite { former: false } => {
                ("IO_ELEMENT_MSC4388_CONCURRENT_WRITE", StatusCode::CONFLICT)
            }
            Self::ConnectionFailed => ("M_CONNECTION_FAILED", StatusCode::BAD_GATEWAY),
            Self::ConnectionTimeout => ("M_CONNECTION_TIMEOUT", StatusCode::GATEWAY_TIMEOUT),
            Self::DuplicateAnnotation => ("M_DUPLICATE_ANNOTATION", BAD_REQUEST),
            Self::Exclusive => ("M_EXCLUSIVE", BAD_REQUEST),
            Self::Forbidden => ("M_FORBIDDEN", FORBIDDEN),
            Self::GuestAccessForbidden => ("M_GUEST_ACCESS_FORBIDDEN", FORBIDDEN),
            Self::IncompatibleRoomVersion { .. } => ("M_INCOMPATIBLE_ROOM_VERSION", BAD_REQUEST),
            Self::InvalidParam => ("M_INVALID_PARAM", BAD_REQUEST),
            Self::InvalidRoomState => ("M_INVALID_ROOM_STATE", BAD_REQUEST),
            Self::InvalidSignature => ("M_INVALID_SIGNATURE", BAD_REQUEST),
            Self::InvalidUsername => ("M_INVALID_USERNAME", BAD_REQUEST),
            Self::InviteBlocked => ("M_INVITE_BLOCKED", FORBIDDEN),
            Self::KeyTooLarge => ("M_KEY_TOO_LARGE", BAD_REQUEST),
            Self::LimitExceeded { .. } => ("M_LIMIT_EXCEEDED", StatusCode::TOO_MANY_REQUESTS),
            Self::MaxDelayExceeded { first_form: true, .. } => ("M_UNKNOWN", BAD_REQUEST),
            Self::MaxDelayExceeded { .. } => ("ORG.MATRIX.MSC4140_MAX_DELAY_EXCEEDED", BAD_REQUEST),
            Self::MaxDelayedEventsExceeded { .. } => {
                ("M_LIMIT_EXCEEDED", StatusCode::TOO_MANY_REQUESTS)
            }
            Self::MissingParam => ("M_MISSING_PARAM", BAD_REQUEST),
            Self::MissingToken => ("M_MISSING_TOKEN", UNAUTHORIZED),
            Self::NotFound => ("M_NOT_FOUND", StatusCode::NOT_FOUND),
            Self::NotJson => ("M_NOT_JSON", BAD_REQUEST),
            Self::NotYetUploaded => ("M_NOT_YET_UPLOADED", StatusCode::GATEWAY_TIMEOUT),
            Self::ProfileTooLarge => ("M_PROFILE_TOO_LARGE", BAD_REQUEST),
            Self::ResourceLimitExceeded { .. } => ("M_RESOURCE_LIMIT_EXCEEDED", FORBIDDEN),
            Self::RoomInUse => ("M_ROOM_IN_USE", BAD_REQUEST),
            Self::ServerNotTrusted => ("M_SERVER_NOT_TRUSTED", BAD_REQUEST),
            Self::ThreepidAuthFailed => ("M_THREEPID_AUTH_FAILED", FORBIDDEN),
            Self::ThreepidDenied => ("M_THREEPID_DENIED", FORBIDDEN),
            Self::ThreepidInUse => ("M_THREEPID_IN_USE", BAD_REQUEST),
            Self::ThreepidMediumNotSupported => ("M_THREEPID_MEDIUM_NOT_SUPPORTED", BAD_REQUEST),
            Self::ThreepidNotFound => ("M_THREEPID_NOT_FOUND", BAD_REQUEST),
            Self::TooLarge => ("M_TOO_LARGE", StatusCode::PAYLOAD_TOO_LARGE),
            Self::UnableToAuthoriseJoin => ("M_UNABLE_TO_AUTHORISE_JOIN", BAD_REQUEST),
            Self::UnableToGrantJoin => ("M_UNABLE_TO_GRANT_JOIN", BAD_REQUEST),
            Self::Unauthorized => ("M_UNAUTHORIZED", UNAUTHORIZED),
            // Clients read the status of this code: a bare "unknown" is the server's own fault.
            Self::Unknown => ("M_UNKNOWN", StatusCode::INTERNAL_SERVER_ERROR),
            Self::UnknownDevice => ("M_UNKNOWN_DEVICE", BAD_REQUEST),
            Self::UnknownPos => ("M_UNKNOWN_POS", BAD_REQUEST),
            Self::UnknownToken { .. } => ("M_UNKNOWN_TOKEN", UNAUTHORIZED),
            Self::Unrecognized => ("M_UNRECOGNIZED", StatusCode::NOT_FOUND),
            Self::UnredactedContentDeleted { .. } => {
                ("FI.MAU.MSC2815_UNREDACTED_CONTENT_DELETED", StatusCode::NOT_FOUND)
            }
            Self::UnsupportedRoomVersion => ("M_UNSUPPORTED_ROOM_VERSION", BAD_REQUEST),
            Self::UrlNotSet => ("M_URL_NOT_SET", BAD_REQUEST),
            Self::UserAwaitingApproval => ("ORG.MATRIX.MSC3866_USER_AWAITING_APPROVAL", FORBIDDEN),
            Self::UserDeactivated => ("M_USER_DEACTIVATED", FORBIDDEN),
            Self::UserInUse => ("M_USER_IN_USE", BAD_REQUEST),
            Self::UserLocked => ("M_USER_LOCKED", UNAUTHORIZED),
            Self::UserSuspended => ("M_USER_SUSPENDED", FORBIDDEN),
            Self::WeakPassword => ("M_WEAK_PASSWORD", BAD_REQUEST),
            Self::WrongRoomKeysVersion { .. } => ("M_WRONG_ROOM_KEYS_VERSION", FORBIDDEN),
        }
    }

    /// Adds the fields that belong to this code.
    fn add_fields(&self, body: &mut Map<String, Value>) {
        match self {
            Self::BadStatus { status, body: answer } => {
                body.insert("status".to_owned(), json!(status));
                body.insert("body".to_owned(), json!(answer));
            }
            Self::IncompatibleRoomVersion { room_version } => {
                body.insert("room_version".to_owned(), json!(room_version));
            }
            Self::LimitExceeded { retry_after: Some(wait) } => {
                body.insert("retry_after_ms".to_owned(), json!(millis(*wait)));
            }
            Self::MaxDelayExceeded { max_delay_ms, .. } => {
                body.insert("org.matrix.msc4140.errcode".to_owned(), json!("M_MAX_DELAY_EXCEEDED"));
                body.insert("org.matrix.msc4140.max_delay".to_owned(), json!(max_delay_ms));
            }
            Self::MaxDelayedEventsExceeded { retry_after } => {
                let code = json!("M_MAX_DELAYED_EVENTS_EXCEEDED");
                body.insert("org.matrix.msc4140.errcode".to_owned(), code);
                body.insert("retry_after_ms".to_owned(), json!(millis(*retry_after)));
            }
            Self::ResourceLimitExceeded { admin_contact } => {
                body.insert("admin_contact".to_owned(), json!(admin_contact));
            }
            Self::UnknownToken { soft_logout } => {
                body.insert("soft_logout".to_owned(), json!(soft_logout));
            }
            Self::UnredactedContentDeleted { kept: Some(kept) } => {
                let kept = json!(millis(*kept));
                body.insert("fi.mau.msc2815.content_keep_ms".to_owned(), kept);
            }
            Self::UserAwaitingApproval => {
                // Clients tell people whether to watch for a mail, which not everybody gets.
                let medium = json!("org.matrix.msc3866.none");
                body.insert("approval_notice_medium".to_owned(), medium);
            }
            Self::UserLocked => {
                body.insert("soft_logout".to_owned(), json!(true));
            }
            Self::WrongRoomKeysVersion { current_version } => {
                body.insert("current_version".to_owned(), json!(current_version));
            }
            _ => {}
        }
    }
}

/// What a client must still do to authenticate a request: the 401 of user-interactive endpoints.
#[derive(Clone, Debug, Default)]
pub struct AuthRequired {
    /// The ways to authenticate, each a sequence of stages.
    pub(crate) flows: Vec<AuthFlow>,
    /// Stages completed so far.
    pub(crate) completed: Vec<AuthType>,
    /// What the client needs to know for each stage, by its type.
    pub(crate) params: Map<String, Value>,
    /// To be given back in the next attempt.
    pub(crate) session: Option<String>,
    /// Why the attempt just made failed, if another may follow.
    pub(crate) failure: Option<(ErrorCode, Cow<'static, str>)>,
}

type Cause = Box<dyn Error + Send + Sync>;

/// The failure of a request: what the client is told, and what the log is told.
pub struct ApiError(Box<Inner>);

struct Inner {
    code: ErrorCode,
    status: StatusCode,
    message: Cow<'static, str>,
    /// Another service's code, in the place of the code's own.
    foreign: Option<String>,
    cause: Option<Cause>,
    auth: Option<AuthRequired>,
    headers: HeaderMap,
    refusal: Option<ErrorRenderer>,
    may_be_behind: bool,
}

/// The reply that shows a failed request in another form than JSON.
pub type ErrorRenderer = fn(&ApiError) -> Reply;

impl ApiError {
    /// An error with this code, its usual status, and this sentence for the client.
    pub(crate) fn new(code: ErrorCode, message: impl Into<Cow<'static, str>>) -> Self {
        let status = code.status();
        let message = message.into();
        Self(Box::new(Inner {
            code,
            status,
            message,
            foreign: None,
            cause: None,
            auth: None,
            headers: HeaderMap::new(),
            refusal: None,
            may_be_behind: false,
        }))
    }

    /// The same error once more, for another request that waited for the same outcome.
    pub(crate) fn again(&self) -> Self {
        Self(Box::new(Inner {
            code: self.0.code.clone(),
            status: self.0.status,
            message: self.0.message.clone(),
            foreign: self.0.foreign.clone(),
            cause: self.0.cause.as_ref().map(|cause| cause.to_string().into()),
            auth: self.0.auth.clone(),
            headers: self.0.headers.clone(),
            refusal: self.0.refusal,
            may_be_behind: self.0.may_be_behind,
        }))
    }

    /// The same error with another status.
    #[must_use]
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.0.status = status;
        self
    }

    /// The same error with a cause for the server's log; the client does not see it.
    #[must_use]
    pub(crate) fn with_cause(mut self, cause: impl Into<Cause>) -> Self {
        self.0.cause = Some(cause.into());
        self
    }

    /// The same error with one more header in its response.
    #[must_use]
    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.0.headers.insert(name, value);
        self
    }

    /// The same error, about something that a node may not know of because it lags behind others.
    #[must_use]
    pub(crate) fn unless_behind(mut self) -> Self {
        self.0.may_be_behind = true;
        self
    }

    /// The error of a node that is not known to be current. What it says must not be final: a
    /// client that believes its token to be invalid logs out, and a write that is refused for what
    /// was true a moment ago is not tried again.
    #[must_use]
    pub(crate) fn of_stale_node(self, is_write: bool) -> Self {
        let refused = [StatusCode::FORBIDDEN, StatusCode::NOT_FOUND, StatusCode::CONFLICT];
        if self.0.may_be_behind || is_write && refused.contains(&self.0.status) {
            Self::unavailable("This server lags behind others; try again.")
        } else {
            self
        }
    }

    /// The same error, shown in a browser by this instead of as JSON.
    #[must_use]
    pub(crate) fn shown_by(mut self, refusal: ErrorRenderer) -> Self {
        self.0.refusal = Some(refusal);
        self
    }

    /// The refusal of another service, passed on to the client.
    pub(crate) fn handed_on(status: StatusCode, errcode: String, message: String) -> Self {
        let mut error = Self::new(ErrorCode::Unknown, message).with_status(status);
        error.0.foreign = Some(errcode);
        error
    }

    /// `M_FORBIDDEN`: the caller may not do this.
    pub(crate) fn forbidden(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Forbidden, message)
    }

    /// `M_NOT_FOUND`: there is no such thing, or the caller may not know of it.
    pub fn not_found(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::NotFound, message)
    }

    /// `M_BAD_JSON`: the body is JSON of the wrong shape.
    pub(crate) fn bad_json(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::BadJson, message)
    }

    /// `M_NOT_JSON`: the body is not JSON.
    pub(crate) fn not_json(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::NotJson, message)
    }

    /// `M_INVALID_PARAM`: a parameter has an invalid value.
    pub(crate) fn invalid_param(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::InvalidParam, message)
    }

    /// `M_MISSING_PARAM`: a parameter is missing.
    pub(crate) fn missing_param(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::MissingParam, message)
    }

    /// `M_TOO_LARGE`: more than the server takes.
    pub(crate) fn too_large(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::TooLarge, message)
    }

    /// `M_UNKNOWN_TOKEN`: log in again; with `soft_logout` the client may keep its keys.
    pub(crate) fn unknown_token(soft_logout: bool) -> Self {
        Self::new(ErrorCode::UnknownToken { soft_logout }, "The access token is not known.")
            .unless_behind()
    }

    /// `M_MISSING_TOKEN`: the endpoint needs an access token.
    pub(crate) fn missing_token() -> Self {
        Self::new(ErrorCode::MissingToken, "An access token is needed.")
    }

    /// `M_LIMIT_EXCEEDED`: try again after `retry_after`.
    pub(crate) fn limit_exceeded(retry_after: Duration) -> Self {
        let retry_after = Some(retry_after);
        Self::new(ErrorCode::LimitExceeded { retry_after }, "Too many requests.")
    }

    /// `M_UNKNOWN` with 400: a request that cannot be carried out, for no reason that has a code.
    pub(crate) fn bad_request(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Unknown, message).with_status(StatusCode::BAD_REQUEST)
    }

    /// `M_UNKNOWN` with 500: a fault of the server; the cause goes to its log.
    pub fn internal(cause: impl Into<Cause>) -> Self {
        Self::new(ErrorCode::Unknown, "The server failed to do this.").with_cause(cause)
    }

    /// `M_UNKNOWN` with 503: not now, for example while the disk is full.
    pub fn unavailable(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Unknown, message).with_status(StatusCode::SERVICE_UNAVAILABLE)
    }

    /// `M_UNRECOGNIZED` with 404: no endpoint has this path.
    pub(crate) fn no_such_endpoint() -> Self {
        Self::new(ErrorCode::Unrecognized, "There is no such endpoint.")
    }

    /// `M_UNRECOGNIZED` with 404: this program was built without the endpoint.
    pub(crate) fn left_out(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorCode::Unrecognized, message)
    }

    /// `M_UNRECOGNIZED` with 405: the path is an endpoint's, the method is not.
    pub(crate) fn no_such_method() -> Self {
        Self::new(ErrorCode::Unrecognized, "The endpoint does not have this method.")
            .with_status(StatusCode::METHOD_NOT_ALLOWED)
    }

    /// 401 with what the client must do to authenticate the request.
    pub(crate) fn auth_required(auth: AuthRequired) -> Self {
        let (code, message) = auth.failure.clone().unwrap_or((
            ErrorCode::Unauthorized,
            Cow::Borrowed("The request needs more authentication."),
        ));
        let mut error = Self::new(code, message).with_status(StatusCode::UNAUTHORIZED);
        error.0.auth = Some(auth);
        error
    }

    pub(crate) fn code(&self) -> &ErrorCode {
        &self.0.code
    }

    /// The code as the client gets it.
    pub(crate) fn errcode(&self) -> &str {
        self.0.foreign.as_deref().unwrap_or(self.0.code.as_str())
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.0.status
    }

    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// The cause, for the log only.
    pub(crate) fn cause(&self) -> Option<&(dyn Error + Send + Sync)> {
        self.0.cause.as_deref()
    }

    /// The headers beside those of all responses.
    pub(crate) fn headers(&self) -> &HeaderMap {
        &self.0.headers
    }

    /// How it is shown, if not as JSON.
    pub(crate) fn refusal(&self) -> Option<ErrorRenderer> {
        self.0.refusal
    }

    /// When to try again, if the error says so.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self.0.code {
            ErrorCode::LimitExceeded { retry_after } => retry_after,
            ErrorCode::MaxDelayedEventsExceeded { retry_after } => Some(retry_after),
            _ => None,
        }
    }

    pub fn body(&self) -> Value {
        let mut body = Map::new();
        if let Some(auth) = &self.0.auth {
            body.insert("flows".to_owned(), json!(auth.flows));
            body.insert("completed".to_owned(), json!(auth.completed));
            body.insert("params".to_owned(), Value::Object(auth.params.clone()));
            if let Some(session) = &auth.session {
                body.insert("session".to_owned(), json!(session));
            }
            // A first 401 is not an error: clients show the sentence when there is a code.
            if auth.failure.is_none() {
                return Value::Object(body);
            }
        }
        body.insert("errcode".to_owned(), json!(self.errcode()));
        body.insert("error".to_owned(), json!(self.0.message));
        self.0.code.add_fields(&mut body);
        Value::Object(body)
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.errcode(), self.0.message)
    }
}

impl fmt::Debug for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiError")
            .field("code", &self.0.code)
            .field("status", &self.0.status)
            .field("message", &self.0.message)
            .field("cause", &self.0.cause)
            .finish_non_exhaustive()
    }
}

impl Error for ApiError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_add_their_fields() {
        let limited = ApiError::limit_exceeded(Duration::from_millis(1500));
        assert_eq!(limited.status(), 429);
        assert_eq!(limited.body()["retry_after_ms"], 1500);
        assert_eq!(ApiError::unknown_token(true).body()["soft_logout"], true);
        let code = ErrorCode::IncompatibleRoomVersion { room_version: RoomVersionId::V11 };
        assert_eq!(ApiError::new(code, "no").body()["room_version"], "11");
    }

    #[test]
    fn a_first_demand_for_authentication_carries_no_error() {
        let mut flow = AuthFlow::default();
        flow.stages.push(AuthType::Dummy);
        let mut auth =
            AuthRequired { flows: vec![flow], session: Some("s".into()), ..Default::default() };
        let body = ApiError::auth_required(auth.clone()).body();
        assert_eq!(body["flows"][0]["stages"][0], "m.login.dummy");
        assert_eq!(body["session"], "s");
        assert!(body.get("errcode").is_none());

        auth.failure = Some((ErrorCode::Forbidden, "Wrong password.".into()));
        let error = ApiError::auth_required(auth);
        assert_eq!(error.status(), 401);
        assert_eq!(error.body()["errcode"], "M_FORBIDDEN");
        assert_eq!(error.body()["flows"][0]["stages"][0], "m.login.dummy");
    }

    #[test]
    fn the_cause_is_not_told_to_the_client() {
        let error = ApiError::internal("disk is on fire");
        assert!(!error.body().to_string().contains("fire"));
        assert_eq!(error.cause().map(ToString::to_string).as_deref(), Some("disk is on fire"));
    }
}
