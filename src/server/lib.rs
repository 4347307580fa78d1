//! The server as a whole: opens its parts ([`open`]), starts the background tasks ([`tasks`]),
//! serves requests, and shuts everything down in order.

#![cfg_attr(all(feature = "nats", feature = "otlp", not(test)), warn(unused_crate_dependencies))]

mod cluster;
mod console;
mod descriptors;
mod federation;
mod former;
mod https;
mod inherited;
mod manager;
mod memory;
mod metrics;
mod open;
mod otlp;
mod reload;
mod starting;
mod sweep;
mod tasks;

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;
use futures_util::future::{BoxFuture, LocalBoxFuture};
use thiserror::Error;
use tokio::{sync::oneshot, task::JoinHandle};
use tracing::{error, info, warn};

pub use self::inherited::inherit_sockets;
pub use self::reload::{Reloads, Reread};
use self::{
    https::Https,
    inherited::{CLIENT, listen},
    manager::Manager,
    open::{Components, ConfiguredFiles, Core},
    reload::Reloadable,
    tasks::Tasks,
};
use logcabin_base::{clock::Clock, shutdown::Shutdown, threads};
use logcabin_config::{Bind, Config, Contradiction};
use logcabin_edge::{
    api,
    http::{AccessLog, AccessLogError, Edge, TableError, listen::Listener, tls::Certificate},
};
use logcabin_engine as engine;
use logcabin_log::{
    LocalLog, Log, ReadError,
    archive::ArchiveError,
    store::{OpenError, has_log},
};
use logcabin_ops::{
    admin::{self, context::ActContext},
    former::FormerError,
    proof, socket,
};
use logcabin_search::Search;
use logcabin_service::{last_seen, passwords::NoPepper};
use logcabin_snapshot as snapshot;

/// Why a server cannot run.
#[derive(Debug, Error)]
pub enum ServerError {
    #[error("cannot listen on {address} (`{setting}`): {source}{}", hint(.address, .source))]
    Bind { setting: &'static str, address: Bind, source: io::Error },
    /// Settings contradict each other.
    #[error(transparent)]
    Settings(#[from] Contradiction),
    /// HTTPS is not possible as it is configured.
    #[error("HTTPS: {0}")]
    Https(String),
    /// A socket of the service manager is not usable.
    #[error("socket activation: {0}")]
    Inherited(String),
    #[error(transparent)]
    Log(#[from] OpenError),
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The projections cannot be computed from the log.
    #[error(transparent)]
    Engine(#[from] engine::OpenError),
    #[error("the archive cannot be used: {0}")]
    Archive(#[from] ArchiveError),
    /// The server cannot be a node of its cluster.
    #[error("the cluster: {0}")]
    Cluster(String),
    /// The store of uploaded files cannot be opened.
    #[error("{0}")]
    Media(Box<dyn std::error::Error + Send + Sync>),
    #[error("the search index cannot be opened: {0}")]
    Search(io::Error),
    /// Other services cannot be reached, because the system's trusted certificates are not usable.
    #[error("other services cannot be reached: {0}")]
    Outbound(Box<dyn std::error::Error + Send + Sync>),
    /// The settings for messages are not usable.
    #[error("messages cannot be sent: {0}")]
    Messages(Box<dyn std::error::Error + Send + Sync>),
    /// Federation is not possible as it is configured.
    #[error("federation: {0}")]
    Federation(String),
    #[error("traces cannot be sent: {0}")]
    Traces(String),
    /// The antispam hook is not usable as it is configured.
    #[error("the antispam hook: {0}")]
    Antispam(String),
    /// Calls are not possible as they are configured.
    #[error("calls: {0}")]
    Calls(String),
    /// A part that is configured is not in this program.
    #[error(
        "`{setting}` is set, and this program was built without the feature `{feature}`: remove the \
         setting, or build the program with that feature"
    )]
    LeftOut { setting: &'static str, feature: &'static str },
    /// A provider of single sign-on is not usable.
    #[error("{0}")]
    Sso(Box<dyn std::error::Error + Send + Sync>),
    /// An OAuth client of the configuration is not usable.
    #[error("{0}")]
    Oauth(Box<dyn std::error::Error + Send + Sync>),
    /// A secret that passwords need cannot be read.
    #[error(transparent)]
    Passwords(NoPepper),
    /// A stage of registration lacks its configuration.
    #[error("{0}")]
    Registration(String),
    /// An application service's registration is not usable.
    #[error("the registration of an application service cannot be used: {0}")]
    Appservice(Box<dyn std::error::Error + Send + Sync>),
    /// The server that this one takes over from stands in the way, or the data directory is one for
    /// rehearsals.
    #[error(transparent)]
    Former(#[from] FormerError),
    #[error("the access log cannot be written: {0}")]
    AccessLog(#[from] AccessLogError),
    /// The table of endpoints is inconsistent, which is a bug.
    #[error("the endpoints cannot be served: {0}")]
    Endpoints(Box<dyn std::error::Error + Send + Sync>),
}

#[cfg(feature = "nats")]
impl From<logcabin_log::nats::NatsError> for ServerError {
    fn from(error: logcabin_log::nats::NatsError) -> Self {
        Self::Cluster(error.to_string())
    }
}

impl From<TableError> for ServerError {
    fn from(error: TableError) -> Self {
        Self::Endpoints(error.into())
    }
}

/// A server that listens.
#[derive(Clone, Copy, Debug)]
pub struct Started<'a> {
    /// With the actual addresses: a port of 0 has become the one that the operating system chose.
    pub config: &'a Config,
    /// Whether there is an account.
    pub has_accounts: bool,
}

/// Called once a server listens.
pub type OnStart<'a> = Box<dyn FnOnce(Started<'_>) + 'a>;

/// Runs a server until `stop` completes and the requests in progress are answered. Takes over what
/// can be taken over of each configuration that `reloads` gives.
///
/// Calls `started` once the server listens.
pub fn run<'a>(
    config: Config,
    stop: BoxFuture<'static, ()>,
    reloads: Reloads,
    started: OnStart<'a>,
) -> LocalBoxFuture<'a, Result<(), ServerError>> {
    // Boxed, so that the server is compiled here and not again in each caller's package.
    Box::pin(serve(config, None, stop, reloads, started))
}

/// As [`run`], on a log that is open already.
#[cfg(feature = "simulate")]
pub fn run_on<'a>(
    log: Arc<dyn LocalLog>,
    config: Config,
    stop: BoxFuture<'static, ()>,
    reloads: Reloads,
    started: OnStart<'a>,
) -> LocalBoxFuture<'a, Result<(), ServerError>> {
    Box::pin(serve(config, Some(log), stop, reloads, started))
}

async fn serve(
    config: Config,
    log: Option<Arc<dyn LocalLog>>,
    stop: BoxFuture<'static, ()>,
    reloads: Reloads,
    started: OnStart<'_>,
) -> Result<(), ServerError> {
    let mut config = config.settled();
    config.check()?;
    otlp::check(&config)?;
    let configured = config.clone();
    let places = descriptors::share(&config);
    // Invalid files are reported before anything is changed.
    let named = ConfiguredFiles::load(&config)?;
    let outbound = named.outbound().clone();
    former::admit(&config, &outbound).await?;
    let https = Https::open(&config)?;
    let access = AccessLog::open(&config.http, Clock::system())?.map(Arc::new);
    open::warn_of(&config);
    // The log first: its lock makes this process the server, and a second one gets an error. But a
    // start that fails leaves no new data directory behind.
    let before = config.clone();
    let (log, listening) = match log.is_some() || has_log(&config.server.data_dir) {
        true => {
            let log = match log {
                Some(log) => cluster::Opened::of(log),
                None => cluster::open_log(&before).await?,
            };
            (log, Listening::begin(&mut config, https.as_ref()).await?)
        }
        false => {
            let listening = Listening::begin(&mut config, https.as_ref()).await?;
            (cluster::open_log(&before).await?, listening)
        }
    };
    let Listening { clients: listeners, redirecting, federation, metrics: metrics_at } = listening;
    otlp::begin(&config)?;
    // The settings of what accepts connections; `logcabin doctor` compares with those given.
    let within = places.within(&config);
    let starting = starting::Answering::begin(&within, &listeners)?;
    let manager = Manager::starting();
    let mut core = Core::open(&config, &named, log).await?;
    former::admit_log(&config, &core.engine, &outbound).await?;

    let (out, taken_out) = oneshot::channel();
    let shutdown = Shutdown::when(async {
        tokio::select! {
            () = stop => {}
            Ok(()) = taken_out => {}
        }
    });
    let joined = core.log.join(&config, &shutdown).await?;
    let failure = joined.as_ref().map(|joined| joined.failure.clone());
    if let Some(mut failure) = failure.clone() {
        tokio::spawn(async move {
            // The other nodes serve its clients.
            if failure.wait_for(Option::is_some).await.is_ok() {
                let _ = out.send(());
            }
        });
    }
    let shared = joined.map(|joined| joined.shared).unwrap_or_default();
    let open::Shared { cluster, shared_store } = shared.clone();
    let bodies = Arc::clone(&named.bodies);
    let parts = Components::new(&config, named, &mut core, shared, &shutdown)?;
    let (app, snapshots) = (Arc::clone(&parts.app), Arc::clone(&parts.snapshots));
    let mut tasks = Tasks::new(shutdown.clone(), cluster.clone());
    if let Some(admin) =
        serve_admin(&config.server.data_dir, &core.log.local, Arc::clone(&app.context), &shutdown)
    {
        tasks.wait_for("admin socket", admin);
    }
    let observer = open::observer(&config, &core, &parts);
    tasks::begin(&config, &core, parts, shared_store, &mut tasks).await;
    if let Some(https) = &https {
        let redirect = https::redirect(redirecting, https, &within, shutdown.clone())?;
        tasks.wait_for("redirect to HTTPS", redirect);
        https.begin_acme(&tasks, cluster.as_ref(), &shutdown);
    }
    if let Some(listener) = metrics_at {
        metrics::serve_on(listener, Arc::clone(&observer), &within, shutdown.clone())?;
    }
    if config.metrics.endpoint.is_some() {
        let (config, stop) = (Arc::new(config.clone()), shutdown.clone());
        let observer = Arc::clone(&observer);
        let sending = tasks.keep("metrics for a collector", move || {
            otlp::send_metrics(Arc::clone(&config), Arc::clone(&observer), stop.clone())
        });
        tasks.wait_for("metrics for a collector", sending);
    }
    if config.console.enabled {
        console::begin(&app, observer, &shutdown, &mut tasks);
    }
    let search = Arc::clone(&app.listing.search);
    let told = Arc::clone(&app);
    let last_seen = Arc::clone(&app.last_seen);
    let syncing = Arc::clone(&app);
    let for_clients = https.as_ref().map(|https| Arc::clone(&https.certificate));
    let for_federation = federation.as_ref().and_then(|listening| listening.certificate.clone());
    let federated = federation.map(|listening| {
        listening.serve(&app, &config, (places, access.clone()), &bodies, &shutdown)
    });
    let (for_servers, federated) = federated.transpose()?.unzip();
    let reloaded = Arc::clone(&app);
    let edge = Edge::new(app, api::endpoints(&config.server.prefixes), &within, shutdown.clone())?;
    let edge = Arc::new(edge.sharing(&bodies).logging(access.clone()));
    let certificates = for_clients.iter().chain(&for_federation).cloned().collect();
    begin_watching(&tasks, certificates, &shutdown);
    let all = Reloadable {
        config: configured,
        app: reloaded,
        edge: Arc::clone(&edge),
        for_servers: for_servers.clone(),
        clients: for_clients,
        servers: for_federation,
    };
    let beside = for_servers.clone().filter(|_| config.federation.at_client_addresses);
    if let Some(cluster) = cluster {
        told.tell_of_guesses();
        told.tell_of_homeservers();
        let (edge, hearing) = (Arc::clone(&edge), Arc::clone(&edge));
        let acme = https.as_ref().and_then(Https::acme).cloned();
        let answer = move |request: Bytes| -> BoxFuture<'static, Bytes> {
            let (edge, asked) = (Arc::clone(&edge), Arc::clone(&told));
            let of_order = acme.as_ref().and_then(|acme| acme.answer_node(&request));
            Box::pin(async move {
                if let Some(answer) = of_order {
                    return answer;
                }
                match asked.media.answer_node(&request).await {
                    Some(answer) => answer,
                    None => edge.answer_forwarded(request).await,
                }
            })
        };
        let hear = move |told: Bytes| hearing.heard(&told, for_servers.as_deref());
        cluster.serve(Arc::new(answer), Arc::new(hear));
    }
    starting.end().await;
    let places = config.server.bind.iter().map(ToString::to_string);
    let https_at = config.tls.bind.iter().filter(|_| https.is_some());
    let places: Vec<_> = places.chain(https_at.map(|bind| format!("{bind} (HTTPS)"))).collect();
    info!(bind = ?places, server_name = %config.server.name, "serving");
    manager.serving(&shutdown);
    tokio::spawn(reload::follow(reloads, all, shutdown.clone()));
    let has_accounts = !core.engine.state().accounts.is_empty();
    started(Started { config: &config, has_accounts });
    let closed = |connections| info!(connections, "finishing the requests in progress");
    let clients = api::serve(listeners, edge, beside, Box::new(closed));
    match federated {
        Some(federated) => drop(tokio::join!(clients, federated)),
        None => clients.await,
    }

    tasks.end().await;
    last_seen::note_all(&last_seen, &core.engine).await;
    // After the last answer. A panic is logged, and some clients start over.
    let _ = threads::spawn_blocking(move || syncing.sync.connections.write_all()).await;
    proof::keep_last(&core.engine, proof::Policy::of(&config.proofs)).await;
    close(&config.server.data_dir, search, core, snapshots).await;
    otlp::end().await;
    if let Some(access) = access {
        access.end();
    }
    info!("stopped");
    match failure.and_then(|failure| failure.borrow().clone()) {
        Some(reason) => Err(ServerError::Cluster(reason.to_string())),
        None => Ok(()),
    }
}

/// All that the server listens on.
struct Listening {
    clients: Vec<Arc<Listener>>,
    redirecting: Vec<Arc<Listener>>,
    federation: Option<federation::Listening>,
    metrics: Option<Arc<Listener>>,
}

impl Listening {
    /// Listens, and replaces the configured addresses by the actual ones.
    async fn begin(config: &mut Config, https: Option<&Https>) -> Result<Self, ServerError> {
        let proxies = config.http.proxy_protocol_from.clone();
        let behind = |listeners: Vec<Listener>, has_header| match has_header {
            true => listeners.into_iter().map(|listener| listener.behind(&proxies)).collect(),
            false => listeners,
        };
        let plain = listen(CLIENT, "server.bind", &mut config.server.bind).await?;
        let mut clients = behind(plain, config.server.proxy_protocol);
        let mut redirecting = Vec::new();
        if let Some(https) = https {
            let secure = https.listen(&mut config.tls).await?;
            clients.extend(behind(secure, config.tls.proxy_protocol));
            redirecting = https::listen_for_redirect(&mut config.tls).await?;
        }
        let clients = clients.into_iter().map(Arc::new).collect();
        let federation =
            federation::Listening::begin(&mut config.federation, https, &proxies).await?;
        inherited::close_unused();
        let metrics = metrics::listen(&mut config.metrics).await?;
        Ok(Self { clients, redirecting, federation, metrics })
    }
}

/// What to do about an address that cannot be had.
fn hint(address: &Bind, error: &io::Error) -> &'static str {
    match error.kind() {
        _ if address.address().is_none() => "",
        io::ErrorKind::AddrInUse => {
            "; another program has it: stop that one, or give this one another port"
        }
        io::ErrorKind::PermissionDenied => {
            "; only root, or a program with CAP_NET_BIND_SERVICE, may listen there"
        }
        _ => "",
    }
}

/// Looks after the certificates.
fn begin_watching(tasks: &Tasks, certificates: Arc<[Arc<Certificate>]>, shutdown: &Shutdown) {
    let shutdown = shutdown.clone();
    tasks.keep("certificates", move || https::watch(Arc::clone(&certificates), shutdown.clone()));
}

/// Lets the command line act through the running server, and the history tool read its log: the
/// server holds the directory's lock.
fn serve_admin(
    data_dir: &Path,
    log: &Arc<dyn LocalLog>,
    context: Arc<ActContext>,
    shutdown: &Shutdown,
) -> Option<JoinHandle<()>> {
    if cfg!(feature = "simulate") {
        return None;
    }
    let path = socket::socket_path(data_dir);
    let log = Arc::clone(log) as Arc<dyn Log>;
    match admin::serve(&path, log, Some(context), shutdown.clone()) {
        Ok(task) => Some(task),
        Err(error) => {
            // The server works without it; the tool then reads the archive.
            warn!(path = %path.display(), %error, "the admin socket could not be created");
            None
        }
    }
}

/// Stops in order, and stores a digest of the projections for `logcabin verify`. Everything that
/// was acknowledged is durable already.
async fn close(
    data_dir: &Path,
    search: Arc<Search>,
    Core { log, archiver, .. }: Core,
    snapshots: Arc<snapshot::Keeper>,
) {
    let data_dir = data_dir.to_owned();
    let closing = move || {
        // The search index reads the log.
        search.stop();
        log.log.close();
        if let Some(archiver) = archiver {
            archiver.stop();
        }
        snapshots.note_state(&data_dir);
        if let Err(error) = snapshots.make_last() {
            warn!(%error, "no snapshot could be written; the next start replays more of the log");
        }
    };
    if threads::spawn_blocking(closing).await.is_err() {
        error!("closing the log panicked");
    }
}
