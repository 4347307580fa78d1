//! From the name of a homeserver to the addresses to connect to (server-server API, "Resolving
//! server names").
//!
//! Only delegations are cached here: the resolver caches DNS answers for their lifetime.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use http::{
    HeaderMap, Request, StatusCode, Uri,
    header::{CACHE_CONTROL, EXPIRES, HOST, LOCATION},
};
use http_body_util::Empty;
use hyper::client::conn::http1;
use quick_cache::sync::Cache;
use ruma::{OwnedServerName, ServerName};
use rustls::pki_types;
use serde::Deserialize;
use tokio::time::{self, timeout};
use tracing::debug;
use url::Url;

use super::{
    AnswerBody, ChargedTo, Unreachable,
    connect::{Dialer, Target, unbracketed},
    whole,
};
use logcabin_base::{bodies::BodyBudget, limits};

/// The default port of homeservers.
const PORT: u16 = 8448;

/// Resolves names.
pub(super) struct Names {
    pub(super) dialer: Dialer,
    /// The port that serves `/.well-known`.
    https: u16,
    delegations: Cache<OwnedServerName, Delegation>,
    bodies: Arc<BodyBudget>,
}

/// The delegation in `/.well-known/matrix/server` of a host.
#[derive(Clone, Debug)]
struct Delegation {
    /// None, if it was absent or not understood.
    to: Option<OwnedServerName>,
    until: Instant,
    /// How long a failure is cached.
    failed_for: Duration,
}

/// The target of a homeserver, by its name and its delegation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HostRoute {
    /// The name for the request's `Host` header; without its port, the name in the certificate.
    host: OwnedServerName,
    /// Whether to look up SRV records: the name has no port, and is not an address.
    by_service: bool,
}

impl HostRoute {
    fn to(host: OwnedServerName) -> Self {
        let by_service = host.port().is_none() && !host.is_ip_literal();
        Self { host, by_service }
    }
}

impl Names {
    pub(super) fn new(dialer: Dialer, bodies: &Arc<BodyBudget>) -> Self {
        let delegations = Cache::new(limits::DELEGATIONS);
        Self { dialer, https: 443, delegations, bodies: Arc::clone(bodies) }
    }

    /// The value of a request's `Host` header.
    pub(super) async fn host(&self, server: &ServerName) -> OwnedServerName {
        self.way(server).await.host
    }

    /// The targets of connections to this homeserver.
    pub(super) async fn target(&self, server: &ServerName) -> Result<Target, Unreachable> {
        let HostRoute { host, by_service } = self.way(server).await;
        let certificate = certificate(host.host())?;
        if by_service {
            for service in ["_matrix-fed._tcp", "_matrix._tcp"] {
                let asked = self.dialer.services(&format!("{service}.{}", host.host())).await;
                let services = match asked {
                    // This machine may know no names at all.
                    Err(_) if self.dialer.leaves_names() => break,
                    services => services?,
                };
                if services.is_empty() {
                    continue;
                }
                let mut ways = Vec::new();
                let mut last = Unreachable::Dns("its services have no address".to_owned());
                for (target, port) in services {
                    match self.dialer.ways(&target, port).await {
                        Ok(found) => ways.extend(found),
                        Err(error) => last = error,
                    }
                }
                ways.truncate(limits::FEDERATION_ADDRESSES);
                let target = Target { certificate, ways };
                return if target.ways.is_empty() { Err(last) } else { Ok(target) };
            }
        }
        let port = host.port().unwrap_or(PORT);
        let ways = self.dialer.ways(host.host(), port).await?;
        Ok(Target { certificate, ways })
    }

    /// Steps 1 to 3: an address, a name with a port, or the delegation of the name.
    async fn way(&self, server: &ServerName) -> HostRoute {
        if server.is_ip_literal() || server.port().is_some() {
            return HostRoute::to(server.to_owned());
        }
        HostRoute::to(self.delegation(server).await.unwrap_or_else(|| server.to_owned()))
    }

    async fn delegation(&self, server: &ServerName) -> Option<OwnedServerName> {
        let before = self.delegations.get(server);
        if let Some(known) = &before
            && known.until > Instant::now()
        {
            return known.to.clone();
        }
        let found = timeout(limits::DELEGATION_TIMEOUT, self.ask(server.host())).await;
        let found = found.unwrap_or(Err(Unreachable::Late));
        let [first, longest] = limits::NO_DELEGATION_LIFETIME;
        let (to, lifetime, failed_for) = match found {
            Ok((to, lifetime)) => (Some(to), lifetime, Duration::ZERO),
            Err(error) => {
                debug!(%server, %error, "no delegation");
                let failed_before =
                    before.as_ref().map_or(Duration::ZERO, |known| known.failed_for);
                let lifetime = (2 * failed_before).clamp(first, longest);
                // A delegation that was seen recently is more likely unreachable than removed.
                let kept = before.and_then(|known| known.to).filter(|_| failed_before < longest);
                (kept, lifetime, lifetime)
            }
        };
        let known = Delegation { to: to.clone(), until: Instant::now() + lifetime, failed_for };
        self.delegations.insert(server.to_owned(), known);
        to
    }

    /// The delegation of a host, and how long to cache it.
    pub(super) async fn ask(&self, host: &str) -> Result<(OwnedServerName, Duration), Unreachable> {
        let port = match self.https {
            443 => String::new(),
            other => format!(":{other}"),
        };
        let url = format!("https://{host}{port}/.well-known/matrix/server");
        let mut url: Url = url.parse().map_err(|_| Unreachable::Name)?;
        for _ in 0..=limits::DELEGATION_REDIRECTS {
            let (status, headers, body) = self.get(&url).await?;
            if status.is_redirection() {
                let location = headers.get(LOCATION).and_then(|location| location.to_str().ok());
                let next = location.and_then(|location| url.join(location).ok());
                url = next.ok_or(Unreachable::Status(status.as_u16()))?;
                continue;
            }
            if status != StatusCode::OK {
                return Err(Unreachable::Status(status.as_u16()));
            }
            #[derive(Deserialize)]
            struct Document {
                #[serde(rename = "m.server")]
                server: OwnedServerName,
            }
            let document: Document = serde_json::from_slice(&body)
                .map_err(|error| Unreachable::Unexpected(error.to_string()))?;
            return Ok((document.server, lifetime(&headers)));
        }
        Err(Unreachable::Unexpected("there are too many redirects".to_owned()))
    }

    /// An ordinary HTTPS request that follows no redirects.
    async fn get(&self, url: &Url) -> Result<(StatusCode, HeaderMap, AnswerBody), Unreachable> {
        let unexpected = |error: &dyn std::fmt::Display| Unreachable::Unexpected(error.to_string());
        if url.scheme() != "https" {
            return Err(Unreachable::Unexpected("a redirect leads out of https".to_owned()));
        }
        let host = url.host_str().ok_or(Unreachable::Name)?;
        let port = url.port().unwrap_or(443);
        let ways = self.dialer.ways(host, port).await?;
        let target = Target { certificate: certificate(host)?, ways };
        let line = self.dialer.connect(&target).await?;
        let (mut sender, connection) = http1::Builder::new()
            .max_buf_size(limits::HTTP1_BUFFER_BYTES)
            .handshake(line)
            .await
            .map_err(|error| unexpected(&error))?;
        let authority = match url.port() {
            Some(port) => format!("{host}:{port}"),
            None => host.to_owned(),
        };
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        let path: Uri = format!("{}{query}", url.path())
            .parse()
            .map_err(|error: http::uri::InvalidUri| unexpected(&error))?;
        let request = Request::get(path).header(HOST, authority).body(Empty::<Bytes>::new());
        let request = request.map_err(|error| unexpected(&error))?;
        let asking = async {
            let response =
                sender.send_request(request).await.map_err(|error| unexpected(&error))?;
            let (head, body) = response.into_parts();
            let account = ChargedTo::of_host(&self.bodies, host);
            let until = time::Instant::now() + limits::DELEGATION_TIMEOUT;
            let body = whole(body, account, limits::DELEGATION_BYTES, until).await?;
            Ok((head.status, head.headers, body))
        };
        // The connection ends with the answer, or when the caller gives up.
        let mut connection = std::pin::pin!(connection);
        let mut asking = std::pin::pin!(asking);
        tokio::select! {
            answer = &mut asking => answer,
            ended = &mut connection => match ended {
                // The part that was read must still be processed.
                Ok(()) => asking.await,
                Err(error) => Err(unexpected(&error)),
            },
        }
    }
}

/// The name that a certificate must be for.
fn certificate(host: &str) -> Result<pki_types::ServerName<'static>, Unreachable> {
    let host = unbracketed(host).to_owned();
    pki_types::ServerName::try_from(host).map_err(|_| Unreachable::Name)
}

/// How long to cache a delegation, by its headers.
fn lifetime(headers: &HeaderMap) -> Duration {
    let [least, usual, most] = limits::DELEGATION_LIFETIME;
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let control = text(CACHE_CONTROL).unwrap_or_default();
    let mut directives = control.split(',').map(|directive| directive.trim().to_ascii_lowercase());
    let said = directives.find_map(|directive| match directive.split_once('=') {
        Some(("max-age", seconds)) => {
            seconds.trim_matches('"').parse().ok().map(Duration::from_secs)
        }
        None if directive == "no-store" || directive == "no-cache" => Some(Duration::ZERO),
        _ => None,
    });
    let expires = || {
        let expires = httpdate::parse_http_date(text(EXPIRES)?).ok()?;
        Some(expires.duration_since(std::time::SystemTime::now()).unwrap_or_default())
    };
    said.or_else(expires).unwrap_or(usual).clamp(least, most)
}

#[cfg(test)]
mod tests;
