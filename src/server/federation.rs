//! Serves other homeservers, on listeners of their own.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tracing::{info, warn};

use super::{
    ServerError,
    descriptors::Places,
    https::{Https, files_of},
    inherited::{FEDERATION, listen},
};
use logcabin_base::{bodies::BodyBudget, limits, network::Range, shutdown::Shutdown};
use logcabin_config::{Bind, Config, Federation};
use logcabin_edge::{
    api::{self, Server},
    http::{
        AccessLog, Edge,
        listen::Listener,
        tls::{Certificate, Tls},
    },
};

/// The listeners, before they serve.
pub(super) struct Listening {
    listeners: Vec<Arc<Listener>>,
    /// The certificate, if it is one for other homeservers alone.
    pub(super) certificate: Option<Arc<Certificate>>,
}

impl Listening {
    /// Listens where it is configured, and replaces the addresses by the actual ones; `None` if
    /// federation is off.
    pub(super) async fn begin(
        federation: &mut Federation,
        https: Option<&Https>,
        proxies: &[Range],
    ) -> Result<Option<Self>, ServerError> {
        if !federation.enabled {
            return Ok(None);
        }
        let (certificate, tls) =
            match files_of(&federation.certificate, &federation.certificate_key) {
                Some(files) => {
                    let certificate = Certificate::read("federation", files);
                    let certificate = certificate.map_err(ServerError::Federation)?;
                    let tls = Tls::new(Arc::clone(&certificate), None);
                    (Some(certificate), Some(Arc::new(tls.map_err(ServerError::Federation)?)))
                }
                None => (None, https.map(|https| Arc::clone(&https.tls))),
            };
        let listeners = listen(FEDERATION, "federation.bind", &mut federation.bind.0).await?;
        let with_tls = |(mut listener, bind): (Listener, &Bind)| {
            if federation.proxy_protocol {
                listener = listener.behind(proxies);
            }
            match (&tls, bind) {
                (Some(tls), Bind::Tcp(_)) => Arc::new(listener.with_tls(tls)),
                _ => Arc::new(listener),
            }
        };
        let listeners = listeners.into_iter().zip(federation.bind.iter()).map(with_tls).collect();
        let addresses = federation.bind.iter().filter_map(Bind::address);
        if tls.is_none() && addresses.into_iter().any(|address| !address.ip().is_loopback()) {
            warn!(
                "other homeservers need TLS; set federation.certificate, or let only a proxy reach \
                 federation.bind"
            );
        }
        Ok(Some(Self { listeners, certificate }))
    }

    /// Returns the edge, and the future that serves until the server stops.
    pub(super) fn serve(
        self,
        app: &Arc<Server>,
        config: &Config,
        (places, access): (Places, Option<Arc<AccessLog>>),
        bodies: &Arc<BodyBudget>,
        shutdown: &Shutdown,
    ) -> Result<(Arc<Edge<Server>>, BoxFuture<'static, ()>), ServerError> {
        let listeners = self.listeners;
        let table = api::federation::endpoints();
        let mut config = config.clone();
        config.http.max_body_bytes = config.largest_body();
        config.http.max_connections = places.servers;
        let has_tls = listeners.iter().any(|listener| listener.has_tls());
        if has_tls {
            let by_address = &mut config.http.max_connections_per_address;
            *by_address = limits::FEDERATION_CONNECTIONS.min(*by_address);
        }
        let edge = Edge::new(Arc::clone(app), table, &config, shutdown.clone())?;
        let edge = Arc::new(edge.for_servers().sharing(bodies).logging(access));
        info!(
            bind = ?config.federation.bind.iter().map(ToString::to_string).collect::<Vec<_>>(),
            tls = has_tls,
            at_client_addresses = config.federation.at_client_addresses,
            "serving other homeservers"
        );
        let serving = api::serve(listeners, Arc::clone(&edge), None, Box::new(|_| {}));
        Ok((edge, serving))
    }
}
