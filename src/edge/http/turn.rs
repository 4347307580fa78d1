//! Decoding large bodies in turn: it takes milliseconds, in which the thread would do nothing else,
//! and the sender may have sent many.

use std::net::IpAddr;

use super::{ApiError, App, CallerIdentity};
use logcabin_base::{background::at_length, limits, long_work::WorkPermit};

/// When a body is checked and decoded.
pub(super) enum Turn {
    /// At once: the body is small.
    None,
    /// As long work. Other homeservers take no turns for it: their bodies are charged to their
    /// accounts before.
    Long(Option<WorkPermit>),
}

impl Turn {
    /// Waits for the turn to decode this body.
    pub(super) async fn of<A: App>(
        app: &A,
        who: &CallerIdentity,
        client: IpAddr,
        body: &[u8],
    ) -> Result<Self, ApiError> {
        if body.len() <= limits::LONG_BODY_BYTES {
            return Ok(Self::None);
        }
        Ok(Self::Long(match who.server {
            Some(_) => None,
            None => app.turn(who, client).await?,
        }))
    }

    pub(super) fn take<T>(self, work: impl FnOnce() -> T) -> T {
        match self {
            Self::None => work(),
            Self::Long(None) => at_length(work),
            Self::Long(Some(permit)) => permit.at_length(work),
        }
    }
}
