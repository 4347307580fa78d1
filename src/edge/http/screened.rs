//! Requests that the operator's checks see before they are answered.

use std::{borrow::Cow, net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Uri};

use super::{
    ApiError, App, CallerIdentity, Instead, Reply, Shadowable,
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

/// What the checks say of a request that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    Admitted,
    /// It is only to seem to be done.
    Shadowed,
}

/// A request that the checks look at.
pub(super) struct Screening {
    verdict: BoxFuture<'static, Result<Admission, ApiError>>,
    /// The answer to a request that only seems to be done, if that is possible.
    seeming: Box<dyn FnOnce() -> Option<Reply> + Send>,
}

/// Begins to check a request, if its endpoint is one whose requests are checked.
pub(super) fn begin<'a, A: App>(
    app: &Arc<A>,
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
) -> Option<Screening> {
    let (point, path) = (route.screened?, route.path);
    let asked = Screened { point, who, client, method, path, parameters, uri, headers, body };
    let verdict = app.screen(&asked)?;
    let (app, how, session) = (Arc::clone(app), route.shadow, who.session.clone());
    let (uri, body) = (uri.clone(), body.clone());
    let parameters: Vec<_> = parameters.iter().map(|of| of.clone().into_owned().into()).collect();
    let seeming = Box::new(move || {
        let (session, args) = (session.as_ref()?, &parameters[..]);
        match app.instead(&Shadowable { how, session, uri: &uri, args, body: &body })? {
            Instead::Answer(answer) => Some(answer),
            Instead::Body(_) => None,
        }
    });
    Some(Screening { verdict, seeming })
}

/// The answer to a request, which begins once the checks have admitted it.
pub(super) fn after(
    screening: Option<Screening>,
    answer: Result<AnswerFuture, ApiError>,
) -> Result<AnswerFuture, ApiError> {
    let Some(Screening { verdict, seeming }) = screening else { return answer };
    let answer = answer?;
    Ok(Box::pin(async move {
        match verdict.await? {
            Admission::Admitted => answer.await,
            Admission::Shadowed => {
                seeming().ok_or_else(|| ApiError::forbidden("This server does not allow this."))
            }
        }
    }))
}
