//! Connections: accepting them, bounding them, and letting them finish.
//!
//! warp answers the requests; the accept loop is our own, since warp's sets neither `TCP_NODELAY`
//! nor a time limit for headers nor a bound on connections.

use std::{
    future::pending,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt as _, future::join_all};
use http::{HeaderMap, Method, Request, Uri};
use hyper::{
    body::Incoming,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{
        conn::auto,
        graceful::{GracefulShutdown, Watcher},
    },
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, oneshot},
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};
use warp::{Filter, Rejection, reply::Response};

use super::{App, Edge, edge::Inbound};
use crate::{limits, shutdown::Shutdown};

/// What warp does not hand to a filter whole.
#[derive(Clone)]
struct Origin {
    uri: Uri,
    peer: IpAddr,
}

/// Serves `edge` on every listener until its shutdown signal is given; then accepts no more, and
/// returns when all requests in progress are answered or the configured time for that is over.
pub(crate) async fn run<A: App>(listeners: Vec<TcpListener>, edge: Edge<A>) {
    let edge = Arc::new(edge);
    // Cut when this function returns, by dropping the other end.
    let (_serving, cut) = oneshot::channel::<()>();
    let server = Arc::new(Server::new(&edge, Shutdown::when(cut.map(drop))));
    let graceful = GracefulShutdown::new();
    let accepting = listeners.into_iter().map(|listener| {
        let (edge, server, graceful) = (Arc::clone(&edge), Arc::clone(&server), &graceful);
        async move {
            loop {
                // Taken before accepting: beyond the bound, the operating system keeps them waiting.
                let Ok(permit) = Arc::clone(&server.permits).acquire_owned().await else { return };
                match listener.accept().await {
                    Ok((stream, address)) => {
                        let connection = Connection {
                            edge: Arc::clone(&edge),
                            server: Arc::clone(&server),
                            watcher: graceful.watcher(),
                            peer: address.ip(),
                            _permit: permit,
                        };
                        tokio::spawn(connection.run(stream));
                    }
                    Err(error) => {
                        warn!(%error, "cannot accept connections");
                        sleep(limits::ACCEPT_RETRY).await;
                    }
                }
            }
        }
    });
    tokio::select! {
        _ = join_all(accepting) => {}
        () = edge.shutdown.given() => {}
    }
    let bound = Duration::from_secs(edge.limits.shutdown_seconds);
    let open = graceful.count();
    info!(connections = open, "finishing the requests in progress");
    if timeout(bound, graceful.shutdown()).await.is_err() {
        warn!("some requests did not finish in {} s and are cut off", bound.as_secs());
    }
}

/// What all connections share.
struct Server {
    permits: Arc<Semaphore>,
    http: auto::Builder<TokioExecutor>,
    header_timeout: Duration,
    /// Given when connections are to be dropped as they are.
    cut: Shutdown,
}

impl Server {
    fn new<A>(edge: &Edge<A>, cut: Shutdown) -> Self {
        let header_timeout = Duration::from_secs(edge.limits.header_timeout_seconds);
        let mut http = auto::Builder::new(TokioExecutor::new());
        http.http1()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(limits::HTTP1_BUFFER_BYTES)
            .pipeline_flush(true);
        http.http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits::HTTP2_STREAMS)
            .max_header_list_size(limits::HTTP2_HEADER_BYTES)
            .keep_alive_interval(limits::HTTP2_PING)
            .keep_alive_timeout(header_timeout);
        Self {
            permits: Arc::new(Semaphore::new(edge.limits.max_connections)),
            http,
            header_timeout,
            cut,
        }
    }
}

struct Connection<A> {
    edge: Arc<Edge<A>>,
    server: Arc<Server>,
    watcher: Watcher,
    peer: IpAddr,
    _permit: OwnedSemaphorePermit,
}

impl<A: App> Connection<A> {
    async fn run(self, stream: TcpStream) {
        // Answers are written whole: waiting to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let warp = TowerToHyperService::new(warp::service(filter(Arc::clone(&self.edge))));
        let heard = Arc::new(AtomicBool::new(false));
        let peer = self.peer;
        let service = {
            let heard = Arc::clone(&heard);
            service_fn(move |mut request: Request<Incoming>| {
                heard.store(true, Ordering::Relaxed);
                let uri = request.uri().clone();
                request.extensions_mut().insert(Origin { uri, peer });
                warp.call(request)
            })
        };
        let connection = self.server.http.serve_connection(TokioIo::new(stream), service);
        let connection = self.watcher.watch(connection.into_owned());
        // hyper's limit starts once it knows the protocol; this one is for those who never say.
        let silent = async {
            sleep(self.server.header_timeout).await;
            if heard.load(Ordering::Relaxed) {
                pending::<()>().await;
            }
        };
        tokio::select! {
            result = connection => {
                if let Err(error) = result {
                    debug!(%error, "connection failed");
                }
            }
            () = silent => debug!("no request came on a connection"),
            () = self.server.cut.given() => {}
        }
    }
}

/// The one warp filter: everything it lets in is answered by the edge.
fn filter<A: App>(
    edge: Arc<Edge<A>>,
) -> impl Filter<Extract = (Response,), Error = Rejection> + Clone {
    warp::method()
        .and(warp::ext::get::<Origin>())
        .and(warp::header::headers_cloned())
        .and(warp::body::stream())
        .then(move |method: Method, origin: Origin, headers: HeaderMap, body| {
            let edge = Arc::clone(&edge);
            let Origin { uri, peer } = origin;
            async move { edge.answer(Inbound { method, uri, headers, peer, body }).await }
        })
}
