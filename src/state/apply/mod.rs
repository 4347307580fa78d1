//! What follows from commands: how each kind changes the projections. A file for each family of
//! commands; this is the only code that changes them.

mod account;
mod contact;
mod device;
mod event;
mod federation;
mod keys;
mod media;
mod oauth;
mod push;
mod room;
mod server;

use std::sync::atomic::Ordering;

use ruma::{OwnedRoomId, OwnedUserId, UserId};

use super::{Membership, State};
use logcabin_record::{Command, CommandError, Offset, Record, command::FileHash, each_command};

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
        source: CommandError,
    },
    #[error("record {offset}: room version `{version}` is not known to this version of logcabin")]
    RoomVersion {
        /// The record.
        offset: Offset,
        version: String,
    },
}

/// What is to happen outside the projections because of a record. The live server acts on it; a
/// replay drops it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Everyone in the room has something new.
    WakeRoom(OwnedRoomId),
    /// The user has something new.
    WakeUser(OwnedUserId),
    /// The user's presence is new to everyone who shares a room with them.
    WakePresence(OwnedUserId),
    /// What is to be sent later, or when, changed.
    Delayed,
    /// Whether guests may be in the room changed.
    GuestAccess(OwnedRoomId),
    /// A kick or a ban redacts what its user sent.
    RedactSender,
    /// No media id names the file any more.
    Unnamed(FileHash),
}

impl Effect {
    /// Whether it wakes long-polls.
    pub const fn wakes(&self) -> bool {
        matches!(self, Self::WakeRoom(_) | Self::WakeUser(_) | Self::WakePresence(_))
    }
}

/// Where and when a command was recorded.
#[derive(Clone, Copy)]
struct At {
    offset: Offset,
    /// When it was appended.
    time_ms: u64,
    /// When what it says happened: the same, unless it was imported.
    happened_ms: u64,
    is_imported: bool,
}

/// What is to happen outside, once the projections have changed.
type Applied = Result<Vec<Effect>, ApplyError>;

/// The payload of a command.
trait Apply {
    /// Changes the projections. Pure and total, except for an event that is malformed.
    fn apply(self, state: &State, at: At) -> Applied;
}

impl State {
    /// Applies the next record. To be called by one thread at a time.
    ///
    /// # Errors
    /// When the record is not the next one or its command is not known; nothing has changed then.
    pub fn apply(&self, record: &Record) -> Result<Vec<Effect>, ApplyError> {
        let command = record
            .command()
            .map_err(|source| ApplyError::Command { offset: record.offset(), source })?;
        self.apply_as(record, command)
    }

    /// As [`State::apply`], with the record's command decoded; `None` if it was erased.
    pub fn apply_as(
        &self,
        record: &Record,
        command: Option<Command>,
    ) -> Result<Vec<Effect>, ApplyError> {
        let offset = record.offset();
        let applied = self.applied();
        if offset != applied.next() {
            return Err(ApplyError::Order { applied, found: offset });
        }
        let effects = match command {
            Some(command) => {
                let time_ms = record.header.time_ms;
                let is_imported = record.header.origin.import().is_some();
                let happened_ms = if is_imported { record.happened_ms() } else { time_ms };
                let at = At { offset, time_ms, happened_ms, is_imported };
                each_command!(command, body => body.apply(self, at))?
            }
            None => Vec::new(),
        };
        self.streams.record(offset, &record.header.stream);
        self.tree.add(record);
        let mut epochs = self.epochs.write();
        if epochs.latest() != Some(&record.header.epoch) {
            epochs.push(offset, record.header.epoch);
        }
        drop(epochs);
        self.applied.store(offset.get(), Ordering::Release);
        Ok(effects)
    }

    /// Whom a change of the user's devices concerns: those who share a room with them, and
    /// themselves.
    fn device_list(&self, user_id: &UserId) -> Vec<Effect> {
        let mut effects = vec![Effect::WakeUser(user_id.to_owned())];
        let rooms = self.memberships.of(user_id, Offset::MAX).into_iter();
        let joined = rooms.filter(|room| room.membership == Membership::Join);
        effects.extend(joined.map(|room| Effect::WakeRoom(room.room_id)));
        effects
    }
}

fn wake(user_id: &UserId) -> Vec<Effect> {
    vec![Effect::WakeUser(user_id.to_owned())]
}
