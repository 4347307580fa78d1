//! Presence.

use ruma::OwnedUserId;

use super::{Commit, Proposal, Refusal};
use crate::record::{
    Stream,
    command::{PresenceSet, PresenceState},
};

/// Change a user's presence as others see it.
#[derive(Clone, Debug)]
pub struct SetPresence {
    /// The user.
    pub user_id: OwnedUserId,
    /// Online, idle, or offline.
    pub presence: PresenceState,
    /// Whether the user was active just now.
    pub currently_active: bool,
    /// When the user was last active, in milliseconds since the Unix epoch; 0: unknown.
    pub last_active_ms: u64,
    /// The status message, if it changes: `Some(None)` removes it.
    pub status_msg: Option<Option<String>>,
}

impl Proposal for SetPresence {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::presence(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        if !commit.env.state.accounts.contains(&self.user_id) {
            return Err(Refusal::NotFound("There is no such user here.".to_owned()));
        }
        let before = commit.env.state.presence.get(&self.user_id).unwrap_or_default();
        let status_msg = self.status_msg.clone().unwrap_or_else(|| before.status_msg.clone());
        if (before.presence, before.currently_active) == (self.presence, self.currently_active)
            && before.status_msg == status_msg
        {
            return Ok(());
        }
        commit.append(
            self.stream(),
            PresenceSet {
                user_id: self.user_id.clone(),
                presence: self.presence,
                status_msg,
                currently_active: self.currently_active,
                last_active_ms: self.last_active_ms.max(before.last_active_ms),
            },
        );
        Ok(())
    }
}
