//! Administration from the same machine: the log of a running server to read, and what its operator
//! does with accounts.
//!
//! The store lets one process in at a time, so a server that runs hands out its records itself, and
//! does what is asked of it, over a Unix socket in its data directory (mode 0600, in a directory of
//! mode 0700). What may be asked is the list [`Act`]; it is carried out in one place ([`office`]),
//! by the running server or, while there is none, by the command line itself. The protocol is in
//! [`socket`](crate::ops::socket).

mod acts;
mod effect;
mod erasure;
mod media;
mod notices;
pub(crate) mod office;
mod reports;
mod rooms;
mod serve;
pub(crate) mod shutdown;
pub(crate) mod users;

use std::io;

pub use acts::{
    Act, Done, ExternalId, Filter, MediaOf, MediaSummary, MediaUsage, NewRoom, ReportDetails,
    ReportSummary, RoomDetails, RoomOrder, RoomSummary, RoomsWanted, ShutdownStatus, TokenSummary,
    UserDetails, UserDevice, UserSummary, UserThreepid,
};
pub use erasure::{Receipt, ReceiptRow, RoomPurged, UserErased};
pub(crate) use serve::serve;
pub use serve::serve_until;

use crate::{
    log::ReadError,
    ops::socket::{BadRequest, Client, SocketError},
    record::codec::CodecError,
};

/// Why a connection ends before the client has hung up.
#[derive(Debug, thiserror::Error)]
enum Failure {
    /// The client is told.
    #[error("{0}")]
    Refused(String),
    /// The client does not listen.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<CodecError> for Failure {
    fn from(error: CodecError) -> Self {
        Self::Refused(error.to_string())
    }
}

impl From<BadRequest> for Failure {
    fn from(error: BadRequest) -> Self {
        Self::Refused(error.to_string())
    }
}

impl Act {
    /// Has a running server do this.
    ///
    /// # Errors
    /// When the server refuses: then it was not done. When the connection fails: then it may have
    /// been.
    pub fn ask(&self, server: &mut Client) -> Result<Done, SocketError> {
        let json = serde_json::to_string(self)
            .map_err(|_| SocketError::Protocol("an act cannot be written"))?;
        serde_json::from_slice(&server.act(json)?)
            .map_err(|_| SocketError::Protocol("it does not say what was done"))
    }

    fn read(json: &str) -> Result<Self, Failure> {
        // Not the line itself: it may hold a password.
        serde_json::from_str(json)
            .map_err(|error| Failure::Refused(format!("this is not an act: {error}")))
    }
}
