//! The table of endpoints: from a method and a path to the handler, in one look-up.
//!
//! Paths come from the request types, all versions of them. Matching is done on the raw path, and
//! the segments are percent-decoded afterwards, so that an encoded slash stays within its segment.
//!
//! Registration adds what the request types lack: the configured prefixes instead of `/_matrix`,
//! `/.well-known/svc` beside `/.well-known/matrix`, and the path of an empty state key. A trailing
//! slash is ignored.

use std::{borrow::Cow, collections::BTreeMap, net::IpAddr, sync::Arc};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, Uri};
use matchit::Router;
use thiserror::Error;
use tokio::sync::Notify;

use super::{
    Access, ApiError, Body, CallerIdentity, Class, Cx, ErrorRenderer, Gate, Incoming, OpenTo,
    Reply,
    audience::{self, Audience},
    class::is_write,
    decode::{self, Checks},
    endpoint::{Answer, Endpoint, Received},
    policy::{Policy, Rate},
    request_metrics::Measured,
    shadow::Shadow,
};
use logcabin_base::shutdown::Shutdown;
use logcabin_config::HookPoint;

/// The endpoints, while they are being registered.
pub struct Table<A> {
    prefixes: Vec<String>,
    paths: BTreeMap<String, Methods<A>>,
    problem: Option<TableError>,
}

/// Why the table cannot be built.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum TableError {
    #[error("{method} {path} is registered twice")]
    Twice {
        /// The method of both.
        method: Method,
        /// The path of the second.
        path: String,
    },
    #[error("the policy of {method} {path} does not fit: {reason}")]
    Policy {
        method: Method,
        /// Its newest path.
        path: &'static str,
        reason: &'static str,
    },
    #[error("{path} cannot be routed: {reason}")]
    Path { path: String, reason: String },
}

/// One method of one path that is served.
#[derive(Debug)]
pub struct Served {
    pub method: Method,
    /// The path, with the names of its parameters in braces.
    pub path: String,
    /// The credentials that it requires.
    pub access: Access,
    /// Its rate limit class; `None` if it is not limited.
    pub class: Option<Class>,
    #[cfg(test)]
    pub(crate) open_to: OpenTo,
    #[cfg(test)]
    pub(crate) shadow: Shadow,
    /// A missing body counts as `{}`.
    #[cfg(test)]
    pub(crate) may_lack_body: bool,
    /// The path that it was registered with.
    #[cfg(test)]
    pub(crate) known_as: &'static str,
}

/// A request on its way to a handler.
pub(super) struct Call<A> {
    pub(super) app: Arc<A>,
    pub(super) who: CallerIdentity,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The body that is read as it arrives, of endpoints that take one.
    pub(super) incoming: Option<Incoming>,
    pub(super) request_id: Arc<str>,
    pub(super) client: IpAddr,
    pub(super) shutdown: Shutdown,
    pub(super) hurry: Arc<Notify>,
}

pub(super) type AnswerFuture = BoxFuture<'static, Result<Reply, ApiError>>;
/// Every handler has this one shape, so that the router knows nothing of request types. Decoding
/// happens before the future is made: the future holds only the typed request.
type Handler<A> = dyn Fn(Call<A>, &[Cow<'_, str>]) -> Result<AnswerFuture, ApiError> + Send + Sync;

/// One endpoint.
pub(super) struct Route<A> {
    /// The path it was registered with: a name for logs that holds nothing of the request.
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) open_to: OpenTo,
    /// Its rate limit class; `None` if it is not limited.
    pub(super) class: Option<Class>,
    /// Whether it is answered even if this node of a cluster lags behind.
    pub(super) at_once: bool,
    /// Whether its answers may be large.
    pub(super) is_large: bool,
    /// What becomes of requests of users who are shadow-banned.
    pub(super) shadow: Shadow,
    pub(super) body: Body,
    pub(super) screened: Option<HookPoint>,
    /// Who sees what its body says.
    reach: Audience,
    /// How it shows a refusal, if not as JSON.
    pub(super) refusal: Option<ErrorRenderer>,
    pub(super) measured: Arc<Measured>,
    handler: Box<Handler<A>>,
}

impl<A> Route<A> {
    /// Decodes a request, and begins to answer it.
    pub(super) fn answer(
        &self,
        call: Call<A>,
        args: &[Cow<'_, str>],
    ) -> Result<AnswerFuture, ApiError> {
        audience::check(&call.body, self.body, self.access, self.reach)?;
        (self.handler)(call, args)
    }
}

/// What an [`Endpoint`] says of itself.
struct Declared {
    method: Method,
    paths: Vec<&'static str>,
    is_marked: bool,
    body: Body,
    access: Access,
    refusal: Option<ErrorRenderer>,
}

/// What a handler of the requests `R` is given besides the request.
type CxOf<A, R> = Cx<A, <<R as Endpoint>::Gate as Gate>::Caller>;

/// The endpoints of one path. There are few, so searching a list is faster than a map.
type Methods<A> = Vec<(Method, Arc<Route<A>>)>;

impl<A: Send + Sync + 'static> Table<A> {
    /// An empty table whose endpoints will be served under each of `prefixes`, for example
    /// `/_matrix`.
    pub fn new<P: ToString>(prefixes: &[P]) -> Self {
        Self {
            prefixes: prefixes.iter().map(ToString::to_string).collect(),
            paths: BTreeMap::new(),
            problem: None,
        }
    }

    /// Registers `handler` for the requests that it takes, on the terms of `policy`.
    ///
    /// A path under `/_matrix` is served under each prefix.
    #[must_use]
    pub fn on<R, H, F, T>(self, handler: H, policy: Policy) -> Self
    where
        R: Endpoint,
        H: Fn(Cx<A, <R::Gate as Gate>::Caller>, R) -> F + Copy + Send + Sync + 'static,
        F: Future<Output = Result<T, ApiError>> + Send + 'static,
        T: Answer<R>,
    {
        let checks = policy.checks;
        let handler: Box<Handler<A>> = Box::new(move |call, args| {
            let (cx, request) = call.decode::<R>(args, checks)?;
            let answer = handler(cx, request);
            Ok(Box::pin(async move { answer.await?.reply() }))
        });
        let declared = Declared {
            method: R::METHOD,
            paths: R::paths(),
            is_marked: R::MARKED,
            body: R::body(),
            access: R::Gate::ACCESS,
            refusal: R::REFUSAL,
        };
        self.register(declared, policy, handler)
    }

    /// [`Table::on`], as far as it does not depend on the type of the request.
    fn register(mut self, declared: Declared, policy: Policy, handler: Box<Handler<A>>) -> Self {
        let Declared { method, paths, is_marked, body, access, refusal } = declared;
        let Policy { rate, mut open_to, reach, at_once, is_large, may_lack_body, .. } = policy;
        let Policy { screened, shadow, .. } = policy;
        let path = paths.last().copied().unwrap_or_default();
        if let Some(reason) = misfit(&method, is_marked, rate) {
            let method = method.clone();
            self.problem.get_or_insert(TableError::Policy { method, path, reason });
        }
        // Suspended users may still read.
        open_to.suspended |= method == Method::GET;
        let class = match rate {
            Rate::Of(class) => Some(class),
            Rate::Unlimited(_) | Rate::Cheap => None,
        };
        let body = match body {
            Body::Json if may_lack_body.unwrap_or(method == Method::DELETE) => Body::JsonIfAny,
            body => body,
        };
        let measured = Arc::new(Measured::new(&method, path));
        let route = Route {
            path,
            access,
            open_to,
            class,
            at_once,
            is_large,
            shadow,
            body,
            screened,
            reach,
            refusal,
            measured,
            handler,
        };
        self.add(&method, paths, route)
    }

    /// What is served, in the order of the paths.
    pub fn list(&self) -> Vec<Served> {
        let served = |path: &str, (method, route): &(Method, Arc<Route<A>>)| Served {
            method: method.clone(),
            path: named(path, route.path),
            access: route.access,
            class: route.class,
            #[cfg(test)]
            open_to: route.open_to,
            #[cfg(test)]
            shadow: route.shadow,
            #[cfg(test)]
            may_lack_body: route.body == Body::JsonIfAny,
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

/// All paths at which an endpoint with ruma's `path` is served.
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
    fn decode<R: Endpoint>(
        mut self,
        args: &[Cow<'_, str>],
        checks: Checks,
    ) -> Result<(CxOf<A, R>, R), ApiError> {
        let caller =
            R::Gate::caller(std::mem::take(&mut self.who)).ok_or_else(ApiError::missing_token)?;
        let request = R::read(Received {
            method: std::mem::take(&mut self.method),
            uri: &self.uri,
            headers: std::mem::take(&mut self.headers),
            body: &self.body,
            args,
            incoming: self.incoming.take(),
            checks,
        })?;
        Ok((self.into_cx(caller), request))
    }

    fn into_cx<C>(self, caller: C) -> Cx<A, C> {
        Cx {
            app: self.app,
            caller,
            request_id: self.request_id,
            client: self.client,
            shutdown: self.shutdown,
            hurry: self.hurry,
            body: self.body,
            uri: self.uri,
        }
    }
}

/// Why an endpoint may not have this rate; `None` if it may.
fn misfit(method: &Method, marked: bool, rate: Rate) -> Option<&'static str> {
    match rate {
        Rate::Cheap if is_write(method) => Some("a write is limited, or says why it is not"),
        Rate::Cheap if marked => Some("the specification has it limited"),
        _ => None,
    }
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
type RouteMatch<'a, 'p, A> = (&'a Route<A>, Vec<Cow<'p, str>>);

/// The finished table.
pub(super) struct Routes<A>(Router<Methods<A>>);

impl<A> Routes<A> {
    /// Whether there is an endpoint at this path, for any method.
    pub(super) fn has_path(&self, path: &str) -> bool {
        self.0.at(without_slash(path)).is_ok()
    }

    /// The endpoint of a request and the parameters in its path. HEAD finds the endpoint of GET.
    pub(super) fn find<'a, 'p>(
        &'a self,
        method: &Method,
        path: &'p str,
    ) -> Result<RouteMatch<'a, 'p, A>, ApiError> {
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
