//! Requests to other services: identity servers, providers of single sign-on, application services,
//! gateways. One client for all of them, with limits on time and size.

use std::{error::Error, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use reqwest::{
    Certificate, Client, ClientBuilder, Response, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout_at},
};

use logcabin_base::bodies::{BodyBudget, Full, Principal};
use logcabin_base::network::{Range, is_public};
use logcabin_base::{descriptors, limits};
use logcabin_config::{self as config, FilePath};

/// The client. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Outbound {
    client: Client,
    /// The client for public addresses only.
    public: Option<PublicOnly>,
    /// Memory for answers on their way.
    bodies: Arc<BodyBudget>,
    /// The requests that may be under way: each has a connection.
    turns: Arc<Semaphore>,
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
    /// The service could not be reached, or did not answer in time. The URL is left out, because it
    /// may contain a secret.
    #[error("{0}")]
    Failed(reqwest::Error),
    /// A certificate file is not usable.
    #[error("`outbound.certificates`: {}: {reason}", path.display())]
    Certificates { path: PathBuf, reason: String },
    /// The address is not valid.
    #[error("`{0}` is not an address")]
    Address(String),
    /// The service has no address.
    #[error("it has no address")]
    Nowhere,
    /// The answer exceeds the limit.
    #[error("the answer is larger than {0} bytes")]
    TooLarge(usize),
    /// There is no memory for the answer.
    #[error(transparent)]
    Full(#[from] Full),
    /// Others were under way all the time.
    #[error("too many requests to other services are under way")]
    Busy,
    /// The answer is not what was expected.
    #[error("the answer is not understood: {0}")]
    Unexpected(serde_json::Error),
}

impl From<reqwest::Error> for OutboundError {
    fn from(error: reqwest::Error) -> Self {
        let mut cause = error.source();
        while let Some(error) = cause {
            if error.is::<NotPublic>() {
                return Self::NotPublic(NotPublic);
            }
            cause = error.source();
        }
        Self::Failed(error.without_url())
    }
}

impl OutboundError {
    /// Whether the request timed out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Failed(error) if error.is_timeout())
    }
}

/// The address belongs to this machine or to a private network.
#[derive(Clone, Copy, Debug, Error)]
#[error("the address is not one of the public internet")]
pub struct NotPublic;

/// Resolves names, without addresses that are not public. The client connects to the returned
/// addresses, so that a name cannot mean another address a moment later.
#[derive(Clone, Debug)]
struct PublicOnly {
    /// Ranges that are allowed in addition.
    allowed: Arc<[Range]>,
}

impl PublicOnly {
    fn allows(&self, address: std::net::IpAddr) -> bool {
        is_public(address) || self.allowed.iter().any(|range| range.contains(address))
    }

    /// Checks an address that needs no resolving.
    fn check(&self, url: &Url) -> Result<(), NotPublic> {
        let host = url.host_str().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        match host.parse() {
            Ok(address) if !self.allows(address) => Err(NotPublic),
            _ => Ok(()),
        }
    }
}

impl Resolve for PublicOnly {
    fn resolve(&self, name: Name) -> Resolving {
        let this = self.clone();
        Box::pin(async move {
            let found: Vec<SocketAddr> =
                tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let any = !found.is_empty();
            let public: Vec<_> =
                found.into_iter().filter(|address| this.allows(address.ip())).collect();
            if public.is_empty() && any {
                return Err(NotPublic.into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
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
        if let Ok(mut value) = http::HeaderValue::from_str(value) {
            value.set_sensitive(name == http::header::AUTHORIZATION);
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

impl OutboundResponse {
    /// The body as JSON.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, OutboundError> {
        serde_json::from_slice(&self.body).map_err(OutboundError::Unexpected)
    }
}

impl Outbound {
    /// The client. It trusts the certificates of the operating system and of the configuration.
    pub fn new(config: &config::Outbound, bodies: &Arc<BodyBudget>) -> Result<Self, OutboundError> {
        let bodies = Arc::clone(bodies);
        Ok(Self { client: builder(config)?.build()?, public: None, bodies, turns: turns() })
    }

    /// A client for addresses that users provide. It refuses addresses of this machine and of
    /// private networks, after resolving names, unless they are in `allowed`. It uses no proxy,
    /// because a proxy would resolve the names.
    pub fn public_only(
        config: &config::Outbound,
        bodies: &Arc<BodyBudget>,
        allowed: &[Range],
    ) -> Result<Self, OutboundError> {
        let public = PublicOnly { allowed: allowed.into() };
        let client = builder(config)?.no_proxy().dns_resolver(public.clone()).build()?;
        Ok(Self { client, public: Some(public), bodies: Arc::clone(bodies), turns: turns() })
    }

    /// Checks an IP address as the client of [`Outbound::public_only`] would.
    ///
    /// # Errors
    /// When it is neither public nor in `allowed`.
    pub fn may_be_public(url: &Url, allowed: &[Range]) -> Result<(), NotPublic> {
        PublicOnly { allowed: allowed.into() }.check(url)
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
            if answer.status.is_redirection() && self.public.is_some() {
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

    /// Sends a request.
    ///
    /// # Errors
    /// When there is no answer in time, or it is too large.
    pub async fn send(&self, ask: OutboundRequest) -> Result<OutboundResponse, OutboundError> {
        let OutboundRequest { method, url, headers, body, timeout, max_bytes, cut } = ask;
        if let Some(public) = &self.public {
            public.check(&url)?;
        }
        let (host, until) = (url.host_str().unwrap_or_default().into(), Instant::now() + timeout);
        let turn = timeout_at(until, self.turns.acquire()).await;
        let Ok(Ok(_turn)) = turn else { return Err(OutboundError::Busy) };
        let timeout = until.saturating_duration_since(Instant::now());
        let request = self.client.request(method, url).headers(headers).body(body).timeout(timeout);
        let mut response = request.send().await?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut held = self.bodies.begin(Principal::Asked(host), limits::BODY_WEIGHT);
        let (mut body, mut dropped) = (BytesMut::new(), std::pin::pin!(held.watch()));
        loop {
            let part = tokio::select! {
                part = response.chunk() => part?,
                () = &mut dropped => return Err(Full::Dropped.into()),
            };
            let Some(mut part) = part else { break };
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

    /// Sends a request. Its answer has begun, and is not limited.
    pub(crate) async fn begin(&self, ask: OutboundRequest) -> Result<Response, OutboundError> {
        let OutboundRequest { method, url, headers, body, .. } = ask;
        if let Some(public) = &self.public {
            public.check(&url)?;
        }
        Ok(self.client.request(method, url).headers(headers).body(body).send().await?)
    }
}

/// A client for what the configuration names: any address, with the configured certificates.
pub fn client(config: &config::Outbound, timeout: Duration) -> Result<Client, OutboundError> {
    builder(config)?.timeout(timeout).build().map_err(OutboundError::from)
}

fn turns() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(descriptors::scaled(limits::OUTBOUND_AT_ONCE)))
}

fn builder(config: &config::Outbound) -> Result<ClientBuilder, OutboundError> {
    // One per process; a second server in the process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut certificates = Vec::new();
    for FilePath(path) in config.certificates.iter() {
        let unusable = |reason| OutboundError::Certificates { path: path.clone(), reason };
        let pem = std::fs::read(path).map_err(|error| unusable(error.to_string()))?;
        let found =
            Certificate::from_pem_bundle(&pem).map_err(|error| unusable(error.to_string()))?;
        if found.is_empty() {
            return Err(unusable("it holds no certificate".to_owned()));
        }
        certificates.extend(found);
    }
    Ok(Client::builder()
        .tls_certs_merge(certificates)
        .redirect(Policy::none())
        .http2_initial_stream_window_size(limits::OUTBOUND_WINDOWS.0)
        .http2_initial_connection_window_size(limits::OUTBOUND_WINDOWS.1)
        .connect_timeout(limits::OUTBOUND_CONNECT_TIMEOUT)
        .pool_max_idle_per_host(limits::OUTBOUND_IDLE.0)
        .pool_idle_timeout(limits::OUTBOUND_IDLE.1)
        .user_agent(concat!("Logcabin/", env!("CARGO_PKG_VERSION"))))
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
            assert!(matches!(tried, Err(OutboundError::Failed(_))), "{url}: {tried:?}");
        }
    }
}
