//! Connections to other homeservers: DNS lookups that skip private addresses, and TLS.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::runtime::TokioRuntimeProvider,
    proto::rr::RData,
};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, ServerName},
};
use rustls_platform_verifier::Verifier;
use tokio::time::timeout;
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::Unreachable;
use crate::{
    line::Line,
    proxy::{Proxy, Way, WayError},
    public_only::{NameError, PublicOnly, left_to_proxy},
};
use logcabin_base::{
    certificates,
    clock::random_bytes,
    descriptors::{self, Purpose},
    limits,
    net::TcpStream,
};
use logcabin_config::{Federation, FilePath};

/// The target of a connection.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// The name that the certificate must be for.
    pub(super) certificate: ServerName<'static>,
    /// The ways to it, in the order in which to try them.
    pub(super) ways: Vec<Way>,
}

/// Opens connections.
pub(super) struct Dialer {
    resolver: TokioResolver,
    tls: TlsConnector,
    public: PublicOnly,
    proxy: Option<Arc<Proxy>>,
}

impl Dialer {
    pub(super) fn new(config: &Federation, proxy: Option<Arc<Proxy>>) -> Result<Self, String> {
        Ok(Self {
            resolver: resolver(&config.nameservers)?,
            tls: tls(config.ca.as_ref())?,
            public: PublicOnly { allowed: config.allowed_networks.to_vec().into() },
            proxy,
        })
    }

    /// The ways to a host. If the proxy resolves its name, there is one.
    pub(super) async fn ways(&self, host: &str, port: u16) -> Result<Vec<Way>, Unreachable> {
        let bare = unbracketed(host);
        let proxy = self.proxy.as_ref().filter(|proxy| !proxy.spares(bare));
        if let Some(proxy) = proxy
            && let Some(to) = left_to_proxy(proxy, bare, port, Some(&self.public))?
        {
            return Ok(vec![Way::ByProxy(Arc::clone(proxy), to)]);
        }
        let addresses = self.addresses(host, port).await?;
        Ok(addresses.into_iter().map(|address| Way::to(address, proxy)).collect())
    }

    /// Whether names are resolved by the proxy, so that this machine may know none.
    pub(super) fn leaves_names(&self) -> bool {
        self.proxy.as_ref().is_some_and(|proxy| proxy.resolves_names())
    }

    /// The addresses of a host, or this one address, without those that are not allowed.
    pub(super) async fn addresses(
        &self,
        host: &str,
        port: u16,
    ) -> Result<Vec<SocketAddr>, Unreachable> {
        let found: Vec<IpAddr> = match unbracketed(host).parse() {
            Ok(address) => vec![address],
            Err(_) => {
                // Absolute: no homeserver is meant to be in a search domain of this machine.
                let name = format!("{}.", host.trim_end_matches('.'));
                let found = self.resolver.lookup_ip(name).await;
                found.map_err(|error| Unreachable::Dns(error.to_string()))?.iter().collect()
            }
        };
        let any = !found.is_empty();
        let may = found.into_iter().filter(|address| self.public.allows(*address));
        let addresses: Vec<_> = may
            .take(limits::FEDERATION_ADDRESSES)
            .map(|address| SocketAddr::new(address, port))
            .collect();
        match addresses.is_empty() {
            false => Ok(addresses),
            true if any => Err(Unreachable::NotPublic),
            true => Err(Unreachable::Dns("it has no address".to_owned())),
        }
    }

    /// The hosts and ports of a service (RFC 2782), in the order in which to try them; none if
    /// there is no such service.
    pub(super) async fn services(&self, name: &str) -> Result<Vec<(String, u16)>, Unreachable> {
        let name = format!("{}.", name.trim_end_matches('.'));
        let found = match self.resolver.srv_lookup(name).await {
            Ok(found) => found,
            Err(error) if error.is_no_records_found() || error.is_nx_domain() => {
                return Ok(Vec::new());
            }
            Err(error) => return Err(Unreachable::Dns(error.to_string())),
        };
        let mut services: Vec<_> = found
            .answers()
            .iter()
            .filter_map(|record| match &record.data {
                // A dot means that the service is not offered.
                RData::SRV(srv) if !srv.target.is_root() => Some((
                    (srv.priority, lot(srv.weight)),
                    (srv.target.to_utf8().trim_end_matches('.').to_owned(), srv.port),
                )),
                _ => None,
            })
            .collect();
        services.sort_unstable_by_key(|(order, _)| *order);
        let services = services.into_iter().take(limits::FEDERATION_ADDRESSES);
        Ok(services.map(|(_, service)| service).collect())
    }

    /// A connection on the first of the target's ways that leads to one.
    pub(super) async fn connect(&self, target: &Target) -> Result<TlsConnection, Unreachable> {
        let mut last = Unreachable::Dns("it has no address".to_owned());
        for way in &target.ways {
            let stream = match way.connect().await {
                Ok(stream) => stream,
                Err(WayError::Late) => {
                    last = Unreachable::Late;
                    continue;
                }
                Err(error) => {
                    last = Unreachable::Connection(error.to_string());
                    continue;
                }
            };
            if !descriptors::is_spare(&stream, Purpose::Request) {
                let why = "too many files and connections are open here";
                return Err(Unreachable::Connection(why.to_owned()));
            }
            // Without it, requests are only slower.
            let _ = stream.set_nodelay(true);
            let shaking = self.tls.connect(target.certificate.clone(), stream);
            match timeout(limits::TLS_HANDSHAKE, shaking).await {
                Ok(Ok(stream)) => return Ok(Line::new(stream, false)),
                Ok(Err(error)) => last = Unreachable::Tls(error.to_string()),
                Err(_) => last = Unreachable::Late,
            }
        }
        Err(last)
    }
}

impl From<NameError> for Unreachable {
    fn from(error: NameError) -> Self {
        match error {
            NameError::NotPublic(_) => Self::NotPublic,
            NameError::NoName(_) => Self::Name,
        }
    }
}

/// TLS that trusts the system's authorities, and those in the files `extra`.
pub(crate) fn tls<'a>(
    extra: impl IntoIterator<Item = &'a FilePath>,
) -> Result<TlsConnector, String> {
    tls_with(roots(extra)?, &[])
}

/// The certificates of authorities in files.
pub(crate) fn roots<'a>(
    files: impl IntoIterator<Item = &'a FilePath>,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut roots = Vec::new();
    for FilePath(path) in files {
        roots.extend(certificates::read(path)?);
    }
    Ok(roots)
}

/// TLS that trusts the system's authorities and these, and offers these protocols (RFC 7301).
pub(crate) fn tls_with(
    roots: Vec<CertificateDer<'static>>,
    protocols: &[&[u8]],
) -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Verifier::new_with_extra_roots(roots, Arc::clone(&provider));
    let verifier = verifier.map_err(|error| error.to_string())?;
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    tls.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Ok(TlsConnector::from(Arc::new(tls)))
}

/// Orders services of one priority at random, so that each comes first about as often as its weight
/// says.
fn lot(weight: u16) -> u64 {
    let random = u64::from(u32::from_be_bytes(random_bytes()));
    // The first of several exponential clocks to fire: -ln(u) / weight, in whole numbers.
    let clock = -((random as f64 + 1.0) / (f64::from(u32::MAX) + 2.0)).ln();
    (clock * 1e6 / f64::from(weight.max(1))) as u64
}

/// An IPv6 address without its brackets.
pub(crate) fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

fn resolver(nameservers: &[SocketAddr]) -> Result<TokioResolver, String> {
    let builder = if nameservers.is_empty() {
        TokioResolver::builder_tokio().map_err(|error| format!("DNS: {error}"))?
    } else {
        let servers = nameservers.iter().map(|address| {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            let at = |mut connection: ConnectionConfig| {
                connection.port = address.port();
                connection
            };
            let connections = connections.into_iter().map(at).collect();
            NameServerConfig::new(address.ip(), true, connections)
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
    };
    builder.build().map_err(|error| format!("DNS: {error}"))
}

/// A connection to another homeserver.
pub(super) type TlsConnection = Line<TlsStream<TcpStream>>;

/// When the certificate of the other end expires, in milliseconds since the Unix epoch.
pub(crate) fn expires_ms<S>(stream: &TlsStream<S>) -> Option<u64> {
    let (_, session) = stream.get_ref();
    let validity = certificates::validity(session.peer_certificates()?.first()?)?;
    u64::try_from(validity.until_s).ok()?.checked_mul(1000)
}
