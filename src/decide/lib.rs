//! Decisions: whether a request is allowed, and which records it produces.
//!
//! A [`Proposal`] is what a request asks for, with the clock, ids and random values already filled
//! in. [`Proposal::decide`] is a plain synchronous function of the proposal and the state: it puts
//! records into a [`Commit`] or refuses. It is called again when the log answers with a conflict,
//! so it has no effect but on the commit.

#![cfg_attr(not(test), warn(unused_crate_dependencies))]

pub mod account;
pub mod account_data;
mod canonical_alias;
pub mod create_room;
pub mod delayed;
pub mod delivery;
pub mod device;
pub mod directory;
mod draft;
pub mod ephemeral;
pub mod erasure;
pub mod federation;
pub mod history_purge;
pub mod import;
pub mod key_backup;
pub mod keys;
pub mod maintenance;
pub mod media;
mod member_event;
pub mod membership;
pub mod moderation;
pub mod notice;
pub mod oauth;
mod permits;
pub mod policy_list;
pub mod policy_server;
pub mod powers;
pub mod presence;
pub mod purge;
pub mod push;
pub mod pusher;
pub mod quota;
pub mod redaction;
pub mod registration_token;
pub mod report;
pub mod retention;
pub mod send;
pub mod sso;
pub mod status;
pub mod threepid;
pub mod to_device;
pub mod undo;
pub mod upgrade;
mod validated;

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, OwnedEventId, OwnedUserId, RoomId, UserId,
    canonical_json::CanonicalJsonError, events::StateEventType,
};
use serde_json::value::RawValue;

pub use draft::{NewEvent, RoomDraft};
pub use member_event::{may_be_entered, may_be_invited, member_content};
pub use permits::Permits;
pub use powers::Powers;

use logcabin_base::limits;
use logcabin_log::{Batch, ReadError};
use logcabin_read::events::EventStore;
use logcabin_record::{
    Command, NewRecord, Offset, Origin, Stream, command::Transaction, lax_object::LaxObject,
    server_keys::ServerKeys,
};
use logcabin_state::State;

pub use logcabin_state::Membership;

/// The inputs of a decision.
#[derive(Clone, Debug)]
pub struct Env {
    pub state: Arc<State>,
    /// The event bodies.
    pub events: Arc<EventStore>,
    /// The server's name and key.
    pub server: Arc<ServerKeys>,
    /// How receipts and typing in large rooms are batched.
    pub gather: ephemeral::Gather,
    /// The limit on the number of accounts.
    pub accounts: account::AccountLimit,
    /// The quotas of users.
    pub quotas: Arc<quota::Quotas>,
    /// Remembered results of the rooms' rules.
    pub permits: Arc<Permits>,
}

/// The refusal for a room that the caller is not in, or that does not exist.
fn not_in_it() -> Refusal {
    Refusal::Forbidden("You are not in this room.".to_owned())
}

/// Why a proposal was refused. The API maps each to a status and an `errcode`.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The rules do not allow it.
    #[error("{0}")]
    Forbidden(String),
    /// A rule of the operator's does not allow it: of the configuration, or of a policy list.
    #[error("{0}")]
    AgainstPolicy(&'static str),
    /// The subject does not exist, or is hidden from this user.
    #[error("{0}")]
    NotFound(String),
    #[error("this user name is taken")]
    UserInUse,
    /// The limit on the number of accounts is reached.
    #[error("this server has reached its maximum number of accounts")]
    TooManyAccounts {
        /// The administrator's contact.
        admin_contact: String,
    },
    /// The alias for a new room is taken.
    #[error("the alias `{0}` is in use")]
    RoomInUse(String),
    #[error("the alias `{0}` exists already")]
    AliasInUse(String),
    /// The invited user blocks invites.
    #[error("`{0}` does not accept invites")]
    InviteBlocked(OwnedUserId),
    /// The conditions of a restricted room refer to rooms that this server does not know.
    #[error("this server knows none of the rooms whose members may join")]
    UnableToAuthoriseJoin,
    /// A condition of a restricted room is met, but no local user can authorise the join.
    #[error("nobody on this server who is in the room may invite")]
    UnableToGrantJoin,
    /// The alias in a canonical alias event does not point at the room.
    #[error("{0}")]
    BadAlias(String),
    /// The event relates to another one in an invalid way.
    #[error("{0}")]
    BadRelation(String),
    /// The sender has already annotated the event in the same way.
    #[error("you have sent this annotation already")]
    DuplicateAnnotation,
    /// The initial state of a room is not valid.
    #[error("{0}")]
    InvalidRoomState(String),
    #[error("room version `{0}` is not supported")]
    UnsupportedRoomVersion(String),
    /// The event is too large.
    #[error("{0}")]
    TooLarge(String),
    /// A quota of the user is used up. Clients get `M_TOO_LARGE`. The other codes would mislead
    /// them: `M_LIMIT_EXCEEDED` asks for a retry, which does not help; `M_RESOURCE_LIMIT_EXCEEDED`
    /// is about the server as a whole; and at a login, clients present `M_FORBIDDEN` as a wrong
    /// password.
    #[error("{0}")]
    OverQuota(String),
    /// The content is invalid for an event.
    #[error("{0}")]
    BadJson(String),
    /// The change conflicts with the present state.
    #[error("{0}")]
    BadState(String),
    /// A joined user cannot forget the room.
    #[error("leave the room before you forget it")]
    StillInRoom,
    /// A parameter has an invalid value.
    #[error("{0}")]
    InvalidParam(String),
    /// The user has the maximum number of scheduled events.
    #[error("the maximum number of delayed events has been reached")]
    TooManyDelayed {
        /// When the first of them is due, in milliseconds from now.
        wait_ms: u64,
    },
    /// Room keys go only into the newest backup.
    #[error("room keys go into backup {current}, which is the newest")]
    WrongBackup {
        /// Its version.
        current: u64,
    },
    /// The email address or phone number belongs to another account.
    #[error("an account here has this address already")]
    ThreepidInUse,
    /// The email address does not belong to the account.
    #[error("this address is not one that was confirmed for your account")]
    ThreepidNotFound,
    /// The email address or phone number was not validated by the user.
    #[error("this address has not been confirmed")]
    ThreepidAuthFailed,
    /// The address has been sent the maximum number of messages.
    #[error("this address was sent too many messages")]
    TooManyMessages {
        /// When the next one is possible, in milliseconds from now.
        wait_ms: u64,
    },
    #[error("this account has been deactivated")]
    UserDeactivated,
    #[error("this account has been locked")]
    UserLocked,
    #[error("this cannot be done while the account is suspended")]
    UserSuspended,
    #[error("this account awaits the approval of an administrator")]
    AwaitsApproval,
    #[error("too many new accounts await the approval of an administrator; try again later")]
    TooManyWaiting {
        /// The administrator's contact as a URI.
        admin_contact: String,
    },
    /// The room does not admit guests.
    #[error("this room does not take guests")]
    GuestAccessForbidden,
    /// The registration token is used up, expired or unknown.
    #[error("the registration token is not valid")]
    RegistrationToken,
    /// The user has the maximum number of unused media ids.
    #[error("too many reserved media ids have no upload yet")]
    TooManyUnused {
        /// When the first of them expires, in milliseconds from now.
        wait_ms: u64,
    },
    #[error("there is a file under this media id already")]
    CannotOverwriteMedia,
    #[error("the invite to the room of this server's notices cannot be rejected")]
    CannotLeaveServerNoticeRoom,
    /// The token is not valid (any more).
    #[error("the token is not known")]
    UnknownToken,
    /// The proposal now adds an event that its room's policy server has not signed.
    #[error("others wrote to the room at the same time; try again")]
    SignatureMissing,
    /// The room's policy server refuses to sign the event.
    #[error("the room's policy server refused: {error}")]
    NotRecommended {
        /// The status of its answer.
        status: u16,
        /// Its error code.
        errcode: String,
        /// What it says.
        error: String,
    },
    #[error("the room's policy server cannot be asked, and it has to agree: {0}")]
    PolicyServer(String),
    /// The decision failed because of a bug.
    #[error("an internal error")]
    Broken,
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A request, ready to be decided.
pub trait Proposal: Send + 'static {
    /// The result if it is accepted.
    type Outcome: Send + 'static;

    /// The stream on which it is decided. Proposals on one stream are decided in one commit after
    /// the other.
    fn stream(&self) -> Stream;

    /// The room in which it passes, as receipts and typing do: many such proposals share a commit,
    /// which in a large room lingers for them.
    fn passes_in(&self) -> Option<&RoomId> {
        None
    }

    /// Whether others may be decided after it in the same commit. Only for proposals that look at
    /// nothing but the commit's room draft, where they see what the ones before them added.
    fn shares_commit(&self) -> bool {
        self.passes_in().is_some()
    }

    /// How long a commit that begins with this proposal is delayed, so that others can join it. The
    /// proposer waits that long, too.
    fn lingers(&self, env: &Env) -> Duration {
        self.passes_in().map_or(Duration::ZERO, |room_id| env.gather.lingers(env, room_id))
    }

    /// How many proposals like this one a commit may hold.
    fn commit_size(&self) -> usize {
        if self.passes_in().is_some() { limits::COMMIT_PASSING } else { limits::COMMIT_PROPOSALS }
    }

    /// Whether nothing else is appended between the decision and its records, on whatever stream.
    /// For decisions that depend on more than the heads of a few streams. All other commits of this
    /// node wait meanwhile. If another node appends a record in between, it is decided again.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Whether the decision may take long, as it grows with the state of a room.
    fn is_long(&self) -> bool {
        false
    }

    /// Whether it takes in what other homeservers have made.
    fn is_from_elsewhere(&self) -> bool {
        false
    }

    /// Decides: adds records to the commit, or refuses, in which case nothing is added.
    fn decide(&self, commit: &mut Commit<'_>) -> Result<Self::Outcome, Refusal>;
}

/// A commit on a stream: the records that are about to be appended as one batch.
#[derive(Debug)]
pub struct Commit<'a> {
    /// What may be looked at.
    pub env: &'a Env,
    origin: Origin,
    batch: Batch,
    room: Option<RoomDraft>,
    /// What the transactions of this commit have sent, by session, scope and id.
    transactions: HashMap<(Offset, String, String), OwnedEventId>,
    /// The delayed event that is being sent.
    delay_id: Option<String>,
    /// What passes in the commit's room.
    passing: ephemeral::EphemeralBatch,
}

impl<'a> Commit<'a> {
    pub fn new(env: &'a Env, stream: &Stream) -> Self {
        let expect = vec![(stream.clone(), env.state.streams.head(stream))];
        Self {
            env,
            origin: Origin::server(),
            batch: Batch { expect, records: Vec::new() },
            room: None,
            transactions: HashMap::new(),
            delay_id: None,
            passing: ephemeral::EphemeralBatch::default(),
        }
    }

    /// Decides one proposal within this commit; a refusal leaves no trace.
    pub fn take<P: Proposal>(
        &mut self,
        proposal: &P,
        origin: &Origin,
    ) -> Result<P::Outcome, Refusal> {
        self.origin = origin.clone();
        let (expect, records) = (self.batch.expect.len(), self.batch.records.len());
        let mark = self.room.as_ref().map(RoomDraft::mark);
        // After a panic, the proposal that caused it gets no answer, but the stream's commits go
        // on.
        let outcome = catch_unwind(AssertUnwindSafe(|| proposal.decide(self)));
        let outcome = outcome.unwrap_or(Err(Refusal::Broken));
        if outcome.is_err() {
            self.batch.expect.truncate(expect);
            self.batch.records.truncate(records);
            match mark {
                Some(mark) => self.room.as_mut().into_iter().for_each(|room| room.rewind(&mark)),
                None => self.room = None,
            }
        }
        outcome
    }

    pub fn into_batch(mut self) -> Batch {
        self.batch.records.extend(self.passing.into_records());
        self.batch
    }

    /// The size of the records after the first `count`.
    pub fn bytes_from(&self, count: usize) -> u64 {
        self.batch.records.iter().skip(count).map(|record| record.payload.len() as u64).sum()
    }

    /// How many records the commit holds so far.
    pub fn len(&self) -> usize {
        self.batch.records.len()
    }

    /// Whether the commit holds no record so far.
    pub fn is_empty(&self) -> bool {
        self.batch.records.is_empty()
    }

    /// Adds a record.
    pub fn append(&mut self, stream: Stream, command: impl Into<Command>) {
        let record = NewRecord::new(stream, self.origin.clone(), &command.into());
        self.batch.records.push(record);
    }

    /// Makes the decision depend on another stream, too: if that moves on, it is decided again.
    pub fn rests_on(&mut self, stream: Stream) {
        if self.batch.expect.iter().all(|(known, _)| *known != stream) {
            let head = self.env.state.streams.head(&stream);
            self.batch.expect.push((stream, head));
        }
    }

    /// Makes the decision depend on the whole log: if any record is appended before this commit's,
    /// by whichever node, it is decided again.
    pub fn rests_on_everything(&mut self) {
        self.batch.expect.push((Stream::all(), self.env.state.applied()));
    }

    /// Makes the decision depend on `stream` having no record yet.
    pub(crate) fn must_be_new(&mut self, stream: Stream) {
        self.batch.expect.push((stream, Offset::ZERO));
    }

    /// The commit's room, as the proposals before this one have left it.
    ///
    /// # Errors
    /// [`Refusal::Forbidden`] if there is no such room: the existence of rooms is not revealed.
    pub fn room(&mut self, room_id: &RoomId) -> Result<&mut RoomDraft, Refusal> {
        if self.room.as_ref().is_none_or(|draft| draft.room_id().is_none_or(|id| id != room_id)) {
            let room = self.env.state.rooms.get(room_id);
            let room = room.ok_or_else(not_in_it)?;
            self.room = Some(RoomDraft::of(room));
        }
        self.draft()
    }

    fn begin_room(&mut self, draft: RoomDraft) {
        self.room = Some(draft);
    }

    fn draft(&mut self) -> Result<&mut RoomDraft, Refusal> {
        self.room.as_mut().ok_or_else(not_in_it)
    }

    /// Adds an event to the commit's room: builds, authorises, hashes and signs it.
    ///
    /// # Errors
    /// When the room's rules forbid it, or it is not a valid event.
    pub fn add_event(&mut self, new: NewEvent) -> Result<OwnedEventId, Refusal> {
        let env = self.env;
        let (sender, ts) = (new.sender.clone(), u64::from(new.ts.get()));
        let state = new.state_key.clone().map(|key| (new.event_type.to_string(), key));
        let redacted = self.stay_redacted_by(&new)?;
        let mut body = self.draft()?.add(env, new)?;
        body.delay_id.clone_from(&self.delay_id);
        let event_id = body.event_id.clone();
        let delayed = state.map_or_else(Vec::new, |(event_type, state_key)| {
            env.state.delayed.of_state(&body.room_id, &event_type, &state_key)
        });
        self.append(Stream::room(&body.room_id), body);
        if let Some(stay) = redacted {
            self.redact_stay(stay, event_id.clone());
        }
        self.give_up_delayed(delayed, &sender, ts);
        Ok(event_id)
    }

    /// As [`Commit::add_event`], for state that may be so already: when the event of its key has
    /// the same sender and content, it is not added again. Returns the id of the event that holds
    /// the key, and whether it is new.
    ///
    /// # Errors
    /// When the room's rules forbid it, even if it is set already. The exception is a user who
    /// repeats their own membership.
    pub fn settle(&mut self, new: NewEvent) -> Result<(OwnedEventId, bool), Refusal> {
        let env = self.env;
        let draft = self.draft()?;
        let key = new.state_key.clone().unwrap_or_default();
        let event_type = StateEventType::from(new.event_type.to_string());
        let standing = draft.state_event(env, &event_type, &key)?;
        let standing = standing.filter(|event| event.sender == new.sender);
        // A redacted event has lost part of its content.
        let stands = draft.shown_content(env, &event_type, &key)?.as_ref() == Some(&*new.content)
            && !new.content.has_odd_numbers();
        let standing = standing.filter(|_| stands);
        let Some(standing) = standing else { return Ok((self.add_event(new)?, true)) };
        if new.sender.as_str() != key {
            let mark = draft.mark();
            draft.add(env, new)?;
            draft.rewind(&mark);
        }
        Ok((standing.event_id.clone(), false))
    }

    /// The event that this transaction has already sent.
    pub(crate) fn sent_by(
        &self,
        transaction: &Transaction,
    ) -> Result<Option<OwnedEventId>, Refusal> {
        if let Some(event_id) = self.transactions.get(&key(transaction)) {
            return Ok(Some(event_id.clone()));
        }
        let Transaction { session, id, scope } = transaction;
        let sent = self.env.events.find_transaction(&self.env.state, *session, scope, id)?;
        Ok(sent.map(|event| event.event_id.clone()))
    }

    /// The result of a transaction that does not send an event, if `pick` finds one in a command.
    fn done_by<T>(
        &self,
        transaction: &Transaction,
        pick: impl Fn(Command) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Transaction { session, id, scope } = transaction;
        for offset in self.env.state.transactions.candidates(*session, scope, id) {
            let command = self.env.events.command(offset)?;
            if let Some(done) = command.and_then(&pick) {
                return Ok(Some(done));
            }
        }
        Ok(None)
    }

    /// Notes that this transaction has sent this event, for proposals later in the commit.
    pub(crate) fn note_sent(&mut self, transaction: &Transaction, event_id: &OwnedEventId) {
        self.transactions.insert(key(transaction), event_id.clone());
    }
}

fn key(transaction: &Transaction) -> (Offset, String, String) {
    (transaction.session, transaction.scope.clone(), transaction.id.clone())
}

/// `content` as canonical JSON.
///
/// # Errors
/// [`Refusal::BadJson`] for numbers outside of canonical JSON, and if it is not an object.
pub fn canonical(content: &RawValue) -> Result<CanonicalJsonObject, Refusal> {
    let bad = |error: &dyn std::fmt::Display| {
        Refusal::BadJson(format!("Not an event's content: {error}"))
    };
    let value: serde_json::Value =
        serde_json::from_str(content.get()).map_err(|error| bad(&error))?;
    let serde_json::Value::Object(map) = value else {
        return Err(bad(&"it is not an object"));
    };
    ruma::canonical_json::try_from_json_map(map).map_err(|error| match error {
        CanonicalJsonError::IntegerOutOfRange => bad(&"a number is out of range"),
        error => bad(&error),
    })
}

/// The content of an event that a client sends. Only some room versions allow all numbers.
///
/// # Errors
/// [`Refusal::BadJson`] if it is not an object, or nests too deeply.
pub fn content(content: &RawValue) -> Result<LaxObject, Refusal> {
    let bad = |error| Refusal::BadJson(format!("Not an event's content: {error}"));
    LaxObject::parse_to_hash(content.get()).map_err(bad)
}

/// A JSON object written in the code, as canonical JSON.
fn object(value: serde_json::Value) -> CanonicalJsonObject {
    match CanonicalJsonValue::try_from(value) {
        Ok(CanonicalJsonValue::Object(object)) => object,
        _ => CanonicalJsonObject::new(),
    }
}

/// Whether this is a local user.
pub fn is_local(server: &ServerKeys, user_id: &UserId) -> bool {
    user_id.server_name() == server.name
}
