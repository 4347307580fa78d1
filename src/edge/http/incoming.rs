//! A body that is read as it arrives, so that a large file takes little memory.

use std::{fmt, time::Duration};

use bytes::{Buf, Bytes};
use futures_util::{Stream, StreamExt as _, stream::BoxStream};
use http::StatusCode;
use tokio::time::Instant;

use super::ApiError;
use logcabin_base::{arrival::Pace, limits};

/// A body on its way.
pub struct Incoming {
    pieces: BoxStream<'static, Result<Bytes, ApiError>>,
    declared: Option<u64>,
    limit: u64,
    read: u64,
    pace: Pace,
    /// How long the server has waited for pieces.
    waited: Duration,
}

impl Incoming {
    /// The body that these pieces make up, of `declared` bytes if the client says, and `limit` at
    /// most, which arrives at least at this pace.
    pub(super) fn new<S, D, E>(body: S, declared: Option<u64>, limit: u64, pace: Pace) -> Self
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let pieces = body.map(|piece| match piece {
            Ok(mut piece) => Ok(piece.copy_to_bytes(piece.remaining())),
            Err(error) => Err(cut_off(error)),
        });
        Self { pieces: Box::pin(pieces), declared, limit, read: 0, pace, waited: Duration::ZERO }
    }

    /// How many bytes it has, if the client says. The client may be wrong.
    ///
    /// # Errors
    /// `M_TOO_LARGE` when that is too many.
    pub(crate) fn declared(&self) -> Result<Option<u64>, ApiError> {
        match self.declared {
            Some(declared) if declared > self.limit => Err(too_large(self.limit)),
            declared => Ok(declared),
        }
    }

    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// When the body becomes too large, ends early, or stalls.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        // Time that the server itself takes, for example to write a piece, does not count against
        // the client.
        let began = Instant::now();
        let left = self.pace.allows(self.read).saturating_sub(self.waited);
        let next = tokio::time::timeout(left, self.pieces.next()).await;
        self.waited += began.elapsed();
        let Some(piece) = next.map_err(|_| late())? else { return Ok(None) };
        let piece = piece?;
        self.read = self.read.saturating_add(piece.len() as u64);
        if self.read > self.limit { Err(too_large(self.limit)) } else { Ok(Some(piece)) }
    }

    /// Reads and discards for a while, so that a client that sends everything before it reads gets
    /// to know why it is refused.
    pub(crate) async fn drain(mut self) {
        let most = limits::OVERSIZED_BODY_DRAIN as u64;
        if self.declared.is_some_and(|declared| declared.saturating_sub(self.read) > most) {
            return;
        }
        let until = self.read.saturating_add(most);
        self.limit = u64::MAX;
        while self.read < until && matches!(self.next().await, Ok(Some(_))) {}
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("declared", &self.declared).finish_non_exhaustive()
    }
}

pub(super) fn too_large(limit: u64) -> ApiError {
    ApiError::too_large(format!("The body is larger than {limit} bytes."))
}

pub(super) fn late() -> ApiError {
    ApiError::bad_request("The body did not arrive in time.")
        .with_status(StatusCode::REQUEST_TIMEOUT)
}

pub(super) fn cut_off(error: impl std::error::Error + Send + Sync + 'static) -> ApiError {
    ApiError::bad_request("The body ended early.").with_cause(error)
}
