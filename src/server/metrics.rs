//! Serves the metrics, at an address of their own.

use std::sync::Arc;

use ruma::api::auth_scheme::NoAccessToken;
use tokio::task::JoinHandle;

use super::{ServerError, open};
use logcabin_base::{metrics, shutdown::Shutdown};
use logcabin_config::{Config, ListenAddress, Metrics};
use logcabin_edge::http::{
    ApiError, App, Cx, Edge, Reply, Table, cheap, endpoint, listen::Listener, serve,
};
use logcabin_service::observe::Observer;

/// The program that answers scrapes.
struct Exposition(Arc<Observer>);

endpoint! {
    /// All metrics, in the text format of Prometheus.
    struct Scrape = GET "/metrics";
    for NoAccessToken;
    {}
}

/// Listens on the configured address, and replaces it by the actual one.
pub(super) async fn listen(settings: &mut Metrics) -> Result<Option<Arc<Listener>>, ServerError> {
    let Some(ListenAddress(address)) = &mut settings.bind else { return Ok(None) };
    let addresses = std::slice::from_mut(address);
    Ok(open::listen_at("metrics.bind", addresses).await?.pop().map(Arc::new))
}

/// Serves the metrics until the server stops.
pub(super) fn serve_on(
    listener: Arc<Listener>,
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
impl App for Exposition {}
