//! Connections: accepting them, bounding them, and letting them finish.
//!
//! warp answers the requests; the accept loop is our own, since warp's sets neither `TCP_NODELAY`
//! nor a time limit for headers nor a bound on connections.

use std::{
    convert::Infallible,
    fmt::Display,
    future::{pending, poll_fn},
    net::IpAddr,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, FusedFuture, join_all},
};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, header::CONNECTION};
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use parking_lot::Mutex;
use tokio::{
    io::AsyncReadExt as _,
    net::UnixStream,
    sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch},
    time::{Sleep, sleep, timeout},
};
use tracing::{debug, warn};
use warp::{Filter, Rejection, reply::Response};

use super::{
    App, Edge,
    edge::{Inbound, Peer},
    exchange::{
        AGAIN, AGAIN_AND_CLOSE, Answer, Exchange, Idle, ReplayedStream, RequestBody, ResponseBody,
        Wire, linger,
    },
    listen::{Accepted, Listener},
    outgoing::{ConnectionPermit, ConnectionsByAddress, Stall, Streams},
    proxy_header::HeaderError,
    tls::{Spoken, Tls},
};
use logcabin_base::{
    counted::Counted,
    limits,
    metrics::metrics,
    net::{self, TcpStream},
    rate::network_prefix,
    shutdown::Shutdown,
};

/// How long there is nothing to do for hyper before it is dropped, while there are few connections
/// with one. To make it again costs more than to keep it for those who go on soon.
const REST_AFTER: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 2_000 });

/// As many are few: some 5 MiB of memory.
pub(super) const FEW: usize = 256;

/// The same while there are more than [`FEW`]: of those who come all at once, only so many are to
/// be large at a time.
const REST_AFTER_OF_MANY: Duration = Duration::from_millis(if cfg!(test) { 0 } else { 10 });

/// How HTTP/2 begins (RFC 9113, section 3.4).
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Serves `edge` on every listener until its shutdown signal is given; then accepts no more, and
/// returns when all requests in progress are answered or the configured time for that is over.
/// Calls `closed` with the number of open connections as soon as it accepts no more.
pub async fn run<A: App>(
    listeners: Vec<Arc<Listener>>,
    edge: Arc<Edge<A>>,
    closed: impl FnOnce(usize) + Send,
) {
    run_with(listeners, edge, None, closed).await;
}

/// As [`run`], with another edge that answers what only it has an endpoint for.
pub(crate) async fn run_with<A: App>(
    listeners: Vec<Arc<Listener>>,
    edge: Arc<Edge<A>>,
    beside: Option<Arc<Edge<A>>>,
    closed: impl FnOnce(usize) + Send,
) {
    // Cut when this function returns, by dropping the other end.
    let (_serving, cut) = oneshot::channel::<()>();
    let server = Arc::new(Server::new(&edge, beside, Shutdown::when(cut.map(drop))));
    // Each connection holds a receiver for as long as it is open.
    let (open, _) = watch::channel(());
    let accepting = listeners.into_iter().map(|listener| {
        let (server, open, edge) = (Arc::clone(&server), &open, &edge);
        async move {
            loop {
                let (accepted, address) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        server.say_short(&error.to_string());
                        sleep(limits::ACCEPT_RETRY).await;
                        continue;
                    }
                };
                let has_header = listener.expects_header();
                if has_header && !listener.believes(address) {
                    server.say_unproxied(address, &"it is not from `http.proxy_protocol_from`");
                    continue;
                }
                // A proxy that sends PROXY headers does not check X-Forwarded-For.
                let peer = Peer { address, may_forward: !listener.has_tls() && !has_header };
                // Connections with a header count for the address in it.
                let bounded =
                    server.by_address.as_ref().filter(|_| !has_header && !edge.believes(peer));
                let of_address = match bounded {
                    Some(by_address) => match by_address.admit(network_prefix(address)) {
                        Some(place) => Some(place),
                        None => {
                            debug!(peer = %address, "too many connections from here");
                            continue;
                        }
                    },
                    None => None,
                };
                // It is not served before, and no other one is accepted: beyond the bound, the
                // operating system keeps them waiting.
                let Some(permit) = server.place(&accepted).await else { return };
                let connection = Connection {
                    server: Arc::clone(&server),
                    peer,
                    _open: open.subscribe(),
                    _permit: permit,
                    _counted: ConnectionGuard::new(),
                    _of_address: of_address,
                };
                match accepted {
                    accepted if has_header => tokio::spawn(connection.run_proxied(accepted)),
                    Accepted::Tcp(stream) => tokio::spawn(connection.run(stream)),
                    Accepted::Tls(stream, tls) => tokio::spawn(connection.run_tls(stream, tls)),
                    Accepted::Unix(stream) => tokio::spawn(connection.run_unix(stream)),
                };
            }
        }
    });
    tokio::select! {
        _ = join_all(accepting) => {}
        () = edge.shutdown.given() => {}
    }
    closed(open.receiver_count());
    let bound = Duration::from_secs(edge.limits.shutdown_seconds);
    if timeout(bound, open.closed()).await.is_err() {
        warn!("some requests did not finish within {} s and were aborted", bound.as_secs());
    }
}

/// Answers a request of a peer; the last argument tells it to end its wait for news.
type Answering =
    dyn Fn(Request<RequestBody>, Peer, &Arc<Notify>) -> BoxFuture<'static, Response> + Send + Sync;

/// What all connections share.
struct Server {
    permits: Arc<Semaphore>,
    /// Notified once for each connection that is to make room for another one. Those that wait for
    /// a request hear it, and all of HTTP/2, the one that has waited for longest first.
    room: Notify,
    /// Notified once for each request of HTTP/1 that is to end its wait for news, because no
    /// connection waits for a request.
    hurry: Arc<Notify>,
    /// How many new connections wait for a place. Meanwhile, others end with their next answer.
    crowd: Arc<AtomicUsize>,
    /// When it was last said that descriptors are short.
    said_short: Mutex<Option<Instant>>,
    /// When it was last said that a connection had no usable PROXY header.
    said_unproxied: Mutex<Option<Instant>>,
    /// How many there are by address, if that is bounded.
    by_address: Option<Arc<ConnectionsByAddress>>,
    response_timeout: Duration,
    /// What answers requests: warp.
    answer: Box<Answering>,
    http1: http1::Builder,
    /// For clients that use HTTP/2, or have not yet shown which version they use.
    either: auto::Builder<TokioExecutor>,
    header_timeout: Duration,
    /// How many connections there are with hyper.
    awake: Arc<AtomicUsize>,
    /// Given when connections are to be finished.
    shutdown: Shutdown,
    /// Given when connections are to be dropped as they are.
    cut: Shutdown,
}

impl Server {
    fn new<A: App>(edge: &Arc<Edge<A>>, beside: Option<Arc<Edge<A>>>, cut: Shutdown) -> Self {
        let header_timeout = Duration::from_secs(edge.limits.header_timeout_seconds);
        let mut http1 = http1::Builder::new();
        http1
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(limits::HTTP1_BUFFER_BYTES);
        let mut either = auto::Builder::new(TokioExecutor::new());
        either
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(limits::HTTP1_BUFFER_BYTES);
        let (of_stream, of_connection) = limits::HTTP2_WINDOWS;
        either
            .http2()
            .timer(TokioTimer::new())
            .initial_stream_window_size(of_stream)
            .initial_connection_window_size(of_connection)
            .max_concurrent_streams(limits::HTTP2_STREAMS)
            .max_send_buf_size(limits::RESPONSE_PIECE)
            .max_header_list_size(limits::HTTP2_HEADER_BYTES)
            .keep_alive_interval(limits::HTTP2_PING)
            .keep_alive_timeout(header_timeout);
        let warp = TowerToHyperService::new(warp::service(filter(Arc::clone(edge), beside)));
        let crowd = Arc::<AtomicUsize>::default();
        let waiting = Arc::clone(&crowd);
        let answer = move |request: Request<RequestBody>, peer: Peer, hurry: &Arc<Notify>| {
            let waiting = (request.version() < Version::HTTP_2).then(|| Arc::clone(&waiting));
            let answer = warp.call(HyperHead::take_from(request, peer, hurry));
            let answer = answer.map(move |answer| {
                let mut answer = answer.unwrap_or_else(|never| match never {});
                if waiting.is_some_and(|waiting| waiting.load(Ordering::Relaxed) > 0) {
                    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                answer
            });
            answer.boxed()
        };
        Self {
            permits: Arc::new(Semaphore::new(edge.limits.max_connections)),
            room: Notify::new(),
            hurry: Arc::default(),
            crowd,
            said_short: Mutex::default(),
            said_unproxied: Mutex::default(),
            by_address: edge
                .connections_by_address()
                .map(|most| Arc::new(ConnectionsByAddress::new(most))),
            response_timeout: Duration::from_secs(edge.limits.response_timeout_seconds),
            answer: Box::new(answer),
            http1,
            either,
            header_timeout,
            awake: Arc::default(),
            shutdown: edge.shutdown.clone(),
            cut,
        }
    }

    /// A place for a connection, which others make if there is none. `None` if there never will be
    /// a place.
    async fn place(&self, stream: &Accepted) -> Option<OwnedSemaphorePermit> {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.made_place().await?,
        };
        // The bound counts connections; what they and other parts have opened besides counts here.
        if !stream.is_spare() {
            self.made_descriptor(stream).await;
        }
        Some(permit)
    }

    /// Ends connections, as [`made_place`](Self::made_place) does, until enough descriptors are
    /// spare.
    async fn made_descriptor(&self, stream: &Accepted) {
        let _in_crowd = Counted::new(&self.crowd);
        let mut hurried = None::<Instant>;
        loop {
            self.say_short("connections wait");
            let places = self.permits.available_permits();
            self.room.notify_one();
            sleep(limits::DESCRIPTORS_RETRY).await;
            if stream.leaves_spare() {
                break;
            }
            let none_ended = self.permits.available_permits() <= places;
            let may_hurry = hurried.is_none_or(|at| at.elapsed() >= limits::ROOM_ANSWER_TIME);
            if none_ended && may_hurry {
                self.hurry.notify_one();
                hurried = Some(Instant::now());
            }
        }
        self.needs_no_room();
    }

    /// The place of a connection that waits for a request; if there is none, of one whose request
    /// waits for news, which is then answered early.
    async fn made_place(&self) -> Option<OwnedSemaphorePermit> {
        let _in_crowd = Counted::new(&self.crowd);
        self.room.notify_one();
        let mut place = pin!(Arc::clone(&self.permits).acquire_owned());
        let mut patience = limits::ROOM_PATIENCE;
        let place = loop {
            if let Ok(place) = timeout(patience, place.as_mut()).await {
                break place.ok()?;
            }
            // What heard `room` may be an HTTP/2 connection with a long upload or download.
            if patience == limits::ROOM_ANSWER_TIME {
                self.room.notify_one();
            }
            self.hurry.notify_one();
            patience = limits::ROOM_ANSWER_TIME;
        };
        self.needs_no_room();
        Some(place)
    }

    /// Takes back what nobody has heard: another connection ended instead.
    fn needs_no_room(&self) {
        let _ = self.room.notified().now_or_never();
        let _ = self.hurry.notified().now_or_never();
    }

    /// Logs that no connection can be accepted, once a minute at most.
    fn say_short(&self, why: &str) {
        if is_time(&self.said_short) {
            warn!(why, "too few file descriptors: raise the limit (LimitNOFILE, ulimit -n)");
        }
    }

    /// Logs that a connection was closed where a PROXY header is expected, once a minute at most:
    /// if it is a proxy's, nobody is served.
    fn say_unproxied(&self, peer: IpAddr, why: &dyn Display) {
        debug!(%peer, %why, "a connection has no PROXY header to believe");
        if is_time(&self.said_unproxied) {
            warn!(
                %peer,
                %why,
                "a connection was closed: a PROXY header is expected here (`proxy_protocol`)"
            );
        }
    }
}

/// Whether it is a while ago that something was said; then it is said now.
fn is_time(said: &Mutex<Option<Instant>>) -> bool {
    let mut said = said.lock();
    let is_time = said.is_none_or(|said| said.elapsed() >= limits::SHORTAGE_SAID);
    if is_time {
        *said = Some(Instant::now());
    }
    is_time
}

/// One connection.
pub(super) struct Connection {
    server: Arc<Server>,
    peer: Peer,
    _open: watch::Receiver<()>,
    _permit: OwnedSemaphorePermit,
    _counted: ConnectionGuard,
    _of_address: Option<ConnectionPermit>,
}

/// One of the open connections, as they are counted.
struct ConnectionGuard;

impl ConnectionGuard {
    fn new() -> Self {
        metrics().http_connections.inc();
        Self
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        metrics().http_connections.dec();
    }
}

impl Connection {
    pub(super) async fn run(self, mut stream: TcpStream) {
        // Answers are written whole: waiting to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let server = &self.server;
        let mut stop = pin!(server.shutdown.given().fuse());
        let mut first = [0; HTTP2_PREFACE.len()];
        let said = tokio::select! {
            said = timeout(server.header_timeout, net::peek(&mut stream, &mut first)) => said,
            () = &mut stop => return,
            () = server.room.notified() => return debug!("a silent connection makes room"),
        };
        match said {
            Err(_) => debug!("no request came on a connection"),
            Ok(Err(error)) => debug!(%error, "connection failed"),
            Ok(Ok(0)) => {}
            // Boxed, as there are few, and larger than the others while they wait.
            Ok(Ok(length)) if HTTP2_PREFACE.starts_with(&first[..length]) => {
                Box::pin(self.either(Bytes::new(), stream)).await;
            }
            Ok(Ok(_)) => tokio::select! {
                () = self.http1(Bytes::new(), stream, stop) => {}
                () = server.cut.given() => {}
            },
        }
    }

    /// The same behind a proxy that says first whose connection it is.
    async fn run_proxied(mut self, mut accepted: Accepted) {
        let (server, proxy) = (Arc::clone(&self.server), self.peer.address);
        let header = tokio::select! {
            header = timeout(limits::PROXY_HEADER_TIME, accepted.read_header()) => header,
            () = server.shutdown.given() => return,
            () = server.room.notified() => return debug!("a silent connection makes room"),
        };
        let client = match header {
            Ok(Ok(client)) => client,
            Ok(Err(HeaderError::Silent)) => return,
            Ok(Err(error)) => return server.say_unproxied(proxy, &error),
            Err(_) => return server.say_unproxied(proxy, &"its PROXY header did not come in time"),
        };
        // Without one, it is the proxy's own.
        if let Some(client) = client {
            self.peer.address = client;
            if let Some(by_address) = &server.by_address {
                let Some(place) = by_address.admit(network_prefix(client)) else {
                    return debug!(peer = %client, "too many connections from here");
                };
                self = Self { _of_address: Some(place), ..self };
            }
        }
        match accepted {
            Accepted::Tcp(stream) => Box::pin(self.run(stream)).await,
            Accepted::Tls(stream, tls) => Box::pin(self.run_tls(stream, tls)).await,
            Accepted::Unix(stream) => Box::pin(self.run_unix(stream)).await,
        }
    }

    /// The same by a Unix socket, where nothing can be seen before it is read.
    async fn run_unix(self, mut stream: UnixStream) {
        let server = &self.server;
        let mut stop = pin!(server.shutdown.given().fuse());
        let mut first = [0; HTTP2_PREFACE.len()];
        let said = tokio::select! {
            said = timeout(server.header_timeout, stream.read(&mut first)) => said,
            () = &mut stop => return,
        };
        match said {
            Err(_) => debug!("no request came on a connection"),
            Ok(Err(error)) => debug!(%error, "connection failed"),
            Ok(Ok(0)) => {}
            Ok(Ok(length)) => {
                let said = &first[..length];
                let again = Bytes::copy_from_slice(said);
                if HTTP2_PREFACE.starts_with(said) {
                    return Box::pin(self.either(again, stream)).await;
                }
                tokio::select! {
                    () = self.http1(again, stream, stop) => {}
                    () = server.cut.given() => {}
                }
            }
        }
    }

    /// The same by TLS.
    async fn run_tls(self, stream: TcpStream, tls: Arc<Tls>) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let stream = tokio::select! {
            stream = timeout(limits::TLS_HANDSHAKE, tls.accept(stream)) => stream,
            () = self.server.shutdown.given() => return,
        };
        let (spoken, stream) = match stream {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(error)) => return debug!(%error, "a connection did not come to TLS"),
            Err(_) => return debug!("a connection did not come to TLS in time"),
        };
        match spoken {
            Spoken::Http1 => {
                let stop = pin!(self.server.shutdown.given().fuse());
                tokio::select! {
                    () = self.http1(Bytes::new(), stream, stop) => {}
                    () = self.server.cut.given() => {}
                }
            }
            Spoken::Http2 => Box::pin(self.either(Bytes::new(), stream)).await,
            Spoken::Challenge => {}
        }
    }

    /// Serves HTTP/2, or whatever it turns out to be. Such connections do not count among those
    /// whose reads become small in a crowd: what HTTP/2 holds of what it reads, its windows bound.
    async fn either<S: Wire>(&self, again: Bytes, stream: S) {
        let server = &self.server;
        let request_read = Arc::new(AtomicBool::new(false));
        let streams = Arc::<Streams>::default();
        let hurry = Arc::<Notify>::default();
        let service = {
            let (server, request_read, peer) =
                (Arc::clone(server), Arc::clone(&request_read), self.peer);
            let (streams, hurry) = (Arc::clone(&streams), Arc::clone(&hurry));
            service_fn(move |request: Request<Incoming>| {
                request_read.store(true, Ordering::Relaxed);
                let streams = Arc::clone(&streams);
                let answer = (server.answer)(request.map(RequestBody::apart), peer, &hurry);
                answer.map(move |answer| {
                    Ok::<_, Infallible>(ResponseBody::of_stream(answer, &streams))
                })
            })
        };
        // It is in no exchange.
        let exchange = Arc::default();
        let line =
            ReplayedStream::new(again, stream, &exchange, Stall::new(server.response_timeout));
        let connection = server.either.serve_connection(line, service);
        let mut connection = pin!(connection.into_owned());
        // hyper's limit starts once it knows the protocol; this one is for clients that send
        // nothing.
        let mut silent = pin!(async {
            sleep(server.header_timeout).await;
            if request_read.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
        });
        let mut stalled = pin!(streams.stalled(server.response_timeout));
        let mut room = pin!(server.room.notified());
        let (mut closing, mut makes_room) = (false, false);
        loop {
            tokio::select! {
                () = &mut stalled => return debug!("the client does not read a response"),
                result = &mut connection => {
                    if let Err(error) = result {
                        debug!(%error, "connection failed");
                    }
                    return;
                }
                () = &mut silent => return debug!("no request came on a connection"),
                () = server.shutdown.given(), if !closing => {
                    closing = true;
                    connection.as_mut().graceful_shutdown();
                }
                // Requests in progress are answered before, without a wait.
                () = &mut room, if !closing => {
                    (closing, makes_room) = (true, true);
                    connection.as_mut().graceful_shutdown();
                    hurry.notify_waiters();
                }
                // A request in progress may have begun to wait only now.
                () = sleep(limits::ROOM_ANSWER_TIME), if makes_room => hurry.notify_waiters(),
                () = server.cut.given() => return,
            }
        }
    }

    /// Serves HTTP/1, without hyper while there is nothing for it to do, until there is nothing
    /// more or `stop`.
    ///
    /// hyper reads `again` before what comes.
    async fn http1<S: Wire>(
        &self,
        mut again: Bytes,
        mut stream: S,
        mut stop: Pin<&mut impl FusedFuture<Output = ()>>,
    ) {
        let exchange = Arc::new(Exchange::default());
        loop {
            let rest = match self.awake(again, stream, &exchange, stop.as_mut()).await {
                Ok((rest, left, line)) => {
                    (again, stream) = (left, line);
                    rest
                }
                Err((result, stream)) => {
                    if let Err(error) = result {
                        debug!(%error, "connection failed");
                    }
                    if exchange.has_read_part() {
                        Box::pin(linger(stream)).await;
                    }
                    return;
                }
            };
            match rest {
                Idle::ForAnswer => {
                    let Some(said) = self.answered(&mut stream, &exchange).await else { return };
                    let is_last = self.server.shutdown.is_given();
                    let head = if is_last { AGAIN_AND_CLOSE } else { AGAIN };
                    again = if again.is_empty() && said.is_empty() {
                        Bytes::from_static(head)
                    } else {
                        [head, &again[..], &said[..]].concat().into()
                    };
                }
                Idle::ForRequest => {
                    exchange.listens();
                    if self.server.shutdown.is_given() {
                        return;
                    }
                    if again.is_empty() {
                        let said = self.said(&mut stream, stop.as_mut()).await;
                        let Some(said) = said else { return };
                        again = said;
                    }
                }
            }
        }
    }

    /// Has hyper read and write until there is nothing for it to do; gives for what is waited then,
    /// and what hyper has read ahead. The error is how the connection ended, and what is left of
    /// it.
    async fn awake<S: Wire>(
        &self,
        again: Bytes,
        stream: S,
        exchange: &Arc<Exchange>,
        mut stop: Pin<&mut impl FusedFuture<Output = ()>>,
    ) -> Result<(Idle, Bytes, S), (hyper::Result<()>, S)> {
        let service = Http1Service {
            server: Arc::clone(&self.server),
            peer: self.peer,
            exchange: Arc::clone(exchange),
        };
        let line =
            ReplayedStream::new(again, stream, exchange, Stall::new(self.server.response_timeout));
        let line = line.among(&self.server.awake);
        let awake = Awake::new(&self.server.awake);
        // Boxed, so that a connection is small while there is none.
        let mut hyper = Box::new(self.server.http1.serve_connection(line, service));
        let mut grace = pin!(None::<Sleep>);
        let mut resting = None;
        let rest = loop {
            let working = poll_fn(|cx| {
                if let Poll::Ready(result) = Pin::new(&mut *hyper).poll(cx) {
                    return Poll::Ready(Err(result));
                }
                let rest = exchange.rest();
                if rest != resting {
                    grace.set(rest.map(|_| sleep(awake.rest_after())));
                    resting = rest;
                }
                let Some(rest) = rest else { return Poll::Pending };
                let is_over = grace.as_mut().as_pin_mut().map(|grace| grace.poll(cx));
                is_over.map_or(Poll::Pending, |is_over| is_over.map(|()| Ok(rest)))
            });
            tokio::select! {
                biased;
                // First: an answer that is there is not to be lost.
                rest = working => break rest,
                () = &mut stop => Pin::new(&mut *hyper).graceful_shutdown(),
            }
        };
        let parts = hyper.into_parts();
        let (left, stream) = parts.io.into_parts();
        let rest = match rest {
            Ok(rest) => rest,
            Err(result) => return Err((result, stream)),
        };
        // A copy: hyper's buffer is not to be held for it.
        Ok((rest, [&parts.read_buf[..], &left[..]].concat().into(), stream))
    }

    /// Waits for the next request. Gives what was read of it; `None` if none comes.
    async fn said<S: Wire>(
        &self,
        stream: &mut S,
        stop: Pin<&mut impl FusedFuture<Output = ()>>,
    ) -> Option<Bytes> {
        tokio::select! {
            said = timeout(self.server.header_timeout, poll_fn(|cx| stream.poll_said(cx))) => {
                said.ok()?.ok()?
            }
            () = stop => None,
            () = self.server.room.notified() => None,
        }
    }

    /// Waits for the answer to the request. Gives what was read of the next one meanwhile; `None`
    /// if nobody is there to read the answer.
    async fn answered<S: Wire>(&self, stream: &mut S, exchange: &Exchange) -> Option<Bytes> {
        let mut answered = pin!(poll_fn(|cx| exchange.poll_answered(cx)));
        let said = tokio::select! {
            () = &mut answered => return Some(Bytes::new()),
            // The client says more, ahead of its exchange, or has gone away.
            said = poll_fn(|cx| stream.poll_said(cx)) => said.ok()??,
        };
        answered.await;
        Some(said)
    }
}

/// A connection with hyper.
struct Awake<'a>(Counted<'a>);

impl<'a> Awake<'a> {
    fn new(all: &'a AtomicUsize) -> Self {
        Self(Counted::new(all))
    }

    /// After how long it is to rest.
    fn rest_after(&self) -> Duration {
        if self.0.count() > FEW { REST_AFTER_OF_MANY } else { REST_AFTER }
    }
}

/// What hyper has to ask of an HTTP/1 connection.
struct Http1Service {
    server: Arc<Server>,
    peer: Peer,
    exchange: Arc<Exchange>,
}

impl Service<Request<Incoming>> for Http1Service {
    type Response = http::Response<ResponseBody>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<Incoming>) -> Answer {
        if !self.exchange.is_answered() {
            let request = self.exchange.begins(request);
            let hurry = &self.server.hurry;
            self.exchange.asked((self.server.answer)(request, self.peer, hurry));
        }
        Answer(Arc::clone(&self.exchange))
    }
}

/// The head of a request, on its way around warp: to be taken once. What warp is given it keeps
/// until the request is answered, and the head is a part of what hyper reads into.
#[derive(Clone)]
struct HyperHead(Arc<Mutex<Option<(Uri, HeaderMap)>>>, Peer, Version, Arc<Notify>);

impl HyperHead {
    fn take_from(
        request: Request<RequestBody>,
        peer: Peer,
        hurry: &Arc<Notify>,
    ) -> Request<RequestBody> {
        let (parts, body) = request.into_parts();
        let mut request = Request::new(body);
        *request.method_mut() = parts.method;
        let head = Arc::new(Mutex::new(Some((parts.uri, parts.headers))));
        request.extensions_mut().insert(Self(head, peer, parts.version, Arc::clone(hurry)));
        request
    }
}

/// The one warp filter: everything it lets in is answered by the edge, or the one beside it.
fn filter<A: App>(
    edge: Arc<Edge<A>>,
    beside: Option<Arc<Edge<A>>>,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone {
    warp::method().and(warp::ext::get::<HyperHead>()).and(warp::body::stream()).then(
        move |method: Method, HyperHead(head, peer, version, hurry): HyperHead, body| {
            let (uri, headers) = head.lock().take().unwrap_or_default();
            let beside = beside
                .as_ref()
                .filter(|beside| !edge.has_path(uri.path()) && beside.has_path(uri.path()));
            let edge = Arc::clone(beside.unwrap_or(&edge));
            let inbound = Inbound { method, uri, headers, peer, version, hurry, body };
            async move { edge.answer(inbound).await }
        },
    )
}
