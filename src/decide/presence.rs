//! Presence.

use ruma::{OwnedUserId, ServerName, UserId};

use super::{Commit, Proposal, Refusal};
use logcabin_record::{
    Offset, Stream,
    command::{PresenceSet, PresenceState},
};
use logcabin_state::{Membership, State};

/// Change a user's presence as others see it.
#[derive(Clone, Debug)]
pub struct SetPresence {
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
        let now = PresenceSet {
            user_id: self.user_id.clone(),
            presence: self.presence,
            status_msg,
            currently_active: self.currently_active,
            last_active_ms: self.last_active_ms.max(before.last_active_ms),
        };
        if !before.shows_as(&now) {
            commit.append(self.stream(), now);
        }
        Ok(())
    }
}

/// Whether a user of another homeserver is in a room with a user of this one, so that somebody here
/// may see their presence.
pub fn is_seen_here(state: &State, own: &ServerName, user_id: &UserId) -> bool {
    let rooms = state.memberships.of(user_id, Offset::MAX).into_iter();
    let mut joined = rooms
        .filter(|part| part.membership == Membership::Join)
        .filter_map(|part| state.rooms.get(&part.room_id));
    joined.any(|room| room.has_server(own))
}

/// Take over what another homeserver says of the presence of its user.
#[derive(Clone, Debug)]
pub struct ReceivePresence {
    /// What it says.
    pub said: PresenceSet,
    /// Whether to record it even if it shows as before, so that it is known to be recent.
    pub again: bool,
}

impl Proposal for ReceivePresence {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::presence(&self.said.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let (env, said) = (commit.env, &self.said);
        let own = &env.server.name;
        if said.user_id.server_name() == own || !is_seen_here(&env.state, own, &said.user_id) {
            return Err(Refusal::Forbidden("Nobody here may see this presence.".to_owned()));
        }
        let before = env.state.presence.get(&said.user_id).unwrap_or_default();
        if self.again || !before.shows_as(said) {
            let last_active_ms = said.last_active_ms.max(before.last_active_ms);
            commit.append(self.stream(), PresenceSet { last_active_ms, ..said.clone() });
        }
        Ok(())
    }
}

/// Show a user of another homeserver as offline from which nothing has been heard for long.
#[derive(Clone, Debug)]
pub struct ExpirePresence {
    pub user_id: OwnedUserId,
    /// The record with what was heard last.
    pub heard: Offset,
}

impl Proposal for ExpirePresence {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::presence(&self.user_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let shown = commit.env.state.presence.get(&self.user_id);
        let shown = shown.filter(|shown| shown.offset == self.heard);
        if let Some(shown) = shown.filter(|shown| shown.presence != PresenceState::Offline) {
            let gone = PresenceSet {
                user_id: self.user_id.clone(),
                presence: PresenceState::Offline,
                status_msg: shown.status_msg,
                currently_active: false,
                last_active_ms: shown.last_active_ms,
            };
            commit.append(self.stream(), gone);
        }
        Ok(())
    }
}
