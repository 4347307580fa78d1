//! Requests to other services: identity servers, providers of single sign-on, application services,
//! gateways. One client for all of them, with limits on time and size.

use std::{error::Error, io, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Bytes, BytesMut};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{ACCEPT, AUTHORIZATION, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{self, Client},
    rt::{TokioExecutor, TokioTimer},
};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use url::Url;

use crate::{
    connector::{Connector, Router},
    exits::{self, Rehearsal},
    federation::connect::{roots, unbracketed},
    proxy::Proxy,
    public_only::PublicOnly,
};
use logcabin_base::bodies::{self, BodyBudget, Principal};
use logcabin_base::network::Range;
use logcabin_base::{descriptors, limits};
use logcabin_config as config;

pub use crate::public_only::NotPublic;

/// The client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Outbound {
    client: Client<Connector, Full<Bytes>>,
    router: Arc<Router>,
    /// Whether it is for public addresses only.
    is_public: bool,
    /// Memory for answers on their way.
    bodies: Arc<BodyBudget>,
    /// The requests that may be under way: each has a connection.
    turns: Arc<Semaphore>,
    /// Whether what leaves says nothing of users and rooms.
    is_technical: bool,
}

/// A request.
#[derive(Clone, Debug)]
pub struct OutboundRequest {
    pub method: Method,
    /// The target.
    pub url: Url,
    /// Headers besides those of every request.
    pub headers: HeaderMap,
    pub body: Bytes,
    /// The limit on the whole exchange.
    pub timeout: Duration,
    /// The largest answer, in bytes.
    pub max_bytes: usize,
    /// Whether a larger answer is truncated; otherwise it is an error.
    pub cut: bool,
}

/// An answer, whatever its status. Redirects are not followed but returned.
#[derive(Clone, Debug)]
pub struct OutboundResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why there was no answer.
#[derive(Debug, Error)]
pub enum OutboundError {
    /// The address is not public.
    #[error(transparent)]
    NotPublic(#[from] NotPublic),
    /// Nothing leaves this server.
    #[error(transparent)]
    Rehearsal(#[from] Rehearsal),
    /// The service could not be reached, or broke off. The URL is left out, because it may contain
    /// a secret.
    #[error("{0}")]
    Failed(String),
    /// The service did not answer in time.
    #[error("no answer in time")]
    Late,
    /// Nobody listens there.
    #[error("the connection is refused")]
    Refused,
    /// A certificate file is not usable.
    #[error("`outbound.certificates`: {0}")]
    Certificates(String),
    /// The settings of the proxy are not usable.
    #[error("{0}")]
    Proxy(String),
    /// The authorities of the system are not usable.
    #[error("TLS: {0}")]
    Tls(String),
    /// The address is not valid.
    #[error("`{0}` is not an address on the web")]
    Address(String),
    /// The service has no address.
    #[error("it has no address")]
    Nowhere,
    /// The answer exceeds the limit.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// There is no memory for the answer.
    #[error(transparent)]
    Full(#[from] bodies::Full),
    /// Others were under way all the time.
    #[error("too many requests to other services are under way")]
    Busy,
    /// The answer is not what was expected.
    #[error("the answer is not understood: {0}")]
    Unexpected(serde_json::Error),
}

/// What is known of a server that does not have a document.
#[derive(Debug)]
pub enum Unanswered {
    /// There is none.
    Silent,
    /// It answers, and has no such document.
    Other,
    /// There is something, of which this was learned.
    Unclear(String),
}

impl From<legacy::Error> for OutboundError {
    fn from(error: legacy::Error) -> Self {
        Self::of(&error)
    }
}

impl OutboundError {
    /// The cause is what helps: a name that is not known, a certificate that is not trusted.
    fn of(error: &(dyn Error + 'static)) -> Self {
        let mut text = String::new();
        let mut cause = error.source();
        while let Some(error) = cause {
            if error.is::<NotPublic>() {
                return Self::NotPublic(NotPublic);
            }
            let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
            match io {
                Some(io::ErrorKind::TimedOut) => return Self::Late,
                Some(io::ErrorKind::ConnectionRefused) => return Self::Refused,
                _ => {}
            }
            let next = error.to_string();
            if !text.contains(&next) {
                let colon = if text.is_empty() { "" } else { ": " };
                text = format!("{text}{colon}{next}");
            }
            cause = error.source();
        }
        Self::Failed(if text.is_empty() { error.to_string() } else { text })
    }

    /// Whether the request timed out.
    pub const fn is_timeout(&self) -> bool {
        matches!(self, Self::Late)
    }
}

impl OutboundRequest {
    /// A request without a body.
    pub fn new(method: Method, url: Url) -> Self {
        Self {
            method,
            url,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: limits::OUTBOUND_TIMEOUT,
            max_bytes: limits::OUTBOUND_ANSWER_BYTES,
            cut: false,
        }
    }

    /// The same with one more header. An invalid header is left out.
    #[must_use]
    pub fn header(mut self, name: http::HeaderName, value: &str) -> Self {
        if let Ok(mut value) = HeaderValue::from_str(value) {
            value.set_sensitive(name == AUTHORIZATION);
            self.headers.insert(name, value);
        }
        self
    }

    /// The same with these fields as a form body.
    #[must_use]
    pub fn form(mut self, fields: &[(&str, &str)]) -> Self {
        self.body = serde_html_form::to_string(fields).unwrap_or_default().into();
        self.header(http::header::CONTENT_TYPE, "application/x-www-form-urlencoded")
    }

    /// The same with a JSON body.
    #[must_use]
    pub fn json(mut self, body: &impl serde::Serialize) -> Self {
        self.body = serde_json::to_vec(body).unwrap_or_default().into();
        self.header(http::header::CONTENT_TYPE, "application/json")
    }
}

impl OutboundRequest {
    /// The request as it is sent. A user in the URL logs in (RFC 7617).
    fn request(self) -> Result<Request<Full<Bytes>>, OutboundError> {
        let Self { method, mut url, mut headers, body, .. } = self;
        let user = [url.username(), url.password().unwrap_or_default()];
        if user != ["", ""] && !headers.contains_key(AUTHORIZATION) {
            let user = user.map(|part| percent_decode_str(part).decode_utf8_lossy()).join(":");
            let header = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(user)));
            if let Ok(mut header) = header {
                header.set_sensitive(true);
                headers.insert(AUTHORIZATION, header);
            }
        }
        // These fail for URLs without a host alone.
        let _ = (url.set_username(""), url.set_password(None));
        let unusable = || OutboundError::Address(url.host_str().unwrap_or_default().to_owned());
        let uri: Uri = url.as_str().parse().map_err(|_| unusable())?;
        if uri.host().is_none_or(str::is_empty) || !matches!(url.scheme(), "http" | "https") {
            return Err(unusable());
        }
        let agent = concat!("Logcabin/", env!("CARGO_PKG_VERSION"));
        headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(agent));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        Ok(request)
    }
}

impl OutboundResponse {
    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, OutboundError> {
        serde_json::from_slice(&self.body).map_err(OutboundError::Unexpected)
    }
}

impl Outbound {
    /// The client. It trusts the certificates of the operating system and of the configuration.
    ///
    /// # Errors
    /// When a file that the configuration names is not usable.
    pub fn new(config: &config::Outbound, bodies: &Arc<BodyBudget>) -> Result<Self, OutboundError> {
        Self::with(config, bodies, None)
    }

    /// A client for addresses that users provide. It refuses addresses of this machine and of
    /// private networks, after resolving names, unless they are in `allowed`.
    ///
    /// # Errors
    /// When a file that the configuration names is not usable.
    pub fn public_only(
        config: &config::Outbound,
        bodies: &Arc<BodyBudget>,
        allowed: &[Range],
    ) -> Result<Self, OutboundError> {
        Self::with(config, bodies, Some(PublicOnly { allowed: allowed.into() }))
    }

    fn with(
        config: &config::Outbound,
        bodies: &Arc<BodyBudget>,
        public: Option<PublicOnly>,
    ) -> Result<Self, OutboundError> {
        // One per process; a second server in the process finds it installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let is_public = public.is_some();
        let proxy = Proxy::new(config).map_err(OutboundError::Proxy)?;
        let router = Arc::new(Router::new(proxy, public).closed(config.rehearsal));
        let roots = roots(config.certificates.iter()).map_err(OutboundError::Certificates)?;
        let connector = Connector::new(Arc::clone(&router), roots).map_err(OutboundError::Tls)?;
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(limits::OUTBOUND_IDLE.0)
            .pool_idle_timeout(limits::OUTBOUND_IDLE.1)
            .http2_initial_stream_window_size(limits::OUTBOUND_WINDOWS.0)
            .http2_initial_connection_window_size(limits::OUTBOUND_WINDOWS.1)
            .build(connector);
        let turns = Arc::new(Semaphore::new(descriptors::scaled(limits::OUTBOUND_AT_ONCE)));
        let bodies = Arc::clone(bodies);
        Ok(Self { client, router, is_public, bodies, turns, is_technical: false })
    }

    /// The same for what says nothing of users and rooms: after it, a server that has taken over
    /// from another one can still be given back.
    #[must_use]
    pub fn technical(mut self) -> Self {
        self.is_technical = true;
        self
    }

    /// Checks an IP address as the client of [`Outbound::public_only`] would.
    ///
    /// # Errors
    /// When it is neither public nor in `allowed`.
    pub fn may_be_public(url: &Url, allowed: &[Range]) -> Result<(), NotPublic> {
        let public = PublicOnly { allowed: allowed.into() };
        public.check(unbracketed(url.host_str().unwrap_or_default()))
    }

    /// How it reaches services.
    pub(crate) const fn router(&self) -> &Arc<Router> {
        &self.router
    }

    /// What is served at an address, as JSON. A client for public addresses only follows a few
    /// redirects to https, as browsers do; another one could be led into this network.
    ///
    /// # Errors
    /// When there is no answer of status 200 with JSON in time; the text says why.
    pub async fn document(&self, address: &str) -> Result<serde_json::Value, String> {
        let mut url: Url = address.parse().map_err(|_| format!("`{address}` is no address"))?;
        for _ in 0..=limits::DELEGATION_REDIRECTS {
            let mut request = OutboundRequest::new(Method::GET, url.clone());
            request.timeout = limits::DOCTOR_TIME;
            request.max_bytes = limits::DOCTOR_DOCUMENT_BYTES;
            let answer = self.send(request).await.map_err(|error| error.to_string())?;
            if answer.status.is_redirection() && self.is_public {
                let location = answer.headers.get(http::header::LOCATION);
                let next = location.and_then(|location| url.join(location.to_str().ok()?).ok());
                url = next
                    .filter(|next| next.scheme() == "https")
                    .ok_or("it redirects to no address with https")?;
                continue;
            }
            if answer.status != StatusCode::OK {
                return Err(format!("it answers {}", answer.status));
            }
            return answer.json().map_err(|error| error.to_string());
        }
        Err("there are too many redirects".to_owned())
    }

    /// A JSON document at an address, if its server knows it.
    ///
    /// # Errors
    /// With what can be said of the server there otherwise.
    pub async fn look(&self, address: &str) -> Result<serde_json::Value, Unanswered> {
        let url: Url = address.parse().map_err(|_| Unanswered::Silent)?;
        let mut request = OutboundRequest::new(Method::GET, url);
        request.max_bytes = limits::DOCTOR_DOCUMENT_BYTES;
        match self.send(request).await {
            Ok(answer) if answer.status == StatusCode::OK => {
                answer.json().map_err(|_| Unanswered::Other)
            }
            Ok(answer) if answer.status.is_server_error() => {
                Err(Unanswered::Unclear(format!("it answers {}", answer.status)))
            }
            Ok(_) => Err(Unanswered::Other),
            Err(
                OutboundError::Refused
                | OutboundError::Nowhere
                | OutboundError::NotPublic(_)
                | OutboundError::Rehearsal(_),
            ) => Err(Unanswered::Silent),
            Err(error) => Err(Unanswered::Unclear(error.to_string())),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// When there is no answer in time, or it is too large.
    pub async fn send(&self, ask: OutboundRequest) -> Result<OutboundResponse, OutboundError> {
        self.may_leave(&ask)?;
        let (max_bytes, cut) = (ask.max_bytes, ask.cut);
        let until = Instant::now() + ask.timeout;
        let host = ask.url.host_str().unwrap_or_default().into();
        let request = ask.request()?;
        let turn = timeout_at(until, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(OutboundError::Busy) };
        let answered = timeout_at(until, self.client.request(request)).await;
        let (head, mut incoming) = answered.map_err(|_| OutboundError::Late)??.into_parts();
        let (status, headers) = (head.status, head.headers);
        let mut held = self.bodies.begin(Principal::Asked(host), limits::BODY_WEIGHT);
        let (mut body, mut dropped) = (BytesMut::new(), std::pin::pin!(held.watch()));
        loop {
            let frame = tokio::select! {
                frame = timeout_at(until, incoming.frame()) => frame,
                () = &mut dropped => return Err(bodies::Full::Dropped.into()),
            };
            let Some(frame) = frame.map_err(|_| OutboundError::Late)? else { break };
            let frame = frame.map_err(|error| broken(&error))?;
            let Ok(mut part) = frame.into_data() else { continue };
            let is_last = body.len() + part.len() > max_bytes;
            if is_last && !cut {
                return Err(OutboundError::TooLarge(max_bytes));
            }
            part.truncate(max_bytes - body.len());
            if body.len() + part.len() > limits::SMALL_BODY_BYTES {
                held.grow(body.len() + part.len(), until).await?;
            }
            body.extend_from_slice(&part);
            if is_last {
                break;
            }
        }
        held.arrived(false);
        let body = body.freeze();
        let body = if body.len() > limits::SMALL_BODY_BYTES { held.keep(body) } else { body };
        Ok(OutboundResponse { status, headers, body })
    }

    /// Whether a request may leave. What only asks changes nothing for others, and is not noted.
    fn may_leave(&self, ask: &OutboundRequest) -> Result<(), OutboundError> {
        self.router.must_be_open()?;
        if ask.method != Method::GET && !self.is_technical {
            exits::leaves("a request to a service")
                .map_err(|error| OutboundError::Failed(format!("it cannot be noted: {error}")))?;
        }
        Ok(())
    }

    /// Sends a request. Its answer has begun, and neither it nor the time are limited.
    pub(crate) async fn begin(
        &self,
        ask: OutboundRequest,
    ) -> Result<Response<Incoming>, OutboundError> {
        self.may_leave(&ask)?;
        Ok(self.client.request(ask.request()?).await?)
    }
}

/// Why an answer broke off.
fn broken(error: &hyper::Error) -> OutboundError {
    OutboundError::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_config::Config;

    async fn ask(allowed: &[&str], url: &str) -> Result<OutboundResponse, OutboundError> {
        let allowed: Vec<Range> = allowed.iter().map(|range| range.parse().unwrap()).collect();
        let bodies = BodyBudget::new(Config::default().body_shares());
        let outbound =
            Outbound::public_only(&config::Outbound::default(), &bodies, &allowed).unwrap();
        outbound.send(OutboundRequest::new(Method::GET, url.parse().unwrap())).await
    }

    #[tokio::test]
    async fn private_addresses_are_refused_however_they_are_written() {
        for url in [
            "http://127.0.0.1/",
            "http://127.1/",
            "http://2130706433/",
            "http://0x7f.0.0.1/",
            "http://0177.0.0.1/",
            "http://0/",
            "http://[::1]/",
            "http://[::]/",
            "http://[::ffff:127.0.0.1]/",
            "http://[::ffff:7f00:1]/",
            "http://[fd00::1]/",
            "http://[fe80::1]/",
            "http://[64:ff9b::7f00:1]/",
            "http://10.0.0.1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://192.168.0.1:8080/",
            // Names that resolve to this machine.
            "http://localhost/",
            "http://localhost:1/",
        ] {
            let refused = ask(&[], url).await;
            assert!(matches!(refused, Err(OutboundError::NotPublic(_))), "{url}: {refused:?}");
        }
    }

    #[tokio::test]
    async fn allowed_ranges_are_asked() {
        // Nobody listens there, but a connection is attempted.
        for url in ["http://127.0.0.1:1/", "http://localhost:1/"] {
            let tried = ask(&["127.0.0.0/8"], url).await;
            assert!(matches!(tried, Err(OutboundError::Refused)), "{url}: {tried:?}");
        }
    }
}
