//! The table of endpoints: from a method and a path to the handler, in one look-up.
//!
//! Paths come from ruma's metadata, all versions of them. Matching is done on the raw path, and the
//! segments are percent-decoded afterwards, so that an encoded slash stays within its segment.
//!
//! What ruma's metadata lacks is added at registration: the configured prefixes in place of
//! `/_matrix`, `/.well-known/svc` beside `/.well-known/matrix`, the path of an empty state key, and
//! one trailing slash more or less.

use std::{borrow::Cow, collections::BTreeMap, net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Request, Uri};
use matchit::Router;
use ruma::api::{IncomingRequest, path_builder::PathBuilder as _};
use thiserror::Error;

use super::{
    Access, ApiError, AsOf, Class, Cx, Gate, Incoming, OpenTo, Refusal, Reply, Session, Who,
    decode::{self, Checks},
    objects::{self, Place},
};
use crate::base::{limits, shutdown::Shutdown};

/// To whom the endpoint of a method and a path is open: the path as it was registered, with the
/// names of its parameters.
pub(crate) type Rights = fn(&Method, &str) -> OpenTo;

/// The paths of one endpoint, the newest last: that is the one by which it is known.
pub(crate) struct Paths(Vec<&'static str>);

impl From<&'static str> for Paths {
    fn from(path: &'static str) -> Self {
        Self(vec![path])
    }
}

impl<const N: usize> From<[&'static str; N]> for Paths {
    fn from(paths: [&'static str; N]) -> Self {
        Self(paths.into())
    }
}

/// The endpoints, while they are being registered.
pub(crate) struct Table<A> {
    prefixes: Vec<String>,
    rights: Rights,
    paths: BTreeMap<String, Methods<A>>,
    problem: Option<TableError>,
}

/// Two endpoints cannot be told apart, or a path cannot be matched.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum TableError {
    /// Two handlers for the same requests.
    #[error("{method} {path} is registered twice")]
    Twice {
        /// The method of both.
        method: Method,
        /// The path of the second.
        path: String,
    },
    /// A path that the router does not take.
    #[error("{path} cannot be routed: {reason}")]
    Path {
        /// The path.
        path: String,
        /// Why not.
        reason: String,
    },
}

/// One method of one path that is served.
#[derive(Debug)]
pub(crate) struct Served {
    /// The method.
    pub(crate) method: Method,
    /// The path, with the names of its parameters in braces.
    pub(crate) path: String,
    /// Whether an access token is needed.
    pub(crate) access: Access,
    /// With which others it is limited in rate; `None` if it is not.
    pub(crate) class: Option<Class>,
    /// The path that it was registered with.
    #[cfg(test)]
    pub(crate) known_as: &'static str,
}

/// A request as a raw handler gets it.
pub(crate) struct RawRequest {
    /// The address with its query.
    pub(crate) uri: Uri,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The parameters of the path, decoded, in order.
    pub(crate) args: Vec<String>,
}

/// What an endpoint's body is, which decides how much of it is read and how it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// Not looked at.
    None,
    /// One JSON object, of at most the configured size.
    Json,
    /// Any bytes, of at most the configured size.
    Bytes,
    /// Any bytes, of at most this many.
    Short(usize),
    /// A file of at most this many bytes, which the handler reads as it arrives.
    File(u64),
}

/// A request on its way to a handler.
pub(super) struct Call<A> {
    pub(super) app: Arc<A>,
    pub(super) who: Who,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The body that is read as it arrives, of endpoints that take one.
    pub(super) incoming: Option<Incoming>,
    pub(super) request_id: Arc<str>,
    pub(super) client: IpAddr,
    pub(super) shutdown: Shutdown,
}

pub(super) type Answer = BoxFuture<'static, Result<Reply, ApiError>>;
/// Every handler has this one shape, so that the router knows nothing of request types. Decoding
/// happens before the future is made: the future holds the typed request alone.
type Handler<A> = dyn Fn(Call<A>, &[Cow<'_, str>]) -> Result<Answer, ApiError> + Send + Sync;

/// One endpoint.
pub(super) struct Route<A> {
    /// The path it was registered with: a name for logs that holds nothing of the request.
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) open_to: OpenTo,
    /// With which others it is limited in rate; `None` if it is not.
    pub(super) class: Option<Class>,
    pub(super) body: Body,
    /// How it shows that a request failed, if not as JSON.
    pub(super) refusal: Option<Refusal>,
    pub(super) handler: Box<Handler<A>>,
}

/// What an endpoint without a type of ruma's is like.
struct Untyped {
    access: Access,
    body: Body,
    /// Whether its requests are counted against the caller's rate limit, whatever [`Class::of`] has
    /// for it.
    limited: bool,
    refusal: Option<Refusal>,
}

/// The endpoints of one path. There are few: a list is looked through faster than a map.
type Methods<A> = Vec<(Method, Arc<Route<A>>)>;

impl<A: Send + Sync + 'static> Table<A> {
    /// An empty table whose endpoints will be served under each of `prefixes`, for example
    /// `/_matrix`.
    /// `rights` says to whom each is open.
    pub(crate) fn new<P: ToString>(prefixes: &[P], rights: Rights) -> Self {
        Self {
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            rights,
            paths: BTreeMap::new(),
            problem: None,
        }
    }

    /// Registers `handler` for the requests that ruma's metadata of `R` describes.
    #[must_use]
    pub(crate) fn on<R, H, F>(self, handler: H) -> Self
    where
        R: IncomingRequest + Send + 'static,
        R::Authentication: Gate,
        H: Fn(Cx<A, <R::Authentication as Gate>::Caller>, R) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<R::OutgoingResponse, ApiError>> + Send + 'static,
    {
        self.typed::<R, R::Authentication>(
            unless_get(&R::METHOD, Body::Json),
            move |cx, request| {
                let answer = handler(cx, request);
                Box::pin(async move { Reply::typed(answer.await?) })
            },
        )
    }

    /// As [`Table::on`], for a handler that gives the response as JSON text: for hot paths whose
    /// responses are put together from parts that are JSON already.
    #[must_use]
    pub(crate) fn on_json<R, H, F>(self, handler: H) -> Self
    where
        R: IncomingRequest + Send + 'static,
        R::Authentication: Gate,
        H: Fn(Cx<A, <R::Authentication as Gate>::Caller>, R) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, ApiError>> + Send + 'static,
    {
        self.typed::<R, R::Authentication>(
            unless_get(&R::METHOD, Body::Json),
            move |cx, request| {
                let answer = handler(cx, request);
                Box::pin(async move { answer.await.map(Reply::json) })
            },
        )
    }

    /// As [`Table::on_json`], for what anybody may read, and those who administer the server as of
    /// an earlier moment: with `at` in the query the handler is told who asks.
    #[must_use]
    pub(crate) fn on_json_as_of<R, H, F>(self, handler: H) -> Self
    where
        R: IncomingRequest + Send + 'static,
        H: Fn(Cx<A, Option<Session>>, R) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Bytes, ApiError>> + Send + 'static,
    {
        self.typed::<R, AsOf>(Body::None, move |cx, request| {
            let answer = handler(cx, request);
            Box::pin(async move { answer.await.map(Reply::json) })
        })
    }

    /// As [`Table::on_json`], for an endpoint whose body is a file of at most `max_bytes`: the
    /// handler reads it as it arrives, and finds none in the typed request.
    #[must_use]
    pub(crate) fn on_upload<R, H, F>(self, max_bytes: u64, handler: H) -> Self
    where
        R: IncomingRequest + Send + 'static,
        R::Authentication: Gate,
        H: Fn(Cx<A, <R::Authentication as Gate>::Caller>, R, Incoming) -> F
            + Copy
            + Send
            + Sync
            + 'static,
        F: Future<Output = Result<Bytes, ApiError>> + Send + 'static,
    {
        self.of::<R, R::Authentication>(Body::File(max_bytes), move |mut call, args, checks| {
            let incoming = call.incoming.take();
            let incoming = incoming.ok_or_else(|| ApiError::internal("a body was lost"))?;
            let (cx, request) = call.decode::<R, R::Authentication>(args, checks)?;
            let answer = handler(cx, request, incoming);
            Ok(Box::pin(async move { answer.await.map(Reply::json) }))
        })
    }

    /// As [`Table::on`], for an endpoint whose response is a file: its handler is given the headers
    /// of the request, too, and gives a reply.
    #[must_use]
    pub(crate) fn on_download<R, H, F>(self, handler: H) -> Self
    where
        R: IncomingRequest + Send + 'static,
        R::Authentication: Gate,
        H: Fn(Cx<A, <R::Authentication as Gate>::Caller>, R, HeaderMap) -> F
            + Copy
            + Send
            + Sync
            + 'static,
        F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
    {
        self.of::<R, R::Authentication>(Body::None, move |call, args, checks| {
            let headers = call.headers.clone();
            let (cx, request) = call.decode::<R, R::Authentication>(args, checks)?;
            Ok(Box::pin(handler(cx, request, headers)))
        })
    }

    /// Registers a handler for requests that are not of the Matrix API, or whose responses are not
    /// JSON: health, inspection. A path under `/_matrix` is served under each prefix.
    ///
    /// The body is any bytes of at most the configured size, in [`Cx::body`].
    #[must_use]
    pub(crate) fn raw<H, F>(
        self,
        method: Method,
        paths: impl Into<Paths>,
        access: Access,
        handler: H,
    ) -> Self
    where
        H: Fn(Cx<A, Option<Session>>, RawRequest) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
    {
        let body = unless_get(&method, Body::Bytes);
        let kind = Untyped { access, body, limited: false, refusal: None };
        self.untyped(&method, paths.into(), kind, handler)
    }

    /// As [`Table::raw`], for endpoints of the Matrix API that ruma has no request type for: the
    /// body is one JSON object, and the requests are counted against the caller's rate limit.
    #[must_use]
    pub(crate) fn raw_json<H, F>(
        self,
        method: Method,
        paths: impl Into<Paths>,
        access: Access,
        handler: H,
    ) -> Self
    where
        H: Fn(Cx<A, Option<Session>>, RawRequest) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
    {
        let body = unless_get(&method, Body::Json);
        let kind = Untyped { access, body, limited: true, refusal: None };
        self.untyped(&method, paths.into(), kind, handler)
    }

    /// As [`Table::raw`], for a page that anyone's browser may show: it shows as `refusal` makes it
    /// look that a request failed.
    #[must_use]
    pub(crate) fn page<H, F>(self, paths: impl Into<Paths>, refusal: Refusal, handler: H) -> Self
    where
        H: Fn(Cx<A, Option<Session>>, RawRequest) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
    {
        let (access, refusal) = (Access::None, Some(refusal));
        let kind = Untyped { access, body: Body::None, limited: false, refusal };
        self.untyped(&Method::GET, paths.into(), kind, handler)
    }

    /// As [`Table::page`], for what the form of a page sends: counted against the caller's rate
    /// limit, as it may hold guesses.
    #[must_use]
    pub(crate) fn form<H, F>(self, paths: impl Into<Paths>, refusal: Refusal, handler: H) -> Self
    where
        H: Fn(Cx<A, Option<Session>>, RawRequest) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
    {
        let (access, refusal) = (Access::None, Some(refusal));
        let kind =
            Untyped { access, body: Body::Short(limits::FORM_BYTES), limited: true, refusal };
        self.untyped(&Method::POST, paths.into(), kind, handler)
    }

    /// As [`Table::raw`], for short texts of anyone: counted against the caller's rate limit.
    #[must_use]
    pub(crate) fn raw_text<H, F>(self, method: Method, paths: impl Into<Paths>, handler: H) -> Self
    where
        H: Fn(Cx<A, Option<Session>>, RawRequest) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
    {
        let body = unless_get(&method, Body::Short(limits::RENDEZVOUS_BYTES));
        let kind = Untyped { access: Access::None, body, limited: true, refusal: None };
        self.untyped(&method, paths.into(), kind, handler)
    }

    /// What is served, in the order of the paths.
    pub(crate) fn list(&self) -> Vec<Served> {
        let served = |path: &str, (method, route): &(Method, Arc<Route<A>>)| Served {
            method: method.clone(),
            path: named(path, route.path),
            access: route.access,
            class: route.class,
            #[cfg(test)]
            known_as: route.path,
        };
        let mut list: Vec<_> = self
            .paths
            .iter()
            .flat_map(|(path, methods)| methods.iter().map(move |method| served(path, method)))
            .collect();
        list.sort_by(|a, b| (&a.path, a.method.as_str()).cmp(&(&b.path, b.method.as_str())));
        list
    }

    /// The finished table.
    pub(super) fn build(self) -> Result<Routes<A>, TableError> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        let mut router = Router::new();
        for (path, methods) in self.paths {
            router
                .insert(path.clone(), methods)
                .map_err(|error| TableError::Path { path, reason: error.to_string() })?;
        }
        Ok(Routes(router))
    }

    fn typed<R, G>(
        self,
        body: Body,
        handler: impl Fn(Cx<A, G::Caller>, R) -> Answer + Send + Sync + 'static,
    ) -> Self
    where
        R: IncomingRequest + Send + 'static,
        G: Gate,
    {
        self.of::<R, G>(body, move |call, args, checks| {
            let (cx, request) = call.decode::<R, G>(args, checks)?;
            Ok(handler(cx, request))
        })
    }

    /// Registers what answers the requests that ruma's metadata of `R` describes.
    fn of<R, G>(
        self,
        body: Body,
        answer: impl Fn(Call<A>, &[Cow<'_, str>], Checks) -> Result<Answer, ApiError>
        + Send
        + Sync
        + 'static,
    ) -> Self
    where
        R: IncomingRequest,
        G: Gate,
    {
        let paths: Vec<&'static str> = R::PATH_BUILDER.all_paths().collect();
        // The newest path comes last: the one to show in logs.
        let path = paths.last().copied().unwrap_or_default();
        let checks = decode::checks(&R::METHOD, path);
        let handler: Box<Handler<A>> = Box::new(move |call, args| answer(call, args, checks));
        let access = G::ACCESS;
        let open_to = (self.rights)(&R::METHOD, path);
        let class = Class::of(&R::METHOD, path, R::RATE_LIMITED);
        let route = Route { path, access, open_to, class, body, refusal: None, handler };
        self.add(&R::METHOD, paths, route)
    }

    /// Registers what answers requests that ruma has no type for.
    fn untyped<H, F>(self, method: &Method, Paths(paths): Paths, kind: Untyped, handler: H) -> Self
    where
        H: Fn(Cx<A, Option<Session>>, RawRequest) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
    {
        let Untyped { access, body, limited, refusal } = kind;
        let path = paths.last().copied().unwrap_or_default();
        let open_to = (self.rights)(method, path);
        let class = Class::of(method, path, limited);
        let places = if body == Body::Json { objects::of(path) } else { &[] };
        let handler = raw_handler(places, handler);
        self.add(method, paths, Route { path, access, open_to, class, body, refusal, handler })
    }

    /// Registers `route` at every path that stands for one of `paths`.
    fn add(
        mut self,
        method: &Method,
        paths: impl IntoIterator<Item = &'static str>,
        route: Route<A>,
    ) -> Self {
        let route = Arc::new(route);
        for path in paths.into_iter().flat_map(|path| aliases(&self.prefixes, path)) {
            let methods = self.paths.entry(path.clone()).or_default();
            match methods.iter().find(|(known, _)| known == method) {
                // Two versions of one endpoint may become the same path.
                Some((_, other)) if Arc::ptr_eq(other, &route) => {}
                Some(_) => {
                    self.problem
                        .get_or_insert_with(|| TableError::Twice { method: method.clone(), path });
                }
                None => methods.push((method.clone(), Arc::clone(&route))),
            }
        }
        self
    }
}

/// The paths under which what ruma calls `path` is served.
fn aliases(prefixes: &[String], path: &str) -> Vec<String> {
    let mut served: Vec<String> = if let Some(rest) = path.strip_prefix("/_matrix/") {
        prefixes.iter().map(|prefix| format!("{prefix}/{rest}")).collect()
    } else if let Some(rest) = path.strip_prefix("/.well-known/matrix/") {
        vec![path.to_owned(), format!("/.well-known/svc/{rest}")]
    } else {
        vec![path.to_owned()]
    };
    for index in 0..served.len() {
        let path = without_slash(&served[index]);
        let empty_key = path.strip_suffix("/state/{event_type}/{state_key}");
        let empty_key = empty_key.map(|room| format!("{room}/state/{{event_type}}"));
        served[index] = numbered(path);
        served.extend(empty_key.map(|path| numbered(&path)));
    }
    served
}

impl<A> Call<A> {
    /// The typed request, and what its handler is given besides.
    fn decode<R, G>(
        mut self,
        args: &[Cow<'_, str>],
        checks: Checks,
    ) -> Result<(Cx<A, G::Caller>, R), ApiError>
    where
        R: IncomingRequest,
        G: Gate,
    {
        let caller =
            G::caller(std::mem::take(&mut self.who)).ok_or_else(ApiError::missing_token)?;
        let mut http = Request::new(&self.body[..]);
        *http.method_mut() = std::mem::take(&mut self.method);
        *http.uri_mut() = self.uri.clone();
        *http.headers_mut() = std::mem::take(&mut self.headers);
        let request = decode::request::<R>(http, args, checks)?;
        Ok((self.into_cx(caller), request))
    }

    fn into_cx<C>(self, caller: C) -> Cx<A, C> {
        Cx {
            app: self.app,
            caller,
            request_id: self.request_id,
            client: self.client,
            shutdown: self.shutdown,
            body: self.body,
            uri: self.uri,
        }
    }
}

fn raw_handler<A, H, F>(places: &'static [Place], handler: H) -> Box<Handler<A>>
where
    A: Send + Sync + 'static,
    H: Fn(Cx<A, Option<Session>>, RawRequest) -> F + Copy + Send + Sync + 'static,
    F: Future<Output = Result<Reply, ApiError>> + Send + 'static,
{
    Box::new(move |mut call, args| {
        objects::check(&call.body, places)?;
        let caller = call.who.session.take();
        let request = RawRequest {
            uri: call.uri.clone(),
            headers: std::mem::take(&mut call.headers),
            args: args.iter().map(|arg| arg.clone().into_owned()).collect(),
        };
        Ok(Box::pin(handler(call.into_cx(caller), request)))
    })
}

fn unless_get(method: &Method, body: Body) -> Body {
    if method == Method::GET { Body::None } else { body }
}

fn without_slash(path: &str) -> &str {
    path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path)
}

/// Names the parameters of a path by their place, since endpoints that share a path differ in the
/// names, and the router would take them for different paths that clash.
fn numbered(path: &str) -> String {
    let mut place = 0;
    path.split('/')
        .map(|segment| {
            if segment.starts_with("{*") {
                Cow::Borrowed("{*rest}")
            } else if segment.starts_with('{') {
                place += 1;
                Cow::Owned(format!("{{p{place}}}"))
            } else {
                Cow::Borrowed(segment)
            }
        })
        .collect::<Vec<_>>()
        .join("/")
}

/// Undoes [`numbered`] with the names of the path that the endpoint was registered with.
fn named(path: &str, registered: &str) -> String {
    let is_parameter = |segment: &&str| segment.starts_with('{');
    let mut names = registered.split('/').filter(is_parameter);
    let segments = path.split('/').map(|segment| {
        if is_parameter(&segment) { names.next().unwrap_or(segment) } else { segment }
    });
    segments.collect::<Vec<_>>().join("/")
}

/// An endpoint and the decoded parameters of the path it was found at.
type Found<'a, 'p, A> = (&'a Route<A>, Vec<Cow<'p, str>>);

/// The finished table.
pub(super) struct Routes<A>(Router<Methods<A>>);

impl<A> Routes<A> {
    /// The endpoint of a request and the parameters in its path.
    pub(super) fn find<'a, 'p>(
        &'a self,
        method: &Method,
        path: &'p str,
    ) -> Result<Found<'a, 'p, A>, ApiError> {
        let found = self.0.at(without_slash(path)).map_err(|_| ApiError::no_such_endpoint())?;
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let (_, route) = found
            .value
            .iter()
            .find(|(known, _)| known == method)
            .ok_or_else(ApiError::no_such_method)?;
        let args = decode::path_args(found.params.iter().map(|(_, value)| value))?;
        Ok((route, args))
    }
}
