//! What clients are told when another homeserver does not do what it was asked for. A refusal is
//! passed through if the client can use it (server-server API, "Joining Rooms": "The error should
//! be passed through to clients"). A code about a session would be taken for one of the client's
//! own, and parameters that this server chose are no fault of the client's.

use crate::http::{ApiError, ErrorCode};
use logcabin_outside::federation::{Refused, Unreachable};
use logcabin_service::federation::EnterError;

/// Whose homeserver was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) enum AskedServer {
    OfRoom,
    /// That of a user who is invited.
    OfInvited,
    /// That of a user who invited an address.
    OfInviter,
    /// One that has what it was asked for.
    Other,
}

impl AskedServer {
    const fn as_str(self) -> &'static str {
        match self {
            Self::OfRoom => "The room's server",
            Self::OfInvited => "The invited user's server",
            Self::OfInviter => "The inviter's server",
            Self::Other => "The other server",
        }
    }

    /// What a client is told when such a server refused.
    pub(in crate::api) fn refused(self, refused: Refused) -> ApiError {
        let Refused { status, errcode, error, room_version, retry_after } = refused;
        let who = self.as_str();
        let cause = format!("status {status}, {errcode}: {error}");
        let said = if error.is_empty() {
            format!("{who} refuses.")
        } else {
            format!("{who} refuses: {error}")
        };
        let (code, said) = match (&*errcode, status) {
            (_, ..=399 | 500..) => {
                (ErrorCode::ConnectionFailed, format!("{who} cannot do this now."))
            }
            // The parameters of a membership are this server's.
            ("M_MISSING_PARAM" | "M_INVALID_PARAM", _) if self != Self::Other => {
                (ErrorCode::ConnectionFailed, format!("{who} does not understand this one."))
            }
            // An invited user's server lacks the version, or a server in the room says that this
            // one does.
            ("M_INCOMPATIBLE_ROOM_VERSION" | "M_UNSUPPORTED_ROOM_VERSION", _) => {
                match room_version.filter(|_| self == Self::OfRoom) {
                    Some(room_version) => return incompatible(room_version).with_cause(cause),
                    None => (
                        ErrorCode::UnsupportedRoomVersion,
                        format!("{who} does not support the version of this room."),
                    ),
                }
            }
            ("M_UNABLE_TO_AUTHORISE_JOIN" | "M_UNABLE_TO_GRANT_JOIN", _) => (
                ErrorCode::UnableToGrantJoin,
                "The room's servers cannot authorise this join.".to_owned(),
            ),
            ("M_INVITE_BLOCKED", _) => (ErrorCode::InviteBlocked, said),
            ("M_FORBIDDEN", _) => (ErrorCode::Forbidden, said),
            ("M_LIMIT_EXCEEDED", _) | (_, 429) => (
                ErrorCode::LimitExceeded { retry_after },
                format!("{who} gets too many requests. Try again later."),
            ),
            ("M_NOT_FOUND", _) | (_, 404) => {
                (ErrorCode::NotFound, format!("{who} does not have it."))
            }
            (_, 401 | 403) => (ErrorCode::Forbidden, format!("{who} refuses.")),
            ("M_TOO_LARGE", _) | (_, 413) => (ErrorCode::TooLarge, said),
            ("M_BAD_STATE", _) => (ErrorCode::BadState, said),
            ("M_INVALID_PARAM", _) => (ErrorCode::InvalidParam, said),
            // Not a homeserver's answer, but that of a proxy, say.
            ("", _) => (ErrorCode::ConnectionFailed, format!("{who} cannot do this now.")),
            _ => return ApiError::bad_request(said).with_cause(cause),
        };
        ApiError::new(code, said).with_cause(cause)
    }

    /// What a client is told when such a server gave no answer.
    pub(in crate::api) fn unreachable(self, error: Unreachable) -> ApiError {
        let who = self.as_str();
        let (code, said) = match &error {
            Unreachable::Denied => {
                (ErrorCode::Forbidden, "This server does not federate with that one.".to_owned())
            }
            Unreachable::Status(status) => {
                return self.refused(Refused { status: *status, ..Refused::default() });
            }
            Unreachable::Late => (ErrorCode::ConnectionTimeout, format!("{who} does not answer.")),
            Unreachable::Unexpected(_) | Unreachable::TooLarge(_) => {
                (ErrorCode::ConnectionFailed, format!("{who} does not answer as it should."))
            }
            _ => (ErrorCode::ConnectionFailed, format!("{who} is unreachable.")),
        };
        ApiError::new(code, said).with_cause(error)
    }

    /// What a client is told when a user could not enter a room, or be invited to it, by way of
    /// such a server.
    pub(in crate::api) fn failed(self, error: EnterError) -> ApiError {
        match error {
            EnterError::NotRecorded(error) => error.into(),
            EnterError::Nowhere => {
                ApiError::not_found("No server is known that is in this room.").with_cause(error)
            }
            EnterError::Version(_, room_version) => incompatible(room_version),
            EnterError::Refused { refused, .. } => self.refused(refused),
            EnterError::Unreachable(_, unreachable) => self.unreachable(unreachable),
            EnterError::Wrong(..) => {
                let said = format!("{} does not answer as it should.", self.as_str());
                ApiError::new(ErrorCode::ConnectionFailed, said).with_cause(error)
            }
        }
    }
}

fn incompatible(room_version: ruma::RoomVersionId) -> ApiError {
    let said = format!("This server does not support the version of this room, {room_version}.");
    ApiError::new(ErrorCode::IncompatibleRoomVersion { room_version }, said)
}
