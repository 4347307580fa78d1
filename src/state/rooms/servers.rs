//! The users who are in a room now, and their homeservers. The counts avoid a scan of all members.

use ruma::{OwnedServerName, OwnedUserId, ServerName, UserId};

use super::Room;
use crate::state::{Membership, history::History};

/// The homeservers of all users with a membership, ordered by name.
#[derive(Debug, Default)]
pub(super) struct Servers(Vec<Count>);

#[derive(Debug)]
struct Count {
    server: OwnedServerName,
    /// The number of its joined users.
    joined: u32,
}

impl Servers {
    /// Updates the counts when the membership of the user has changed.
    pub(super) fn change(&mut self, user: &UserId, before: Option<Membership>, after: Membership) {
        let server = user.server_name();
        let place = self.0.binary_search_by(|count| (*count.server).cmp(server));
        let index = place.unwrap_or_else(|index| {
            self.0.insert(index, Count { server: server.to_owned(), joined: 0 });
            index
        });
        let Some(count) = self.0.get_mut(index) else { return };
        let tally = |is: bool| u32::from(is);
        count.joined = (count.joined + tally(after == Membership::Join))
            .saturating_sub(tally(before == Some(Membership::Join)));
    }

    fn get(&self, server: &ServerName) -> Option<&Count> {
        let index = self.0.binary_search_by(|count| (*count.server).cmp(server)).ok()?;
        self.0.get(index)
    }
}

impl Room {
    /// Whether a user of the homeserver has, or had, a membership in the room.
    #[must_use]
    pub fn knows_server(&self, server: &ServerName) -> bool {
        self.inner.read().servers.get(server).is_some()
    }

    /// The homeservers of all users who have, or had, a membership in the room.
    pub(crate) fn known_servers(&self) -> Vec<OwnedServerName> {
        self.inner.read().servers.0.iter().map(|count| count.server.clone()).collect()
    }

    /// Whether a user of the homeserver is joined now.
    #[must_use]
    pub fn has_server(&self, server: &ServerName) -> bool {
        self.inner.read().servers.get(server).is_some_and(|count| count.joined > 0)
    }

    /// The number of the homeserver's users who are joined now.
    #[must_use]
    pub fn joined_of(&self, server: &ServerName) -> usize {
        self.inner.read().servers.get(server).map_or(0, |count| count.joined as usize)
    }

    /// The homeservers of the users who are joined now, ordered by name.
    pub(crate) fn servers(&self) -> Vec<OwnedServerName> {
        let inner = self.inner.read();
        let joined = inner.servers.0.iter().filter(|count| count.joined > 0);
        joined.map(|count| count.server.clone()).collect()
    }

    /// Calls `found` for each user who is joined or invited now.
    pub(crate) fn each_member_now(&self, mut found: impl FnMut(&OwnedUserId)) {
        self.inner.read().present.iter().for_each(&mut found);
    }

    /// Calls `found` for each user who is joined now.
    pub(crate) fn each_joined_now(&self, mut found: impl FnMut(&OwnedUserId)) {
        let inner = self.inner.read();
        let joined = inner.present.iter().filter(|user_id| {
            let history = inner.members.get(*user_id);
            history.and_then(History::latest) == Some(&Membership::Join)
        });
        joined.for_each(&mut found);
    }
}
