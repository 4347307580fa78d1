//! Decisions: may this happen, and what exactly happens?
//!
//! A [`Proposal`] is what a request asks for, with the clock, ids and random values already filled
//! in. [`Proposal::decide`] is a plain synchronous function of the proposal and the state: it puts
//! records into a [`Turn`] or refuses. It is called again when the log answers with a conflict,
//! so it has no effect but on the turn.

pub mod account;
pub mod create_room;
pub mod directory;
mod draft;
pub mod ephemeral;
pub mod membership;
mod powers;
pub mod push;
pub mod send;

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use ruma::{
    CanonicalJsonObject, OwnedEventId, OwnedServerName, RoomId, UserId,
    canonical_json::CanonicalJsonError, signatures::Ed25519KeyPair,
};
use serde_json::value::RawValue;

pub use draft::{NewEvent, RoomDraft};
pub use powers::Powers;

use crate::{
    events::EventStore,
    log::{Batch, ReadError},
    record::{Command, NewRecord, Offset, Origin, Stream, command::Transaction},
    state::State,
};

pub use crate::state::Membership;

/// What a decision may look at.
#[derive(Debug)]
pub struct Env {
    /// The projections.
    pub state: Arc<State>,
    /// The bodies.
    pub events: Arc<EventStore>,
    /// The server's name and key.
    pub server: ServerKeys,
}

/// The server's name and the key it signs events with.
pub struct ServerKeys {
    /// The name.
    pub name: OwnedServerName,
    /// The key pair.
    pub key_pair: Ed25519KeyPair,
}

impl std::fmt::Debug for ServerKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerKeys").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Why a proposal was refused. The API maps each to a status and an `errcode`.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The rules do not allow it.
    #[error("{0}")]
    Forbidden(String),
    /// What it is about does not exist, or not for this user.
    #[error("{0}")]
    NotFound(String),
    /// The user name is taken.
    #[error("this user name is taken")]
    UserInUse,
    /// The alias that a new room was to have is taken.
    #[error("the alias `{0}` is in use")]
    RoomInUse(String),
    /// The alias that was to be made exists.
    #[error("the alias `{0}` exists already")]
    AliasInUse(String),
    /// The alias in a canonical alias event does not point at the room.
    #[error("{0}")]
    BadAlias(String),
    /// The initial state of a room is not valid.
    #[error("{0}")]
    InvalidRoomState(String),
    /// The room version is not offered.
    #[error("room version `{0}` is not supported")]
    UnsupportedRoomVersion(String),
    /// The event is larger than an event may be.
    #[error("{0}")]
    TooLarge(String),
    /// The content is not what an event may hold.
    #[error("{0}")]
    BadJson(String),
    /// The change does not fit what is there now.
    #[error("{0}")]
    BadState(String),
    /// A parameter has a value that it may not have.
    #[error("{0}")]
    InvalidParam(String),
    /// The token is not in force (any more).
    #[error("the token is not known")]
    UnknownToken,
    /// The decision itself failed, in a way that it must not.
    #[error("an internal error")]
    Broken,
    /// The log could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// What a request asks for.
pub trait Proposal: Send + 'static {
    /// What it gives when it is accepted.
    type Outcome: Send + 'static;

    /// The stream on which it is decided. Proposals on one stream are decided in turns.
    fn stream(&self) -> Stream;

    /// Whether others may be decided after it in the same turn. Only for proposals that look at
    /// nothing but the turn's room draft, where they see what the ones before them added.
    fn shares_turn(&self) -> bool {
        false
    }

    /// Decides: adds records to the turn, or refuses, in which case nothing is added.
    ///
    /// # Errors
    /// The reason of the refusal.
    fn decide(&self, turn: &mut Turn<'_>) -> Result<Self::Outcome, Refusal>;
}

/// One turn on a stream: the records that are about to be appended as one batch.
#[derive(Debug)]
pub struct Turn<'a> {
    /// What may be looked at.
    pub env: &'a Env,
    origin: Origin,
    batch: Batch,
    room: Option<RoomDraft>,
    /// What the transactions of this turn have sent, by session, scope and id.
    transactions: HashMap<(Offset, String, String), OwnedEventId>,
}

impl<'a> Turn<'a> {
    pub(crate) fn new(env: &'a Env, stream: &Stream) -> Self {
        let expect = vec![(stream.clone(), env.state.streams.head(stream))];
        Self {
            env,
            origin: Origin::server(),
            batch: Batch { expect, records: Vec::new() },
            room: None,
            transactions: HashMap::new(),
        }
    }

    /// Decides one proposal within this turn; a refusal leaves no trace.
    pub(crate) fn take<P: Proposal>(
        &mut self,
        proposal: &P,
        origin: &Origin,
    ) -> Result<P::Outcome, Refusal> {
        self.origin = origin.clone();
        let (expect, records) = (self.batch.expect.len(), self.batch.records.len());
        let mark = self.room.as_ref().map(RoomDraft::mark);
        // A panic costs the one whose proposal caused it an answer, not the stream its turns.
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

    pub(crate) fn into_batch(self) -> Batch {
        self.batch
    }

    /// How many records the turn holds so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch.records.len()
    }

    /// Whether the turn holds no record so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.batch.records.is_empty()
    }

    /// Adds a record.
    pub fn append(&mut self, stream: Stream, command: impl Into<Command>) {
        let record = NewRecord::new(stream, self.origin.clone(), &command.into());
        self.batch.records.push(record);
    }

    /// Makes the decision rest on another stream too: if that moves on, it is taken again.
    pub fn rests_on(&mut self, stream: Stream) {
        if self.batch.expect.iter().all(|(known, _)| *known != stream) {
            let head = self.env.state.streams.head(&stream);
            self.batch.expect.push((stream, head));
        }
    }

    /// Makes the decision rest on `stream` having no record yet.
    pub fn must_be_new(&mut self, stream: Stream) {
        self.batch.expect.push((stream, Offset::ZERO));
    }

    /// The turn's room, as the proposals before this one have left it.
    ///
    /// # Errors
    /// [`Refusal::NotFound`] when there is no such room.
    pub fn room(&mut self, room_id: &RoomId) -> Result<&mut RoomDraft, Refusal> {
        if self.room.as_ref().is_none_or(|draft| draft.room_id().is_none_or(|id| id != room_id)) {
            let room = self.env.state.rooms.get(room_id);
            let room =
                room.ok_or_else(|| Refusal::NotFound("There is no such room.".to_owned()))?;
            self.room = Some(RoomDraft::of(room));
        }
        self.draft()
    }

    /// Begins a room.
    fn begin_room(&mut self, draft: RoomDraft) {
        self.room = Some(draft);
    }

    fn draft(&mut self) -> Result<&mut RoomDraft, Refusal> {
        self.room.as_mut().ok_or_else(|| Refusal::NotFound("There is no such room.".to_owned()))
    }

    /// Adds an event to the turn's room: builds, authorises, hashes and signs it.
    ///
    /// # Errors
    /// When the room's rules do not allow it, or it is not a valid event.
    pub fn add_event(&mut self, new: NewEvent) -> Result<OwnedEventId, Refusal> {
        let env = self.env;
        let body = self.draft()?.add(env, new)?;
        let event_id = body.event_id.clone();
        self.append(Stream::room(&body.room_id), body);
        Ok(event_id)
    }

    /// The event that this transaction has sent already.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn sent_by(&self, transaction: &Transaction) -> Result<Option<OwnedEventId>, Refusal> {
        if let Some(event_id) = self.transactions.get(&key(transaction)) {
            return Ok(Some(event_id.clone()));
        }
        let Transaction { session, id, scope } = transaction;
        let sent = self.env.events.find_transaction(&self.env.state, *session, scope, id)?;
        Ok(sent.map(|event| event.event_id.clone()))
    }

    /// Notes that this transaction has sent this event, for proposals later in the turn.
    pub fn note_sent(&mut self, transaction: &Transaction, event_id: &OwnedEventId) {
        self.transactions.insert(key(transaction), event_id.clone());
    }
}

fn key(transaction: &Transaction) -> (Offset, String, String) {
    (transaction.session, transaction.scope.clone(), transaction.id.clone())
}

/// `content` as canonical JSON.
///
/// # Errors
/// [`Refusal::BadJson`] for numbers that canonical JSON lacks and for what is not an object.
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

/// Whether this is a local user.
#[must_use]
pub fn is_local(server: &ServerKeys, user_id: &UserId) -> bool {
    user_id.server_name() == server.name
}
