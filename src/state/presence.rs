//! What others see of each user's presence: the newest of each, and in which order they changed.
//!
//! Only what was recorded is here. What leads to a record (which devices are there, who is idle
//! since when) is judged in [`crate::service::presence`].

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::RwLock;
use ruma::{OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::kept;
use crate::record::{
    Offset,
    command::{PresenceSet, PresenceState},
};

/// Every user's presence.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Presence(#[serde(with = "kept::locked")] RwLock<Inner>);

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    users: BTreeMap<OwnedUserId, Shown>,
    /// Each user once, at the offset of their newest record.
    changes: BTreeMap<Offset, OwnedUserId>,
    /// Those who are not offline.
    around: BTreeSet<OwnedUserId>,
}

/// What others see of one user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shown {
    /// The record that says so.
    pub offset: Offset,
    /// There, idle, or gone.
    pub presence: PresenceState,
    /// The user's own words.
    pub status_msg: Option<String>,
    /// Whether the user did something within the last minute.
    pub currently_active: bool,
    /// When the user last did something, as far as it is recorded, in milliseconds since the Unix
    /// epoch; 0: not known.
    pub last_active_ms: u64,
}

impl Presence {
    /// What others see of `user_id`; `None` for one who never was there.
    #[must_use]
    pub fn get(&self, user_id: &UserId) -> Option<Shown> {
        self.0.read().users.get(user_id).cloned()
    }

    /// Those whose newest change came after `since`, up to and with `to`, in the order of their
    /// changes. Whoever changed again after `to` is not among them: that is news for a later look.
    #[must_use]
    pub fn changed(&self, since: Offset, to: Offset) -> Vec<OwnedUserId> {
        if since >= to {
            return Vec::new();
        }
        self.0.read().changes.range(since.next()..=to).map(|(_, user_id)| user_id.clone()).collect()
    }

    /// Those who are not offline.
    #[must_use]
    pub fn around(&self) -> Vec<OwnedUserId> {
        self.0.read().around.iter().cloned().collect()
    }

    /// What was said of a user who was erased is gone. Gives the record that said it.
    pub(super) fn forget(&self, user_id: &UserId) -> Option<Offset> {
        let mut inner = self.0.write();
        let shown = inner.users.remove(user_id)?;
        inner.changes.remove(&shown.offset);
        inner.around.remove(user_id);
        Some(shown.offset)
    }

    /// Gives the record that said so before.
    pub(super) fn set(&self, offset: Offset, body: PresenceSet) -> Option<Offset> {
        let PresenceSet { user_id, presence, status_msg, currently_active, last_active_ms } = body;
        let mut inner = self.0.write();
        if presence == PresenceState::Offline {
            inner.around.remove(&user_id);
        } else {
            inner.around.insert(user_id.clone());
        }
        let shown = Shown { offset, presence, status_msg, currently_active, last_active_ms };
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
