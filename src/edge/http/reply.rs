//! Responses: what handlers give back, and the headers that every response carries.

use std::{fmt, io, pin::Pin};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
    header::{
        ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
        ACCESS_CONTROL_MAX_AGE, CONTENT_DISPOSITION, CONTENT_ENCODING, CONTENT_LENGTH,
        CONTENT_TYPE, ETAG, LOCATION, RETRY_AFTER, VARY,
    },
};
use ruma::api::{OutgoingResponse, OutgoingResponseExt as _};
use warp::reply::{Reply as _, Response};

use super::{
    ApiError,
    compress::{self, Encoding},
};
use logcabin_base::{background, clock, limits};

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The body of a reply.
pub(crate) enum Content {
    Bytes(Bytes),
    /// Piece by piece, as it is produced.
    Stream(Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send + Sync>>),
}

/// A response before it gets the headers that all of them carry.
pub struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    content: Content,
}

impl Reply {
    /// 200 with this JSON text.
    pub(crate) fn json(json: impl Into<Bytes>) -> Self {
        Self::new(JSON, Content::Bytes(json.into()))
    }

    /// 200 with these bytes of this content type.
    pub fn bytes(content_type: &'static str, bytes: impl Into<Bytes>) -> Self {
        Self::new(HeaderValue::from_static(content_type), Content::Bytes(bytes.into()))
    }

    /// 200 with a body of this content type that is sent as it is produced.
    pub(crate) fn stream(
        content_type: &'static str,
        stream: impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(HeaderValue::from_static(content_type), Content::Stream(Box::pin(stream)))
    }

    /// 303: redirects a browser.
    pub(crate) fn see_other(location: HeaderValue) -> Self {
        Self::bytes("text/plain", "")
            .with_status(StatusCode::SEE_OTHER)
            .with_header(LOCATION, location)
    }

    fn new(content_type: HeaderValue, content: Content) -> Self {
        // Room for the headers of every response, and one more. A larger map takes an allocation of
        // another class.
        let mut headers = HeaderMap::with_capacity(6);
        headers.insert(CONTENT_TYPE, content_type);
        Self { status: StatusCode::OK, headers, content }
    }

    /// The same reply with another status.
    #[must_use]
    pub const fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// The same reply with one more header.
    #[must_use]
    pub fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Adds a header, and keeps others of the same name: each cookie has its own.
    #[must_use]
    pub(crate) fn and_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.append(name, value);
        self
    }

    /// A reply that another node gave.
    pub(super) const fn from_parts(
        status: StatusCode,
        headers: HeaderMap,
        content: Content,
    ) -> Self {
        Self { status, headers, content }
    }

    pub(super) fn into_parts(self) -> (StatusCode, HeaderMap, Content) {
        (self.status, self.headers, self.content)
    }

    pub(crate) const fn status(&self) -> StatusCode {
        self.status
    }

    /// The reply of one of ruma's response types.
    pub(crate) fn typed(response: impl OutgoingResponse) -> Result<Self, ApiError> {
        let response = response
            .try_into_http_response::<BytesMut>()
            .map_err(|error| ApiError::internal(error.to_string()))?;
        let (parts, body) = response.into_parts();
        let mut headers = parts.headers;
        headers.entry(CONTENT_TYPE).or_insert(JSON);
        Ok(Self { status: parts.status, headers, content: Content::Bytes(body.freeze()) })
    }

    /// The answer to a preflight request of a browser.
    pub(super) fn preflight(path: &str) -> Self {
        let reply = Self::json(Bytes::from_static(b"{}"))
            .with_header(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(limits::CORS_MAX_AGE_S));
        if !path.contains("/org.matrix.msc4108/rendezvous") {
            return reply;
        }
        let also = "X-Requested-With, Content-Type, Authorization, If-Match, If-None-Match";
        reply.with_header(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static(also))
    }

    /// The same reply as the second of two parts (`multipart/mixed`), after `first`, which is JSON
    /// (server-server API, "Content Repository").
    #[must_use]
    pub(crate) fn after_json(mut self, first: &str) -> Self {
        // Longer than what could come up by chance.
        let boundary = clock::random_letters(40);
        let mut head = format!(
            "--{boundary}\r\nContent-Type: application/json\r\n\r\n{first}\r\n--{boundary}\r\n"
        )
        .into_bytes();
        for name in [CONTENT_TYPE, CONTENT_DISPOSITION] {
            if let Some(value) = self.headers.get(&name) {
                head.extend_from_slice(name.as_str().as_bytes());
                head.extend_from_slice(b": ");
                head.extend_from_slice(value.as_bytes());
                head.extend_from_slice(b"\r\n");
            }
        }
        head.extend_from_slice(b"\r\n");
        let tail = format!("\r\n--{boundary}--\r\n");
        let length = self.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        let length = length.and_then(|length| length.parse::<u64>().ok());
        let around = (head.len() + tail.len()) as u64;
        let around = length.map(|length| HeaderValue::from(length.saturating_add(around)));
        self.content = match self.content {
            Content::Bytes(bytes) => {
                Content::Bytes([&head, &*bytes, tail.as_bytes()].concat().into())
            }
            Content::Stream(stream) => {
                let one = |bytes: Bytes| stream::once(std::future::ready(Ok(bytes)));
                Content::Stream(Box::pin(
                    one(head.into()).chain(stream).chain(one(tail.into_bytes().into())),
                ))
            }
        };
        let content_type = format!("multipart/mixed; boundary={boundary}");
        self.headers = HeaderMap::new();
        if let Ok(content_type) = HeaderValue::try_from(content_type) {
            self.headers.insert(CONTENT_TYPE, content_type);
        }
        if let Some(length) = around {
            self.headers.insert(CONTENT_LENGTH, length);
        }
        self
    }

    /// The same reply in this encoding, if it is text that is long enough to gain by it.
    #[must_use]
    pub(super) fn compressed(mut self, encoding: Option<Encoding>) -> Self {
        let Content::Bytes(bytes) = &self.content else { return self };
        let is_text = self.headers.get(CONTENT_TYPE).is_some_and(compress::is_text);
        // An entity tag identifies the uncompressed bytes.
        let is_plain =
            !self.headers.contains_key(CONTENT_ENCODING) && !self.headers.contains_key(ETAG);
        if bytes.len() < limits::COMPRESS_FROM || !is_text || !is_plain {
            return self;
        }
        let compressed = encoding.and_then(|encoding| {
            let compress = || encoding.compress(bytes);
            let bytes = if bytes.len() <= limits::COMPRESS_AT_ONCE {
                compress()
            } else {
                background::at_length(compress)
            };
            Some((encoding, bytes?))
        });
        self.headers.append(VARY, HeaderValue::from_static("accept-encoding"));
        if let Some((encoding, bytes)) = compressed {
            self.headers.insert(CONTENT_ENCODING, encoding.name());
            // Some set it, and the length has changed.
            self.headers.remove(CONTENT_LENGTH);
            self.content = Content::Bytes(bytes.into());
        }
        self
    }

    /// The bytes of its body in memory: about one piece, if it is sent piece by piece.
    pub(super) const fn bytes_in_memory(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) => bytes.len(),
            Content::Stream(_) => limits::MEDIA_PIECE_BYTES,
        }
    }

    /// The length of the body that answers this method, if it is known.
    pub(super) fn length(&self, method: &Method) -> Option<u64> {
        match &self.content {
            _ if method == Method::HEAD => Some(0),
            Content::Bytes(bytes) => Some(bytes.len() as u64),
            Content::Stream(_) => self.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok(),
        }
    }

    /// The response on the wire.
    pub(super) fn into_response(mut self, method: &Method, request_id: &str) -> Response {
        self.headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        self.headers.insert(
            ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, POST, PUT, DELETE, OPTIONS"),
        );
        self.headers
            .entry(ACCESS_CONTROL_ALLOW_HEADERS)
            .or_insert(HeaderValue::from_static("X-Requested-With, Content-Type, Authorization"));
        if let Ok(id) = HeaderValue::from_str(request_id) {
            self.headers.insert(REQUEST_ID, id);
        }
        let mut response = match self.content {
            // For HTTP/2, nothing else leaves out the body or states its length.
            Content::Bytes(bytes) if method == Method::HEAD => {
                self.headers.insert(CONTENT_LENGTH, bytes.len().into());
                Response::default()
            }
            Content::Stream(_) if method == Method::HEAD => Response::default(),
            Content::Bytes(bytes) => Response::new(bytes.into()),
            Content::Stream(stream) => warp::reply::stream(stream).into_response(),
        };
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

impl From<&ApiError> for Reply {
    fn from(error: &ApiError) -> Self {
        let mut reply = match error.refusal() {
            Some(refusal) => refusal(error),
            None => Self::json(error.body().to_string()).with_status(error.status()),
        };
        for (name, value) in error.headers() {
            reply = reply.with_header(name.clone(), value.clone());
        }
        if let Some(wait) = error.retry_after() {
            // Whole seconds, rounded up: a client that comes back earlier is refused again.
            let seconds = wait.as_millis().div_ceil(1000).try_into().unwrap_or(u64::MAX);
            reply = reply.with_header(RETRY_AFTER, seconds.into());
        }
        reply
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("status", &self.status).finish_non_exhaustive()
    }
}
