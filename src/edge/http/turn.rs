//! Reading large bodies in turn: checking and decoding one takes milliseconds, in which the thread
//! would do nothing else, and its sender may have sent many.

use std::net::IpAddr;

use super::{ApiError, App, CallerIdentity};
use logcabin_base::{background::at_length, limits, long_work::WorkPermit};

/// When a body is read.
pub(super) enum Turn {
    /// At once: the body is small.
    None,
    /// As long work. Other homeservers take no turns for it: bodies of theirs are few at a time.
    Long(Option<WorkPermit>),
}

impl Turn {
    /// Waits for the turn to read this body.
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
            Self::Long(Some(permit)) => at_length(|| permit.work(work)),
        }
    }
}
