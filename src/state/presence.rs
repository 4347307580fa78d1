//! The presence of each user as others see it, and the order of changes.
//!
//! Only recorded presence is here. `logcabin_service::presence` decides what is recorded (the
//! devices that are online, idle times).

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{PresenceSet, PresenceState},
};

/// Every user's presence.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Presence(#[serde(with = "serializers::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    users: BTreeMap<OwnedUserId, UserPresence>,
    /// Each user once, at the offset of their newest record.
    changes: BTreeMap<Offset, OwnedUserId>,
    /// Users who are not offline.
    around: BTreeSet<OwnedUserId>,
}

/// A user's presence as others see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPresence {
    /// The record that says so.
    pub offset: Offset,
    /// Online, idle, or offline.
    pub presence: PresenceState,
    /// The status message.
    pub status_msg: Option<String>,
    /// Whether the user was active within the last minute.
    pub currently_active: bool,
    /// The last recorded activity, in milliseconds since the Unix epoch; 0: unknown.
    pub last_active_ms: u64,
}

impl UserPresence {
    /// Whether others see no difference to this. While a user is active, the time of the last
    /// activity is not shown.
    pub fn shows_as(&self, said: &PresenceSet) -> bool {
        (self.presence, self.currently_active) == (said.presence, said.currently_active)
            && self.status_msg == said.status_msg
    }
}

impl Presence {
    /// The presence of `user_id`; `None` if there never was any.
    pub fn get(&self, user_id: &UserId) -> Option<UserPresence> {
        self.0.read().users.get(user_id).cloned()
    }

    /// Users whose newest change came after `since`, up to and including `to`, in the order of the
    /// changes. A user who changed again after `to` is left out: that belongs to a later sync.
    pub fn changed(&self, since: Offset, to: Offset) -> Vec<OwnedUserId> {
        if since >= to {
            return Vec::new();
        }
        self.0.read().changes.range(since.next()..=to).map(|(_, user_id)| user_id.clone()).collect()
    }

    /// Users who are not offline.
    pub fn around(&self) -> Vec<OwnedUserId> {
        self.0.read().around.iter().cloned().collect()
    }

    /// Removes the presence of an erased user. Returns its record.
    pub(super) fn forget(&self, user_id: &UserId) -> Option<Offset> {
        let mut inner = self.0.write();
        let shown = inner.users.remove(user_id)?;
        inner.changes.remove(&shown.offset);
        inner.around.remove(user_id);
        Some(shown.offset)
    }

    /// Returns the superseded record.
    pub(super) fn set(&self, offset: Offset, body: PresenceSet) -> Option<Offset> {
        let PresenceSet { user_id, presence, status_msg, currently_active, last_active_ms } = body;
        let mut inner = self.0.write();
        if presence == PresenceState::Offline {
            inner.around.remove(&user_id);
        } else {
            inner.around.insert(user_id.clone());
        }
        let shown = UserPresence { offset, presence, status_msg, currently_active, last_active_ms };
        let before = inner.users.insert(user_id.clone(), shown).map(|before| before.offset);
        if let Some(before) = before {
            inner.changes.remove(&before);
        }
        inner.changes.insert(offset, user_id);
        before
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
