//! Stand-ins for what the server asks over HTTP: one small service for all of them.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::TlsAcceptor;

use super::PATIENCE;

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) bytes: Bytes,
    /// The bytes read as JSON; null if they are not JSON.
    pub(crate) body: Value,
}

/// The answer; with `None`, the service hangs up.
pub(crate) type Reply = Option<Response<Full<Bytes>>>;

/// An answer of this type.
pub(crate) fn reply(status: u16, content_type: &str, body: impl Into<Bytes>) -> Reply {
    let response = Response::builder().status(status).header("content-type", content_type);
    Some(response.body(Full::new(body.into())).expect("a response"))
}

/// Makes an answer stop once its body was sent, without an end. Counts the answers that nobody
/// waits for any more.
#[derive(Clone, Default)]
pub(crate) struct Stops(Arc<AtomicUsize>);

impl Stops {
    /// How many answers nobody waits for any more.
    pub(crate) fn left(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A body that stops half-way.
struct Half {
    rest: Bytes,
    stops: Stops,
}

impl Body for Half {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            return Poll::Pending;
        }
        let length = self.rest.len().min(64 * 1024);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }
}

impl Drop for Half {
    fn drop(&mut self) {
        self.stops.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Like [`reply`], in JSON; null is an empty body.
pub(crate) fn reply_json(status: u16, body: &Value) -> Reply {
    let text = if body.is_null() { String::new() } else { body.to_string() };
    reply(status, "application/json", text)
}

/// Something that listens on this machine, until it is dropped.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    serving: JoinHandle<()>,
}

impl Service {
    /// Listens on a free port, and hands every request to `answer`.
    pub(crate) async fn start<F>(answer: impl Fn(Asked) -> F + Clone + Send + 'static) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        Self::on(listener, answer)
    }

    /// Like [`Self::start`], over HTTPS.
    pub(crate) async fn start_tls<F>(
        tls: TlsAcceptor,
        answer: impl Fn(Asked) -> F + Clone + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        Self::serve(listener, Some(tls), answer)
    }

    /// Like [`Self::start`], on a port of the caller's choice.
    pub(crate) fn on<F>(
        listener: TcpListener,
        answer: impl Fn(Asked) -> F + Clone + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self::serve(listener, None, answer)
    }

    /// Like [`Self::on`], over HTTPS.
    pub(crate) fn on_tls<F>(
        listener: TcpListener,
        tls: TlsAcceptor,
        answer: impl Fn(Asked) -> F + Clone + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self::serve(listener, Some(tls), answer)
    }

    fn serve<F>(
        listener: TcpListener,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(Asked) -> F + Clone + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        let address = listener.local_addr().expect("it has an address");
        let serving = tokio::spawn(async move {
            // Aborted with the task.
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                let (answer, tls) = (answer.clone(), tls.clone());
                connections.spawn(async move {
                    let service = service_fn(move |request| respond(request, answer.clone()));
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = match tls {
                        None => http.serve_connection(TokioIo::new(stream), service).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            http.serve_connection(TokioIo::new(stream), service).await
                        }
                    };
                });
            }
        });
        Self { address, serving }
    }

    /// Goes away, with all its connections.
    pub(crate) async fn stop(mut self) {
        self.serving.abort();
        let _ = (&mut self.serving).await;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn respond<F>(
    request: http::Request<Incoming>,
    answer: impl Fn(Asked) -> F,
) -> Result<Response<Either<Full<Bytes>, Half>>, std::io::Error>
where
    F: Future<Output = Reply>,
{
    let (parts, body) = request.into_parts();
    let bytes = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let asked = Asked {
        method: parts.method.to_string(),
        path: parts.uri.to_string(),
        headers: parts.headers,
        body: serde_json::from_slice(&bytes).unwrap_or_default(),
        bytes,
    };
    let reply = answer(asked).await.ok_or_else(|| std::io::Error::other("hung up"))?;
    let Some(stops) = reply.extensions().get::<Stops>().cloned() else {
        return Ok(reply.map(Either::Left));
    };
    let (head, body) = reply.into_parts();
    let rest = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    Ok(Response::from_parts(head, Either::Right(Half { rest, stops })))
}

/// Wakes tests that wait for requests to a service.
#[derive(Clone, Default)]
pub(crate) struct News(Arc<Notify>);

impl News {
    /// Reports that something has happened.
    pub(crate) fn tell(&self) {
        self.0.notify_waiters();
    }

    /// Waits until this holds, checking it after each report; `false` if it never does.
    pub(crate) async fn until(&self, holds: impl Fn() -> bool) -> bool {
        let waiting = async {
            loop {
                let news = self.0.notified();
                if holds() {
                    return;
                }
                news.await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.is_ok()
    }
}

/// A service that answers each request in JSON as instructed, and remembers it.
pub(crate) struct StandIn {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    _service: Service,
}

impl StandIn {
    /// A service that answers with a status and a body.
    pub(crate) async fn start(
        answer: impl Fn(&Asked) -> (u16, Value) + Clone + Send + Sync + 'static,
    ) -> Self {
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let remembered = Arc::clone(&asked);
        let service = Service::start(move |asked| {
            let (status, body) = answer(&asked);
            remembered.lock().unwrap_or_else(PoisonError::into_inner).push(asked);
            std::future::ready(reply_json(status, &body))
        })
        .await;
        Self { address: service.address, asked, _service: service }
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
