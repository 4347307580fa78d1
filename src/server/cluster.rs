//! Opens the log of a node, and joins its cluster.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    ServerError,
    open::{Shared, open_local},
};
#[cfg(feature = "nats")]
use crate::{
    base::{clock::Clock, shutdown::Shutdown, token_key},
    cluster::nats::{Files, Me, Nodes},
    config::MediaDir,
    engine,
    log::nats::{NatsLog, NatsOptions},
    media::depot::Depot,
    record::Offset,
};
use crate::{
    config::Config,
    log::{Log, store::SledLog},
};

/// The log, before anything is read from it.
pub(super) struct Opened {
    /// What the engine writes to.
    pub(super) log: Arc<dyn Log>,
    /// The same records on this machine.
    pub(super) local: Arc<SledLog>,
    #[cfg(feature = "nats")]
    shared: Option<Arc<NatsLog>>,
}

/// Refuses to run alone on the log of a node.
fn embedded(local: &SledLog) -> Result<(), ServerError> {
    if local.is_of_cluster() {
        let reason = "the data directory is that of a node: start it with `--log` and the NATS \
                      servers of its cluster, or take it out with `logcabin cluster move-out`";
        return Err(ServerError::Cluster(reason.to_owned()));
    }
    Ok(())
}

/// Opens the log. Its lock makes this process the server of the data directory.
#[cfg(not(feature = "nats"))]
pub(super) async fn open_log(config: &Config) -> Result<Opened, ServerError> {
    if !config.log.servers.is_empty() {
        let reason = "this program was built without the feature `nats`: it cannot join a cluster";
        return Err(ServerError::Cluster(reason.to_owned()));
    }
    let local = open_local(config)?;
    embedded(&local)?;
    Ok(Opened { log: Arc::clone(&local) as Arc<dyn Log>, local })
}

/// Opens the log. Its lock makes this process the server of the data directory.
#[cfg(feature = "nats")]
pub(super) async fn open_log(config: &Config) -> Result<Opened, ServerError> {
    let local = open_local(config)?;
    if config.log.servers.is_empty() {
        embedded(&local)?;
        return Ok(Opened { log: Arc::clone(&local) as Arc<dyn Log>, local, shared: None });
    }
    let shared =
        NatsLog::open(Arc::clone(&local), NatsOptions::of(config, Clock::system())).await?;
    if *local.durable().borrow() > Offset::ZERO {
        let shared = Arc::new(shared);
        let log = Arc::clone(&shared) as Arc<dyn Log>;
        return Ok(Opened { log, local, shared: Some(shared) });
    }
    // A log that begins here has its first record, the server's identity, before the engine starts:
    // of nodes that start together, one makes it.
    engine::found(&shared, &config.server.name).await?;
    shared.caught_up().await?;
    let closing = tokio::task::spawn_blocking(move || shared.close());
    closing.await.map_err(|error| ServerError::Cluster(error.to_string()))?;
    drop(local);
    let local = open_local(config)?;
    let shared = Arc::new(
        NatsLog::open(Arc::clone(&local), NatsOptions::of(config, Clock::system())).await?,
    );
    Ok(Opened { log: Arc::clone(&shared) as Arc<dyn Log>, local, shared: Some(shared) })
}

/// A cluster that this server has joined.
pub(super) struct Joined {
    pub(super) shared: Shared,
    /// Why this server cannot be a node any more, once it cannot.
    pub(super) failure: watch::Receiver<Option<Arc<str>>>,
}

impl Opened {
    /// Joins the cluster, if this server is a node of one, and waits until it has all records that
    /// are there. The log must have been started.
    #[cfg(feature = "nats")]
    pub(super) async fn join(
        &self,
        config: &Config,
        shutdown: &Shutdown,
    ) -> Result<Option<Joined>, ServerError> {
        let Some(log) = &self.shared else { return Ok(None) };
        let began = std::time::Instant::now();
        let from = *self.local.durable().borrow();
        log.caught_up().await?;
        let applied = self.local.durable().borrow().get() - from.get();
        let me = Me {
            name: config.node_name(),
            id: log.node_id().map_err(|error| ServerError::Cluster(error.to_string()))?,
            bind: config.server.bind.iter().map(ToString::to_string).collect(),
        };
        tracing::info!(
            node = me.name,
            stream = config.log.stream.0,
            applied,
            took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            "this node has caught up with its cluster"
        );
        let nodes = Nodes::join(Arc::clone(log), me, Clock::system(), shutdown.clone()).await?;
        // What one node signs is good on all of them.
        let data_dir = &config.server.data_dir;
        let mine = token_key::key(data_dir);
        let shared = nodes.share("tokens.key", &mine).await?;
        if shared != mine {
            token_key::adopt(data_dir, &shared)
                .map_err(|error| ServerError::Cluster(format!("tokens.key: {error}")))?;
        }
        let depot: Option<Arc<dyn Depot>> = match config.media.dir {
            MediaDir::Auto => Some(Arc::new(Files::open(log, Clock::system()).await?)),
            MediaDir::Path(_) => None,
        };
        let shared = Shared { cluster: Some(nodes), depot };
        Ok(Some(Joined { shared, failure: log.failure() }))
    }

    /// Without the feature there is no cluster.
    #[cfg(not(feature = "nats"))]
    pub(super) async fn join(
        &self,
        _: &Config,
        _: &crate::base::shutdown::Shutdown,
    ) -> Result<Option<Joined>, ServerError> {
        Ok(None)
    }
}
