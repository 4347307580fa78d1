//! The engine: how a write goes from a proposal to a durable, applied record.
//!
//! ```text
//! proposal → commit of its stream: decide → log: append, durable → apply → publish head → reply
//! ```
//!
//! [`Engine::propose`] queues a proposal on its stream. A commit takes the queued proposals,
//! decides them, and appends the outcome as one batch on one expected version. The log calls the
//! follower with durable records only. The follower applies them and publishes the new head, whose
//! effects wake the long-polls that they concern. Then the append resolves and the replies go out.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

mod commits;
mod durable;
mod event_signer;
mod follower;
mod head;
mod projections;
mod traced;
mod waker;

use std::sync::{Arc, OnceLock};

use ruma::{OwnedServerName, ServerName};

pub use commits::ProposeError;
pub use durable::Durable;
pub use event_signer::EventSigner;
pub use head::{Head, Lagged, Work};
pub use projections::{LiveEnv, LiveState};
pub use waker::{Listener, Published};

use projections::Live;

use logcabin_base::clock::Clock;
use logcabin_decide::{
    Env, Proposal,
    account::AccountLimit,
    ephemeral::Gather,
    quota::Quotas,
    retention::{Retention, RetentionClock},
};
use logcabin_log::{AppendError, Batch, Log, ReadError, StreamHeads, follow::Follow};
use logcabin_read::{
    events::EventStore,
    invites::Strangers,
    policy_lists::{Match, Subject},
};
use logcabin_record::{
    Command, NewRecord, Offset, Origin, Record, Stream,
    command::{PolicyArea, ServerIdentity, ServerKey},
    server_keys::{self, ServerKeys},
};
use logcabin_state::{ApplyError, State};

/// How many records a replay reads at once: enough to make a read cheap, few enough to keep memory
/// flat.
const REPLAY_RECORDS: usize = 1024;

/// Why the engine could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the log cannot be replayed: {0}")]
    Apply(#[from] ApplyError),
    /// The first record could not be written.
    #[error("the server's identity could not be recorded: {0}")]
    Append(#[from] AppendError),
    /// The directory belongs to a server of another name.
    #[error(
        "this data belongs to the server `{found}`, not `{asked}`: the name of a server cannot be changed"
    )]
    ServerName {
        /// The name in the log.
        found: String,
        /// The name in the configuration.
        asked: String,
    },
    /// A rebuild of the projections is running already: see `Engine::beside`.
    #[error("projections are already being rebuilt")]
    Beside,
    #[error("the server's signing key in the log cannot be read: {0}")]
    Identity(String),
}

/// The size of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many records were applied.
    pub records: u64,
    /// How many payload bytes they had.
    pub bytes: u64,
}

/// Applies every record of `log` to a new state. `progress` is called now and then with the last
/// applied offset and the last offset of the log.
///
/// # Errors
/// When a record cannot be read or applied; the error names the first such record.
pub fn replay(
    log: &dyn Log,
    mut progress: impl FnMut(Offset, Offset),
) -> Result<(State, Replayed), OpenError> {
    let state = State::default();
    let (end, mut replayed) = (*log.durable().borrow(), Replayed::default());
    replay_onto(&state, log, end, |records| {
        for record in records {
            replayed.records += 1;
            replayed.bytes += u64::from(record.header.payload_len);
        }
        progress(state.applied(), end);
        Ok::<_, OpenError>(())
    })?;
    Ok((state, replayed))
}

/// Applies the records of `log` after the last one that `state` has applied, up to and including
/// `end`. Calls `applied` with each chunk of records once it is applied.
///
/// # Errors
/// When a record cannot be read or applied; the error names the first such record. Errors of
/// `applied`.
pub fn replay_onto<E: From<OpenError>>(
    state: &State,
    log: &dyn Log,
    end: Offset,
    mut applied: impl FnMut(&[Record]) -> Result<(), E>,
) -> Result<(), E> {
    while state.applied() < end {
        let from = state.applied().next();
        let left = usize::try_from(end.get() - state.applied().get()).unwrap_or(usize::MAX);
        let records = log.read(from, REPLAY_RECORDS.min(left)).map_err(OpenError::from)?;
        if records.is_empty() {
            return Err(OpenError::from(ReadError::Missing(from)).into());
        }
        for record in &records {
            state.apply(record).map_err(OpenError::from)?;
        }
        applied(&records)?;
    }
    Ok(())
}

/// Settings of an engine.
#[derive(Clone, Debug)]
pub struct Options {
    pub server_name: OwnedServerName,
    /// About how many bytes of events are kept in memory.
    pub event_cache_bytes: u64,
    /// How receipts and the like of large rooms are gathered.
    pub gather: Gather,
    /// How many accounts there may be.
    pub accounts: AccountLimit,
    /// How much one user may store.
    pub quotas: Arc<Quotas>,
    /// Who may invite users of this server.
    pub strangers: Strangers,
    /// The source of time.
    pub clock: Clock,
}

impl Options {
    /// Those of a small server named `test`, for tests.
    pub fn small(clock: Clock) -> Self {
        Self {
            server_name: "test".try_into().expect("a server name"),
            event_cache_bytes: 1 << 20,
            gather: Gather::default(),
            accounts: AccountLimit::default(),
            quotas: Arc::default(),
            strangers: Strangers::default(),
            clock,
        }
    }
}

/// The one way to change anything: every write is a proposal, decided on the current state. Logs
/// that are still being built, on which nothing can be decided yet, are written by an
/// `OfflineWriter` (`ops::restore`).
#[derive(Debug)]
pub struct Engine {
    log: Arc<dyn Log>,
    live: Arc<Live>,
    events: Arc<EventStore>,
    head: Arc<Head>,
    commits: commits::Commits,
    /// Asks policy servers for their signatures, while the server federates.
    event_signer: OnceLock<Arc<dyn EventSigner>>,
    clock: Clock,
}

impl Engine {
    /// Replays `log` and starts to take proposals.
    ///
    /// # Errors
    /// When the log cannot be replayed, or belongs to a server of another name.
    pub async fn open(log: Arc<dyn Log>, options: Options) -> Result<Self, OpenError> {
        let (state, _) = replay(&*log, |_, _| {})?;
        Self::start(log, state, options).await
    }

    /// Starts to take proposals on `state`, the result of replaying `log`.
    ///
    /// # Errors
    /// When the log belongs to a server of another name or its first record cannot be written.
    pub async fn start(
        log: Arc<dyn Log>,
        state: State,
        options: Options,
    ) -> Result<Self, OpenError> {
        let recorded = state.server();
        let identity = match &recorded {
            Some(identity) => Arc::clone(identity),
            None => Arc::new(new_identity(&options.server_name)?),
        };
        let server = Arc::new(keys(&identity, &options.server_name)?);
        if let Some(key) = state.federation_keys.own_key() {
            server.rotate(&key).map_err(|error| OpenError::Identity(error.to_string()))?;
        }
        let events = Arc::new(EventStore::new(Arc::clone(&log), options.event_cache_bytes));
        events.sign_with(Arc::clone(&server));
        let exempt = options.quotas.exempt.clone();
        events.limit_strangers(options.strangers);
        events.policy_lists().spare(Box::new(move |user_id| exempt.has(user_id)));
        let head = Arc::new(Head::new(state.applied()));
        let heads: StreamHeads = state.streams.heads();
        let live = Arc::new(Live::new(Env {
            state: Arc::new(state),
            events: Arc::clone(&events),
            server,
            gather: options.gather,
            accounts: options.accounts,
            quotas: options.quotas,
            permits: Arc::default(),
        }));
        let (wakes, listeners) = head.wakes();
        tokio::spawn(waker::run(wakes, listeners, Arc::downgrade(&live)));
        log.start(heads, Box::new(follower::follower(&live, &events, &head)));

        if recorded.is_none() {
            log.append(first_batch(&identity)).await?;
        }
        let commits = commits::Commits::new(Arc::clone(&live), Arc::clone(&log), Arc::clone(&head));
        let event_signer = OnceLock::new();
        Ok(Self { log, live, events, head, commits, clock: options.clock, event_signer })
    }

    /// Proposes a change. Resolves when it is durable and applied, or refused on durable grounds.
    /// Dropping the future does not withdraw the proposal.
    pub async fn propose<P: Proposal>(
        &self,
        origin: Origin,
        proposal: P,
    ) -> Result<Durable<P::Outcome>, ProposeError> {
        match self.event_signer.get() {
            Some(event_signer)
                if !proposal.is_from_elsewhere()
                    && event_signer.concerns(&self.env(), &proposal.stream()) =>
            {
                Box::pin(self.propose_signed(event_signer, origin, proposal)).await
            }
            _ => self.commits.propose(origin, proposal).await,
        }
    }

    /// Whether other writers of the log have got in the way of commits on this stream lately.
    pub fn is_contended(&self, stream: &Stream) -> bool {
        self.commits.is_contended(stream)
    }

    /// Hides events from the moment at which they expire by `retention`, before the next sweep
    /// deletes them. To be called once.
    pub fn keep_to(&self, retention: Arc<Retention>) {
        self.events.keep_to(Box::new(RetentionClock { retention, clock: self.clock.clone() }));
    }

    pub fn events(&self) -> &EventStore {
        &self.events
    }

    /// The rule of a policy list by which the subject is refused in this area, which is noted.
    pub fn refused_by_policy(&self, area: PolicyArea, subject: Subject<'_>) -> Option<Match> {
        self.events.policy_lists().refuses(&self.state(), area, subject)
    }

    /// The published head.
    pub fn head(&self) -> &Head {
        &self.head
    }

    /// The records from `from` on, each once it is applied.
    #[must_use]
    pub fn follow(&self, from: Offset) -> Follow {
        Follow::records(Arc::clone(&self.log), from, self.head.follow())
    }

    pub fn log(&self) -> &Arc<dyn Log> {
        &self.log
    }

    pub const fn clock(&self) -> &Clock {
        &self.clock
    }
}

/// Begins a log that other nodes may begin at the same time: with the identity of a server of this
/// name, unless it has one. The log must have been started.
pub async fn found(log: &dyn Log, name: &ServerName) -> Result<(), OpenError> {
    let batch = first_batch(&new_identity(name)?);
    let mut appended = log.append(batch.clone()).await;
    if matches!(appended, Err(AppendError::Unavailable(_))) {
        // Perhaps it was appended nevertheless: then this conflicts with it.
        appended = log.append(batch).await;
    }
    match appended {
        Ok(_) | Err(AppendError::Conflict { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The identity of a server, which is the first record of its log.
fn first_batch(identity: &ServerIdentity) -> Batch {
    let identity = Command::from(identity.clone());
    let record = NewRecord::new(Stream::server(), Origin::server(), &identity);
    Batch { expect: vec![(Stream::server(), Offset::ZERO)], records: vec![record] }
}

fn new_identity(name: &ServerName) -> Result<ServerIdentity, OpenError> {
    let key = server_keys::new_key().map_err(|error| OpenError::Identity(error.to_string()))?;
    let ServerKey { key_id, private_key, public_key } = key;
    Ok(ServerIdentity { server_name: name.to_string(), key_id, private_key, public_key })
}

fn keys(identity: &ServerIdentity, asked: &ServerName) -> Result<ServerKeys, OpenError> {
    if identity.server_name != asked.as_str() {
        let found = identity.server_name.clone();
        return Err(OpenError::ServerName { found, asked: asked.to_string() });
    }
    let key_pair = server_keys::key_pair(&identity.key_id, &identity.private_key);
    let key_pair = key_pair.map_err(|error| OpenError::Identity(error.to_string()))?;
    Ok(ServerKeys::new(asked.to_owned(), key_pair))
}
