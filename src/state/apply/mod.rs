//! What follows from commands: how each kind changes the projections. A file for each family of
//! commands; this is the only code that changes them.

mod account;
mod contact;
mod device;
mod federation;
mod keys;
mod media;
mod oauth;
mod push;
mod room;
mod server;

use ruma::UserId;

use super::{ApplyError, Effect, State};
use crate::record::{Command, Offset, command::each_command};

/// Where and when a command was recorded.
#[derive(Clone, Copy)]
struct At {
    offset: Offset,
    time_ms: u64,
}

/// What is to happen outside, once the projections have changed.
type Applied = Result<Vec<Effect>, ApplyError>;

/// The payload of a command.
trait Apply {
    /// Changes the projections. Pure and total but for an event that is none.
    fn apply(self, state: &State, at: At) -> Applied;
}

impl State {
    pub(super) fn apply_command(
        &self,
        offset: Offset,
        time_ms: u64,
        command: Command,
    ) -> Result<Vec<Effect>, ApplyError> {
        let at = At { offset, time_ms };
        each_command!(command, body => body.apply(self, at))
    }
}

fn wake(user_id: &UserId) -> Vec<Effect> {
    vec![Effect::WakeUser(user_id.to_owned())]
}
