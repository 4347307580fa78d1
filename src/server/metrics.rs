//! Serves the metrics, at an address of their own.

use std::{net::SocketAddr, sync::Arc};

use futures_util::future::BoxFuture;
use http::Uri;
use ruma::api::auth_scheme::NoAccessToken;
use tokio::{net::TcpListener, task::JoinHandle};

use super::ServerError;
use crate::{
    base::{metrics, shutdown::Shutdown},
    config::Config,
    edge::http::{ApiError, App, Cx, Edge, OpenTo, Reply, Session, Table, cheap, endpoint, serve},
    outside::appservice::Service,
    service::observe::Observer,
};

/// The program behind the address.
struct Exposition(Arc<Observer>);

endpoint! {
    /// All metrics, in the text format of Prometheus.
    struct Scrape = GET "/metrics";
    for NoAccessToken;
    {}
}

/// Listens on the configured address, and replaces it by the actual one.
pub(super) async fn listen(config: &mut Config) -> Result<Option<Arc<TcpListener>>, ServerError> {
    let Some(address) = &mut config.metrics.bind else { return Ok(None) };
    let address: &mut SocketAddr = &mut address.0;
    let bound = async { TcpListener::bind(*address).await.and_then(|l| Ok((l.local_addr()?, l))) };
    let (actual, listener) =
        bound.await.map_err(|source| ServerError::Bind { address: *address, source })?;
    *address = actual;
    Ok(Some(Arc::new(listener)))
}

/// Serves the metrics until the server stops.
pub(super) fn serve_on(
    listener: Arc<TcpListener>,
    observer: Arc<Observer>,
    config: &Config,
    shutdown: Shutdown,
) -> Result<JoinHandle<()>, ServerError> {
    let table = Table::new(&[""; 0]).on(scrape, cheap());
    let edge = Edge::new(Arc::new(Exposition(observer)), table, config, shutdown)?;
    Ok(tokio::spawn(serve::run(vec![listener], Arc::new(edge), |_| {})))
}

async fn scrape(cx: Cx<Exposition, ()>, _: Scrape) -> Result<Reply, ApiError> {
    cx.app.0.look().await;
    let text = metrics::text().map_err(ApiError::internal)?;
    Ok(Reply::bytes(metrics::CONTENT_TYPE, text))
}

/// Nobody logs in here.
impl App for Exposition {
    fn authenticate<'a>(
        &'a self,
        _: &'a str,
        _: &'a Uri,
    ) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(std::future::ready(Err(ApiError::unknown_token(false))))
    }

    fn service(&self, _: &str) -> Option<Arc<Service>> {
        None
    }

    fn admit(&self, _: &Session, _: OpenTo) -> Result<(), ApiError> {
        Err(ApiError::unknown_token(false))
    }
}
