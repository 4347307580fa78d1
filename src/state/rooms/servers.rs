//! The users who are in a room now, and their homeservers. The counts avoid a scan of all members.

use std::collections::{BTreeMap, BTreeSet};

use ruma::{OwnedEventId, OwnedServerName, OwnedUserId, RoomId, ServerName, UserId};
use serde::{Deserialize, Serialize};

use super::{Room, Rooms};
use crate::{Membership, digest::Digest, history::History};
use logcabin_record::Offset;

#[derive(Debug, Default)]
pub(super) struct Servers {
    /// Those of all users with a membership, or a claimed one, ordered by name.
    counts: Vec<Count>,
    pub(super) claims: Claims,
}

#[derive(Debug)]
struct Count {
    server: OwnedServerName,
    /// The number of its joined users.
    joined: u32,
    /// The number of its users in [`Claims`].
    claimed: u32,
}

/// Joins that a homeserver named when this one entered the room, and that could not be verified
/// because the users' homeservers gave no keys. A claim ends with the first known membership of
/// the user.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Claims {
    /// The homeserver that named them. It is believed while it is in the room itself.
    from: Option<OwnedServerName>,
    /// The record of them.
    since: Offset,
    joins: BTreeMap<OwnedUserId, OwnedEventId>,
    /// The homeservers of these users, until none of their users is in the room. So it is known
    /// since when a homeserver is there after the join of its user was verified.
    servers: BTreeSet<OwnedServerName>,
}

impl Servers {
    /// Updates the counts when the membership of the user has changed.
    pub(super) fn change(&mut self, user: &UserId, before: Option<Membership>, after: Membership) {
        let is_claimed = self.claims.joins.remove(user).is_some();
        let server = user.server_name();
        let count = self.count(server);
        let tally = |is: bool| u32::from(is);
        count.joined = (count.joined + tally(after == Membership::Join))
            .saturating_sub(tally(before == Some(Membership::Join)));
        count.claimed = count.claimed.saturating_sub(tally(is_claimed));
        if count.joined == 0 && count.claimed == 0 {
            self.claims.servers.remove(server);
        }
    }

    /// Replaces what is claimed.
    pub(super) fn claim(&mut self, claims: Claims) {
        for count in &mut self.counts {
            count.claimed = 0;
        }
        for user_id in claims.joins.keys() {
            self.count(user_id.server_name()).claimed += 1;
        }
        self.claims = claims;
    }

    fn count(&mut self, server: &ServerName) -> &mut Count {
        let place = self.counts.binary_search_by(|count| (*count.server).cmp(server));
        let index = place.unwrap_or_else(|index| {
            let count = Count { server: server.to_owned(), joined: 0, claimed: 0 };
            self.counts.insert(index, count);
            index
        });
        &mut self.counts[index]
    }

    fn get(&self, server: &ServerName) -> Option<&Count> {
        let index = self.counts.binary_search_by(|count| (*count.server).cmp(server)).ok()?;
        self.counts.get(index)
    }

    /// Whether whoever made the claims is in the room.
    fn believes_claims(&self) -> bool {
        let from = self.claims.from.as_ref().and_then(|from| self.get(from));
        from.is_some_and(|count| count.joined > 0)
    }

    /// The counts follow from the members and the claims.
    pub(super) fn digest(&self, digest: &mut Digest) {
        if self.claims.from.is_some() {
            digest.add(&self.claims);
        }
    }
}

impl Rooms {
    /// Notes joins in a room's state that could not be verified.
    pub(crate) fn claim(
        &self,
        since: Offset,
        room_id: &RoomId,
        from: OwnedServerName,
        mut joins: BTreeMap<OwnedUserId, OwnedEventId>,
    ) {
        let Some(room) = self.get(room_id) else { return };
        let inner = &mut *room.inner.write();
        joins.retain(|user_id, _| {
            let latest = inner.members.get(user_id).and_then(History::latest);
            latest.is_none_or(|latest| *latest == Membership::Leave)
        });
        let servers = joins.keys().map(|user_id| user_id.server_name().to_owned()).collect();
        inner.servers.claim(Claims { from: Some(from), since, joins, servers });
    }
}

impl Room {
    /// Whether a user of the homeserver has, or had, a membership in the room, or is said to.
    pub fn knows_server(&self, server: &ServerName) -> bool {
        self.inner.read().servers.get(server).is_some()
    }

    /// The join of a user that could not be verified when this homeserver entered the room, if
    /// nothing else is known of the user.
    pub fn claimed_join(&self, user_id: &UserId) -> Option<OwnedEventId> {
        self.inner.read().servers.claims.joins.get(user_id).cloned()
    }

    /// All such joins, and the homeserver that named them.
    pub fn claims(&self) -> (Option<OwnedServerName>, BTreeMap<OwnedUserId, OwnedEventId>) {
        let claims = &self.inner.read().servers.claims;
        (claims.from.clone(), claims.joins.clone())
    }

    /// Since when the homeserver is known to be in the room, if that rests on a claimed join.
    pub fn claimed_since(&self, server: &ServerName) -> Option<Offset> {
        let claims = &self.inner.read().servers.claims;
        claims.servers.contains(server).then_some(claims.since)
    }

    /// The homeservers of all users who have, or had, a membership in the room, or are said to.
    pub fn known_servers(&self) -> Vec<OwnedServerName> {
        self.inner.read().servers.counts.iter().map(|count| count.server.clone()).collect()
    }

    /// Whether a user of the homeserver is joined now, or is said to be by a homeserver that is.
    pub fn has_server(&self, server: &ServerName) -> bool {
        let servers = &self.inner.read().servers;
        let count = servers.get(server);
        count.is_some_and(|of| of.joined > 0 || (of.claimed > 0 && servers.believes_claims()))
    }

    /// The number of the homeserver's users who are joined now.
    pub fn joined_of(&self, server: &ServerName) -> usize {
        self.inner.read().servers.get(server).map_or(0, |count| count.joined as usize)
    }

    /// Those for which [`Self::has_server`] holds, ordered by name.
    pub fn servers(&self) -> Vec<OwnedServerName> {
        let servers = &self.inner.read().servers;
        let believes = servers.believes_claims();
        let is_in = |of: &&Count| of.joined > 0 || (of.claimed > 0 && believes);
        servers.counts.iter().filter(is_in).map(|count| count.server.clone()).collect()
    }

    /// Calls `found` for each user who is joined or invited now.
    pub fn each_member_now(&self, mut found: impl FnMut(&OwnedUserId)) {
        self.inner.read().present.iter().for_each(&mut found);
    }

    /// Calls `found` for each user who is joined now.
    pub fn each_joined_now(&self, mut found: impl FnMut(&OwnedUserId)) {
        let inner = self.inner.read();
        let joined = inner.present.iter().filter(|user_id| {
            let history = inner.members.get(*user_id);
            history.and_then(History::latest) == Some(&Membership::Join)
        });
        joined.for_each(&mut found);
    }
}
