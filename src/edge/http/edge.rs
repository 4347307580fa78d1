//! The way of one request through the edge, from the parsed head to the response.

use std::{
    borrow::Cow,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use bytes::{Buf, Bytes};
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use http::{
    HeaderMap, HeaderValue, Method, StatusCode, Uri, Version,
    header::{AUTHORIZATION, EXPECT, TRANSFER_ENCODING, USER_AGENT, WARNING},
};
use ruma::{OwnedServerName, ServerName, UserId};
use tokio::sync::Notify;
use tracing::{Instrument as _, Level, Span, debug, error, field::Empty, info_span, warn};
use warp::reply::Response;

use super::{
    Access, AccessLog, ApiError, App, Appservice, CallerIdentity, ErrorRenderer, Incoming, Reply,
    Table, TableError,
    access_log::{AccessEntry, Answered},
    caller::access_token,
    class::is_write,
    compress::Encoding,
    decode,
    endpoint::Body,
    forward,
    gather::{self, declared},
    outgoing::{ConnectionPermit, ConnectionsByAddress, Outgoing, Recipient},
    request_metrics::{Measured, answered_nowhere, trace},
    screened, shadow,
    table::{AnswerFuture, Call, Route, Routes},
    throttle::{Spent, Throttle},
    turn::Turn,
};
use logcabin_base::{
    arrival::Pace,
    bodies::{self, BodyBudget, Principal},
    clock, limits,
    rate::network_prefix,
    shutdown::Shutdown,
    traces::{Begun, traces},
};
use logcabin_config::{Config, RateLimits};

/// The edge of a running server: the program with its table of endpoints.
pub struct Edge<A> {
    app: Arc<A>,
    routes: Routes<A>,
    /// Whether it serves other homeservers.
    for_servers: bool,
    throttle: ArcSwap<Throttle>,
    ids: RequestIds,
    max_body_bytes: usize,
    max_upload_bytes: u64,
    pace: Pace,
    /// The memory budget for request bodies.
    bodies: Arc<BodyBudget>,
    trust_forwarded_for: bool,
    outgoing: Arc<Outgoing>,
    /// The requests in progress by client address, if all connections come from a proxy.
    in_progress: Option<Arc<ConnectionsByAddress>>,
    by_address: Option<usize>,
    access_log: Option<Arc<AccessLog>>,
    pub(super) shutdown: Shutdown,
    pub(super) limits: logcabin_config::Http,
}

/// A request as it comes from the connection.
pub(super) struct Inbound<S> {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) peer: Peer,
    pub(super) version: Version,
    /// See [`Cx::hurry`](super::Cx).
    pub(super) hurry: Arc<Notify>,
    pub(super) body: S,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    /// Whether it may be a proxy that says in `X-Forwarded-For` whom it forwards for: at listeners
    /// without TLS and PROXY headers.
    pub(super) may_forward: bool,
}

impl<A: App> Edge<A> {
    /// An edge for `app` with these endpoints.
    pub fn new(
        app: Arc<A>,
        table: Table<A>,
        config: &Config,
        shutdown: Shutdown,
    ) -> Result<Self, TableError> {
        let trusts = config.server.trust_forwarded_for;
        let of_one = config.http.max_connections_per_address;
        let most = of_one.min(config.http.max_connections.div_ceil(2));
        let by_address = config.rate_limits.enabled.then_some(most);
        Ok(Self {
            app,
            routes: table.build()?,
            for_servers: false,
            throttle: ArcSwap::from_pointee(Throttle::new(&config.rate_limits)),
            ids: RequestIds::new(),
            max_body_bytes: config.http.max_body_bytes,
            max_upload_bytes: config.media.max_upload_bytes,
            pace: Pace {
                grace: Duration::from_secs(config.http.body_timeout_seconds),
                bytes_per_second: config.http.min_body_bytes_per_second,
            },
            bodies: BodyBudget::new(config.body_shares()),
            trust_forwarded_for: trusts,
            outgoing: Arc::new(Outgoing::new(
                config.http.response_bytes_per_user,
                config.http.response_bytes_per_address,
            )),
            in_progress: by_address
                .filter(|_| trusts)
                .map(|most| Arc::new(ConnectionsByAddress::new(most))),
            by_address,
            access_log: None,
            shutdown,
            limits: config.http.clone(),
        })
    }

    /// The same for other homeservers.
    pub fn for_servers(mut self) -> Self {
        self.for_servers = true;
        self.outgoing = Arc::new(self.outgoing.bounded(limits::ANSWERS_TO_SERVERS_BYTES));
        self
    }

    /// The same with a budget for bodies that others share.
    pub fn sharing(mut self, bodies: &Arc<BodyBudget>) -> Self {
        self.bodies = Arc::clone(bodies);
        self
    }

    /// Takes over the rates of another configuration. What callers used of the ones before is
    /// forgotten.
    pub fn set_rates(&self, rates: &RateLimits) {
        self.throttle.store(Arc::new(Throttle::new(rates)));
    }

    /// The same with a line in this log for each request, if there is one.
    pub fn logging(mut self, access_log: Option<Arc<AccessLog>>) -> Self {
        self.access_log = access_log;
        self
    }

    /// The most connections from one address; `None` if they are not limited.
    pub(super) const fn connections_by_address(&self) -> Option<usize> {
        self.by_address
    }

    /// Whether the client address that this peer forwards is trusted.
    pub(super) const fn believes(&self, peer: Peer) -> bool {
        self.trust_forwarded_for && peer.may_forward
    }

    /// Whether there is an endpoint at this path.
    pub(super) fn has_path(&self, path: &str) -> bool {
        self.routes.has_path(path)
    }

    /// Answers one request.
    pub(super) async fn answer<S, D, E>(&self, inbound: Inbound<S>) -> Response
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let started = Instant::now();
        let (request_id, begun) = self.ids.begin(&inbound.headers);
        let Inbound { method, uri, headers, peer, version, hurry, body } = inbound;
        let mut unread = Unread::new(&headers, body, hurry);
        if self.access_log.is_some() {
            let client = self.client_address(&headers, peer);
            let entry = AccessEntry::begin(client, &uri, &headers, version);
            unread.entry = Some(Box::new(entry));
        }
        let head = RequestHead { method: method.clone(), uri, headers, peer };
        // The body of an answer to HEAD is left out, so it is not compressed.
        let may_compress = self.limits.compression && method != Method::HEAD;
        let encoding = may_compress.then(|| Encoding::asked(&head.headers)).flatten();
        // Never the path or the query: they hold tokens and names.
        let span = info_span!("request", id = %request_id, %method, route = Empty);
        let reply = async {
            // A panic in a handler, or while the body is read, fails only this request.
            let handled = self.handle(head, &mut unread, &request_id);
            let outcome = AssertUnwindSafe(handled).catch_unwind().await;
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
        let measured = unread.measured.take();
        if let Some(begun) = begun {
            trace(&begun, &request_id, &method, measured.as_deref(), reply.status(), started);
        }
        match measured {
            Some(measured) => measured.answered(reply.status(), started),
            None => answered_nowhere(reply.status()),
        }
        let recipient = unread.recipient.take();
        let server = unread.server.take();
        let logged = unread.entry.take().map(|entry| {
            let user = recipient.as_ref().and_then(|recipient| recipient.user.as_deref());
            let user =
                user.map(UserId::as_str).or_else(|| server.as_deref().map(ServerName::as_str));
            (entry, user.map(str::to_owned))
        });
        unread.drain().await;
        let reply = reply.compressed(encoding);
        if let Some(server) = server {
            self.app.answered(&server, reply.bytes_in_memory());
        }
        let held = match recipient {
            // The answer to a request that changed something says what it did: it is not withheld.
            Some(recipient) if method.is_safe() => {
                self.outgoing.hold_if_room(recipient, reply.bytes_in_memory())
            }
            Some(recipient) => Ok(self.outgoing.hold(recipient, reply.bytes_in_memory())),
            None => Ok(None),
        };
        let (reply, held) =
            held.map_or_else(|full| (Reply::from(&full), None), |held| (reply, held));
        if let (Some(log), Some((entry, user))) = (&self.access_log, logged) {
            let (status, bytes) = (reply.status(), reply.length(&method));
            let user = user.as_deref();
            log.log(&entry, &Answered { method: &method, status, bytes, user, started });
        }
        let mut response = reply.into_response(&method, &request_id);
        if let Some(held) = held {
            response.extensions_mut().insert(held);
        }
        response
    }

    /// Tells the other nodes how much of its caller's limits a request used.
    fn tell(&self, spent: impl FnOnce() -> Spent) {
        if self.app.is_in_cluster() {
            let spent = spent().on(self.for_servers);
            self.app.tell(serde_json::to_vec(&spent).unwrap_or_default().into());
        }
    }

    /// Notes what another node reported. `for_servers` is the edge for other homeservers.
    pub fn heard(&self, message: &[u8], for_servers: Option<&Self>) {
        match serde_json::from_slice::<Spent>(message) {
            Ok(spent) if !spent.is_for_servers() => self.throttle.load().take_spent(spent),
            Ok(spent) => {
                if let Some(edge) = for_servers {
                    edge.throttle.load().take_spent(spent);
                }
            }
            Err(_) => self.app.heard(message),
        }
    }

    /// Answers a request that another node forwarded.
    pub async fn answer_forwarded(&self, request: Bytes) -> Bytes {
        let Some(received) = forward::received(&request) else {
            let error = ApiError::internal("a forwarded request is not understood");
            report(&error);
            return forward::answer(Reply::from(&error)).await;
        };
        let forward::Received { method, uri, headers, client, body } = received;
        let started = Instant::now();
        let (request_id, begun) = self.ids.begin(&headers);
        let asked = method.clone();
        let span = info_span!("request", id = %request_id, %method, route = Empty);
        let body = stream::iter([Ok::<_, std::io::Error>(body)]);
        // It takes no connection's place here.
        let mut unread = Unread::new(&headers, body, Arc::default());
        // The node that received it knows whom its peer forwards for.
        let peer = Peer { address: client, may_forward: false };
        let head = RequestHead { method, uri, headers, peer };
        let reply = async {
            let handled = self.handle(head, &mut unread, &request_id);
            let outcome = AssertUnwindSafe(handled).catch_unwind().await;
            let result = outcome.unwrap_or_else(|_| Err(ApiError::internal("a handler panicked")));
            result.unwrap_or_else(|error| {
                report(&error);
                Reply::from(&error)
            })
        };
        let reply = reply.instrument(span).await;
        if let Some(begun) = begun {
            let measured = unread.measured.take();
            trace(&begun, &request_id, &asked, measured.as_deref(), reply.status(), started);
        }
        forward::answer(reply).await
    }

    async fn handle<S, D, E>(
        &self,
        head: RequestHead,
        body: &mut Unread<S>,
        request_id: &Arc<str>,
    ) -> Result<Reply, ApiError>
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        if head.method == Method::OPTIONS {
            return Ok(Reply::preflight(head.uri.path()));
        }
        // Boxed and dropped before the wait, so that a waiting answer holds nothing that only
        // decoding needed. See the test `a_request_that_waits_is_small`.
        let (answer, refusal) = Box::pin(self.begin(head, body, request_id)).await?;
        let outcome = match answer {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        outcome.map_err(|error| match refusal {
            Some(refusal) => error.shown_by(refusal),
            None => error,
        })
    }

    /// Finds the endpoint of a request and begins the call, which may be refused. Also returns how
    /// the endpoint shows refusals.
    async fn begin<S, D, E>(
        &self,
        head: RequestHead,
        body: &mut Unread<S>,
        request_id: &Arc<str>,
    ) -> Result<(Result<AnswerFuture, ApiError>, Option<ErrorRenderer>), ApiError>
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let uri = head.uri.clone();
        let (route, args) = match self.routes.find(&head.method, uri.path()) {
            Ok(found) => found,
            Err(error) => {
                let reply = self.app.not_served(&head.uri, &head.headers, error)?;
                return Ok((Ok(Box::pin(std::future::ready(Ok(reply)))), None));
            }
        };
        Span::current().record("route", route.path);
        body.measured = Some(Arc::clone(&route.measured));
        if let Some(entry) = &mut body.entry {
            entry.found(route.path, &args);
        }
        Ok((self.call(route, &args, head, body, request_id).await, route.refusal))
    }

    async fn call<S, D, E>(
        &self,
        route: &Route<A>,
        args: &[Cow<'_, str>],
        head: RequestHead,
        unread: &mut Unread<S>,
        request_id: &Arc<str>,
    ) -> Result<AnswerFuture, ApiError>
    where
        S: Stream<Item = Result<D, E>> + Send + 'static,
        D: Buf + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let RequestHead { method, uri, headers, peer } = head;
        let client = self.client_address(&headers, peer);
        // If that is unknown, the answer is as new as this server's state, and says so.
        let is_current = match self.app.catch_up() {
            Some(catching_up) if !route.at_once => catching_up.await,
            _ => true,
        };
        let who = self.who(route, &headers, &uri).await;
        let mut who =
            who.map_err(|error| if is_current { error } else { error.of_stale_node(false) })?;
        if let Some(session) = &who.session {
            let agent = headers.get(USER_AGENT).and_then(|agent| agent.to_str().ok());
            self.app.seen(session, client, agent);
        }
        let recipient = Recipient {
            user: who.session.as_ref().map(|session| session.user_id.clone()),
            address: network_prefix(client),
        };
        self.outgoing.check(&recipient)?;
        if route.is_large {
            self.outgoing.check_all(&recipient)?;
        }
        if let Some(in_progress) = self.in_progress.as_ref().filter(|_| self.believes(peer)) {
            let place = in_progress.admit(recipient.address);
            let busy = || ApiError::limit_exceeded(Duration::from_secs(1));
            unread.place = Some(place.ok_or_else(busy)?);
        }
        unread.recipient = Some(recipient);
        // Other homeservers are limited once they are authenticated.
        let limited = route.class.filter(|_| route.access != Access::Server);
        let limited = limited.filter(|_| !self.is_exempt(&who));
        if let Some(class) = limited {
            self.throttle.load().check(class, who.session.as_ref(), client)?;
            self.tell(|| Spent::new(class, who.session.as_ref(), client));
        }
        if route.access == Access::Server {
            self.app.claimed(&headers)?;
        }
        if route.access == Access::Server && !headers.contains_key(AUTHORIZATION) {
            // Refused, whatever its body is.
            self.homeserver(&method, &uri, &headers, &[], client).await?;
        }
        let (mut incoming, mut held) = (None, None);
        let body = match self.largest(route, &who) {
            Some(limit) => {
                let principal = gather::principal(&who, client);
                let reader = (&self.bodies, self.pace);
                let (body, of_body) =
                    gather::read(reader, &headers, unread.take(), limit, principal).await?;
                held = of_body;
                body
            }
            None if route.body == Body::File => {
                let body = stream::iter(unread.take()).flatten();
                let limit = self.max_upload_bytes;
                incoming = Some(Incoming::new(body, declared(&headers), limit, self.pace));
                Bytes::new()
            }
            None => Bytes::new(),
        };
        if route.access == Access::Server {
            // The signature covers the body. Its keys may have to be fetched, which may take any
            // time.
            let dropped = held.as_ref().map(bodies::Body::watch);
            let dropped = async move {
                match dropped {
                    Some(dropped) => dropped.await,
                    None => std::future::pending().await,
                }
            };
            let server = tokio::select! {
                biased;
                server = self.homeserver(&method, &uri, &headers, &body, client) => server?,
                () = dropped => return Err(gather::full(bodies::Full::Dropped)),
            };
            if let Some(held) = &mut held {
                let is_known = self.app.knows(&server);
                let principal = if is_known { Principal::Server } else { Principal::Stranger };
                held.becomes(principal(server.clone())).map_err(gather::full)?;
            }
            unread.server = Some(server.clone());
            who.server = Some(server);
        }
        let depth = match route.access {
            // Each event is judged by itself.
            Access::Server => limits::TEXT_DEPTH,
            _ => limits::JSON_DEPTH,
        };
        // Another homeserver retries what is not answered, so its body may be dropped: processing
        // it can take minutes. All other large bodies are from users.
        let may_be_dropped = route.access == Access::Server;
        if let Some(held) = &held {
            held.arrived(may_be_dropped);
        }
        let body = if route.body.is_json() {
            let turn = Turn::of(&*self.app, &who, client, &body).await?;
            turn.take(|| decode::json_body(body, depth, route.body == Body::JsonIfAny))?
        } else {
            body
        };
        let dropped = held.as_ref().filter(|_| may_be_dropped).map(bodies::Body::watch);
        let body = match held {
            Some(held) => held.keep(body),
            None => body,
        };
        // What other homeservers refer to is in the log.
        if !self.for_servers
            && !headers.contains_key(forward::FORWARDED)
            && let Some(node) = self.app.elsewhere(&method, &uri, &body)
        {
            let request = forward::request(&method, &uri, &headers, client, &body);
            if let Some(answer) = self.app.forward(node, request).await {
                return Ok(Box::pin(std::future::ready(forward::reply(&answer))));
            }
            // What the request refers to is gone with the node, as after a restart.
        }
        let turn = Turn::of(&*self.app, &who, client, &body).await?;
        if let Some(class) = limited
            && is_write(&method)
        {
            self.throttle.load().check_written(class, who.session.as_ref(), client, body.len())?;
            self.tell(|| Spent::new(class, who.session.as_ref(), client).written(body.len()));
        }
        let turned_away = match route.access {
            Access::Login => self.turned_away(route, &method, &headers, &mut who).await,
            _ => None,
        };
        let place = (&uri, args);
        let body = match shadow::body_or_answer(&*self.app, route.shadow, &who, place, body) {
            Ok(body) => body,
            Err(answer) => return Ok(Box::pin(std::future::ready(Ok(*answer)))),
        };
        let asked = (&who, client, &method, &uri, &headers);
        let screening = screened::begin(&self.app, route, asked, args, &body);
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
            hurry: Arc::clone(&unread.hurry),
        };
        let is_write = is_write(&call.method);
        let answer: Result<AnswerFuture, ApiError> = match turned_away {
            Some(answer) => Ok(Box::pin(std::future::ready(answer))),
            None => turn.take(|| route.answer(call, args)),
        };
        let answer = screened::after(screening, answer);
        let answer = answer.map(|answer| gather::until(answer, dropped));
        if is_current {
            return answer;
        }
        let stale = HeaderValue::from_static("110 - \"Response is Stale\"");
        Ok(Box::pin(async move {
            let answer = async { answer?.await };
            match answer.await {
                Ok(answer) => Ok(answer.with_header(WARNING, stale)),
                Err(error) => Err(error.of_stale_node(is_write).with_header(WARNING, stale)),
            }
        }))
    }

    /// What a caller without a login gets instead of an endpoint that requires a browser login.
    async fn turned_away(
        &self,
        route: &Route<A>,
        method: &Method,
        headers: &HeaderMap,
        who: &mut CallerIdentity,
    ) -> Option<Result<Reply, ApiError>> {
        match self.app.visitor(method, headers).await {
            Ok(Some(visitor)) => {
                who.visitor = Some(visitor);
                None
            }
            Ok(None) if route.refusal.is_some() => Some(Ok(self.app.login_first())),
            // Only pages redirect to the login.
            Ok(None) => Some(Err(ApiError::missing_token())),
            Err(error) => Some(Err(error)),
        }
    }

    /// The most bytes of a body that is read as a whole; `None` for bodies that are not.
    fn largest(&self, route: &Route<A>, who: &CallerIdentity) -> Option<usize> {
        let is_anonymous = who.session.is_none() && who.service.is_none();
        match route.body {
            Body::None | Body::File => None,
            Body::Short(limit) => Some(limit),
            kind if kind.is_json() && is_anonymous && route.access != Access::Server => {
                Some(self.max_body_bytes.min(limits::ANONYMOUS_BODY_BYTES))
            }
            Body::Json | Body::JsonIfAny | Body::Bytes => Some(self.max_body_bytes),
        }
    }

    /// Whether a request counts against no rate limit.
    fn is_exempt(&self, who: &CallerIdentity) -> bool {
        let service = who.service.as_ref().and_then(Appservice::service);
        who.session.as_ref().is_some_and(|session| self.app.exempt(session))
            || service.is_some_and(|service| service.is_exempt_from_rate_limits(&service.sender))
    }

    async fn who(
        &self,
        route: &Route<A>,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<CallerIdentity, ApiError> {
        let looked_at = match route.access {
            // The signature of a homeserver is checked with the body.
            Access::None | Access::Login | Access::Server => false,
            Access::AsOf => decode::query_parameter(uri, "at")?.is_some(),
            _ => true,
        };
        if !looked_at {
            return Ok(CallerIdentity::default());
        }
        let service = |token: &str| Some(Appservice(self.app.service(token)));
        match (access_token(headers, uri), route.access) {
            (Some(token), Access::AppserviceOptional) => {
                Ok(CallerIdentity { service: service(&token), ..CallerIdentity::default() })
            }
            (Some(token), Access::Appservice) => match service(&token) {
                Some(Appservice(None)) => {
                    Err(ApiError::forbidden("This is for application services."))
                }
                service => Ok(CallerIdentity { service, ..CallerIdentity::default() }),
            },
            (Some(token), _) => {
                let session = self.app.authenticate(&token, uri).await?;
                self.app.admit(&session, route.open_to)?;
                Ok(CallerIdentity { session: Some(session), ..CallerIdentity::default() })
            }
            (None, Access::Optional | Access::AppserviceOptional) => Ok(CallerIdentity::default()),
            (None, _) => Err(ApiError::missing_token()),
        }
    }

    /// The homeserver that has signed a request.
    async fn homeserver(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        body: &[u8],
        client: IpAddr,
    ) -> Result<OwnedServerName, ApiError> {
        let mut request = ::http::Request::new(body);
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri.clone();
        *request.headers_mut() = headers.clone();
        let server = self.app.verify(&request, client).await?;
        self.throttle.load().check_server(&server)?;
        self.tell(|| Spent::of_server(&server, client));
        Ok(server)
    }

    /// The address of the client: the connection's, or what the last proxy before us says it was.
    fn client_address(&self, headers: &HeaderMap, peer: Peer) -> IpAddr {
        if !self.believes(peer) {
            return peer.address;
        }
        let value = headers.get_all("x-forwarded-for").into_iter().next_back();
        let last = value.and_then(|value| value.to_str().ok()?.rsplit(',').next());
        last.and_then(forwarded_address).unwrap_or_else(|| {
            static SAID: Once = Once::new();
            SAID.call_once(|| {
                warn!(
                    peer = %peer.address,
                    ?value,
                    "X-Forwarded-For has no address, so the clients behind the proxy share one limit"
                );
            });
            peer.address
        })
    }
}

/// The address in an entry of `X-Forwarded-For`, to which some proxies add the port.
pub(super) fn forwarded_address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let bracketed = || entry.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    let with_port = || entry.parse().ok().map(|address: SocketAddr| address.ip());
    entry.parse().ok().or_else(with_port).or_else(bracketed)
}

/// A request without its body.
struct RequestHead {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: Peer,
}

/// The body of a request until it is read, and what becomes known of the request meanwhile.
struct Unread<S> {
    body: Option<S>,
    /// See [`Cx::hurry`](super::Cx).
    hurry: Arc<Notify>,
    /// Whether the client sends it unasked, and it is short as far as is known.
    is_short: bool,
    /// Who the answer is for, once that is known.
    recipient: Option<Recipient>,
    /// The homeserver that has signed the request.
    server: Option<OwnedServerName>,
    /// Its place among the client's requests in progress.
    place: Option<ConnectionPermit>,
    /// Where the request is counted, once its endpoint is known.
    measured: Option<Arc<Measured>>,
    /// What the access log will say of it, if there is one.
    entry: Option<Box<AccessEntry>>,
}

impl<S> Unread<S> {
    fn new(headers: &HeaderMap, body: S, hurry: Arc<Notify>) -> Self {
        // In HTTP/1, a request without either header has no body. In HTTP/2, nothing must be read.
        let length = declared(headers);
        let has_body =
            length.is_some_and(|length| length > 0) || headers.contains_key(TRANSFER_ENCODING);
        let is_short = has_body
            && length.is_none_or(|length| length <= limits::REFUSED_BODY_DRAIN)
            // A client that expects `100 Continue` sends nothing before it.
            && !headers.contains_key(EXPECT);
        Self {
            body: Some(body),
            hurry,
            is_short,
            recipient: None,
            server: None,
            place: None,
            measured: None,
            entry: None,
        }
    }

    const fn take(&mut self) -> Option<S> {
        self.body.take()
    }
}

impl<S, D, E> Unread<S>
where
    S: Stream<Item = Result<D, E>>,
    D: Buf,
{
    /// Reads a short body that nobody wanted, so that its connection can be used again. The
    /// connection ends with the answer if it was not read.
    async fn drain(self) {
        let Some(body) = self.body.filter(|_| self.is_short) else { return };
        let drained = async {
            let (mut body, mut left) = (pin!(body), limits::REFUSED_BODY_DRAIN);
            while let Some(Ok(part)) = body.next().await {
                let Some(after) = left.checked_sub(part.remaining() as u64) else { return };
                left = after;
            }
        };
        // Late or not, the request is answered.
        let _ = tokio::time::timeout(limits::REFUSED_BODY_TIME, drained).await;
    }
}

/// Logs a failed request. Nothing else does.
fn report(error: &ApiError) {
    let status = error.status().as_u16();
    let cause = error.cause().map(tracing::field::display);
    match error.status() {
        // A full disk, or another service that is down, is no fault of the program.
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

/// Makes request ids: random letters for each start, and a number.
struct RequestIds {
    start: String,
    next: AtomicU64,
}

impl RequestIds {
    fn new() -> Self {
        Self { start: clock::random_letters(6).to_ascii_lowercase(), next: AtomicU64::new(1) }
    }

    /// The id of a request, and where its trace comes from if it is traced.
    fn begin(&self, headers: &HeaderMap) -> (Arc<str>, Option<Begun>) {
        let id = self.next();
        let Some(traces) = traces() else { return (id, None) };
        match traces.begin(headers.get("traceparent").and_then(|value| value.to_str().ok())) {
            Some(begun) => (begun.request_id(&id), Some(begun)),
            None => (id, None),
        }
    }

    fn next(&self) -> Arc<str> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut id = String::with_capacity(self.start.len() + 17);
        // Writing to a string cannot fail.
        let _ = write!(id, "{}-{number:x}", self.start);
        id.into()
    }
}
