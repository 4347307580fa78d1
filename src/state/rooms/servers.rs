//! The users who are in a room now, and their homeservers. The counts avoid a scan of all members.

use std::collections::BTreeMap;

use ruma::{OwnedServerName, OwnedUserId, RoomId, ServerName, UserId};

use super::{Room, Rooms};
use crate::state::{Membership, digest::Digest, history::History};

#[derive(Debug, Default)]
pub(super) struct Servers {
    /// Those of all users with a membership, ordered by name.
    counts: Vec<Count>,
    /// Those of users whose joins could not be verified when the room's state was taken from
    /// another homeserver, each with whether a user of it has joined since.
    pub(super) unverified: BTreeMap<OwnedServerName, bool>,
}

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
        let place = self.counts.binary_search_by(|count| (*count.server).cmp(server));
        let index = place.unwrap_or_else(|index| {
            self.counts.insert(index, Count { server: server.to_owned(), joined: 0 });
            index
        });
        let Some(count) = self.counts.get_mut(index) else { return };
        let tally = |is: bool| u32::from(is);
        count.joined = (count.joined + tally(after == Membership::Join))
            .saturating_sub(tally(before == Some(Membership::Join)));
        if after == Membership::Join
            && let Some(has_joined) = self.unverified.get_mut(server)
        {
            *has_joined = true;
        }
    }

    fn get(&self, server: &ServerName) -> Option<&Count> {
        let index = self.counts.binary_search_by(|count| (*count.server).cmp(server)).ok()?;
        self.counts.get(index)
    }

    /// The counts follow from the members.
    pub(super) fn digest(&self, digest: &mut Digest) {
        if !self.unverified.is_empty() {
            digest.add(&self.unverified);
        }
    }

    /// Those of which nobody is known to have joined.
    fn only_unverified(&self) -> impl Iterator<Item = &OwnedServerName> {
        self.unverified.iter().filter(|(_, has_joined)| !**has_joined).map(|(server, _)| server)
    }
}

impl Rooms {
    /// Notes homeservers of which it is said that their users are in a room.
    pub(in crate::state) fn note_unverified(&self, room_id: &RoomId, of: Vec<OwnedServerName>) {
        let Some(room) = self.get(room_id) else { return };
        let servers = &mut room.inner.write().servers;
        for server in of {
            let has_joined = servers.get(&server).is_some_and(|count| count.joined > 0);
            servers.unverified.insert(server, has_joined);
        }
    }
}

impl Room {
    /// Whether a user of the homeserver has, or had, a membership in the room, or is said to.
    #[must_use]
    pub fn knows_server(&self, server: &ServerName) -> bool {
        let servers = &self.inner.read().servers;
        servers.get(server).is_some() || servers.unverified.contains_key(server)
    }

    /// Whether memberships of the homeserver's users could not be verified when the room's state
    /// was taken from another homeserver.
    #[must_use]
    pub fn has_unverified(&self, server: &ServerName) -> bool {
        self.inner.read().servers.unverified.contains_key(server)
    }

    /// The number of homeservers for which this is so, and of which no user has joined since.
    #[must_use]
    pub fn unverified_servers(&self) -> usize {
        self.inner.read().servers.only_unverified().count()
    }

    /// Those for which [`Self::knows_server`] holds.
    pub(crate) fn known_servers(&self) -> Vec<OwnedServerName> {
        let servers = &self.inner.read().servers;
        let unverified = servers.unverified.keys().filter(|of| servers.get(of).is_none());
        servers.counts.iter().map(|count| &count.server).chain(unverified).cloned().collect()
    }

    /// Whether a user of the homeserver is joined now, or said to be and none is known.
    #[must_use]
    pub fn has_server(&self, server: &ServerName) -> bool {
        let servers = &self.inner.read().servers;
        let joined = servers.get(server).is_some_and(|count| count.joined > 0);
        joined || servers.unverified.get(server) == Some(&false)
    }

    /// The number of the homeserver's users who are joined now.
    #[must_use]
    pub fn joined_of(&self, server: &ServerName) -> usize {
        self.inner.read().servers.get(server).map_or(0, |count| count.joined as usize)
    }

    /// Those for which [`Self::has_server`] holds.
    pub(crate) fn servers(&self) -> Vec<OwnedServerName> {
        let servers = &self.inner.read().servers;
        let joined = servers.counts.iter().filter(|count| count.joined > 0);
        let joined = joined.map(|count| &count.server);
        joined.chain(servers.only_unverified()).cloned().collect()
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
