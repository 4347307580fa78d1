//! The origin of another homeserver's request (server-server API, "Request Authentication").

use std::{net::IpAddr, time::Instant};

use ruma::OwnedServerName;
use tracing::{debug, warn};

use crate::{
    api::server::Outside,
    http::{ApiError, ErrorCode},
};
use logcabin_base::rate::network_prefix;
use logcabin_config::RateLimits;
use logcabin_outside::{
    exits,
    federation::{KeyError, XMatrix},
};
use logcabin_service::federation::{Amounts, Kind};

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignatureError {
    #[error("The request has no server's signature.")]
    Unsigned,
    #[error("The request is for another server.")]
    Destination,
    #[error("This server does not federate with yours.")]
    Denied,
    #[error("The signature of the request is wrong, or its key is not known.")]
    Signature(#[source] KeyError),
}

impl From<SignatureError> for ApiError {
    fn from(trouble: SignatureError) -> Self {
        let code = match trouble {
            SignatureError::Denied => ErrorCode::Forbidden,
            _ => ErrorCode::Unauthorized,
        };
        Self::new(code, trouble.to_string())
    }
}

/// Refuses a request that claims to be of a homeserver that has overdrawn its account. Whoever
/// sent it, it would be refused later, after the body was read and the signature verified.
pub(crate) fn not_overdrawn(outside: &Outside, headers: &http::HeaderMap) -> Result<(), ApiError> {
    let Some(federation) = &outside.federation else { return Ok(()) };
    let Some(claimed) = XMatrix::of(headers) else { return Ok(()) };
    let wait = federation.accounts.overdrawn(&claimed.origin);
    wait.map_or(Ok(()), |wait| Err(ApiError::limit_exceeded(wait)))
}

/// The homeserver that signed this request.
pub(crate) async fn signed_by(
    outside: &Outside,
    limits: &RateLimits,
    request: &http::Request<&[u8]>,
    client: IpAddr,
) -> Result<OwnedServerName, ApiError> {
    let federation = outside.federation.as_deref().ok_or(SignatureError::Denied)?;
    let signed = XMatrix::of(request.headers()).ok_or(SignatureError::Unsigned)?;
    let own = federation.client.own_name();
    if signed.origin == *own || signed.destination.as_ref().is_some_and(|to| to != own) {
        return Err(SignatureError::Destination.into());
    }
    if !federation.client.permits(&signed.origin) {
        return Err(SignatureError::Denied.into());
    }
    let (address, wrong) = (network_prefix(client), &outside.wrong_signatures);
    if limits.enabled {
        // Before any work, so that few of many simultaneous requests are examined.
        wrong.take(address, Instant::now()).map_err(ApiError::limit_exceeded)?;
    }
    match federation.keys.verify_request(&signed, request).await {
        Ok(()) => {
            wrong.give_back(&address);
            federation.sender.is_back(&signed.origin);
            let amounts = amounts(request.uri().path(), request.body().len());
            let admitted = federation.accounts.admit(&signed.origin, &amounts);
            admitted.map_err(ApiError::limit_exceeded)?;
            // What others get, or is taken from them, is missing at the server that this one was
            // imported from: see the way back after an import.
            exits::leaves("a request of a homeserver").map_err(|error| {
                warn!(%error, "a request of a homeserver cannot be noted");
                ApiError::unavailable("The server cannot take this now.")
            })?;
            Ok(signed.origin)
        }
        Err(error) => {
            debug!(origin = %signed.origin, %error, "a request is refused");
            Err(SignatureError::Signature(error).into())
        }
    }
}

/// What a request takes of its origin's account before it is decoded.
fn amounts(path: &str, body_bytes: usize) -> Amounts {
    let mut amounts = vec![(Kind::Body, body_bytes.div_ceil(1024) as u64), (Kind::Recorded, 0)];
    // What is in a transaction is counted once it is decoded.
    if !path.starts_with("/_matrix/federation/v1/send/") {
        amounts.extend([(Kind::Question, 1), (Kind::Answer, 0)]);
    }
    amounts
}
