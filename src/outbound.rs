//! Requests that the server makes to other services: identity servers, providers of single sign-on,
//! application services, gateways. One client for all of them, with bounds on time and size.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use reqwest::{Client, Url, redirect::Policy};
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::limits;

/// The client. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Outbound(Client);

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// The method.
    pub(crate) method: Method,
    /// Where to.
    pub(crate) url: Url,
    /// Headers besides those that every request has.
    pub(crate) headers: HeaderMap,
    /// The body.
    pub(crate) body: Bytes,
    /// How long all of it may take.
    pub(crate) timeout: Duration,
    /// How many bytes of an answer are taken.
    pub(crate) max_bytes: usize,
}

/// An answer, whatever its status. Redirects are answers, too: they are not followed.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status.
    pub(crate) status: StatusCode,
    /// The headers.
    pub(crate) headers: HeaderMap,
    /// The whole body.
    pub(crate) body: Bytes,
}

/// Why there is no answer.
#[derive(Debug, Error)]
pub(crate) enum OutboundError {
    /// It could not be reached, or did not answer in time. The URL, which may hold a secret, is left out.
    #[error("{0}")]
    Failed(reqwest::Error),
    /// There is nothing at this address.
    #[error("`{0}` is not an address")]
    Address(String),
    /// Whoever is to be asked has no address.
    #[error("it has no address")]
    Nowhere,
    /// The answer is larger than was allowed.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// The answer is not what was expected.
    #[error("the answer is not understood: {0}")]
    Unexpected(serde_json::Error),
}

impl From<reqwest::Error> for OutboundError {
    fn from(error: reqwest::Error) -> Self {
        Self::Failed(error.without_url())
    }
}

impl OutboundError {
    /// Whether there was no answer for so long that it was given up.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Failed(error) if error.is_timeout())
    }
}

impl Ask {
    /// A request without a body.
    pub(crate) fn new(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: limits::OUTBOUND_TIMEOUT,
            max_bytes: limits::OUTBOUND_ANSWER_BYTES,
        }
    }

    /// The same with one more header. One that cannot be sent is left out.
    #[must_use]
    pub(crate) fn header(mut self, name: http::HeaderName, value: &str) -> Self {
        if let Ok(mut value) = http::HeaderValue::from_str(value) {
            value.set_sensitive(name == http::header::AUTHORIZATION);
            self.headers.insert(name, value);
        }
        self
    }

    /// The same with these fields as its body, as a form of a page would send them.
    #[must_use]
    pub(crate) fn form(mut self, fields: &[(&str, &str)]) -> Self {
        self.body = serde_html_form::to_string(fields).unwrap_or_default().into();
        self.header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded")
    }

    /// The same with this JSON as its body.
    #[must_use]
    pub(crate) fn json(mut self, body: &impl serde::Serialize) -> Self {
        self.body = serde_json::to_vec(body).unwrap_or_default().into();
        self.header(http::header::CONTENT_TYPE, "application/json")
    }
}

impl Answer {
    /// The body as JSON.
    ///
    /// # Errors
    /// When it is not of this type.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, OutboundError> {
        serde_json::from_slice(&self.body).map_err(OutboundError::Unexpected)
    }
}

impl Outbound {
    /// The client. Certificates are checked against those that the operating system trusts.
    ///
    /// # Errors
    /// When the operating system's certificates cannot be used.
    pub(crate) fn new() -> Result<Self, OutboundError> {
        // One for the process; a second server in it finds it there.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .redirect(Policy::none())
            .connect_timeout(limits::OUTBOUND_CONNECT_TIMEOUT)
            .user_agent(concat!("Logcabin/", env!("CARGO_PKG_VERSION")))
            .build()?;
        Ok(Self(client))
    }

    /// Makes a request.
    ///
    /// # Errors
    /// When there is no answer in time, or one that is too large.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Answer, OutboundError> {
        let Ask { method, url, headers, body, timeout, max_bytes } = ask;
        let request = self.0.request(method, url).headers(headers).body(body).timeout(timeout);
        let mut response = request.send().await?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut body = BytesMut::new();
        while let Some(part) = response.chunk().await? {
            if body.len() + part.len() > max_bytes {
                return Err(OutboundError::TooLarge(max_bytes));
            }
            body.extend_from_slice(&part);
        }
        Ok(Answer { status, headers, body: body.freeze() })
    }
}
