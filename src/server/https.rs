//! HTTPS for clients: its listeners, its certificate, and the redirect to it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::{
    HeaderMap, HeaderValue, StatusCode, Uri,
    header::{HOST, LOCATION},
};
use ruma::api::auth_scheme::NoAccessToken;
use tokio::task::JoinHandle;
use tracing::warn;

use super::{
    ServerError,
    inherited::{HTTPS, REDIRECT, listen_at},
    tasks::Tasks,
};
use logcabin_base::{limits, shutdown::Shutdown};
use logcabin_cluster::Cluster;
use logcabin_config::{AcmeChallenge, Config, FilePath, PublicUrl, Tls as Settings};
use logcabin_edge::http::{
    ApiError, App, Cx, Edge, Reply, Table, cheap, endpoint,
    listen::Listener,
    serve,
    tls::{Certificate, CertificateFiles, Tls},
};
use logcabin_outside::acme::{Acme, Challenges};

/// How often it is looked whether certificates expire soon.
const LOOK_EVERY: Duration = Duration::from_secs(24 * 3600);

/// HTTPS of the server's own.
pub(super) struct Https {
    pub(super) certificate: Arc<Certificate>,
    pub(super) tls: Arc<Tls>,
    acme: Option<Arc<Acme>>,
}

impl Https {
    /// `None` if it is off.
    pub(super) fn open(config: &Config) -> Result<Option<Self>, ServerError> {
        const CLIENTS: &str = "clients";
        if config.acme.enabled {
            let acme = Acme::new(config).map_err(|error| ServerError::Https(error.to_string()))?;
            let file = Acme::file(&config.server.data_dir);
            let files = CertificateFiles { certificate: file.clone(), key: file };
            let certificate = Certificate::awaited(CLIENTS, files);
            let by_tls = config.acme.challenge == AcmeChallenge::TlsAlpn01;
            let challenges = by_tls.then(|| acme.challenges());
            return Self::new(certificate, challenges, Some(acme)).map(Some);
        }
        let Some(files) = files_of(&config.tls.certificate, &config.tls.certificate_key) else {
            return Ok(None);
        };
        let certificate = Certificate::read(CLIENTS, files).map_err(ServerError::Https)?;
        Self::new(certificate, None, None).map(Some)
    }

    fn new(
        certificate: Arc<Certificate>,
        challenges: Option<Arc<Challenges>>,
        acme: Option<Acme>,
    ) -> Result<Self, ServerError> {
        let tls = Tls::new(Arc::clone(&certificate), challenges).map_err(ServerError::Https)?;
        Ok(Self { certificate, tls: Arc::new(tls), acme: acme.map(Arc::new) })
    }

    /// Listens on the configured addresses, and replaces them by the actual ones.
    pub(super) async fn listen(&self, tls: &mut Settings) -> Result<Vec<Listener>, ServerError> {
        let listeners = listen_at(HTTPS, "tls.bind", &mut tls.bind).await?;
        Ok(listeners.into_iter().map(|listener| listener.with_tls(&self.tls)).collect())
    }

    /// Gets certificates from the authority, if they come from one; in a cluster, while this node
    /// is the one that does, and otherwise takes over those of the other nodes.
    pub(super) fn begin_acme(
        &self,
        tasks: &Tasks,
        cluster: Option<&Arc<dyn Cluster>>,
        shutdown: &Shutdown,
    ) {
        let Some(acme) = &self.acme else { return };
        let certificate = Arc::clone(&self.certificate);
        let renewed: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
            // What is wrong with it is logged.
            let _ = certificate.reload(None);
        });
        let again = (Arc::clone(acme), renewed, shutdown.clone());
        if let Some(cluster) = cluster {
            acme.join(Arc::clone(cluster));
            let again = again.clone();
            tasks.keep("certificates of other nodes", move || {
                let (acme, renewed, shutdown) = again.clone();
                acme.follow(renewed, shutdown)
            });
        }
        tasks.keep_leased("certificates of the authority", move || {
            let (acme, renewed, shutdown) = again.clone();
            acme.keep(renewed, shutdown)
        });
    }

    /// What gets certificates from an authority, if they come from one.
    pub(super) const fn acme(&self) -> Option<&Arc<Acme>> {
        self.acme.as_ref()
    }

    fn challenges(&self) -> Option<Arc<Challenges>> {
        self.acme.as_ref().map(|acme| acme.challenges())
    }
}

/// The files of a certificate, if both are configured.
pub(super) fn files_of(
    certificate: &Option<FilePath>,
    key: &Option<FilePath>,
) -> Option<CertificateFiles> {
    match (certificate, key) {
        (Some(FilePath(certificate)), Some(FilePath(key))) => {
            Some(CertificateFiles { certificate: certificate.clone(), key: key.clone() })
        }
        _ => None,
    }
}

/// Warns each day of certificates that expire soon, and takes notice of changed ones even if nobody
/// connects.
pub(super) async fn watch(certificates: Arc<[Arc<Certificate>]>, shutdown: Shutdown) {
    loop {
        for certificate in certificates.iter() {
            let Some(validity) = certificate.validity() else { continue };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            let left_s = validity.until_s.saturating_sub(now_s);
            let listener = certificate.listener();
            if left_s <= 0 {
                warn!(listener, "the certificate has expired: nobody can connect");
            } else if left_s < i64::try_from(limits::CERTIFICATE_WARNING.as_secs()).unwrap_or(0) {
                warn!(listener, days = left_s / 86_400, "the certificate expires soon");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK_EVERY) => {}
            () = shutdown.given() => return,
        }
    }
}

/// What answers without TLS: the authority's challenges, and the way to HTTPS for everything else.
struct Redirect {
    /// The names of this server: others are not redirected, so that nobody is led elsewhere.
    names: Vec<String>,
    /// The port of HTTPS, unless it is the usual one.
    port: Option<u16>,
    challenges: Option<Arc<Challenges>>,
}

endpoint! {
    /// The answer to an HTTP-01 challenge (RFC 8555, section 8.3).
    struct Challenge = GET "/.well-known/acme-challenge/{token}";
    for NoAccessToken;
    { token: String = path }
}

async fn challenge(cx: Cx<Redirect, ()>, asked: Challenge) -> Result<Reply, ApiError> {
    let answer = cx.app.challenges.as_ref().and_then(|known| known.http(&asked.token));
    answer.map_or_else(
        || Err(ApiError::not_found("There is no such challenge.")),
        |answer| Ok(Reply::bytes("application/octet-stream", answer)),
    )
}

/// Listens on `tls.redirect_bind`, and replaces its addresses by the actual ones.
pub(super) async fn listen_for_redirect(
    tls: &mut Settings,
) -> Result<Vec<Arc<Listener>>, ServerError> {
    let addresses = &mut tls.redirect_bind.0;
    let listeners = listen_at(REDIRECT, "tls.redirect_bind", addresses).await?;
    Ok(listeners.into_iter().map(Arc::new).collect())
}

/// Redirects to HTTPS until the server stops.
pub(super) fn redirect(
    listeners: Vec<Arc<Listener>>,
    https: &Https,
    config: &Config,
    shutdown: Shutdown,
) -> Result<JoinHandle<()>, ServerError> {
    let app = Redirect::new(config, https.challenges());
    let table = Table::new(&[""; 0]).on(challenge, cheap());
    let mut config = config.clone();
    // Everybody reaches it, and nothing of what it does depends on who asks.
    config.server.trust_forwarded_for = false;
    let edge = Edge::new(Arc::new(app), table, &config, shutdown)?;
    Ok(tokio::spawn(serve::run(listeners, Arc::new(edge), |_| {})))
}

impl Redirect {
    fn new(config: &Config, challenges: Option<Arc<Challenges>>) -> Self {
        let mut names = config.acme_domains();
        names.push(config.server.name.host().to_ascii_lowercase());
        let mut port = config.tls.bind.first().map(std::net::SocketAddr::port);
        if let PublicUrl::Url(_) = config.server.public_url
            && let Ok(url) = config.server.url().parse::<Uri>()
        {
            names.extend(url.host().map(str::to_ascii_lowercase));
            if url.scheme_str() == Some("https") {
                // Something in front may have another port.
                port = url.port_u16();
            }
        }
        let delegate = config.federation.delegate.as_ref();
        names.extend(delegate.map(|delegate| delegate.host().to_ascii_lowercase()));
        Self { names, port: port.filter(|port| *port != 443), challenges }
    }

    /// The same address with HTTPS, if it is of this server.
    fn target(&self, uri: &Uri, headers: &HeaderMap) -> Option<HeaderValue> {
        let asked = match uri.host() {
            Some(host) => host.to_owned(),
            None => {
                let host =
                    headers.get(HOST)?.to_str().ok()?.parse::<http::uri::Authority>().ok()?;
                host.host().to_owned()
            }
        };
        let host = asked.to_ascii_lowercase();
        if !self.names.contains(&host) {
            return None;
        }
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let slash = if path.starts_with('/') { "" } else { "/" };
        HeaderValue::from_str(&format!("https://{host}{port}{slash}{path}")).ok()
    }
}

/// Nobody logs in here.
impl App for Redirect {
    fn not_served(&self, uri: &Uri, headers: &HeaderMap, _: ApiError) -> Result<Reply, ApiError> {
        match self.target(uri, headers) {
            Some(target) => Ok(Reply::bytes("text/plain", "Use HTTPS.\n")
                .with_status(StatusCode::PERMANENT_REDIRECT)
                .with_header(LOCATION, target)),
            None => Err(ApiError::not_found("This server has another name. Use HTTPS.")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(change: impl FnOnce(&mut Config)) -> Redirect {
        let mut config = Config::default();
        config.server.name = "example.org".try_into().unwrap();
        config.acme.enabled = true;
        change(&mut config);
        Redirect::new(&config.settled(), None)
    }

    fn target(redirect: &Redirect, host: Option<&str>, uri: &str) -> Option<String> {
        let mut headers = HeaderMap::new();
        if let Some(host) = host {
            headers.insert(HOST, HeaderValue::from_str(host).unwrap());
        }
        let target = redirect.target(&uri.parse().unwrap(), &headers);
        target.map(|target| target.to_str().unwrap().to_owned())
    }

    #[test]
    fn only_names_of_the_server_are_redirected_with_path_and_query() {
        let own = redirect(|_| {});
        let to = |host: &str, uri: &str| target(&own, Some(host), uri);
        assert_eq!(to("example.org", "/a%2Fb?c=d&e").unwrap(), "https://example.org/a%2Fb?c=d&e");
        assert_eq!(to("EXAMPLE.org:80", "//a").unwrap(), "https://example.org//a");
        for other in ["evil.example", "example.org.evil.example", "example.org@evil.example", "["] {
            assert_eq!(to(other, "/"), None, "{other}");
        }
        assert_eq!(target(&own, None, "/"), None);
        assert_eq!(target(&own, Some("example.org"), "http://evil.example/"), None);
    }

    #[test]
    fn the_redirect_leads_to_where_https_is() {
        let own = redirect(|config| {
            config.server.public_url = PublicUrl::Auto;
            config.tls.bind = vec!["0.0.0.0:8443".parse().unwrap()];
            config.federation.delegate = Some("fed.example.org:443".try_into().unwrap());
        });
        assert_eq!(
            target(&own, Some("fed.example.org"), "/x").unwrap(),
            "https://fed.example.org:8443/x"
        );
    }
}
