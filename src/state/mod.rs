//! Projections: what the log adds up to.
//!
//! [`State::apply`] is the only code that changes anything here. It is a pure function of the
//! records: no clock, no randomness, no input or output, so that the same log gives the same state
//! on every machine, which [`State::digest`] proves. Projections hold offsets and small facts; the
//! bodies of events are read from the log.
//!
//! Readers name the offset *as of* which they read and are not disturbed by records that are
//! applied meanwhile: what is newer than their offset is not there for them.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::RwLock;
use ruma::{
    OwnedUserId, UserId,
    events::{StateEventType, room::member::MembershipState},
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::record::{
    Command, CommandError, Epoch, Offset, Record,
    command::{RoomEvent, ServerIdentity},
};

pub mod accounts;
pub mod aliases;
mod digest;
mod history;
pub mod index;
pub mod memberships;
pub mod rooms;

pub use accounts::{Account, Accounts, Device, TokenUse};
pub use aliases::Aliases;
pub use history::History;
pub use memberships::{Memberships, RoomMembership};
pub use rooms::{Membership, Room, Rooms};

/// Why a record could not be applied. Nothing of it was.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The record does not follow the last one.
    #[error("record {found} cannot follow record {applied}")]
    Order {
        /// The last record that was applied.
        applied: Offset,
        /// The record that was to be applied.
        found: Offset,
    },
    /// The record's command cannot be read.
    #[error("record {offset}: {source}")]
    Command {
        /// The record.
        offset: Offset,
        /// Why not.
        source: CommandError,
    },
    /// The room version is not known.
    #[error("record {offset}: room version `{version}` is not known to this version of logcabin")]
    RoomVersion {
        /// The record.
        offset: Offset,
        /// The version.
        version: String,
    },
}

/// Whom a record concerns: data for the world outside, which live is acted upon and in a replay is
/// dropped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Everyone in the room has something new.
    WakeRoom(ruma::OwnedRoomId),
    /// The user has something new.
    WakeUser(OwnedUserId),
}

/// All projections.
#[derive(Debug, Default)]
pub struct State {
    applied: AtomicU64,
    server: RwLock<Option<Arc<ServerIdentity>>>,
    /// Each epoch with the offset of its first record.
    epochs: RwLock<History<Epoch>>,
    /// Accounts.
    pub accounts: Accounts,
    /// Rooms.
    pub rooms: Rooms,
    /// The rooms of each user.
    pub memberships: Memberships,
    /// Room aliases.
    pub aliases: Aliases,
    /// Where each event is.
    pub events: index::EventIndex,
    /// What each transaction sent.
    pub transactions: index::Transactions,
    /// The last offset of each stream.
    pub streams: index::Streams,
}

impl State {
    /// The offset of the last record that was applied.
    #[must_use]
    pub fn applied(&self) -> Offset {
        Offset::new(self.applied.load(Ordering::Acquire))
    }

    /// The server's identity, once it is recorded.
    #[must_use]
    pub fn server(&self) -> Option<Arc<ServerIdentity>> {
        self.server.read().clone()
    }

    /// The epoch of the newest record.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epochs.read().latest().copied().unwrap_or_default()
    }

    /// The last offset of an epoch that has ended; `None` for one that has not, or never was.
    #[must_use]
    pub fn epoch_end(&self, epoch: Epoch) -> Option<Offset> {
        let epochs = self.epochs.read();
        let mut later = epochs.changes().skip_while(|(_, begun)| **begun != epoch).skip(1);
        later.next().map(|(offset, _)| offset.prev())
    }

    /// A hash of all projections as they stand. Equal digests at equal offsets mean equal state.
    ///
    /// To be called while nothing is being applied.
    #[must_use]
    pub fn digest(&self) -> blake3::Hash {
        let mut digest = digest::Digest::default();
        digest.add(&self.applied());
        digest.add(&self.server());
        digest.add(&*self.epochs.read());
        self.accounts.digest(&mut digest);
        self.rooms.digest(&mut digest);
        self.memberships.digest(&mut digest);
        self.aliases.digest(&mut digest);
        self.events.digest(&mut digest);
        self.transactions.digest(&mut digest);
        self.streams.digest(&mut digest);
        digest.finish()
    }

    /// Applies the next record. To be called by one thread at a time.
    ///
    /// # Errors
    /// When the record is not the next one or its command is not known; nothing has changed then.
    pub fn apply(&self, record: &Record) -> Result<Vec<Effect>, ApplyError> {
        let offset = record.offset();
        let applied = self.applied();
        if offset != applied.next() {
            return Err(ApplyError::Order { applied, found: offset });
        }
        let command = record.command().map_err(|source| ApplyError::Command { offset, source })?;
        let effects = match command {
            Some(command) => self.apply_command(offset, command)?,
            None => Vec::new(),
        };
        self.streams.record(offset, &record.header.stream);
        let mut epochs = self.epochs.write();
        if epochs.latest() != Some(&record.header.epoch) {
            epochs.push(offset, record.header.epoch);
        }
        drop(epochs);
        self.applied.store(offset.get(), Ordering::Release);
        Ok(effects)
    }

    fn apply_command(&self, offset: Offset, command: Command) -> Result<Vec<Effect>, ApplyError> {
        let user = |user_id: &UserId| vec![Effect::WakeUser(user_id.to_owned())];
        Ok(match command {
            Command::ServerIdentity(body) => {
                *self.server.write() = Some(Arc::new(body));
                Vec::new()
            }
            // What it says is in its header, too: see `apply`.
            Command::ServerRestore(_) => Vec::new(),
            Command::UserRegister(body) => {
                self.accounts.register(offset, body);
                Vec::new()
            }
            Command::UserPassword(body) => {
                self.accounts.set_password(offset, body);
                Vec::new()
            }
            Command::DeviceLogin(body) => {
                let effects = user(&body.user_id);
                match self.accounts.login(offset, body) {
                    Some(ended) => {
                        self.transactions.end(ended);
                        // Waiting syncs of the session that ended are to end now.
                        effects
                    }
                    None => Vec::new(),
                }
            }
            Command::DeviceRefresh(body) => {
                self.accounts.refresh(offset, body);
                Vec::new()
            }
            Command::DeviceConfirm(body) => {
                self.accounts.confirm(offset, &body);
                Vec::new()
            }
            Command::DeviceRemove(body) => {
                for ended in self.accounts.remove_devices(offset, &body) {
                    self.transactions.end(ended);
                }
                // Waiting syncs of the removed devices are to end now.
                user(&body.user_id)
            }
            Command::DeviceRename(body) => {
                self.accounts.rename_device(offset, body);
                Vec::new()
            }
            Command::ProfileSet(body) => {
                self.accounts.set_profile(offset, body);
                Vec::new()
            }
            Command::AccountDataSet(body) => {
                let effects = user(&body.user_id);
                self.accounts.set_account_data(offset, body);
                effects
            }
            Command::FilterCreate(body) => {
                self.accounts.create_filter(offset, body);
                Vec::new()
            }
            Command::RoomEvent(body) => self.apply_event(offset, body)?,
            Command::RoomForget(body) => {
                self.memberships.forget(offset, &body.user_id, &body.room_id);
                Vec::new()
            }
            Command::RoomVisibility(body) => {
                self.rooms.set_visibility(offset, &body);
                Vec::new()
            }
            Command::RoomReceipt(body) => {
                let effects = if body.receipt_type == "m.read.private" {
                    user(&body.user_id)
                } else {
                    vec![Effect::WakeRoom(body.room_id.clone())]
                };
                self.rooms.set_receipt(offset, body);
                effects
            }
            Command::RoomTyping(body) => {
                let effects = vec![Effect::WakeRoom(body.room_id.clone())];
                self.rooms.set_typing(offset, body);
                effects
            }
            Command::AliasSet(body) => {
                self.aliases.set(offset, body);
                Vec::new()
            }
            Command::AliasRemove(body) => {
                self.aliases.remove(offset, body);
                Vec::new()
            }
        })
    }

    fn apply_event(&self, offset: Offset, body: RoomEvent) -> Result<Vec<Effect>, ApplyError> {
        let unreadable = |source| ApplyError::Command {
            offset,
            source: CommandError::Payload { kind: "room.event", source },
        };
        let pdu: PduFacts<'_> = serde_json::from_str(body.pdu.get()).map_err(unreadable)?;
        let state_key: Option<(StateEventType, Box<str>)> = pdu
            .state_key
            .map(|key| (StateEventType::from(pdu.event_type.as_ref()), key.as_ref().into()));
        let membership = match &state_key {
            Some((StateEventType::RoomMember, user_id)) => {
                let content: MemberFacts =
                    serde_json::from_str(pdu.content.get()).map_err(unreadable)?;
                let membership = Membership::from_ruma(&content.membership);
                OwnedUserId::try_from(user_id.as_ref()).ok().zip(membership)
            }
            _ => None,
        };
        if let Some(version) = body.room_version {
            let name = version.to_string();
            if !self.rooms.create(offset, body.room_id.clone(), version) {
                return Err(ApplyError::RoomVersion { offset, version: name });
            }
        }
        let mut effects = vec![Effect::WakeRoom(body.room_id.clone())];
        if let Some((user_id, membership)) = &membership {
            self.memberships.set(offset, user_id, &body.room_id, *membership);
            // Those who are in the room are woken with it; one who leaves is not in it any more.
            effects.push(Effect::WakeUser(user_id.clone()));
        }
        if let Some(transaction) = &body.transaction {
            let (scope, id) = (&transaction.scope, &transaction.id);
            self.transactions.insert(offset, transaction.session, scope, id);
        }
        self.events.insert(offset, &body.event_id);
        let facts = rooms::EventFacts {
            event_id: body.event_id,
            depth: pdu.depth,
            state_key,
            membership,
            redacts: body.redacts,
            activity: rooms::is_activity(&pdu.event_type),
        };
        self.rooms.add_event(offset, &body.room_id, facts);
        Ok(effects)
    }
}

/// What a room keeps of an event.
#[derive(Deserialize)]
struct PduFacts<'a> {
    #[serde(rename = "type", borrow)]
    event_type: Cow<'a, str>,
    #[serde(borrow, default)]
    state_key: Option<Cow<'a, str>>,
    depth: u64,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct MemberFacts {
    membership: MembershipState,
}
