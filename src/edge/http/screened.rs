//! Requests that the operator's checks see before they are answered.

use std::{borrow::Cow, net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Uri};

use super::{
    ApiError, App, CallerIdentity, Instead, Reply, Shadow, Shadowable,
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
    /// What becomes of the request if it is only to seem to be done.
    seeming: Box<dyn FnOnce() -> Seeming + Send>,
}

enum Seeming {
    Answered(Reply),
    /// It is going to be refused anyway.
    Usual,
    /// What is asked for cannot only seem to be done.
    Refused,
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
        let Some(session) = session.as_ref() else { return Seeming::Refused };
        let args = &parameters[..];
        let instead = app.instead(&Shadowable { how, session, uri: &uri, args, body: &body });
        match (how, instead) {
            (_, Some(Instead::Answer(answer))) => Seeming::Answered(answer),
            (Shadow::Done | Shadow::Alone | Shadow::Silently, _) | (_, Some(_)) => Seeming::Refused,
            (_, None) => Seeming::Usual,
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
            Admission::Shadowed => match seeming() {
                Seeming::Answered(reply) => Ok(reply),
                Seeming::Usual => answer.await,
                Seeming::Refused => Err(ApiError::forbidden("This server does not allow this.")),
            },
        }
    }))
}
