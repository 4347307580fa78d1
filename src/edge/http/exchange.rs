//! One request of an HTTP/1 connection at a time, apart from hyper, so that hyper can be taken away
//! while there is nothing for it to do.
//!
//! hyper holds some 20 KiB for each connection: a buffer to read into, one to write from, which
//! stays as large as the largest response was, and what it knows of both. Almost all connections
//! wait almost always, for a request or, in a long poll, for the answer. So the future that answers
//! is kept in a [`Exchange`] beside hyper; when hyper has read and written all that there is, it is
//! dropped, and made again when the client says something, or the answer is there. Then it is first
//! given [`AGAIN`] to read, and asks for the answer to that: what it is given is the answer to the
//! request that it had read before.

use std::{
    convert::Infallible,
    io,
    mem::MaybeUninit,
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Method, Request, Version, header::CONNECTION};
use hyper::{
    body::{Body, Frame, Incoming, SizeHint},
    rt::{Read, ReadBuf, ReadBufCursor, Write},
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};
use tokio_rustls::server::TlsStream;
use warp::reply::Response;

use super::{
    outgoing::{CountedResponse, Piece, Stall, StreamGuard, Streams},
    serve::FEW,
};
use logcabin_base::{
    limits,
    net::{self, TcpStream},
};

/// A request in place of one that hyper has read before. Only requests that it stands for are put
/// aside: see [`can_be_put_aside`].
pub(super) const AGAIN: &[u8] = b"GET / HTTP/1.1\r\n\r\n";

/// The same if the connection is to end with the answer.
pub(super) const AGAIN_AND_CLOSE: &[u8] = b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n";

/// How far a connection is with its current request. Shared by all that sees a part of that.
#[derive(Default)]
pub(super) struct Exchange(Mutex<State>);

#[derive(Default)]
struct State {
    stage: Stage,
    /// Whether the request can be answered by another hyper than the one that read it.
    can_be_put_aside: bool,
    /// Whether the request was read to its end.
    request_read: bool,
    /// Whether what there was to write since then is not known to have left hyper.
    unwritten: bool,
}

#[derive(Default)]
enum Stage {
    /// There was no request since hyper was made.
    #[default]
    Listening,
    /// The future of the answer; `None` while it is being polled.
    Asked(Option<BoxFuture<'static, Response>>),
    /// The answer came while there was no hyper.
    Answered(Response),
    /// hyper has the answer, but not yet all of its body.
    Answering,
    /// hyper has all of the answer.
    Over,
}

/// Why there is nothing for hyper to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idle {
    /// The next request is yet to come.
    ForRequest,
    ForAnswer,
}

impl Exchange {
    /// A request has come: `answer` is the future of its answer.
    pub(super) fn asked(&self, answer: BoxFuture<'static, Response>) {
        self.0.lock().stage = Stage::Asked(Some(answer));
    }

    /// Takes note of the head of a request, and gives its body.
    pub(super) fn begins(self: &Arc<Self>, request: Request<Incoming>) -> Request<RequestBody> {
        let mut state = self.0.lock();
        state.can_be_put_aside = can_be_put_aside(&request);
        state.request_read = request.body().is_end_stream();
        request.map(|body| RequestBody { body, exchange: Arc::downgrade(self) })
    }

    /// Whether what hyper asks for is the answer to a request that was put aside.
    pub(super) fn is_answered(&self) -> bool {
        matches!(self.0.lock().stage, Stage::Answered(_))
    }

    /// Whether there is a request that was not read to its end.
    pub(super) fn has_read_part(&self) -> bool {
        let state = self.0.lock();
        !state.request_read && !matches!(state.stage, Stage::Listening)
    }

    /// Checked when hyper has nothing left to do: whether it can be dropped.
    pub(super) fn rest(&self) -> Option<Idle> {
        let state = self.0.lock();
        match state.stage {
            // The rest of a request that was refused early must not be read as the next one.
            _ if state.unwritten || !state.request_read => None,
            Stage::Over => Some(Idle::ForRequest),
            Stage::Asked(_) if state.can_be_put_aside => Some(Idle::ForAnswer),
            _ => None,
        }
    }

    /// Hyper was restarted, without an answer to give.
    pub(super) fn listens(&self) {
        self.0.lock().stage = Stage::Listening;
    }

    /// Waits, without hyper, until the answer is there for the next.
    pub(super) fn poll_answered(&self, cx: &mut Context<'_>) -> Poll<()> {
        let response = ready!(self.poll_answer(cx));
        self.0.lock().stage = Stage::Answered(response);
        Poll::Ready(())
    }

    /// The lock is not held meanwhile: the request's body takes it, too.
    fn poll_answer(&self, cx: &mut Context<'_>) -> Poll<Response> {
        let asked = match &mut self.0.lock().stage {
            Stage::Asked(asked) => asked.take(),
            _ => None,
        };
        let Some(mut asked) = asked else { return Poll::Pending };
        let polled = asked.as_mut().poll(cx);
        if polled.is_pending() {
            self.0.lock().stage = Stage::Asked(Some(asked));
        }
        polled
    }

    fn set_unwritten(&self, unwritten: bool) {
        self.0.lock().unwritten = unwritten;
    }
}

/// Whether hyper writes the same answer to this request as to [`AGAIN`]: it does by the method, the
/// version, and what is said of the connection.
fn can_be_put_aside(request: &Request<Incoming>) -> bool {
    let stays = |headers: &HeaderMap| {
        let mut values = headers.get_all(CONNECTION).iter();
        values.all(|value| value.as_bytes().eq_ignore_ascii_case(b"keep-alive"))
    };
    matches!(*request.method(), Method::GET | Method::POST)
        && request.version() == Version::HTTP_11
        && stays(request.headers())
}

/// What warp has no name for: the type of its bodies.
trait HasBody {
    type Body;
}

impl<B> HasBody for http::Response<B> {
    type Body = B;
}

/// The answer, as hyper waits for it.
pub(super) struct Answer(pub(super) Arc<Exchange>);

impl Future for Answer {
    type Output = Result<http::Response<ResponseBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let exchange = &self.0;
        let there = {
            let mut state = exchange.0.lock();
            match std::mem::replace(&mut state.stage, Stage::Answering) {
                Stage::Answered(response) => Some(response),
                other => {
                    state.stage = other;
                    None
                }
            }
        };
        let mut response = match there {
            Some(response) => response,
            None => ready!(exchange.poll_answer(cx)),
        };
        let mut state = exchange.0.lock();
        state.stage = Stage::Answering;
        state.unwritten = true;
        if !state.request_read {
            // The rest of the request would be read as the next one.
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        drop(state);
        Poll::Ready(Ok(ResponseBody::response(response, Some(Arc::clone(exchange)), None)))
    }
}

/// The body of a request: notes when all of it has come.
pub(super) struct RequestBody {
    body: Incoming,
    /// The exchange may own the body, by way of the answer.
    exchange: Weak<Exchange>,
}

impl RequestBody {
    /// A body that is in no exchange.
    pub(super) const fn apart(body: Incoming) -> Self {
        Self { body, exchange: Weak::new() }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let is_end = frame.is_none() || self.body.is_end_stream();
        if is_end && let Some(exchange) = self.exchange.upgrade() {
            exchange.0.lock().request_read = true;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The body of a response, in pieces: notes when hyper has all of it.
pub(super) struct ResponseBody {
    body: <Response as HasBody>::Body,
    /// What of a larger part is left.
    rest: Bytes,
    held: Option<Arc<CountedResponse>>,
    /// Of HTTP/1.
    exchange: Option<Arc<Exchange>>,
    /// Of HTTP/2.
    stream: Option<Arc<StreamGuard>>,
}

impl ResponseBody {
    /// The response, with its body in this form.
    fn response(
        mut response: Response,
        exchange: Option<Arc<Exchange>>,
        stream: Option<Arc<StreamGuard>>,
    ) -> http::Response<Self> {
        let held = response.extensions_mut().remove::<Arc<CountedResponse>>();
        response.map(|body| Self { body, rest: Bytes::new(), held, exchange, stream })
    }

    /// The same for a stream of HTTP/2.
    pub(super) fn of_stream(response: Response, streams: &Arc<Streams>) -> http::Response<Self> {
        Self::response(response, None, Some(streams.begin()))
    }

    fn piece(&mut self, mut bytes: Bytes) -> Frame<Piece> {
        // Of HTTP/1, the connection tells what the client takes.
        if self.stream.is_some() && bytes.len() > limits::RESPONSE_PIECE {
            self.rest = bytes.split_off(limits::RESPONSE_PIECE);
        }
        let (held, stream) = (self.held.clone(), self.stream.clone());
        Frame::data(Piece { bytes, _held: held, _stream: stream })
    }
}

impl Body for ResponseBody {
    type Data = Piece;
    type Error = warp::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, warp::Error>>> {
        if let Some(stream) = &self.stream {
            stream.moves();
        }
        let rest = std::mem::take(&mut self.rest);
        let frame = if rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                // Bodies have no trailers.
                Some(Ok(frame)) => frame.into_data().ok().map(|bytes| Ok(self.piece(bytes))),
                Some(Err(error)) => Some(Err(error)),
                None => None,
            }
        } else {
            Some(Ok(self.piece(rest)))
        };
        if let Some(exchange) = &self.exchange {
            exchange.set_unwritten(true);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let hint = self.body.size_hint();
        let mut with_rest = SizeHint::new();
        // The upper bound first has to be at least the lower one.
        if let Some(upper) = hint.upper() {
            with_rest.set_upper(upper + rest);
        }
        with_rest.set_lower(hint.lower() + rest);
        with_rest
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        let Some(exchange) = &self.exchange else { return };
        let mut state = exchange.0.lock();
        state.unwritten = true;
        if matches!(state.stage, Stage::Answering) {
            state.stage = Stage::Over;
        }
    }
}

/// How much is read at once in a crowd. hyper begins with a buffer of twice as much, and makes it
/// larger when it is filled.
const LITTLE: usize = 4096;

/// A connection as hyper sees it: what is to be read again comes first. Notes when all is written.
pub(super) struct ReplayedStream<S = TcpStream> {
    again: Bytes,
    stream: TokioIo<S>,
    exchange: Arc<Exchange>,
    stall: Stall,
    /// How many connections there are that have a hyper, if they are counted.
    awake: Option<Arc<AtomicUsize>>,
}

/// What a connection is read from and written to.
pub(super) trait Wire: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Waits until the other end says something. Gives what had to be read to find that out, which
    /// may be nothing; `None` if the other end says nothing more.
    fn poll_said(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let mut byte = [0];
        let mut read = tokio::io::ReadBuf::new(&mut byte);
        ready!(Pin::new(self).poll_read(cx, &mut read))?;
        let said = read.filled();
        Poll::Ready(Ok((!said.is_empty()).then(|| Bytes::copy_from_slice(said))))
    }

    /// Has the kernel free its buffers as soon as the connection is dropped.
    fn reset(&self);
}

impl Wire for TcpStream {
    fn poll_said(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let mut byte = [0];
        let peeked = ready!(self.poll_peek(cx, &mut tokio::io::ReadBuf::new(&mut byte)))?;
        Poll::Ready(Ok((peeked > 0).then(Bytes::new)))
    }

    fn reset(&self) {
        net::reset_when_dropped(self);
    }
}

impl Wire for TlsStream<TcpStream> {
    fn reset(&self) {
        net::reset_when_dropped(self.get_ref().0);
    }
}

impl Wire for UnixStream {
    fn reset(&self) {}
}

impl<S: Wire> ReplayedStream<S> {
    /// A connection that fails when nothing is taken of what is written for as long as `stall`
    /// says.
    pub(super) fn new(again: Bytes, stream: S, exchange: &Arc<Exchange>, stall: Stall) -> Self {
        let (stream, exchange) = (TokioIo::new(stream), Arc::clone(exchange));
        Self { again, stream, exchange, stall, awake: None }
    }

    /// The same as one of so many.
    pub(super) fn among(self, awake: &Arc<AtomicUsize>) -> Self {
        Self { awake: Some(Arc::clone(awake)), ..self }
    }

    /// Whether there are so many that each is to stay small. Their senders wait for room for their
    /// bodies anyway.
    fn is_in_crowd(&self) -> bool {
        self.awake.as_ref().is_some_and(|awake| awake.load(Ordering::Relaxed) > FEW)
    }

    /// The connection, and what of that to be read again is left.
    pub(super) fn into_parts(self) -> (Bytes, S) {
        (self.again, self.stream.into_inner())
    }

    /// Resets a connection that accepts no data, so that the kernel frees its buffers at once.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let watched = self.stall.watch(cx, written);
        if matches!(&watched, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::TimedOut) {
            self.stream.inner().reset();
        }
        watched
    }
}

impl<S: Wire> Read for ReplayedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.again.is_empty() {
            if !self.is_in_crowd() {
                return Pin::new(&mut self.stream).poll_read(cx, buf);
            }
            let mut little = [MaybeUninit::uninit(); LITTLE];
            let mut little = ReadBuf::uninit(&mut little[..LITTLE.min(buf.remaining())]);
            ready!(Pin::new(&mut self.stream).poll_read(cx, little.unfilled()))?;
            buf.put_slice(little.filled());
            return Poll::Ready(Ok(()));
        }
        let length = self.again.len().min(buf.remaining());
        buf.put_slice(&self.again[..length]);
        self.again.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl<S: Wire> Write for ReplayedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    /// hyper comes here when it has nothing left in its own buffer.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.exchange.set_unwritten(false);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }
}

/// Reads on for a while, and discards the data: a client that sends all of its request before it
/// reads would otherwise find the connection reset, and not why it was refused.
pub(super) async fn linger(mut stream: impl Wire) {
    let _ = stream.shutdown().await;
    let (mut buffer, mut left) = (vec![0; 16 * 1024], limits::OVERSIZED_BODY_DRAIN);
    let reading = async {
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            let Some(after) = left.checked_sub(read) else { return };
            left = after;
        }
    };
    // It has had the time to read.
    let _ = timeout(limits::LINGER, reading).await;
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use logcabin_base::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn in_a_crowd_a_connection_is_read_little_by_little_and_all_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let sent: Vec<u8> = (0..=255).cycle().take(5 * LITTLE).collect();
        client.write_all(&sent).await.unwrap();
        drop(client);
        let awake = Arc::new(AtomicUsize::new(FEW + 1));
        let stall = Stall::new(Duration::from_secs(60));
        let again = Bytes::from_static(AGAIN);
        let mut line = ReplayedStream::new(again, server, &Arc::default(), stall).among(&awake);
        let (mut whole, mut most) = (Vec::new(), 0);
        loop {
            if whole.len() > 3 * LITTLE {
                // The others are gone.
                awake.store(FEW, Ordering::Relaxed);
            }
            let mut place = vec![MaybeUninit::uninit(); 8 * LITTLE];
            let mut read = ReadBuf::uninit(&mut place);
            poll_fn(|cx| Pin::new(&mut line).poll_read(cx, read.unfilled())).await.unwrap();
            if read.filled().is_empty() {
                break;
            }
            if awake.load(Ordering::Relaxed) > FEW {
                most = most.max(read.filled().len());
            }
            whole.extend_from_slice(read.filled());
        }
        assert_eq!(whole, [AGAIN, &sent].concat());
        assert_eq!(most, LITTLE);
    }
}
