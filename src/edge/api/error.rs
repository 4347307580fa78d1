//! The mapping from refusals to error responses.

use http::StatusCode;

use crate::http::{ApiError, ErrorCode};
use logcabin_base::limits;
use logcabin_decide::Refusal;
use logcabin_engine::ProposeError;
use logcabin_log::{AppendError, ReadError};
use logcabin_service::{
    accounts::{identity::IdentityError, names::InvalidName},
    passwords::{Denied, policy::UnfitPassword},
};

/// What somebody is told whose account waits for approval.
pub(in crate::api) fn awaiting_approval() -> ApiError {
    ApiError::new(
        ErrorCode::UserAwaitingApproval,
        "This account awaits the approval of an administrator: you can log in once it is approved.",
    )
}

impl From<ProposeError> for ApiError {
    fn from(error: ProposeError) -> Self {
        match error {
            ProposeError::Refused(refusal) => refusal.into(),
            ProposeError::Log(error) => error.into(),
            ProposeError::Broken => Self::internal("a decision was lost"),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal {
            Refusal::Forbidden(_) | Refusal::AgainstPolicy(_) => Self::forbidden(text),
            Refusal::NotFound(_) => Self::not_found(text),
            Refusal::UserInUse => Self::new(ErrorCode::UserInUse, "This user name is taken."),
            Refusal::TooManyAccounts { admin_contact } => {
                Self::new(ErrorCode::ResourceLimitExceeded { admin_contact }, text)
            }
            Refusal::RoomInUse(_) => Self::new(ErrorCode::RoomInUse, text),
            Refusal::AliasInUse(_) => {
                Self::new(ErrorCode::Unknown, text).with_status(StatusCode::CONFLICT)
            }
            Refusal::InviteBlocked(_) => Self::new(ErrorCode::InviteBlocked, text),
            Refusal::UnableToAuthoriseJoin => Self::new(ErrorCode::UnableToAuthoriseJoin, text),
            Refusal::UnableToGrantJoin => Self::new(ErrorCode::UnableToGrantJoin, text),
            Refusal::BadAlias(_) => Self::new(ErrorCode::BadAlias, text),
            Refusal::BadRelation(_) => Self::bad_request(text),
            Refusal::DuplicateAnnotation => Self::new(ErrorCode::DuplicateAnnotation, text),
            Refusal::InvalidRoomState(_) => Self::new(ErrorCode::InvalidRoomState, text),
            Refusal::UnsupportedRoomVersion(_) => {
                Self::new(ErrorCode::UnsupportedRoomVersion, text)
            }
            Refusal::TooLarge(_) | Refusal::OverQuota(_) => Self::too_large(text),
            Refusal::BadJson(_) => Self::bad_json(text),
            Refusal::BadState(_) => {
                Self::new(ErrorCode::BadState, text).with_status(StatusCode::FORBIDDEN)
            }
            Refusal::StillInRoom => Self::bad_request("Leave the room before you forget it."),
            Refusal::InvalidParam(_) => Self::invalid_param(text),
            Refusal::TooManyDelayed { wait_ms } => {
                let retry_after = std::time::Duration::from_millis(wait_ms.max(1));
                Self::new(ErrorCode::MaxDelayedEventsExceeded { retry_after }, text)
            }
            Refusal::WrongBackup { current } => {
                let current_version = current.to_string();
                Self::new(ErrorCode::WrongRoomKeysVersion { current_version }, text)
            }
            Refusal::ThreepidInUse => Self::new(ErrorCode::ThreepidInUse, text),
            Refusal::ThreepidNotFound => Self::new(ErrorCode::ThreepidNotFound, text),
            Refusal::ThreepidAuthFailed => Self::new(ErrorCode::ThreepidAuthFailed, text),
            Refusal::TooManyMessages { wait_ms } => {
                Self::limit_exceeded(std::time::Duration::from_millis(wait_ms.max(1)))
            }
            Refusal::UserDeactivated => Self::new(ErrorCode::UserDeactivated, text),
            Refusal::UserLocked => Self::new(ErrorCode::UserLocked, text),
            Refusal::UserSuspended => Self::new(ErrorCode::UserSuspended, text),
            Refusal::AwaitsApproval => awaiting_approval(),
            Refusal::TooManyWaiting { admin_contact } => {
                Self::new(ErrorCode::ResourceLimitExceeded { admin_contact }, text)
            }
            Refusal::GuestAccessForbidden => Self::new(ErrorCode::GuestAccessForbidden, text),
            // Registration asks for another token instead.
            Refusal::RegistrationToken => Self::new(ErrorCode::Unauthorized, text),
            Refusal::TooManyUnused { wait_ms } => {
                let retry_after = Some(std::time::Duration::from_millis(wait_ms.max(1)));
                Self::new(ErrorCode::LimitExceeded { retry_after }, text)
            }
            Refusal::CannotLeaveServerNoticeRoom => {
                Self::new(ErrorCode::CannotLeaveServerNoticeRoom, text)
            }
            Refusal::CannotOverwriteMedia => Self::new(ErrorCode::CannotOverwriteMedia, text),
            Refusal::UnknownToken => Self::unknown_token(false),
            Refusal::SignatureMissing => Self::unavailable(text),
            // In its own words (server-server API, "Validating policy server signatures").
            Refusal::NotRecommended { status, errcode, error } => {
                let status = StatusCode::from_u16(status).ok();
                let status = status.filter(|status| {
                    status.is_client_error() && *status != StatusCode::UNAUTHORIZED
                });
                let error: String = error.chars().take(limits::POLICY_REASON).collect();
                let is_of_session = matches!(&*errcode, "M_UNKNOWN_TOKEN" | "M_MISSING_TOKEN");
                let errcode = if is_of_session { "M_FORBIDDEN".to_owned() } else { errcode };
                Self::handed_on(status.unwrap_or(StatusCode::FORBIDDEN), errcode, error)
            }
            Refusal::PolicyServer(_) => Self::new(
                ErrorCode::ConnectionFailed,
                "This room's policy server has to agree, and cannot be asked now.",
            )
            .with_cause(text),
            Refusal::Broken => Self::internal("a decision panicked"),
            Refusal::Read(error) => error.into(),
        }
    }
}

impl From<AppendError> for ApiError {
    fn from(error: AppendError) -> Self {
        match error {
            AppendError::TooLarge(reason) => Self::too_large(reason),
            AppendError::Full(_) => Self::unavailable(
                "The server's disk is full: it takes no writes until there is room.",
            )
            .with_cause(error),
            AppendError::Failed(_) => {
                Self::unavailable("The server cannot write; what is there can still be read.")
                    .with_cause(error)
            }
            AppendError::Unavailable(_) => {
                Self::unavailable("The servers of this cluster do not answer; try again.")
                    .with_cause(error)
            }
            AppendError::Closed => Self::unavailable("The server is shutting down."),
            AppendError::Conflict { .. } => {
                Self::unavailable("Too many writes at once; try again.").with_cause(error)
            }
            AppendError::Erase(_) | AppendError::Foreign(_) => Self::internal(error),
        }
    }
}

impl From<Denied> for ApiError {
    fn from(denied: Denied) -> Self {
        match denied {
            Denied::TooOften(wait) | Denied::Busy(wait) => Self::limit_exceeded(wait),
            Denied::Closed => Self::unavailable("The server is shutting down."),
            Denied::NoPepper => Self::unavailable("This password cannot be checked now."),
        }
    }
}

impl From<UnfitPassword> for ApiError {
    fn from(unfit: UnfitPassword) -> Self {
        match unfit {
            UnfitPassword::Weak(why) => Self::new(ErrorCode::WeakPassword, why),
            UnfitPassword::TooLong => Self::invalid_param("This password is too long."),
        }
    }
}

impl From<InvalidName> for ApiError {
    fn from(error: InvalidName) -> Self {
        let text = error.to_string();
        match error {
            InvalidName::UserCharacters | InvalidName::User | InvalidName::UserTooLong => {
                Self::new(ErrorCode::InvalidUsername, text)
            }
            InvalidName::DeviceLength | InvalidName::DeviceControl => Self::invalid_param(text),
            InvalidName::DisplayNameTooLong => Self::too_large(text),
        }
    }
}

impl From<IdentityError> for ApiError {
    fn from(error: IdentityError) -> Self {
        let text = error.to_string();
        let unusable = |text, cause: String| {
            Self::new(ErrorCode::Unknown, text)
                .with_status(StatusCode::BAD_GATEWAY)
                .with_cause(cause)
        };
        match error {
            IdentityError::NotTrusted => Self::new(ErrorCode::ServerNotTrusted, text),
            IdentityError::Ids => Self::invalid_param(text),
            IdentityError::Unreachable(cause) => unusable(text, cause),
            IdentityError::Refused { status, errcode, message } => {
                Self::handed_on(status, errcode, message)
            }
            IdentityError::Unusable(status) => unusable(text, format!("status {status}")),
            IdentityError::Propose(error) => error.into(),
        }
    }
}

impl From<ReadError> for ApiError {
    fn from(error: ReadError) -> Self {
        Self::internal(error)
    }
}
