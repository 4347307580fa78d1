//! What clients are told of files that cannot be had or stored.

use std::{io, time::Duration};

use http::StatusCode;

use crate::{
    api::outgoing::AskedServer,
    http::{ApiError, ErrorCode},
};
use logcabin_outside::federation::NoFile;
use logcabin_service::media::{FileError, remote::Failure};

/// The delay after which a refused client may retry.
const AGAIN: Duration = Duration::from_secs(1);

impl From<FileError> for ApiError {
    fn from(error: FileError) -> Self {
        let text = error.to_string();
        match error {
            FileError::NotFound
            | FileError::OfAnotherServer
            | FileError::NotPublic
            | FileError::NoRemoteFiles => Self::not_found(text),
            FileError::NotYetUploaded => Self::new(ErrorCode::NotYetUploaded, text),
            FileError::Unwritten(error) if error.kind() == io::ErrorKind::StorageFull => {
                let text = "The server's disk is full: it takes no files until there is room.";
                Self::unavailable(text).with_cause(error)
            }
            FileError::Unwritten(error) => Self::internal(error),
            FileError::NotShared(error) | FileError::NotAtHand(error) => {
                Self::unavailable(text).with_cause(error)
            }
            FileError::Remote(failure) => failure.into(),
            FileError::Propose(error) => error.into(),
            FileError::Lost(error) => Self::internal(error),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NoFile(NoFile::NotFound) => {
                Self::not_found("The other server does not have the file.")
            }
            Failure::NoFile(NoFile::NotYetUploaded) => {
                Self::new(ErrorCode::NotYetUploaded, "The file has not been uploaded yet.")
            }
            Failure::NoFile(NoFile::TooLarge) => {
                let text = "The file is too large to be fetched from the other server.";
                Self::too_large(text).with_status(StatusCode::BAD_GATEWAY)
            }
            Failure::NoFile(NoFile::LimitExceeded) | Failure::Busy => Self::limit_exceeded(AGAIN),
            Failure::NoFile(NoFile::Unreachable(error)) => AskedServer::Other.unreachable(error),
            Failure::Full => Self::unavailable("The server's disk is full: it fetches no files."),
            Failure::Disk(error) => Self::internal(error.to_string()),
        }
    }
}
