//! The way of one request through the edge, from the parsed head to the response.

use std::{
    borrow::Cow,
    fmt::Write as _,
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use http::{
    HeaderMap, Method, StatusCode, Uri,
    header::{CONTENT_LENGTH, USER_AGENT},
};
use tracing::{Instrument as _, Level, Span, debug, error, field::Empty, info_span, warn};
use warp::reply::Response;

use super::{
    Access, ApiError, App, Appservice, Incoming, Refusal, Reply, Table, TableError, Who,
    caller::access_token,
    compress::Encoding,
    decode, incoming,
    table::{Answer, Body, Call, Route, Routes},
    throttle::Throttle,
};
use crate::{clock, config::Config, limits, shutdown::Shutdown};

/// The edge of a running server: the program with its table of endpoints.
pub(crate) struct Edge<A> {
    app: Arc<A>,
    routes: Routes<A>,
    throttle: Throttle,
    ids: RequestIds,
    max_body_bytes: usize,
    body_timeout: Duration,
    trust_forwarded_for: bool,
    pub(super) shutdown: Shutdown,
    pub(super) limits: crate::config::Http,
}

/// A request as it comes from the connection.
pub(super) struct Inbound<S> {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) peer: IpAddr,
    pub(super) body: S,
}

impl<A: App> Edge<A> {
    /// An edge for `app` with these endpoints.
    pub(crate) fn new(
        app: Arc<A>,
        table: Table<A>,
        config: &Config,
        shutdown: Shutdown,
    ) -> Result<Self, TableError> {
        Ok(Self {
            app,
            routes: table.build()?,
            throttle: Throttle::new(&config.rate_limits),
            ids: RequestIds::new(),
            max_body_bytes: config.http.max_body_bytes,
            body_timeout: Duration::from_secs(config.http.header_timeout_seconds),
            trust_forwarded_for: config.server.trust_forwarded_for,
            shutdown,
            limits: config.http.clone(),
        })
    }

    /// Answers one request.
    pub(super) async fn answer<S, D, E>(&self, inbound: Inbound<S>) -> Response
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let started = Instant::now();
        let request_id = self.ids.next();
        let method = inbound.method.clone();
        // Of a body that is left out, nothing is to be made.
        let may_compress = self.limits.compression && method != Method::HEAD;
        let encoding = may_compress.then(|| Encoding::asked(&inbound.headers)).flatten();
        // Never the path or the query: they hold tokens and names.
        let span = info_span!("request", id = %request_id, %method, route = Empty);
        let reply = async {
            // Boxed handlers and the reading of the body may panic on their own: this request fails.
            let outcome = AssertUnwindSafe(self.handle(inbound, &request_id)).catch_unwind().await;
            let result = outcome.unwrap_or_else(|_| Err(ApiError::internal("a handler panicked")));
            let reply = result.unwrap_or_else(|error| {
                report(&error);
                Reply::from(&error)
            });
            if tracing::enabled!(Level::DEBUG) {
                let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                debug!(status = reply.status().as_u16(), micros, "answered");
            }
            reply
        }
        .instrument(span)
        .await;
        reply.compressed(encoding).into_response(&method, &request_id)
    }

    async fn handle<S, D, E>(
        &self,
        inbound: Inbound<S>,
        request_id: &Arc<str>,
    ) -> Result<Reply, ApiError>
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        if inbound.method == Method::OPTIONS {
            return Ok(Reply::preflight(inbound.uri.path()));
        }
        // Boxed, and dropped before the wait: of what it takes to find and to decode a request, the
        // answer holds nothing. See the test `a_request_that_waits_is_small`.
        let (answer, refusal) = Box::pin(self.begin(inbound, request_id)).await?;
        let outcome = match answer {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        outcome.map_err(|error| match refusal {
            Some(refusal) => error.shown_by(refusal),
            None => error,
        })
    }

    /// Finds the endpoint of a request and begins the call, which may be refused; and how the endpoint shows refusals.
    async fn begin<S, D, E>(
        &self,
        inbound: Inbound<S>,
        request_id: &Arc<str>,
    ) -> Result<(Result<Answer, ApiError>, Option<Refusal>), ApiError>
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let uri = inbound.uri.clone();
        let (route, args) = self.routes.find(&inbound.method, uri.path())?;
        Span::current().record("route", route.path);
        Ok((self.call(route, &args, inbound, request_id).await, route.refusal))
    }

    async fn call<S, D, E>(
        &self,
        route: &Route<A>,
        args: &[Cow<'_, str>],
        inbound: Inbound<S>,
        request_id: &Arc<str>,
    ) -> Result<Answer, ApiError>
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let Inbound { method, uri, headers, peer, body } = inbound;
        let client = self.client_address(&headers, peer);
        let who = self.who(route, &headers, &uri).await?;
        if let Some(session) = &who.session {
            let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
            self.app.seen(session, client, agent);
        }
        if let Some(class) = route.class
            && !self.is_exempt(&who)
        {
            self.throttle.check(class, who.session.as_ref(), client)?;
        }
        let mut incoming = None;
        let body = match route.body {
            Body::None => Bytes::new(),
            Body::Json => decode::json_body(self.read(&headers, body, self.max_body_bytes).await?)?,
            Body::Bytes => self.read(&headers, body, self.max_body_bytes).await?,
            Body::Short(limit) => self.read(&headers, body, limit).await?,
            Body::File(limit) => {
                incoming = Some(Incoming::new(body, declared(&headers), limit, self.body_timeout));
                Bytes::new()
            }
        };
        let call = Call {
            app: Arc::clone(&self.app),
            who,
            method,
            uri,
            headers,
            body,
            incoming,
            request_id: Arc::clone(request_id),
            client,
            shutdown: self.shutdown.clone(),
        };
        (route.handler)(call, args)
    }

    /// Whether a request counts against no rate limit.
    fn is_exempt(&self, who: &Who) -> bool {
        let service = who.service.as_ref().and_then(Appservice::service);
        who.session.as_ref().is_some_and(|session| self.app.exempt(session))
            || service.is_some_and(|service| service.is_exempt(&service.sender))
    }

    async fn who(&self, route: &Route<A>, headers: &HeaderMap, uri: &Uri) -> Result<Who, ApiError> {
        let looked_at = match route.access {
            Access::None => false,
            Access::AsOf => decode::query_parameter(uri, "at")?.is_some(),
            _ => true,
        };
        if !looked_at {
            return Ok(Who::default());
        }
        let service = |token: &str| Some(Appservice(self.app.service(token)));
        match (access_token(headers, uri), route.access) {
            (Some(token), Access::AppserviceOptional) => {
                Ok(Who { service: service(&token), ..Who::default() })
            }
            (Some(token), Access::Appservice) => match service(&token) {
                Some(Appservice(None)) => {
                    Err(ApiError::forbidden("This is for application services."))
                }
                service => Ok(Who { service, ..Who::default() }),
            },
            (Some(token), _) => {
                let session = self.app.authenticate(&token, uri).await?;
                self.app.admit(&session, route.open_to)?;
                Ok(Who { session: Some(session), ..Who::default() })
            }
            (None, Access::Optional | Access::AppserviceOptional) => Ok(Who::default()),
            (None, _) => Err(ApiError::missing_token()),
        }
    }

    /// The address of the client: the connection's, or what the last proxy before us says it was.
    fn client_address(&self, headers: &HeaderMap, peer: IpAddr) -> IpAddr {
        if !self.trust_forwarded_for {
            return peer;
        }
        headers
            .get_all("x-forwarded-for")
            .into_iter()
            .next_back()
            .and_then(|value| value.to_str().ok()?.rsplit(',').next()?.trim().parse().ok())
            .unwrap_or(peer)
    }

    /// Reads a body of at most `limit` bytes, however it is sent.
    async fn read<S, D, E>(
        &self,
        headers: &HeaderMap,
        body: S,
        limit: usize,
    ) -> Result<Bytes, ApiError>
    where
        S: Stream<Item = Result<D, E>> + Send,
        D: Buf,
        E: std::error::Error + Send + Sync + 'static,
    {
        let mut body = pin!(body);
        let mut whole = Bytes::new();
        let mut parts = BytesMut::new();
        let mut length = 0_usize;
        let drain = limit.saturating_add(limits::OVERSIZED_BODY_DRAIN);
        if declared(headers).is_some_and(|declared| declared > drain as u64) {
            return Err(too_large(limit));
        }
        loop {
            let next = tokio::time::timeout(self.body_timeout, body.next()).await;
            let Some(part) = next.map_err(|_| incoming::late())? else { break };
            let mut part = part.map_err(incoming::cut_off)?;
            let part = part.copy_to_bytes(part.remaining());
            length = length.saturating_add(part.len());
            if length > drain {
                return Err(too_large(limit));
            } else if length > limit {
                // Read on, but keep nothing.
                whole = Bytes::new();
                parts = BytesMut::new();
            } else if whole.is_empty() && parts.is_empty() {
                // Most bodies come in one piece, which is then not copied.
                whole = part;
            } else {
                if parts.is_empty() {
                    parts.extend_from_slice(&std::mem::take(&mut whole));
                }
                parts.extend_from_slice(&part);
            }
        }
        if length > limit {
            return Err(too_large(limit));
        }
        Ok(if parts.is_empty() { whole } else { parts.freeze() })
    }
}

fn too_large(limit: usize) -> ApiError {
    incoming::too_large(limit as u64)
}

/// How long the body is, if the client says.
fn declared(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok())
}

/// Tells the log of a failed request: this is the one place where that is done.
fn report(error: &ApiError) {
    let status = error.status().as_u16();
    let cause = error.cause().map(tracing::field::display);
    match error.status() {
        // What is full or down, here or in another service, is no fault of the program.
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::BAD_GATEWAY => {
            warn!(status, cause, "{error}");
        }
        // Nor is a time-out, which is as long as the client or another service makes it.
        other if other.is_server_error() && other != StatusCode::GATEWAY_TIMEOUT => {
            error!(status, cause, "{error}");
        }
        // Not the sentence: it may quote what the client sent.
        _ => debug!(status, code = error.code().as_str(), cause, "refused"),
    }
}

/// Names requests: letters that are new with each start, and a number.
struct RequestIds {
    start: String,
    next: AtomicU64,
}

impl RequestIds {
    fn new() -> Self {
        Self { start: clock::random_letters(6).to_ascii_lowercase(), next: AtomicU64::new(1) }
    }

    fn next(&self) -> Arc<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(self.start.len() + 17);
        // A string takes all that is written to it.
        let _ = write!(id, "{}-{number:x}", self.start);
        id.into()
    }
}
