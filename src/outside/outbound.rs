//! Requests that the server makes to other services: identity servers, providers of single sign-on,
//! application services, gateways. One client for all of them, with bounds on time and size.

use std::{error::Error, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode};
use reqwest::{
    Certificate, Client, ClientBuilder, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::{
    base::limits,
    config::{self, FilePath},
    media::network::{Range, is_public},
};

/// The client. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Outbound {
    client: Client,
    /// For one that asks only the public internet.
    public: Option<PublicOnly>,
}

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
    /// Whether of a larger answer the beginning is taken. Otherwise that is an error.
    pub(crate) cut: bool,
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
    /// It is not on the public internet.
    #[error(transparent)]
    NotPublic(#[from] NotPublic),
    /// It could not be reached, or did not answer in time. The URL, which may hold a secret, is
    /// left out.
    #[error("{0}")]
    Failed(reqwest::Error),
    /// A file of certificates cannot be used.
    #[error("`outbound.certificates`: {}: {reason}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
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
    /// Whether there was no answer for so long that it was given up.
    pub(crate) fn is_timeout(&self) -> bool {
        matches!(self, Self::Failed(error) if error.is_timeout())
    }
}

/// The address to ask is one of this machine, or of a network around it.
#[derive(Clone, Copy, Debug, Error)]
#[error("the address is not one of the public internet")]
pub(crate) struct NotPublic;

/// Finds the addresses of a name, without those that are not of the public internet. The client
/// connects to what comes out of this, so that a name cannot mean another address a moment later.
#[derive(Clone, Debug)]
struct PublicOnly {
    /// Ranges that may be asked nevertheless.
    allowed: Arc<[Range]>,
}

impl PublicOnly {
    fn allows(&self, address: std::net::IpAddr) -> bool {
        is_public(address) || self.allowed.iter().any(|range| range.contains(address))
    }

    /// Checks an address that is not a name: nobody would look it up.
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
            cut: false,
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
    /// The client. Certificates are checked against those that the operating system trusts, and
    /// those of the configuration.
    ///
    /// # Errors
    /// When certificates cannot be used.
    pub(crate) fn new(config: &config::Outbound) -> Result<Self, OutboundError> {
        Ok(Self { client: builder(config)?.build()?, public: None })
    }

    /// A client that asks only the public internet, for addresses that users name: those of this
    /// machine and of networks around it are refused, after names were looked up, unless they are
    /// in `allowed`. It uses no proxy, which would do the looking up.
    ///
    /// # Errors
    /// When certificates cannot be used.
    pub(crate) fn public_only(
        config: &config::Outbound,
        allowed: &[Range],
    ) -> Result<Self, OutboundError> {
        let public = PublicOnly { allowed: allowed.into() };
        let client = builder(config)?.no_proxy().dns_resolver(public.clone()).build()?;
        Ok(Self { client, public: Some(public) })
    }

    /// Refuses an address, not a name, that [`Outbound::public_only`] would refuse to ask.
    ///
    /// # Errors
    /// When it is not of the public internet, nor in `allowed`.
    pub(crate) fn may_be_public(url: &Url, allowed: &[Range]) -> Result<(), NotPublic> {
        PublicOnly { allowed: allowed.into() }.check(url)
    }

    /// Makes a request.
    ///
    /// # Errors
    /// When there is no answer in time, or one that is too large.
    pub(crate) async fn ask(&self, ask: Ask) -> Result<Answer, OutboundError> {
        let Ask { method, url, headers, body, timeout, max_bytes, cut } = ask;
        if let Some(public) = &self.public {
            public.check(&url)?;
        }
        let request = self.client.request(method, url).headers(headers).body(body).timeout(timeout);
        let mut response = request.send().await?;
        let (status, headers) = (response.status(), std::mem::take(response.headers_mut()));
        let mut body = BytesMut::new();
        while let Some(part) = response.chunk().await? {
            if body.len() + part.len() > max_bytes {
                if cut {
                    body.extend_from_slice(&part[..max_bytes - body.len()]);
                    break;
                }
                return Err(OutboundError::TooLarge(max_bytes));
            }
            body.extend_from_slice(&part);
        }
        Ok(Answer { status, headers, body: body.freeze() })
    }
}

fn builder(config: &config::Outbound) -> Result<ClientBuilder, OutboundError> {
    // One for the process; a second server in it finds it there.
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
        .connect_timeout(limits::OUTBOUND_CONNECT_TIMEOUT)
        .user_agent(concat!("Logcabin/", env!("CARGO_PKG_VERSION"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(allowed: &[&str], url: &str) -> Result<Answer, OutboundError> {
        let allowed: Vec<Range> = allowed.iter().map(|range| range.parse().unwrap()).collect();
        let outbound = Outbound::public_only(&config::Outbound::default(), &allowed).unwrap();
        outbound.ask(Ask::new(Method::GET, url.parse().unwrap())).await
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
            // Names that are looked up here, and are this machine's.
            "http://localhost/",
            "http://localhost:1/",
        ] {
            let refused = ask(&[], url).await;
            assert!(matches!(refused, Err(OutboundError::NotPublic(_))), "{url}: {refused:?}");
        }
    }

    #[tokio::test]
    async fn allowed_ranges_are_asked() {
        // Nobody listens there, but it is tried.
        for url in ["http://127.0.0.1:1/", "http://localhost:1/"] {
            let tried = ask(&["127.0.0.0/8"], url).await;
            assert!(matches!(tried, Err(OutboundError::Failed(_))), "{url}: {tried:?}");
        }
    }
}
