//! Requests that the operator's checks see before they are answered.

use std::{borrow::Cow, net::IpAddr};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Uri};

use super::{
    ApiError, App, CallerIdentity,
    table::{AnswerFuture, Route},
};
use logcabin_config::HookPoint;

/// A request that waits for the checks.
pub struct Screened<'a> {
    pub point: HookPoint,
    pub(crate) who: &'a CallerIdentity,
    pub(crate) client: IpAddr,
    pub(crate) method: &'a Method,
    /// The path, with the names of its parameters in braces, and the parameters.
    pub(crate) path: &'static str,
    pub(crate) parameters: &'a [Cow<'a, str>],
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    /// Empty if it is read as it arrives.
    pub(crate) body: &'a Bytes,
}

/// Begins to check a request, if its endpoint is one whose requests are checked.
pub(super) fn begin<'a, A: App>(
    app: &A,
    route: &Route<A>,
    (who, client, method, uri, headers): (
        &'a CallerIdentity,
        IpAddr,
        &'a Method,
        &'a Uri,
        &'a HeaderMap,
    ),
    parameters: &'a [Cow<'a, str>],
    body: &'a Bytes,
) -> Option<BoxFuture<'static, Result<(), ApiError>>> {
    let (point, path) = (route.screened?, route.path);
    app.screen(&Screened { point, who, client, method, path, parameters, uri, headers, body })
}

/// The answer to a request, which begins once the checks have admitted it.
pub(super) fn after(
    screening: Option<BoxFuture<'static, Result<(), ApiError>>>,
    answer: Result<AnswerFuture, ApiError>,
) -> Result<AnswerFuture, ApiError> {
    let Some(screening) = screening else { return answer };
    let answer = answer?;
    Ok(Box::pin(async move {
        screening.await?;
        answer.await
    }))
}
