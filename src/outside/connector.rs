//! Connections to services by their URLs: names are resolved and checked, the proxy is asked if
//! there is one, and TLS is spoken with the service itself.

use std::{
    error::Error,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::Uri;
use hyper_util::client::legacy::connect::{HttpConnector, dns};
use rustls::pki_types::{self, CertificateDer};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use crate::{
    exits::Rehearsal,
    federation::connect::{tls_with, unbracketed},
    line::{Line, Stream},
    proxy::{Proxy, Way},
    public_only::{NotPublic, PublicOnly, left_to_proxy},
};
use logcabin_base::{
    limits,
    net::{TcpStream, lookup_host},
};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The versions of HTTP that services may choose from (RFC 7301), the best first.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

/// Finds the way to hosts.
#[derive(Clone, Debug)]
pub(crate) struct Router {
    proxy: Option<Arc<Proxy>>,
    /// If not every address may be connected to. It holds for names, too: the connection is to the
    /// addresses that were checked, so that a name cannot mean another one a moment later.
    public: Option<PublicOnly>,
    #[cfg_attr(feature = "simulate", expect(dead_code, reason = "it is the real network"))]
    direct: HttpConnector<Resolver>,
    /// Whether there is no way at all: in a rehearsal.
    is_closed: bool,
}

impl Router {
    pub(crate) fn new(proxy: Option<Arc<Proxy>>, public: Option<PublicOnly>) -> Self {
        let mut direct = HttpConnector::new_with_resolver(Resolver(public.clone()));
        direct.enforce_http(false);
        direct.set_nodelay(true);
        direct.set_connect_timeout(Some(limits::OUTBOUND_CONNECT_TIMEOUT));
        Self { proxy, public, direct, is_closed: false }
    }

    /// The same without any way, if `is_closed`.
    pub(crate) fn closed(mut self, is_closed: bool) -> Self {
        self.is_closed = is_closed;
        self
    }

    /// # Errors
    /// When there is no way to anybody.
    pub(crate) const fn must_be_open(&self) -> Result<(), Rehearsal> {
        if self.is_closed { Err(Rehearsal) } else { Ok(()) }
    }

    /// Whether a host, without brackets, is reached through the proxy, as far as its name says.
    pub(crate) fn is_proxied(&self, host: &str) -> bool {
        self.proxy_of(host).is_some()
    }

    fn proxy_of(&self, host: &str) -> Option<&Arc<Proxy>> {
        self.proxy.as_ref().filter(|proxy| !proxy.spares(host))
    }

    /// A connection to a host, which is a name or an address without brackets.
    ///
    /// # Errors
    /// When there is none in time. A [`NotPublic`] is the error itself, or among its sources.
    pub(crate) async fn connect(&self, host: &str, port: u16) -> Result<TcpStream, BoxError> {
        self.must_be_open()?;
        let Some(proxy) = self.proxy_of(host) else { return self.direct(host, port).await };
        if let Some(to) = left_to_proxy(proxy, host, port, self.public.as_ref())? {
            return Ok(proxy.connect(&to).await?);
        }
        let mut last = BoxError::from("it has no address");
        for address in self.addresses(host, port).await? {
            match Way::to(address, Some(proxy)).connect().await {
                Ok(stream) => {
                    // Without it, requests are only slower.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    #[cfg(not(feature = "simulate"))]
    async fn direct(&self, host: &str, port: u16) -> Result<TcpStream, BoxError> {
        if let Some(public) = &self.public {
            public.check(host)?;
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        let uri = Uri::builder().scheme("http").authority(format!("{host}:{port}"));
        let uri = uri.path_and_query("/").build()?;
        Ok(self.direct.clone().call(uri).await?.into_inner())
    }

    /// In a simulation, where a name has one address.
    #[cfg(feature = "simulate")]
    async fn direct(&self, host: &str, port: u16) -> Result<TcpStream, BoxError> {
        let addresses = self.addresses(host, port).await?;
        let address = addresses.first().ok_or("it has no address")?;
        Ok(Way::Direct(*address).connect().await?)
    }

    /// The addresses of a host that may be connected to: some of each family, as the proxy may not
    /// have both.
    async fn addresses(&self, host: &str, port: u16) -> Result<Vec<SocketAddr>, BoxError> {
        let mut found = Resolver(self.public.clone()).resolve(host.to_owned(), port).await?;
        let mut left = [limits::OUTBOUND_ADDRESSES.div_ceil(2); 2];
        found.retain(|address| {
            let left = &mut left[usize::from(address.is_ipv6())];
            let is_kept = *left > 0;
            *left = left.saturating_sub(1);
            is_kept
        });
        Ok(found)
    }
}

/// Resolves names by the system, and leaves out addresses that may not be connected to.
#[derive(Clone, Debug)]
struct Resolver(Option<PublicOnly>);

impl Resolver {
    async fn resolve(self, host: String, port: u16) -> Result<Vec<SocketAddr>, BoxError> {
        let found: Vec<SocketAddr> = lookup_host((host.as_str(), port)).await?.collect();
        let any = !found.is_empty();
        let Some(public) = self.0 else { return Ok(found) };
        let found: Vec<_> =
            found.into_iter().filter(|address| public.allows(address.ip())).collect();
        if found.is_empty() && any { Err(NotPublic.into()) } else { Ok(found) }
    }
}

impl Service<dns::Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: dns::Name) -> Self::Future {
        let this = self.clone();
        // The caller sets the port.
        Box::pin(async move { Ok(this.resolve(name.as_str().to_owned(), 0).await?.into_iter()) })
    }
}

/// Connects to services, for hyper.
#[derive(Clone)]
pub(crate) struct Connector {
    router: Arc<Router>,
    tls: TlsConnector,
}

impl Connector {
    /// One that trusts the authorities of the system, and these.
    ///
    /// # Errors
    /// When the authorities of the system cannot be used.
    pub(crate) fn new(
        router: Arc<Router>,
        roots: Vec<CertificateDer<'static>>,
    ) -> Result<Self, String> {
        Ok(Self { router, tls: tls_with(roots, &[HTTP2, HTTP1])? })
    }

    async fn connect(self, uri: Uri) -> Result<Line<Box<dyn Stream>>, BoxError> {
        let is_https = uri.scheme_str() == Some("https");
        let host = unbracketed(uri.host().unwrap_or_default());
        let port = uri.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        let stream = self.router.connect(host, port).await?;
        if !is_https {
            return Ok(Line::new(Box::new(stream), false));
        }
        let name = pki_types::ServerName::try_from(host.to_owned())?;
        let shaking = self.tls.connect(name, stream);
        let stream = timeout(limits::TLS_HANDSHAKE, shaking).await;
        let stream = stream.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
        Ok(Line::new(Box::new(stream), is_http2))
    }
}

impl Service<Uri> for Connector {
    type Response = Line<Box<dyn Stream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Line<Box<dyn Stream>>, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        Box::pin(self.clone().connect(uri))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::tests::{answering, config_with};
    use logcabin_base::network::Range;

    fn router(settings: &[(&str, &str)], public: bool) -> Router {
        let allowed: Arc<[Range]> = Arc::from([]);
        let public = public.then_some(PublicOnly { allowed });
        Router::new(Proxy::new(&config_with(settings)).unwrap(), public)
    }

    fn is_not_public(error: &BoxError) -> bool {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&**error);
        while let Some(error) = cause {
            if error.is::<NotPublic>() {
                return true;
            }
            cause = error.source();
        }
        false
    }

    #[tokio::test]
    async fn the_proxy_is_asked_for_addresses_that_were_checked() {
        let (at, mut asked) = answering(b"HTTP/1.1 200 OK\r\n\r\n").await;
        // Not even this machine is reached without the proxy.
        let settings = [("PROXY", &*at), ("NO_PROXY", "none")];
        router(&settings, false).connect("localhost", 8448).await.unwrap();
        let line = asked.recv().await.unwrap();
        let is_address =
            line.starts_with("CONNECT 127.0.0.1:8448 ") || line.starts_with("CONNECT [::1]:8448 ");
        assert!(is_address, "{line}");
        let public = router(&settings, true);
        for host in ["localhost", "127.0.0.1", "10.0.0.1", "::1", "fd00::1", "169.254.169.254"] {
            let refused = public.connect(host, 80).await.unwrap_err();
            assert!(is_not_public(&refused), "{host}: {refused}");
        }
        public.connect("1.1.1.1", 443).await.unwrap();
        assert!(asked.recv().await.unwrap().starts_with("CONNECT 1.1.1.1:443 "));
        assert!(asked.try_recv().is_err(), "it was asked for nothing else");
    }

    #[tokio::test]
    async fn a_proxy_that_resolves_names_is_asked_for_no_private_one() {
        let (at, mut asked) = answering(b"HTTP/1.1 200 OK\r\n\r\n").await;
        let settings = [("PROXY", &*at), ("NO_PROXY", "none"), ("PROXY_RESOLVES_NAMES", "true")];
        let public = router(&settings, true);
        for host in
            ["localhost", "router", "nas.local", "db.internal", "127.0.0.1", "10.0.0.1", "127.1"]
        {
            let refused = public.connect(host, 80).await.unwrap_err();
            assert!(is_not_public(&refused), "{host}: {refused}");
        }
        for bad in ["", "a b.example", "a.example\r\nX: y"] {
            assert!(public.connect(bad, 80).await.is_err(), "{bad}");
        }
        public.connect("nowhere.example.org", 443).await.unwrap();
        assert!(asked.recv().await.unwrap().starts_with("CONNECT nowhere.example.org:443 "));
        // What the configuration names may be anywhere.
        router(&settings, false).connect("db.internal", 80).await.unwrap();
        assert!(asked.recv().await.unwrap().starts_with("CONNECT db.internal:80 "));
        assert!(asked.try_recv().is_err(), "it was asked for nothing else");
    }

    #[tokio::test]
    async fn a_rehearsal_connects_to_nobody() {
        let there = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = there.local_addr().unwrap().port();
        let (at, mut asked) = answering(b"HTTP/1.1 200 OK\r\n\r\n").await;
        for settings in [vec![], vec![("PROXY", &*at), ("NO_PROXY", "none")]] {
            let router = router(&settings, false).closed(true);
            for host in ["127.0.0.1", "localhost"] {
                let refused = router.connect(host, port).await.unwrap_err();
                assert!(refused.is::<Rehearsal>(), "{refused}");
            }
        }
        assert!(asked.try_recv().is_err());
    }

    #[tokio::test]
    async fn what_needs_no_proxy_is_reached_without_it() {
        let there = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = there.local_addr().unwrap().port();
        let (at, mut asked) = answering(b"HTTP/1.1 502 Bad\r\n\r\n").await;
        for no_proxy in ["127.0.0.0/8, ::1", "localhost, 127.0.0.1"] {
            let router = router(&[("PROXY", &at), ("NO_PROXY", no_proxy)], false);
            router.connect("127.0.0.1", port).await.unwrap();
        }
        let router = router(&[("PROXY", &at), ("NO_PROXY", "none")], false);
        let refused = router.connect("127.0.0.1", port).await.unwrap_err();
        assert!(refused.to_string().contains("502 Bad Gateway"), "{refused}");
        assert!(asked.recv().await.is_some() && asked.try_recv().is_err());
    }
}
