//! Opens the log of a node, and joins its cluster.

use std::sync::Arc;

use tokio::sync::watch;

use super::{
    ServerError,
    open::{Shared, open_local},
};
#[cfg(feature = "nats")]
use logcabin_base::{
    bodies::BodyBudget,
    clock::{Clock, millis},
    shutdown::Shutdown,
    threads, token_key,
};
#[cfg(feature = "nats")]
use logcabin_cluster::nats::{Files, NodeIdentity, Nodes};
use logcabin_config::Config;
#[cfg(feature = "nats")]
use logcabin_config::MediaDir;
#[cfg(feature = "nats")]
use logcabin_engine as engine;
use logcabin_log::{LocalLog, Log, store::SledLog};
#[cfg(feature = "nats")]
use logcabin_log::{
    StreamHeads,
    nats::{NatsLog, NatsOptions},
};
#[cfg(feature = "nats")]
use logcabin_media::shared_store::SharedStore;
#[cfg(feature = "nats")]
use logcabin_outside::outbound::{Outbound, OutboundRequest};
#[cfg(feature = "nats")]
use logcabin_record::Offset;

/// The log, before anything is read from it.
pub(super) struct Opened {
    /// What the engine writes to.
    pub(super) log: Arc<dyn Log>,
    /// The same records on this machine.
    pub(super) local: Arc<dyn LocalLog>,
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
    Ok(Opened::of(local))
}

/// Opens the log. Its lock makes this process the server of the data directory.
#[cfg(feature = "nats")]
pub(super) async fn open_log(config: &Config) -> Result<Opened, ServerError> {
    let local = open_local(config)?;
    if config.log.servers.is_empty() {
        embedded(&local)?;
        return Ok(Opened::of(local));
    }
    check_durability(config).await?;
    let shared = NatsLog::open(
        Arc::clone(&local),
        NatsOptions::of(&config.log, &config.server, Clock::system()),
    )
    .await?;
    if *local.durable().borrow() > Offset::ZERO {
        let shared = Arc::new(shared);
        let log = Arc::clone(&shared) as Arc<dyn Log>;
        return Ok(Opened { log, local, shared: Some(shared) });
    }
    // A new log gets its first record, the server's identity, before the engine starts: of nodes
    // that start together, one writes it. Then the log is opened again, because nothing follows it
    // yet.
    shared.start(StreamHeads::new(), Box::new(|_| ()));
    shared.caught_up().await?;
    if *local.durable().borrow() == Offset::ZERO {
        engine::found(&shared, &config.server.name).await?;
    }
    shared.caught_up().await?;
    let closing = threads::spawn_blocking(move || shared.close());
    closing.await.map_err(|error| ServerError::Cluster(error.to_string()))?;
    drop(local);
    let local = open_local(config)?;
    let shared = Arc::new(
        NatsLog::open(
            Arc::clone(&local),
            NatsOptions::of(&config.log, &config.server, Clock::system()),
        )
        .await?,
    );
    Ok(Opened { log: Arc::clone(&shared) as Arc<dyn Log>, local, shared: Some(shared) })
}

/// Refuses NATS servers that acknowledge messages before they are on disk, as far as that can be
/// found out.
#[cfg(feature = "nats")]
async fn check_durability(config: &Config) -> Result<(), ServerError> {
    if config.log.monitors.is_empty() {
        tracing::warn!(
            "`log.monitors` is empty: whether the NATS servers sync messages to disk before they \
             acknowledge them (`sync_interval: always`) is not known. If they do not, a power cut \
             of all of them can lose messages; each node still has on its own disk what it \
             acknowledged"
        );
        return Ok(());
    }
    // As the servers themselves, their monitors are never behind the proxy.
    let mut settings = config.outbound.clone();
    settings.proxy = None;
    let client = Outbound::new(&settings, &BodyBudget::new(config.body_shares()));
    let client = client.map_err(|error| ServerError::Cluster(error.to_string()))?;
    for monitor in config.log.monitors.iter() {
        let url = monitor.url().map_err(ServerError::Cluster)?;
        // A server that is down must not keep a node from starting.
        let about = match describe(&client, &url).await {
            Ok(about) => about,
            Err(reason) => {
                tracing::warn!(%url, reason, "a NATS server does not say whether it syncs");
                continue;
            }
        };
        if about["jetstream"]["config"]["sync_always"] != true {
            return Err(ServerError::Cluster(format!(
                "the NATS server at {url} acknowledges messages before they are on disk; set \
                 `sync_interval: always` in the `jetstream` block of its configuration"
            )));
        }
    }
    Ok(())
}

/// The `varz` of a NATS server.
#[cfg(feature = "nats")]
async fn describe(client: &Outbound, url: &url::Url) -> Result<serde_json::Value, String> {
    let url = url.join("varz").map_err(|error| error.to_string())?;
    let ask = OutboundRequest {
        timeout: MONITOR_TIMEOUT,
        ..OutboundRequest::new(http::Method::GET, url)
    };
    let answer = client.send(ask).await.map_err(|error| error.to_string())?;
    answer.json().map_err(|error| error.to_string())
}

/// How long a NATS server may take to describe itself.
#[cfg(feature = "nats")]
const MONITOR_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// A cluster that this server has joined.
pub(super) struct Joined {
    pub(super) shared: Shared,
    /// The reason, once this server can no longer be a node.
    pub(super) failure: watch::Receiver<Option<Arc<str>>>,
}

impl Opened {
    /// The log of a server that is alone.
    pub(super) fn of(local: Arc<dyn LocalLog>) -> Self {
        Self {
            log: Arc::clone(&local) as Arc<dyn Log>,
            local,
            #[cfg(feature = "nats")]
            shared: None,
        }
    }

    /// Joins the cluster, if this server is a node of one, and waits until it has all records of
    /// the cluster. The log must have been started.
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
        let me = NodeIdentity {
            name: config.log.node_name(&config.server),
            id: log.node_id().map_err(|error| ServerError::Cluster(error.to_string()))?,
            bind: config.server.bind.iter().map(ToString::to_string).collect(),
        };
        tracing::info!(
            node = me.name,
            stream = config.log.stream.0,
            applied,
            took_ms = millis(began.elapsed()),
            "this node has caught up with its cluster"
        );
        let nodes = Nodes::join(Arc::clone(log), me, Clock::system(), shutdown.clone()).await?;
        // All nodes accept what one of them signs.
        let data_dir = &config.server.data_dir;
        let mine = token_key::key(data_dir);
        let shared = nodes.share("tokens.key", &mine).await?;
        if shared != mine {
            token_key::adopt(data_dir, &shared)
                .map_err(|error| ServerError::Cluster(format!("tokens.key: {error}")))?;
        }
        let shared_store: Option<Arc<dyn SharedStore>> = match config.media.dir {
            MediaDir::Auto => Some(Arc::new(Files::open(log, Clock::system()).await?)),
            MediaDir::Path(_) => None,
        };
        let shared = Shared { cluster: Some(nodes), shared_store };
        Ok(Some(Joined { shared, failure: log.failure() }))
    }

    /// Without the feature there is no cluster.
    #[cfg(not(feature = "nats"))]
    pub(super) async fn join(
        &self,
        _: &Config,
        _: &logcabin_base::shutdown::Shutdown,
    ) -> Result<Option<Joined>, ServerError> {
        Ok(None)
    }
}
