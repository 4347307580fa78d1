//! Redactions of what users sent. What the rooms are told is in the log.

use std::collections::BTreeMap;

use parking_lot::RwLock;
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, UserId};
use serde::{Deserialize, Serialize};

use super::serializers;
use logcabin_record::{
    Offset,
    command::{UserRedact, UserRedactFinish},
};

/// How many that ended are remembered.
const ENDED: usize = 100;

/// Those in progress, and the latest that ended, by the offsets of the records that began them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Redactions(
    #[serde(with = "serializers::locked")] RwLock<BTreeMap<Offset, UserRedaction>>,
);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRedaction {
    pub id: String,
    /// The record that began it.
    pub begun: Offset,
    /// Who sent what is redacted.
    pub user_id: OwnedUserId,
    /// In these rooms; none means in all.
    pub rooms: Vec<OwnedRoomId>,
    /// This many of the latest events in each room.
    pub limit: Option<u64>,
    /// The times of the first and the last event, by their senders' clocks, in milliseconds since
    /// the Unix epoch.
    pub after_ms: Option<u64>,
    pub before_ms: Option<u64>,
    /// In whose name, if they may.
    pub by: Option<OwnedUserId>,
    /// What came of it; `None` while it is in progress.
    pub ended: Option<Redacted>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Redacted {
    /// The record that ended it.
    pub at: Offset,
    pub redacted: u64,
    /// How many events could not be redacted.
    pub failures: u64,
    /// Some of them, each with the reason.
    pub failed: BTreeMap<OwnedEventId, String>,
}

impl Redactions {
    /// The redaction of this id.
    pub fn get(&self, id: &str) -> Option<UserRedaction> {
        self.0.read().values().find(|redaction| redaction.id == id).cloned()
    }

    /// All that are remembered, the oldest first.
    pub fn all(&self) -> Vec<UserRedaction> {
        self.0.read().values().cloned().collect()
    }

    /// Those in progress, the oldest first.
    pub fn under_way(&self) -> Vec<UserRedaction> {
        self.0.read().values().filter(|redaction| redaction.ended.is_none()).cloned().collect()
    }

    /// Whether one of this user is in progress.
    pub fn is_under_way(&self, user_id: &UserId) -> bool {
        let all = self.0.read();
        all.values().any(|redaction| redaction.user_id == *user_id && redaction.ended.is_none())
    }

    pub(super) fn begin(&self, offset: Offset, body: UserRedact) {
        let UserRedact { id, user_id, rooms, limit, after_ms, before_ms, by, say: _ } = body;
        let redaction = UserRedaction {
            id,
            begun: offset,
            user_id,
            rooms,
            limit,
            after_ms,
            before_ms,
            by,
            ended: None,
        };
        self.0.write().insert(offset, redaction);
    }

    pub(super) fn finish(&self, at: Offset, body: UserRedactFinish) {
        let UserRedactFinish { id, user_id: _, redacted, failures, failed } = body;
        let mut all = self.0.write();
        if let Some(redaction) = all.values_mut().find(|redaction| redaction.id == id) {
            redaction.ended = Some(Redacted { at, redacted, failures, failed });
        }
        let ended = || all.iter().filter(|(_, redaction)| redaction.ended.is_some());
        if ended().count() > ENDED
            && let Some(oldest) = ended().map(|(offset, _)| *offset).next()
        {
            all.remove(&oldest);
        }
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        digest.add(&*self.0.read());
    }
}
