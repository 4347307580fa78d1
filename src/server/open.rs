//! Opens the parts of a server, from the log upwards.

use std::{
    collections::HashSet,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use tokio::sync::Semaphore;
use tracing::{error, info, warn};

use super::{ServerError, cluster::Opened, memory::Caches};
use logcabin_base::{
    background,
    bodies::BodyBudget,
    clock::{Clock, millis, random_bytes},
    disk, limits,
    long_work::LongWork,
    rate::Refundable,
    shutdown::Shutdown,
    signed::Signer,
    tag::Tag,
    threads, token_key,
};
use logcabin_cluster::Cluster;
use logcabin_config::{
    self as config, Bind, Config, OwnRate, RateLimits, ServerNotices, SharedSecret,
};
use logcabin_decide::{
    account::AccountLimit,
    ephemeral::Gather,
    quota::{Exempt, Quotas},
};
use logcabin_edge::{api, http::listen::Listener};
use logcabin_engine::{self as engine, Engine};
use logcabin_log::{
    LocalLog, Log,
    archive::{ArchiveOptions, Archiver},
    store::{SledLog, SledOptions},
};
use logcabin_media::shared_store::SharedStore;
use logcabin_ops::{
    admin::{
        context::ActContext,
        snapshots::{BackupRow, backups},
    },
    backup::verified,
    doctor::{Doctor, Running},
};
use logcabin_outside::{
    appservice::{QueryClient, Services},
    livekit::Livekit,
    mail::Messages,
    oidc::Providers,
    outbound::Outbound,
    pushers::{Mails, Pushers},
};
use logcabin_read::{
    notifications::Unread,
    sync::{KnownMembers, sliding::Connections},
};
use logcabin_record::{Offset, threepid::Medium};
use logcabin_search::Search;
use logcabin_service::{
    deliveries::Deliveries,
    federation::Federation,
    filters::Filters,
    health::Health,
    last_seen::LastSeen,
    media::Media,
    nonces::Nonces,
    notices::Notices,
    oauth::{Clients, IdTokens, Polls},
    observe::{self, Observer},
    passwords::Passwords,
    policies,
    presence::{self, Tracker},
    public_rooms::Catalogue,
    rendezvous::RendezvousSessions,
    samples::Samples,
    screening::Screening,
    tally::Tally,
    typing::Typing,
    uiaa,
};
use logcabin_snapshot::{self as snapshot, StartedFrom};

/// Reads the metrics that are not counted but looked up at each scrape.
pub(super) fn observer(config: &Config, core: &Core, parts: &Components) -> Arc<Observer> {
    let (data_dir, context) = (config.server.data_dir.clone(), Arc::clone(&parts.app.context));
    Arc::new(Observer {
        engine: Arc::clone(&core.engine),
        log: Arc::clone(&core.log.local),
        search: Arc::clone(&parts.app.listing.search),
        snapshots: Arc::clone(&parts.snapshots),
        pushers: Arc::clone(&parts.pushers),
        cluster: parts.app.cluster.clone(),
        archive: archive_of(core),
        directories: observe::Directories::configured(config),
        backup_times: Box::new(move || {
            // What cannot be read is not known.
            let newest =
                backups(&context, 0, 1).ok().and_then(|all| all.backups.into_iter().next());
            newest.map_or((0, 0), |BackupRow { copy, noted_ms, .. }| {
                (noted_ms, verified::all_ms(&data_dir, &copy.destination).unwrap_or_default())
            })
        }),
        last: Default::default(),
    })
}

/// How the archive is, if there is one.
fn archive_of(core: &Core) -> Option<observe::Archive> {
    core.archiver.as_ref().map(|archiver| observe::Archive {
        archived: archiver.archived(),
        failure: archiver.failure(),
    })
}

/// The files that the configuration names, read and checked before anything is changed.
pub(super) struct ConfiguredFiles {
    /// The memory for bodies in transit, shared by all listeners and all outbound requests.
    pub(super) bodies: Arc<BodyBudget>,
    services: Services,
    outbound: Outbound,
    messages: Arc<Messages>,
    stages: uiaa::Stages,
    providers: Providers,
    clients: Clients,
    to_gateways: Outbound,
    passwords: Passwords,
}

impl ConfiguredFiles {
    pub(super) fn load(config: &Config) -> Result<Self, ServerError> {
        let services = Services::load(&config.appservices.files, &config.server.name)
            .map_err(|error| ServerError::Appservice(error.into()))?;
        let bodies = BodyBudget::new(config.body_shares());
        let outbound = Outbound::new(&config.outbound, &bodies)
            .map_err(|error| ServerError::Outbound(error.into()))?;
        let messages = Messages::new(&config.email, &config.sms, &config.server.name, &outbound)
            .map_err(|error| ServerError::Messages(error.into()))?;
        let messages = Arc::new(messages);
        let stages = uiaa::Stages::load(&config.registration, &config.captcha, &messages)
            .map_err(ServerError::Registration)?;
        let providers = Providers::load(&config.sso, &api::sso_callback(&config.server), &outbound)
            .map_err(|error| ServerError::Sso(error.into()))?;
        let clients = Clients::load(config).map_err(|error| ServerError::Oauth(error.into()))?;
        let to_gateways =
            Outbound::public_only(&config.outbound, &bodies, &config.push.allowed_networks);
        let to_gateways = to_gateways.map_err(|error| ServerError::Outbound(error.into()))?;
        let passwords = Passwords::new(&config.passwords, &config.rate_limits)
            .map_err(ServerError::Passwords)?;
        Ok(Self {
            bodies,
            services,
            outbound,
            messages,
            stages,
            providers,
            clients,
            to_gateways,
            passwords,
        })
    }

    /// The client of other services.
    pub(super) const fn outbound(&self) -> &Outbound {
        &self.outbound
    }
}

/// Other programs leave by the proxy that these variables name, in small letters or in capitals.
const PROXY_VARIABLES: [&str; 3] = ["https_proxy", "http_proxy", "all_proxy"];

/// Warns of settings that are allowed but risky, or that do not do what is expected of them.
pub(super) fn warn_of(config: &Config) {
    let Config { registration, server, outbound, .. } = config;
    let secret = registration.shared_secret.as_ref();
    if secret.is_some_and(SharedSecret::is_short) {
        warn!("registration.shared_secret has fewer than 16 characters: it may be guessed");
    }
    let is_set = |name: &&str| {
        let names = [(*name).to_owned(), name.to_ascii_uppercase()];
        names.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
    };
    if outbound.proxy.is_none()
        && let Some(variable) = PROXY_VARIABLES.iter().find(|name| is_set(name))
    {
        warn!(variable, "variables for a proxy have no effect; set outbound.proxy");
    }
    if server.discovery && server.announced_url().is_none() {
        warn!(
            "clients are not told the server's address, because it is unknown which address they use; set server.public_url"
        );
    }
}

/// Listens where the setting says, and replaces the addresses by the actual ones.
pub(super) async fn listen(
    setting: &'static str,
    binds: &mut [Bind],
) -> Result<Vec<Listener>, ServerError> {
    let mut listeners = Vec::new();
    for bind in binds {
        let listening = match bind {
            Bind::Tcp(address) => Listener::bind(*address).await.map(|(actual, listener)| {
                *address = actual;
                listener
            }),
            Bind::Unix(path) => Listener::bind_unix(path),
        };
        let refused = |source| ServerError::Bind { setting, address: bind.clone(), source };
        listeners.push(listening.map_err(refused)?);
    }
    Ok(listeners)
}

/// The same of addresses alone.
pub(super) async fn listen_at(
    setting: &'static str,
    addresses: &mut [SocketAddr],
) -> Result<Vec<Listener>, ServerError> {
    let mut binds: Vec<_> = addresses.iter().copied().map(Bind::Tcp).collect();
    let listeners = listen(setting, &mut binds).await?;
    for (address, actual) in addresses.iter_mut().zip(binds.iter().filter_map(Bind::address)) {
        *address = actual;
    }
    Ok(listeners)
}

/// What the nodes of a cluster share besides the log; nothing for a server that is alone.
#[derive(Clone, Default)]
pub(super) struct Shared {
    pub(super) cluster: Option<Arc<dyn Cluster>>,
    pub(super) shared_store: Option<Arc<dyn SharedStore>>,
}

/// The log and its archive.
pub(super) struct Core {
    pub(super) log: Opened,
    pub(super) archiver: Option<Archiver>,
    pub(super) engine: Arc<Engine>,
    begun: StartedFrom,
}

impl Core {
    /// The log must be open already: its lock makes this process the server.
    pub(super) async fn open(
        config: &Config,
        named: &ConfiguredFiles,
        log: Opened,
    ) -> Result<Self, ServerError> {
        close_to_others(&config.server.data_dir);
        // Before the log takes appends: an archive that is ahead of the log, or belongs to another
        // one, prevents the start while nothing has been written.
        let archiver = open_archive(config, Arc::clone(&log.local) as Arc<dyn Log>)?;
        let exempt = exempt(&named.services, &config.server_notices, &config.rate_limits);
        let quotas = Quotas { exempt, ..policies::quotas(&config.quotas) };
        let (engine, begun) = open_engine(config, quotas, Arc::clone(&log.log)).await?;
        read_policy_lists(&engine)?;
        watch_for_failure(&*log.local);
        make_private(&config.server.data_dir, config.archive_dir());
        Ok(Self { log, archiver, engine: Arc::new(engine), begun })
    }
}

/// The core of a server: the program behind the endpoints, and what its background tasks need.
pub(super) struct Components {
    pub(super) app: Arc<api::Server>,
    pub(super) snapshots: Arc<snapshot::Keeper>,
    pub(super) pushers: Arc<Pushers>,
}

impl Components {
    pub(super) fn new(
        config: &Config,
        named: ConfiguredFiles,
        core: &mut Core,
        Shared { cluster, shared_store }: Shared,
        shutdown: &Shutdown,
    ) -> Result<Self, ServerError> {
        let bodies = named.bodies;
        let ConfiguredFiles {
            services,
            outbound,
            messages,
            stages,
            providers,
            clients,
            to_gateways,
            passwords,
            ..
        } = named;
        let engine = &core.engine;
        let in_query = config.appservices.token_in_query;
        let appservice_queries = Arc::new(QueryClient::new(outbound.clone(), &services, in_query));
        let unread = Arc::new(Unread::default());
        let snapshots = snapshot::Keeper::new(
            snapshot::directory(&config.server.data_dir),
            Arc::clone(engine),
            policies::snapshot_policy(&config.snapshots),
            std::mem::take(&mut core.begun),
            shutdown.clone(),
        );
        let snapshots = Arc::new(snapshots.with_counts(Arc::clone(&unread)));
        let passwords = Arc::new(passwords);
        let last_seen = Arc::new(LastSeen::new(config.devices.note_last_seen_seconds));
        let signer = token_key::signer(&config.server.data_dir);
        let federation = match config.federation.enabled {
            true => {
                let federation = Federation::new(config, engine, &bodies);
                Some(Arc::new(federation.map_err(ServerError::Federation)?))
            }
            false => None,
        };
        let others = (federation.clone(), cluster.clone());
        let media = Media::open(config, &bodies, engine, others.0, others.1, shared_store)
            .map_err(|error| ServerError::Media(error.into()))?;
        let search = Search::start(&config.server.data_dir, Arc::clone(engine));
        let search = Arc::new(search.map_err(ServerError::Search)?);
        let identity = engine.state().server();
        let private_key = identity.as_ref().map_or("", |identity| identity.private_key.expose());
        let lasting = Signer::new(private_key);
        let tag = cluster.as_ref().map_or_else(Tag::default, |cluster| Tag::of(cluster.tag()));
        let unsubscribing = (lasting.clone(), api::unsubscribe_url(&config.server));
        let mails = Mails::new(
            (&config.push, &config.email),
            engine,
            &unread,
            &messages,
            unsubscribing,
            shutdown,
        );
        let pushers = Pushers::new(engine, &unread, mails, to_gateways, &config.push, shutdown);
        let running = Running {
            since_ms: engine.clock().now_ms(),
            log: Arc::clone(&core.log.local),
            archive: archive_of(core),
            pushers: Arc::clone(&pushers),
        };
        let context = Arc::new(ActContext {
            engine: Arc::clone(engine),
            passwords: Arc::clone(&passwords),
            policy: config.passwords.clone(),
            signer: signer.clone(),
            identity: Some((outbound.clone(), config.threepids.identity_servers.to_vec())),
            snapshots: Arc::clone(&snapshots),
            last_seen: Arc::clone(&last_seen),
            console: config.console.enabled.then(|| config.server.url()),
            room_names: Default::default(),
            notices: config.server_notices.clone(),
            messages: messages.reach(Medium::Email).then(|| Arc::clone(&messages)),
            federation: ArcSwap::from_pointee(config.federation.clone()),
            archive: config.archive_dir(),
            remote_files: Some(media.remote_files()),
            others: federation.clone(),
            cluster: cluster.clone(),
            doctor: Doctor::new(config.clone(), Some(running)),
        });
        let livekit = Livekit::new(&config.rtc, &outbound).map_err(ServerError::Calls)?;
        let screening = Screening::new(&config.antispam, engine, &outbound);
        let screening = screening.map_err(ServerError::Antispam)?;
        let percent = config.rate_limits.enabled.then_some(config.rate_limits.processor_percent);
        let app = Arc::new(api::Server {
            engine: Arc::clone(engine),
            epoch: engine.state().epoch(),
            health: Health {
                log: Arc::clone(&core.log.local),
                archive: core.archiver.as_ref().map(Archiver::failure),
                cluster: cluster.clone(),
                shutdown: shutdown.clone(),
            },
            cluster,
            context,
            auth: api::Authentication {
                passwords,
                uiaa: uiaa::Sessions::tagged(tag),
                stages,
                nonces: Nonces::tagged(tag),
                deliveries: Deliveries::default(),
                rendezvous: RendezvousSessions::tagged(tag),
                former_rendezvous: RendezvousSessions::tagged(tag),
            },
            signing: api::Signing { signer, lasting },
            oauth: api::Oauth {
                clients,
                id_tokens: IdTokens::new(&config.server.data_dir, &config.oauth),
                polls: Polls::default(),
            },
            sync: api::Synchronisation {
                filters: Filters::new(&config.sync, &config.presence),
                known_members: KnownMembers::new(limits::KNOWN_MEMBERS_BYTES),
                connections: Connections::new(
                    limits::SLIDING_BYTES,
                    tag.mark_number(u64::from_be_bytes(random_bytes())),
                )
                .in_files(&config.server.data_dir),
                unread,
                changes: Arc::new(Semaphore::new(limits::CHANGES_READERS)),
            },
            listing: api::Listing {
                search,
                catalogue: Catalogue::default(),
                remote_names: Default::default(),
                thread_walks: Default::default(),
                space_walks: Default::default(),
                descriptions: Default::default(),
            },
            outside: api::Outside {
                outbound,
                messages,
                providers,
                services,
                appservice_queries,
                federation,
                wrong_signatures: Refundable::new(limits::WRONG_SIGNATURES),
                query_rates: Default::default(),
                entry_attempts: Default::default(),
                livekit,
                call_tokens: Refundable::new(limits::CALL_TOKENS),
            },
            media,
            presence: tracker(&config.presence, engine),
            typing: Arc::new(Typing::new(engine)),
            samples: Arc::new(Samples::of(&config.server.data_dir)),
            tally: Arc::new(Tally::of(&config.server.data_dir)),
            last_seen,
            screening: Arc::new(screening),
            notices: Notices::new(&config.rate_limits),
            long_work: LongWork::new(percent),
            work_for_servers: LongWork::for_servers(percent),
            registration: ArcSwap::from_pointee(config.registration.clone()),
            config: config.clone(),
        });
        Ok(Self { app, snapshots, pushers })
    }
}

/// Presence, with the users who were online when the server stopped.
fn tracker(settings: &config::Presence, engine: &Engine) -> Arc<Tracker> {
    let around = presence::writer::around(engine);
    Arc::new(Tracker::new(settings, around, engine.clock().now_ms()))
}

/// Reads the rules of policy lists before anything is decided: a long list takes seconds.
fn read_policy_lists(engine: &Engine) -> Result<(), ServerError> {
    let (state, events) = (engine.state(), engine.events());
    Ok(background::at_length(|| events.policy_lists().refresh(&state, events))?)
}

/// The users who are exempt from quotas.
fn exempt(services: &Services, notices: &ServerNotices, limits: &RateLimits) -> Exempt {
    let (services, notices) = (services.clone(), notices.clone());
    let unlimited = limits.users.iter().filter(|user| user.rate == OwnRate::Unlimited);
    let unlimited: HashSet<_> = unlimited.map(|user| user.user_id.clone()).collect();
    Exempt::who(move |user_id| {
        unlimited.contains(user_id)
            || services.is_exempt_from_quotas(user_id)
            // This user is in a room with every user who received a notice.
            || notices.is_sender(user_id)
    })
}

/// The log on this machine.
pub(super) fn open_local(config: &Config) -> Result<Arc<SledLog>, ServerError> {
    let mut options = SledOptions::new(&config.server.data_dir);
    options.min_free_bytes = config.log.min_free_bytes;
    options.cache_bytes = Caches::of(config.server.memory_bytes).records;
    options.archive = config.archive_dir();
    Ok(Arc::new(SledLog::open(options)?))
}

/// The engine on the newest snapshot and the records after it, and the snapshot that was used.
async fn open_engine(
    config: &Config,
    quotas: Quotas,
    log: Arc<dyn Log>,
) -> Result<(Engine, StartedFrom), ServerError> {
    let began = Instant::now();
    let opened = {
        let (log, dir) = (Arc::clone(&log), snapshot::directory(&config.server.data_dir));
        threads::spawn_blocking(move || snapshot::recall(&dir, &*log)).await
    };
    let (state, begun) = match opened {
        Ok(opened) => opened?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    let held = begun.snapshot.as_ref().map_or(Offset::ZERO, |snapshot| snapshot.offset);
    info!(
        snapshot = %held,
        replayed = state.applied().get() - held.get(),
        took_ms = millis(began.elapsed()),
        "the projections are loaded"
    );
    if !begun.provisional.is_empty() {
        info!(projections = ?begun.provisional, "computed by another version; rebuilding in the background");
    }
    let options = engine::Options {
        server_name: config.server.name.clone(),
        event_cache_bytes: Caches::of(config.server.memory_bytes).events,
        gather: Gather {
            window: Duration::from_millis(config.receipts.gather_ms),
            members: config.receipts.gather_members,
        },
        accounts: AccountLimit {
            most: Some(config.registration.max_accounts).filter(|most| *most > 0),
            admin_contact: config.server.contact_uri(),
        },
        quotas: Arc::new(quotas),
        strangers: policies::strangers(&config.invites),
        clock: Clock::system(),
    };
    let engine = Engine::start(log, state, options).await?;
    engine.keep_to(Arc::new(policies::retention(&config.retention)));
    Ok((engine, begun))
}

fn open_archive(config: &Config, log: Arc<dyn Log>) -> Result<Option<Archiver>, ServerError> {
    let Some(dir) = config.archive_dir() else {
        warn!("there is no archive: a damaged log cannot be rebuilt");
        return Ok(None);
    };
    let mut options = ArchiveOptions::new(dir);
    options.data_dir = Some(config.server.data_dir.clone());
    options.segment_bytes = config.log.archive_segment_bytes;
    options.compact_percent = config.erasure.compact_percent;
    Ok(Some(Archiver::start(options, log)?))
}

/// Logs an error when the log stops taking writes; from then on every write is refused.
fn watch_for_failure(log: &dyn LocalLog) {
    let mut failure = log.failure();
    tokio::spawn(async move {
        if let Ok(reason) = failure.wait_for(Option::is_some).await {
            let reason = reason.as_deref().unwrap_or_default().to_owned();
            error!(reason, "the log failed: writes are refused until the server is started again");
        }
    });
}

/// The entries of a data directory that are the server's. Logs that a restore kept, and what an
/// import or a restore builds, begin with one of these and a point.
const OWN: [&str; 19] = [
    "log",
    "archive",
    "media",
    "search",
    "sliding",
    "snapshots",
    "restoring",
    "checkpoint.json",
    "console",
    "id_token.key",
    "tokens.key",
    "acme",
    "import.json",
    "import-left.json",
    "import-report.txt",
    "importing",
    "proposed",
    "rehearsal.json",
    "lock",
];

/// Whether an entry of a data directory is the server's.
fn is_own(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    OWN.iter().any(|own| {
        name.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    })
}

/// Removes other users' access to the data directory and to the keys in it, before anything else is
/// done there.
fn close_to_others(data_dir: &Path) {
    let keys = ["tokens.key", "id_token.key"].map(|name| data_dir.join(name));
    for path in std::iter::once(data_dir.to_owned()).chain(keys) {
        match disk::make_private_itself(&path) {
            Ok(None) => {}
            Ok(Some(mode)) => {
                let (path, mode) = (path.display(), format!("{mode:04o}"));
                info!(%path, mode, "removed other users' access");
            }
            Err(error) => {
                warn!(path = %path.display(), %error, "other users may have access to this");
            }
        }
    }
}

/// In the background, removes other users' access to files that an earlier version created, or that
/// were copied here.
fn make_private(data_dir: &Path, archive: Option<PathBuf>) {
    let entries = disk::entries(data_dir).unwrap_or_else(|error| {
        warn!(path = %data_dir.display(), %error, "the permissions in it could not be checked");
        Vec::new()
    });
    let paths: Vec<_> = entries.into_iter().filter(|path| is_own(path)).chain(archive).collect();
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
    // Without this, the files keep their permissions.
    if let Err(error) = threads::spawn("private", work) {
        warn!(%error, "the permissions of the data directory could not be checked");
    }
}
