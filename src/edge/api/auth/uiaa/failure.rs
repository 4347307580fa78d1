//! What clients are told of a stage, or of what remains.

use ruma::api::client::uiaa::AuthFlow;

use crate::http::{ApiError, AuthRequired, ErrorCode};
use logcabin_service::uiaa::{self, Denied, NoSuchSession, Remaining, Unfinished};

/// Why a stage was not completed.
pub(crate) type Failure = uiaa::Failure<ApiError>;

impl From<NoSuchSession> for ApiError {
    fn from(gone: NoSuchSession) -> Self {
        Self::not_found(gone.to_string())
    }
}

impl From<Unfinished<Self>> for ApiError {
    fn from(unfinished: Unfinished<Self>) -> Self {
        match unfinished {
            Unfinished::Remaining(remaining) => remaining.into(),
            Unfinished::Failed(error) => error,
        }
    }
}

impl From<Remaining> for ApiError {
    fn from(remaining: Remaining) -> Self {
        let Remaining { flows, completed, params, session, denied } = remaining;
        Self::auth_required(AuthRequired {
            flows: flows.into_iter().map(AuthFlow::new).collect(),
            completed,
            params,
            session: Some(session),
            failure: denied.map(|denied| (code(denied), denied.to_string().into())),
        })
    }
}

const fn code(denied: Denied) -> ErrorCode {
    match denied {
        Denied::NotAskedFor | Denied::NotPossible => ErrorCode::Unrecognized,
        Denied::OthersFirst | Denied::NoSession | Denied::Served | Denied::RegistrationToken => {
            ErrorCode::Unauthorized
        }
        Denied::Password | Denied::OtherUser => ErrorCode::Forbidden,
        Denied::Unconfirmed | Denied::OtherAddress => ErrorCode::ThreepidAuthFailed,
        Denied::NoCaptcha => ErrorCode::CaptchaNeeded,
        Denied::WrongCaptcha => ErrorCode::CaptchaInvalid,
        Denied::NoAnswer => ErrorCode::InvalidParam,
    }
}
