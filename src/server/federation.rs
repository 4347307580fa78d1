//! Serves other homeservers, on listeners of their own.

use std::{path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tracing::{info, warn};

use super::{ServerError, open};
use logcabin_base::{bodies::BodyBudget, limits, shutdown::Shutdown};
use logcabin_config::{Config, Federation, FilePath};
use logcabin_edge::{
    api::{self, Server},
    http::{Edge, tls::Tls},
};

/// The listeners, before they serve.
pub(super) struct Listening {
    listeners: Vec<Arc<TcpListener>>,
    tls: Option<Arc<Tls>>,
}

impl Listening {
    /// Listens on the configured addresses, and replaces them by the actual ones; `None` if
    /// federation is off.
    pub(super) async fn begin(federation: &mut Federation) -> Result<Option<Self>, ServerError> {
        if !federation.enabled {
            return Ok(None);
        }
        let path = |file: &Option<FilePath>| -> Option<PathBuf> {
            file.as_ref().map(|FilePath(path)| path.clone())
        };
        let tls = match (path(&federation.certificate), path(&federation.certificate_key)) {
            (Some(certificate), Some(key)) => {
                let tls = Tls::new(certificate, key).map_err(ServerError::Federation)?;
                Some(Arc::new(tls))
            }
            (None, None) => None,
            _ => {
                let both = "`federation.certificate` needs `federation.certificate_key`, and the \
                            other way around";
                return Err(ServerError::Federation(both.to_owned()));
            }
        };
        let listeners = open::listen("federation.bind", &mut federation.bind).await?;
        if tls.is_none() && federation.bind.iter().any(|bind| !bind.ip().is_loopback()) {
            warn!(
                "other homeservers need TLS; set federation.certificate, or let only a proxy reach \
                 federation.bind"
            );
        }
        Ok(Some(Self { listeners, tls }))
    }

    /// Returns the edge, and the future that serves until the server stops.
    pub(super) fn serve(
        self,
        app: &Arc<Server>,
        config: &Config,
        bodies: &Arc<BodyBudget>,
        shutdown: &Shutdown,
    ) -> Result<(Arc<Edge<Server>>, BoxFuture<'static, ()>), ServerError> {
        let Self { listeners, tls } = self;
        let table = api::federation::endpoints();
        let mut config = config.clone();
        // With TLS of its own there is no proxy that could say where a request comes from.
        config.server.trust_forwarded_for &= tls.is_none();
        config.http.max_body_bytes = config.largest_body();
        if tls.is_some() {
            let by_address = &mut config.http.max_connections_per_address;
            *by_address = limits::FEDERATION_CONNECTIONS.min(*by_address);
        }
        let edge = Edge::new(Arc::clone(app), table, &config, shutdown.clone())?;
        let edge = Arc::new(edge.for_servers().sharing(bodies));
        info!(
            bind = ?config.federation.bind,
            tls = tls.is_some(),
            "serving other homeservers"
        );
        let serving = api::serve(listeners, tls, Arc::clone(&edge), Box::new(|_| {}));
        Ok((edge, serving))
    }
}
