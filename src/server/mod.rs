//! The server as a whole: opens what the configuration names, wires it together, and takes it down
//! in order.

use std::{
    collections::HashSet,
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use thiserror::Error;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tracing::{error, info, warn};

use crate::{
    base::{
        background::{self, Pace},
        clock::{Clock, random_bytes},
        disk, limits,
        long_work::LongWork,
        shutdown::Shutdown,
        signed::Signer,
        timers, token_key,
    },
    config::{Config, OwnRate, SharedSecret},
    decide::{
        account::AccountLimit,
        ephemeral::Gather,
        quota::{Exempt, Quotas},
    },
    edge::{
        api::{self, uiaa},
        http::{Edge, TableError, serve},
    },
    engine::{self, Engine, SweepPolicy, Swept},
    log::{
        Log, ReadError,
        archive::{ArchiveError, ArchiveOptions, Archiver},
        sled::{Compacted, OpenError, SledLog, SledOptions},
    },
    ops::{
        admin::{self, office::Office, shutdown as shutdowns},
        proof, socket,
    },
    outside::{
        appservice::{Questions, Services},
        messages::Messages,
        oidc::Providers,
        outbound::Outbound,
        pushers::{Mails, Pushers},
    },
    read::{
        push::Unread,
        sync::{KnownMembers, sliding::Connections},
    },
    record::{Command, Offset},
    search::Search,
    service::{
        accounts,
        last_seen::{self, LastSeen},
        passwords::Passwords,
        presence::Tracker,
        rendezvous::Meetings,
    },
    snapshot::{self, Begun},
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
    /// Files cannot be kept and shown.
    #[error("{0}")]
    Media(Box<dyn std::error::Error + Send + Sync>),
    /// The search index cannot be kept.
    #[error("the search index cannot be opened: {0}")]
    Search(io::Error),
    /// Other services cannot be asked, for want of the certificates that the system trusts.
    #[error("other services cannot be reached: {0}")]
    Outbound(Box<dyn std::error::Error + Send + Sync>),
    /// Messages cannot be sent as configured.
    #[error("messages cannot be sent: {0}")]
    Messages(Box<dyn std::error::Error + Send + Sync>),
    /// A provider of single sign-on cannot be used.
    #[error("{0}")]
    Sso(Box<dyn std::error::Error + Send + Sync>),
    /// Registration asks for what is not configured.
    #[error("{0}")]
    Registration(String),
    /// An application service's registration cannot be used.
    #[error("the registration of an application service cannot be used: {0}")]
    Appservice(Box<dyn std::error::Error + Send + Sync>),
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
    // What is wrong in a file is told before anything is touched.
    let services = Services::load(&config.appservices.files, &config.server.name)
        .map_err(|error| ServerError::Appservice(error.into()))?;
    let outbound =
        Outbound::new(&config.outbound).map_err(|error| ServerError::Outbound(error.into()))?;
    let messages =
        Messages::new(&config, &outbound).map_err(|error| ServerError::Messages(error.into()))?;
    let messages = Arc::new(messages);
    let stages = uiaa::Stages::load(&config, &messages).map_err(ServerError::Registration)?;
    let secret = config.registration.shared_secret.as_ref();
    if secret.is_some_and(SharedSecret::is_short) {
        warn!("registration.shared_secret has fewer than 16 characters: it may be guessed");
    }
    if config.server.discovery && config.announced_url().is_none() {
        warn!(
            "clients are not told the server's address, because it is unknown which address they use; set server.public_url"
        );
    }
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
    let quotas = Quotas { exempt: exempt(&services, &config), ..config.quotas() };
    let (engine, begun) = open_engine(&config, quotas, Arc::clone(&log) as Arc<dyn Log>).await?;
    let engine = Arc::new(engine);
    watch_for_failure(&log);
    make_private(&config);

    let in_query = config.appservices.token_in_query;
    let questions = Arc::new(Questions::new(outbound.clone(), &services, in_query));

    let shutdown = Shutdown::when(stop);
    let unread = Arc::new(Unread::default());
    let snapshots = snapshot::Keeper::new(
        snapshot::directory(&config.server.data_dir),
        Arc::clone(&engine),
        config.snapshot_policy(),
        begun,
        shutdown.clone(),
    );
    let snapshots = Arc::new(snapshots.with_counts(Arc::clone(&unread)));
    let passwords = Arc::new(Passwords::new(&config));
    let last_seen = Arc::new(LastSeen::new(config.devices.note_last_seen_seconds));
    let office = Arc::new(Office {
        engine: Arc::clone(&engine),
        passwords: Arc::clone(&passwords),
        policy: config.passwords.clone(),
        identity: Some((outbound.clone(), config.threepids.identity_servers.to_vec())),
        snapshots: Arc::clone(&snapshots),
        last_seen: Arc::clone(&last_seen),
        notices: config.server_notices.clone(),
        archive: config.archive_dir(),
    });
    let admin = serve_admin(&config, &log, Arc::clone(&office), &shutdown);
    let search = Search::start(&config.server.data_dir, Arc::clone(&engine));
    let search = Arc::new(search.map_err(ServerError::Search)?);
    let around = engine.state().presence.around().into_iter();
    let around =
        around.filter_map(|user| Some((user.clone(), engine.state().presence.get(&user)?)));
    let providers = Providers::load(&config, &api::sso_callback(&config), &outbound);
    let to_gateways = Outbound::public_only(&config.outbound, &config.push.allowed_networks)
        .map_err(|error| ServerError::Outbound(error.into()))?;
    let identity = engine.state().server();
    let private_key = identity.as_ref().map_or("", |identity| identity.private_key.expose());
    let lasting = Signer::new(private_key);
    let unsubscribing = (lasting.clone(), api::unsubscribe_url(&config));
    let mails = Mails::new(&config, &engine, &unread, &messages, unsubscribing, &shutdown);
    let pushers = Pushers::new(&engine, &unread, mails, to_gateways, &config.push, &shutdown);
    let media = api::media::files::Media::open(&config)
        .map_err(|error| ServerError::Media(error.into()))?;
    let app = Arc::new(api::Server {
        engine: Arc::clone(&engine),
        epoch: engine.state().epoch(),
        office,
        auth: api::Authentication {
            passwords,
            uiaa: uiaa::Sessions::default(),
            stages,
            nonces: api::auth::shared_secret::Nonces::default(),
            deliveries: api::Deliveries::default(),
            rendezvous: Meetings::default(),
            former_rendezvous: Meetings::default(),
        },
        signing: api::Signing { signer: token_key::signer(&config.server.data_dir), lasting },
        sync: api::Synchronisation {
            filters: api::sync::filter::Filters::new(&config),
            known_members: KnownMembers::new(limits::KNOWN_MEMBERS_BYTES),
            connections: Connections::new(
                limits::SLIDING_BYTES,
                u64::from_be_bytes(random_bytes()),
            ),
            unread,
        },
        listing: api::Listing {
            search: Arc::clone(&search),
            catalogue: api::room::directory::Catalogue::default(),
            thread_walks: Default::default(),
            space_walks: Default::default(),
        },
        outside: api::Outside {
            outbound,
            messages,
            providers: providers.map_err(|error| ServerError::Sso(error.into()))?,
            services,
            questions,
        },
        media,
        presence: Tracker::new(&config.presence, around, engine.clock().now_ms()),
        last_seen: Arc::clone(&last_seen),
        notices: api::account::notices::Notices::new(&config.rate_limits),
        long_work: LongWork::new(
            config.rate_limits.enabled.then_some(config.rate_limits.processor_percent),
        ),
        config: config.clone(),
    });
    match api::appservice::services::register_senders(&app).await {
        Ok(()) => {}
        // A disk that is full, for example: the services are told so when they come.
        Err(error) => warn!(%error, "the application services' own users could not be made"),
    }
    api::appservice::services::deliver(&app, &shutdown);
    let pushers = tokio::spawn(pushers.run());
    api::room::typing::resume(&engine);
    accounts::profile::resume(&engine);
    accounts::closing::resume(&engine);
    shutdowns::resume(&engine);
    tokio::spawn(last_seen::keep(last_seen, Arc::clone(&engine), shutdown.clone()));
    tokio::spawn(api::auth::guests::keep_out(Arc::clone(&engine), shutdown.clone()));
    let clock = engine.clock().clone();
    let presence = api::sync::presence::Writer(Arc::clone(&app));
    tokio::spawn(timers::keep(presence, clock.clone(), shutdown.clone()));
    // What became due while there was no server is sent now.
    let delayed = api::room::delayed::Sender(Arc::clone(&app));
    tokio::spawn(timers::keep(delayed, clock, shutdown.clone()));
    tokio::spawn(api::media::files::sweep(Arc::clone(&app), shutdown.clone()));
    let keeper = tokio::spawn(Arc::clone(&snapshots).run());
    tokio::spawn(proof::keep(
        Arc::clone(&engine),
        proof::Policy::of(&config.proofs),
        shutdown.clone(),
    ));
    let sweeper = tokio::spawn(sweep(
        Arc::clone(&engine),
        Arc::clone(&log),
        archiver.as_ref().map(Archiver::archived),
        config.sweep_policy(),
        config.erasure.compact_percent,
        shutdown.clone(),
    ));
    let edge = Edge::new(app, api::endpoints(&config), &config, shutdown)?;
    info!(bind = ?config.server.bind, server_name = %config.server.name, "serving");
    started(&config);
    serve::run(listeners, edge).await;

    if let Some(admin) = admin {
        // It ends with the shutdown signal; a panic in it has been logged and ends nothing else.
        let _ = admin.await;
    }
    // What is on its way to a gateway is noted as told.
    let _ = pushers.await;
    // A compaction under way is given up; the log is whole without it.
    let _ = sweeper.await;
    let _ = keeper.await;
    proof::keep_last(&engine, proof::Policy::of(&config.proofs)).await;
    close(&config, search, log, archiver, snapshots).await;
    info!("stopped");
    Ok(())
}

/// The users to whom quotas do not apply.
fn exempt(services: &Services, config: &Config) -> Exempt {
    let (services, notices) = (services.clone(), config.server_notices.clone());
    let unlimited = config.rate_limits.users.iter().filter(|user| user.rate == OwnRate::Unlimited);
    let unlimited: HashSet<_> = unlimited.map(|user| user.user_id.clone()).collect();
    Exempt::who(move |user_id| {
        unlimited.contains(user_id)
            || services.exempt(user_id)
            // This user is in a room with every user who got a notice.
            || notices.is_sender(user_id)
    })
}

fn open_log(config: &Config) -> Result<Arc<SledLog>, ServerError> {
    let mut options = SledOptions::new(&config.server.data_dir);
    options.min_free_bytes = config.log.min_free_bytes;
    options.archive = config.archive_dir();
    Ok(Arc::new(SledLog::open(options)?))
}

/// The engine on what the newest snapshot and the records after it add up to, and from what that
/// was made.
async fn open_engine(
    config: &Config,
    quotas: Quotas,
    log: Arc<dyn Log>,
) -> Result<(Engine, Begun), ServerError> {
    let began = Instant::now();
    let opened = {
        let (log, dir) = (Arc::clone(&log), snapshot::directory(&config.server.data_dir));
        tokio::task::spawn_blocking(move || snapshot::recall(&dir, &*log)).await
    };
    let (state, begun) = match opened {
        Ok(opened) => opened?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    let held = begun.snapshot.as_ref().map_or(Offset::ZERO, |snapshot| snapshot.offset);
    info!(
        snapshot = %held,
        replayed = state.applied().get() - held.get(),
        took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
        "the projections are there"
    );
    if !begun.provisional.is_empty() {
        info!(projections = ?begun.provisional, "computed by another version; rebuilding in the background");
    }
    let options = engine::Options {
        server_name: config.server.name.clone(),
        event_cache_bytes: EVENT_CACHE_BYTES,
        gather: Gather {
            window: Duration::from_millis(config.receipts.gather_ms),
            members: config.receipts.gather_members,
        },
        accounts: AccountLimit {
            most: Some(config.registration.max_accounts).filter(|most| *most > 0),
            admin_contact: config.admin_contact(),
        },
        quotas: Arc::new(quotas),
        clock: Clock::system(),
    };
    let engine = Engine::start(log, state, options).await?;
    engine.keep_to(config.sweep_policy().retention);
    Ok((engine, begun))
}

fn open_archive(config: &Config, log: Arc<dyn Log>) -> Result<Option<Archiver>, ServerError> {
    let Some(dir) = config.archive_dir() else {
        warn!("there is no archive: a damaged log cannot be rebuilt");
        return Ok(None);
    };
    let mut options = ArchiveOptions::new(dir);
    options.segment_bytes = config.log.archive_segment_bytes;
    options.compact_percent = config.erasure.compact_percent;
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

/// What a server has in its data directory. Other things there are somebody else's.
const OWN: [&str; 8] =
    ["log", "log.ready", "archive", "media", "search", "snapshots", "checkpoint.json", "lock"];

/// Takes away, beside everything else, what others than their owner may do with files that an
/// earlier version made, or that were copied here.
fn make_private(config: &Config) {
    let own = OWN.iter().map(|name| config.server.data_dir.join(name));
    let paths: Vec<_> = own.chain(config.archive_dir()).collect();
    let work = move || {
        background::stand_back();
        let mut changed = 0;
        for path in paths {
            match disk::make_private(&path) {
                Ok(more) => changed += more,
                Err(error) => {
                    let path = path.display();
                    warn!(%path, %error, "other users may be able to read this file");
                }
            }
        }
        if changed > 0 {
            info!(changed, "removed other users' access to files in the data directory");
        }
    };
    // Without it, the files are as they were.
    if let Err(error) = std::thread::Builder::new().name("private".to_owned()).spawn(work) {
        warn!(%error, "the permissions of the data directory could not be checked");
    }
}

/// How often it is looked whether a sweep is due.
const SWEEP_TICK: Duration = Duration::from_secs(60);

/// Erases what is due, and takes what was erased off the disk, until the server stops.
async fn sweep(
    engine: Arc<Engine>,
    log: Arc<SledLog>,
    archived: Option<watch::Receiver<Offset>>,
    policy: SweepPolicy,
    compact_percent: u64,
    shutdown: Shutdown,
) {
    let mut put_off = Instant::now();
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP_TICK.min(policy.every)) => {}
            () = shutdown.given() => return,
        }
        let upto = archived.as_ref().map_or(Offset::MAX, |archived| *archived.borrow());
        let swept = match engine.sweep_is_due(&policy) {
            Ok(true) => engine.sweep(&policy, upto).await,
            Ok(false) => Ok(Swept::default()),
            Err(error) => Err(error.into()),
        };
        match swept {
            // If it was due, what is due is not archived yet.
            Ok(swept) if swept == Swept::default() => {}
            Ok(Swept { expired, files, erased, superseded }) => {
                info!(expired, files, erased, superseded, "erased expired content");
            }
            Err(error) => warn!(%error, "expired content could not be erased; retrying later"),
        }
        if Instant::now() < put_off || !compaction_is_due(&engine, &log, compact_percent) {
            continue;
        }
        let (compacting, stopping) = (Arc::clone(&log), shutdown.clone());
        let compaction = tokio::task::spawn_blocking(move || {
            let mut pace = Pace::begin();
            compacting.compact(|| {
                pace.rest();
                !stopping.is_given()
            })
        });
        match compaction.await {
            Ok(Ok(Compacted { before, after })) => info!(before, after, "compacted the log"),
            Ok(Err(_)) if shutdown.is_given() => return,
            Ok(Err(error)) => {
                warn!(%error, "the log could not be compacted; retrying later");
                put_off = Instant::now() + policy.every;
            }
            Err(error) => {
                error!(%error, "compacting the log panicked");
                put_off = Instant::now() + policy.every;
            }
        }
    }
}

/// Whether something that was erased is still on the disk: a text at once, superseded records when
/// there are many.
fn compaction_is_due(engine: &Engine, log: &SledLog, percent: u64) -> bool {
    let Ok(compacted) = log.compacted() else { return false };
    let mut superseded = 0;
    for offset in engine.state().erasures.since(compacted) {
        match engine.events().command(offset) {
            Ok(Some(Command::LogErase(erasure))) if erasure.is_of_superseded() => {
                superseded += erasure.count();
            }
            Ok(Some(_)) => return true,
            _ => {}
        }
    }
    superseded > 0 && superseded.saturating_mul(100) >= engine.head().offset().get() * percent
}

/// Lets the command line act on the running server and the history tool read its log: it holds the
/// directory's lock.
fn serve_admin(
    config: &Config,
    log: &Arc<SledLog>,
    office: Arc<Office>,
    shutdown: &Shutdown,
) -> Option<JoinHandle<()>> {
    let path = socket::socket_path(&config.server.data_dir);
    let log = Arc::clone(log) as Arc<dyn Log>;
    match admin::serve(&path, log, Some(office), shutdown.clone()) {
        Ok(task) => Some(task),
        Err(error) => {
            // The server does its work without it; the tool then reads the archive.
            warn!(path = %path.display(), %error, "the admin socket could not be created");
            None
        }
    }
}

/// Everything that was acknowledged is durable already; what is left is to end in order, and to
/// note what the projections were for `logcabin verify`.
async fn close(
    config: &Config,
    search: Arc<Search>,
    log: Arc<SledLog>,
    archiver: Option<Archiver>,
    snapshots: Arc<snapshot::Keeper>,
) {
    let data_dir = config.server.data_dir.clone();
    let closing = move || {
        // It reads the log.
        search.stop();
        log.close();
        if let Some(archiver) = archiver {
            archiver.stop();
        }
        snapshots.note_state(&data_dir);
        if let Err(error) = snapshots.make_last() {
            warn!(%error, "no snapshot could be written; the next start replays more of the log");
        }
    };
    if tokio::task::spawn_blocking(closing).await.is_err() {
        error!("closing the log panicked");
    }
}
