//! Orders that are carried out while no server runs.

use std::sync::Arc;

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use tokio::runtime::Runtime;

use super::{
    act::{Act, Order, Outcome},
    context::{ActContext, ActError},
    registry::Message,
};
use crate::{doctor::Doctor, former, setup::give_to_owner};
use logcabin_base::{bodies::BodyBudget, clock::Clock, shutdown::Shutdown, token_key};
use logcabin_config::Config;
use logcabin_decide::{account::AccountLimit, ephemeral::Gather};
use logcabin_engine::{self as engine, Engine};
use logcabin_log::{
    Log,
    store::{SledLog, SledOptions, has_log},
};
use logcabin_outside::outbound::Outbound;
use logcabin_read::invites::Strangers;
use logcabin_record::Origin;
use logcabin_service::{last_seen::LastSeen, passwords::Passwords, policies};
use logcabin_snapshot::{self as snapshot, StartedFrom};
use logcabin_state::State;

/// Carries out an order on the log in the data directory of `config`, with the lock and the
/// decisions of a server.
pub fn carry_out<A: Act>(
    runtime: &Runtime,
    config: &Config,
    order: &Order<A>,
    actor: &str,
) -> Result<Outcome<A::Done>, ActError> {
    let message = Message::of(order).map_err(ActError::invalid)?;
    let json = runtime.block_on(on_data_dir(config, message, A::REPLAYS, actor))?;
    // The error would quote what was done, which may be a secret.
    serde_json::from_str(&json)
        .map_err(|_| ActError::Invalid("it was done, but its result cannot be read".to_owned()))
}

/// Carries out a message. Returns the JSON of the outcome. It does not depend on the act's type, so
/// it is compiled once.
fn on_data_dir<'a>(
    config: &'a Config,
    message: Message,
    replays: bool,
    actor: &'a str,
) -> BoxFuture<'a, Result<String, ActError>> {
    Box::pin(async move {
        let data_dir = &config.server.data_dir;
        // Opening creates a log, and a server name that nobody chose could not be changed later.
        if !has_log(data_dir) {
            return Err(ActError::NoLog(data_dir.display().to_string()));
        }
        // Acts have exits, too: identity servers are told of addresses.
        let config = &match former::is_for_rehearsals(data_dir) {
            true => config.clone().for_rehearsal(),
            false => {
                former::must_be_usable(data_dir).map_err(ActError::invalid)?;
                former::note_departures(data_dir).map_err(ActError::invalid)?;
                config.clone()
            }
        };
        let mut options = SledOptions::new(data_dir);
        options.min_free_bytes = config.log.min_free_bytes;
        options.archive = config.archive_dir();
        let log = Arc::new(SledLog::open(options)?);
        let begin = if replays { Begin::Replay } else { Begin::Snapshot };
        let done = on_log(config, Arc::clone(&log) as Arc<dyn Log>, message, begin, actor).await;
        log.close();
        let (done, snapshots) = done?;
        snapshots.note_state(data_dir);
        give_to_owner(data_dir);
        done
    })
}

/// Begins the log of a new server in the data directory of `config`, which must have none, and
/// carries out an order on it.
pub(crate) async fn begin<A: Act>(
    config: &Config,
    order: &Order<A>,
    actor: &str,
) -> Result<Outcome<A::Done>, ActError> {
    let message = Message::of(order).map_err(ActError::invalid)?;
    let json = on_new_log(config, message, actor).await?;
    serde_json::from_str(&json)
        .map_err(|_| ActError::Invalid("it was done, but its result cannot be read".to_owned()))
}

fn on_new_log<'a>(
    config: &'a Config,
    message: Message,
    actor: &'a str,
) -> BoxFuture<'a, Result<String, ActError>> {
    Box::pin(async move {
        let log = Arc::new(SledLog::open(SledOptions::new(&config.server.data_dir))?);
        let as_log = Arc::clone(&log) as Arc<dyn Log>;
        let done = on_log(config, as_log, message, Begin::New, actor).await;
        log.close();
        done?.0
    })
}

/// What an order begins with.
#[derive(Clone, Copy)]
enum Begin {
    /// The newest snapshot.
    Snapshot,
    /// All records.
    Replay,
    /// A log without records.
    New,
}

type Carried = (Result<String, ActError>, Arc<snapshot::Keeper>);

async fn on_log(
    config: &Config,
    log: Arc<dyn Log>,
    message: Message,
    begin: Begin,
    actor: &str,
) -> Result<Carried, ActError> {
    let snapshots = snapshot::directory(&config.server.data_dir);
    let (state, begun) = match begin {
        Begin::Replay => (engine::replay(&*log, |_, _| {})?.0, StartedFrom::default()),
        Begin::Snapshot => snapshot::recall(&snapshots, &*log)?,
        Begin::New => (State::default(), StartedFrom::default()),
    };
    let no_log = || ActError::NoLog(config.server.data_dir.display().to_string());
    let server_name = match (state.server(), begin) {
        (Some(server), _) => server.server_name.as_str().try_into().map_err(|_| no_log())?,
        (None, Begin::New) => config.server.name.clone(),
        (None, _) => return Err(no_log()),
    };
    let options = engine::Options {
        server_name,
        event_cache_bytes: 1024 * 1024,
        gather: Gather {
            window: std::time::Duration::ZERO,
            members: config.receipts.gather_members,
        },
        clock: Clock::system(),
        // Limits on new accounts do not apply to administrators.
        accounts: AccountLimit::default(),
        quotas: Arc::default(),
        strangers: Strangers::default(),
    };
    let engine = Arc::new(Engine::start(log, state, options).await?);
    let identity = Outbound::new(&config.outbound, &BodyBudget::new(config.body_shares()));
    if let Err(error) = &identity {
        tracing::warn!(%error, "requests to other services are not possible");
    }
    let identity =
        identity.ok().map(|outbound| (outbound, config.threepids.identity_servers.to_vec()));
    let snapshots = Arc::new(snapshot::Keeper::new(
        snapshots,
        Arc::clone(&engine),
        policies::snapshot_policy(&config.snapshots),
        begun,
        Shutdown::when(std::future::pending()),
    ));
    let passwords =
        Passwords::new(&config.passwords, &config.rate_limits).map_err(ActError::invalid)?;
    let context = ActContext {
        engine,
        passwords: Arc::new(passwords),
        policy: config.passwords.clone(),
        signer: token_key::signer(&config.server.data_dir),
        identity,
        snapshots: Arc::clone(&snapshots),
        // Only what was recorded is known.
        last_seen: Arc::new(LastSeen::new(0)),
        console: config.console.enabled.then(|| config.server.url()),
        room_names: Default::default(),
        notices: config.server_notices.clone(),
        messages: None,
        federation: ArcSwap::from_pointee(config.federation.clone()),
        archive: config.archive_dir(),
        remote_files: None,
        others: None,
        cluster: None,
        doctor: Doctor::new(config.clone(), None),
    };
    let done = message.carry_out(&context, Origin::administrator(actor)).await;
    Ok((done, snapshots))
}
