//! What becomes of facts that are not events: pure functions from rows to commands.

pub(super) mod accounts;
pub(super) mod keys;
pub(super) mod oauth;
pub(super) mod peers;
pub(super) mod personal;
pub(super) mod rooms;
pub(super) mod sessions;

use ruma::{OwnedEventId, OwnedRoomId, OwnedServerName, OwnedUserId, ServerName};

use super::writer::Left;
use logcabin_record::{Command, Stream};

/// What is to be written of a row, all at once, and when what it says happened.
#[derive(Debug, Default)]
pub(super) struct Made {
    pub(super) original_ms: Option<i64>,
    pub(super) commands: Vec<(Stream, Command)>,
}

impl Made {
    pub(super) fn one(stream: Stream, command: impl Into<Command>) -> Self {
        Self { original_ms: None, commands: vec![(stream, command.into())] }
    }

    pub(super) fn at(self, original_ms: Option<i64>) -> Self {
        Self { original_ms, ..self }
    }

    fn add(&mut self, stream: Stream, command: impl Into<Command>) {
        self.commands.push((stream, command.into()));
    }
}

fn odd_id(text: &str) -> Left {
    ("it names what cannot be an id", format!("`{text}` cannot be an id"))
}

pub(super) fn user(text: &str) -> Result<OwnedUserId, Left> {
    OwnedUserId::try_from(text).map_err(|_| odd_id(text))
}

/// A user of this server.
pub(super) fn own_user(text: &str, own: &ServerName) -> Result<OwnedUserId, Left> {
    let user_id = user(text)?;
    if user_id.server_name() == own {
        return Ok(user_id);
    }
    Err(("it is about a user of another server", format!("`{text}` is of another server")))
}

pub(super) fn room(text: &str) -> Result<OwnedRoomId, Left> {
    OwnedRoomId::try_from(text).map_err(|_| odd_id(text))
}

pub(super) fn event(text: &str) -> Result<OwnedEventId, Left> {
    OwnedEventId::try_from(text).map_err(|_| odd_id(text))
}

pub(super) fn server(text: &str) -> Result<OwnedServerName, Left> {
    OwnedServerName::try_from(text).map_err(|_| odd_id(text))
}

/// A time of the source. Negative ones are none.
pub(super) fn ms(time: i64) -> u64 {
    u64::try_from(time).unwrap_or_default()
}

/// A number of the source that cannot be negative.
pub(super) fn number(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}
