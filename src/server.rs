//! The server as a whole: opens what the configuration names, wires it together, and takes it down
//! in order.

use std::{io, net::SocketAddr, sync::Arc};

use futures_util::future::BoxFuture;
use ruma::api::client::discovery::get_supported_versions;
use thiserror::Error;
use tokio::net::TcpListener;
use tracing::info;

use crate::{
    config::Config,
    http::{ApiError, App, Cx, Edge, Session, Table, TableError, serve},
    shutdown::Shutdown,
};

/// Why a server cannot run.
#[derive(Debug, Error)]
pub enum ServerError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The table of endpoints contradicts itself, which no configuration should bring about.
    #[error("the endpoints cannot be served: {0}")]
    Endpoints(Box<dyn std::error::Error + Send + Sync>),
}

impl From<TableError> for ServerError {
    fn from(error: TableError) -> Self {
        Self::Endpoints(error.into())
    }
}

/// The program behind the endpoints.
struct Server {
    #[allow(dead_code, reason = "read by the endpoints to come")]
    config: Config,
}

impl App for Server {
    fn authenticate<'a>(&'a self, _token: &'a str) -> BoxFuture<'a, Result<Session, ApiError>> {
        Box::pin(async { Err(ApiError::unknown_token(false)) })
    }
}

/// Runs a server until `stop` completes and the requests in progress are answered.
///
/// `started` is called once it listens, with the addresses that it really has: a port of 0 has
/// become the one that the operating system chose.
///
/// # Errors
/// When it cannot start.
pub async fn run(
    mut config: Config,
    stop: impl Future<Output = ()> + Send + 'static,
    started: impl FnOnce(&Config),
) -> Result<(), ServerError> {
    let mut listeners = Vec::new();
    for address in &mut config.server.bind {
        let bind =
            async { TcpListener::bind(*address).await.and_then(|l| Ok((l.local_addr()?, l))) };
        let (actual, listener) =
            bind.await.map_err(|source| ServerError::Bind { address: *address, source })?;
        *address = actual;
        listeners.push(listener);
    }
    let shutdown = Shutdown::when(stop);
    let app = Arc::new(Server { config: config.clone() });
    let edge = Edge::new(app, endpoints(&config), &config, shutdown)?;
    info!(bind = ?config.server.bind, server_name = %config.server.name, "serving");
    started(&config);
    serve::run(listeners, edge).await;
    info!("stopped");
    Ok(())
}

/// Every endpoint there is.
fn endpoints(config: &Config) -> Table<Server> {
    Table::new(&config.server.prefixes).on(versions)
}

async fn versions(
    _: Cx<Server, Option<Session>>,
    _: get_supported_versions::Request,
) -> Result<get_supported_versions::Response, ApiError> {
    Ok(get_supported_versions::Response::new(vec!["v1.1".to_owned()]))
}
