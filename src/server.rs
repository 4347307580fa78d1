//! The server as a whole: opens what the configuration names, wires it together, and takes it down
//! in order.

use std::{io, net::SocketAddr, sync::Arc, time::Instant};

use thiserror::Error;
use tokio::{net::TcpListener, task::JoinHandle};
use tracing::{error, info, warn};

use crate::{
    admin,
    api::{self, uiaa},
    checkpoint::Checkpoint,
    clock::{Clock, random_bytes},
    config::Config,
    engine::{self, Engine},
    http::{Edge, TableError, serve},
    limits,
    log::{
        Log, ReadError,
        archive::{ArchiveError, ArchiveOptions, Archiver},
        sled::{OpenError, SledLog, SledOptions},
    },
    passwords::Passwords,
    shutdown::Shutdown,
    sync::{KnownMembers, sliding::Connections},
};

/// How many bytes of events are kept in memory. Enough for the recent history of busy rooms; what
/// is not in it is read from the log.
const EVENT_CACHE_BYTES: u64 = 64 * 1024 * 1024;

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
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] OpenError),
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log cannot be made into a server's state.
    #[error(transparent)]
    Engine(#[from] engine::OpenError),
    /// The archive cannot be used.
    #[error("the archive cannot be used: {0}")]
    Archive(#[from] ArchiveError),
    /// The table of endpoints contradicts itself, which no configuration should bring about.
    #[error("the endpoints cannot be served: {0}")]
    Endpoints(Box<dyn std::error::Error + Send + Sync>),
}

impl From<TableError> for ServerError {
    fn from(error: TableError) -> Self {
        Self::Endpoints(error.into())
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
    // The log first: whoever holds it is the server, and a second one is told so.
    let log = open_log(&config)?;
    let mut listeners = Vec::new();
    for address in &mut config.server.bind {
        let bind =
            async { TcpListener::bind(*address).await.and_then(|l| Ok((l.local_addr()?, l))) };
        let (actual, listener) =
            bind.await.map_err(|source| ServerError::Bind { address: *address, source })?;
        *address = actual;
        listeners.push(listener);
    }
    // Before the log takes appends: an archive that is ahead of the log, or of another one, stops
    // the server while nothing has been added yet.
    let archiver = open_archive(&config, Arc::clone(&log) as Arc<dyn Log>)?;
    let engine = Arc::new(open_engine(&config, Arc::clone(&log) as Arc<dyn Log>).await?);
    watch_for_failure(&log);

    let shutdown = Shutdown::when(stop);
    let admin = serve_admin(&config, &log, &shutdown);
    let app = Arc::new(api::Server {
        passwords: Passwords::new(config.passwords.iterations, config.concurrent_hashes()),
        engine: Arc::clone(&engine),
        uiaa: uiaa::Sessions::default(),
        known_members: KnownMembers::new(limits::KNOWN_MEMBERS_BYTES),
        connections: Connections::new(limits::SLIDING_BYTES, u64::from_be_bytes(random_bytes())),
        epoch: engine.state().epoch(),
        config: config.clone(),
    });
    api::typing::resume(&engine);
    let edge = Edge::new(app, api::endpoints(&config), &config, shutdown)?;
    info!(bind = ?config.server.bind, server_name = %config.server.name, "serving");
    started(&config);
    serve::run(listeners, edge).await;

    if let Some(admin) = admin {
        // It ends with the shutdown signal; a panic in it has been logged and ends nothing else.
        let _ = admin.await;
    }
    close(&config, engine, log, archiver).await;
    info!("stopped");
    Ok(())
}

fn open_log(config: &Config) -> Result<Arc<SledLog>, ServerError> {
    let mut options = SledOptions::new(&config.server.data_dir);
    options.min_free_bytes = config.log.min_free_bytes;
    Ok(Arc::new(SledLog::open(options)?))
}

async fn open_engine(config: &Config, log: Arc<dyn Log>) -> Result<Engine, ServerError> {
    let began = Instant::now();
    let replayed = {
        let log = Arc::clone(&log);
        let replay = move || {
            let mut told = Instant::now();
            engine::replay(&*log, |at, end| {
                // A long replay says that it goes on.
                if told.elapsed().as_secs() >= 5 {
                    told = Instant::now();
                    info!(%at, %end, "replaying the log");
                }
            })
        };
        tokio::task::spawn_blocking(replay).await
    };
    let (state, replayed) = match replayed {
        Ok(replayed) => replayed?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    info!(
        records = replayed.records,
        took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        "replayed the log"
    );
    let options = engine::Options {
        server_name: config.server.name.clone(),
        event_cache_bytes: EVENT_CACHE_BYTES,
        clock: Clock::system(),
    };
    Ok(Engine::start(log, state, options).await?)
}

fn open_archive(config: &Config, log: Arc<dyn Log>) -> Result<Option<Archiver>, ServerError> {
    let Some(dir) = config.archive_dir() else {
        warn!("there is no archive: a damaged log cannot be rebuilt");
        return Ok(None);
    };
    let mut options = ArchiveOptions::new(dir);
    options.segment_bytes = config.log.archive_segment_bytes;
    Ok(Some(Archiver::start(options, log)?))
}

/// Says loudly when the log stops taking writes, which every write is told from then on.
fn watch_for_failure(log: &SledLog) {
    let mut failure = log.failure();
    tokio::spawn(async move {
        if let Ok(reason) = failure.wait_for(Option::is_some).await {
            let reason = reason.as_deref().unwrap_or_default().to_owned();
            error!(reason, "the log failed: writes are refused until the server is started again");
        }
    });
}

/// Lets the history tool read the log of the running server, which holds the directory's lock.
fn serve_admin(config: &Config, log: &Arc<SledLog>, shutdown: &Shutdown) -> Option<JoinHandle<()>> {
    let path = admin::socket_path(&config.server.data_dir);
    let log = Arc::clone(log) as Arc<dyn Log>;
    match admin::serve(&path, log, shutdown.clone()) {
        Ok(task) => Some(task),
        Err(error) => {
            // The server does its work without it; the tool then reads the archive.
            warn!(path = %path.display(), %error, "there is no admin socket");
            None
        }
    }
}

/// Everything that was acknowledged is durable already; what is left is to end in order, and to
/// note what the projections were for `logcabin verify`.
async fn close(
    config: &Config,
    engine: Arc<Engine>,
    log: Arc<SledLog>,
    archiver: Option<Archiver>,
) {
    let data_dir = config.server.data_dir.clone();
    let closing = move || {
        log.close();
        if let Some(archiver) = archiver {
            archiver.stop();
        }
        if let Err(error) = Checkpoint::write(&data_dir, engine.state()) {
            warn!(%error, "the state's digest could not be noted");
        }
    };
    if tokio::task::spawn_blocking(closing).await.is_err() {
        error!("closing the log panicked");
    }
}
