//! An HTTP client that speaks JSON.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;

/// A client of one server; clones share their connections.
#[derive(Clone)]
pub(crate) struct Http {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Http {
    /// A client of the server at `base`, for example `http://127.0.0.1:8008`.
    pub(crate) fn new(base: &str) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        // Before the server does it: on a busy machine, a test may do something else for so long
        // that the next request would meet the end of the connection.
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(10))
            .build(connector);
        Self { base: base.to_owned(), client }
    }

    /// A client that speaks HTTP/2 from the first byte, without TLS and without an upgrade.
    pub(crate) fn http2(base: &str) -> Self {
        let connector = HttpConnector::new();
        let client = Client::builder(TokioExecutor::new()).http2_only(true).build(connector);
        Self { base: base.to_owned(), client }
    }

    /// Sends any bytes under any headers and returns the answer as it came.
    pub(crate) async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> RawAnswer {
        let mut request =
            http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).expect("a well-formed request");
        self.try_raw(request).await.unwrap_or_else(|error| panic!("{method} {path}: {error}"))
    }

    /// Like [`Self::raw`]; an `Err` means that no whole answer came back.
    pub(crate) async fn try_raw(
        &self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<RawAnswer, Box<dyn std::error::Error>> {
        let named = format!("{} {}", request.method(), request.uri().path());
        let (parts, body) = self.client.request(request).await?.into_parts();
        let bytes = body.collect().await?.to_bytes();
        Ok(RawAnswer { request: named, parts, bytes })
    }

    /// Sends a request; an `Err` means that no whole answer came back, and so that nothing is known
    /// about its effect.
    pub(crate) async fn try_request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Answer, Unreachable> {
        let name = format!("{method} {path}");
        let lost = |error: &dyn fmt::Display| Unreachable(format!("{name}: {error}"));
        let mut request =
            http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let bytes = match body {
            Some(body) => {
                request = request.header("content-type", "application/json");
                Bytes::from(body.to_string())
            }
            None => Bytes::new(),
        };
        let request = request.body(Full::new(bytes)).expect("a well-formed request");
        let response = self.client.request(request).await.map_err(|error| lost(&error))?;
        let status = response.status().as_u16();
        let headers = response.headers().clone();
        let bytes = response.into_body().collect().await.map_err(|error| lost(&error))?.to_bytes();
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|error| {
            panic!("{name}: status {status}, not JSON ({error}): {}", bytes.escape_ascii())
        });
        Ok(Answer { request: name, status, headers, body })
    }

    /// Sends a request to a server that is expected to answer.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Answer {
        match self.try_request(method, path, token, body).await {
            Ok(answer) => answer,
            Err(error) => panic!("no answer: {error}"),
        }
    }
}

/// An answer with its headers, whatever its body is.
#[derive(Debug)]
pub(crate) struct RawAnswer {
    request: String,
    pub(crate) parts: http::response::Parts,
    pub(crate) bytes: Bytes,
}

impl RawAnswer {
    /// The value of a header; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// The answer with its body read as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Answer {
        let Self { request, parts, bytes } = self;
        let body = serde_json::from_slice(&bytes)
            .unwrap_or_else(|error| panic!("{request}: {error}: {}", bytes.escape_ascii()));
        Answer { request, status: parts.status.as_u16(), headers: parts.headers, body }
    }
}

/// The request did not get a whole answer: the server is down, or went down meanwhile.
#[derive(Debug)]
pub(crate) struct Unreachable(pub(crate) String);

impl fmt::Display for Unreachable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A status and a JSON body, with the request it answers for messages.
#[derive(Debug)]
pub(crate) struct Answer {
    request: String,
    pub(crate) status: u16,
    headers: http::HeaderMap,
    pub(crate) body: Value,
}

impl Answer {
    /// An answer that came through another client.
    #[track_caller]
    pub(crate) fn of(request: String, parts: http::response::Parts, bytes: &[u8]) -> Self {
        let body = serde_json::from_slice(bytes)
            .unwrap_or_else(|error| panic!("{request}: {error}: {}", bytes.escape_ascii()));
        Self { request, status: parts.status.as_u16(), headers: parts.headers, body }
    }

    /// The value of a header; empty if there is none.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a readable header"))
    }

    /// The body of an answer that must be a success.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status == 200, "expected 200, got {self}");
        self.body
    }

    /// An answer that must be this refusal; returns its body.
    #[track_caller]
    pub(crate) fn refused(self, status: u16, errcode: &str) -> Value {
        assert!(
            self.status == status && self.body["errcode"] == errcode,
            "expected {status} {errcode}, got {self}"
        );
        self.body
    }

    /// A string of a successful answer.
    #[track_caller]
    pub(crate) fn ok_string(self, key: &str) -> String {
        let shown = self.to_string();
        let body = self.ok();
        match body[key].as_str() {
            Some(value) => value.to_owned(),
            None => panic!("expected a string `{key}` in {shown}"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: status {}: {}", self.request, self.status, self.body)
    }
}

/// Percent-encodes a path segment or a query value.
pub(crate) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(byte.into());
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
