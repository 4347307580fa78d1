//! Receipts in a room.

use std::sync::Arc;

use ruma::{OwnedEventId, OwnedUserId};
use serde::{Deserialize, Serialize};

use super::{Inner, Room, Rooms};
use logcabin_record::{
    Offset,
    command::{Receipt, RoomReceipt},
};

/// The owner of a receipt: user, receipt type, thread.
pub type ReceiptKey = (OwnedUserId, String, Option<String>);

/// A receipt's position.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ReceiptEntry {
    /// The record that set it.
    pub offset: Offset,
    pub event_id: OwnedEventId,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Room {
    /// The receipts that moved after `since` up to and including `to`, in order. The cost is
    /// proportional to these.
    pub fn receipts_between(
        &self,
        since: Offset,
        to: Offset,
    ) -> Vec<(Arc<ReceiptKey>, ReceiptEntry)> {
        if since >= to {
            return Vec::new();
        }
        let inner = self.inner.read();
        let keys = inner.moved.range(since.next()..=to).flat_map(|(_, keys)| keys);
        keys.filter_map(|key| Some((Arc::clone(key), inner.receipts.get(key)?.clone()))).collect()
    }

    /// The receipt of this user, type and thread.
    pub fn receipt(&self, key: &ReceiptKey) -> Option<ReceiptEntry> {
        self.inner.read().receipts.get(key).cloned()
    }
}

impl Rooms {
    /// Moves receipts; returns the records whose receipts have all moved on.
    pub(crate) fn set_receipts(&self, offset: Offset, body: RoomReceipt) -> Vec<Offset> {
        let Some(room) = self.get(&body.room_id) else { return Vec::new() };
        let mut inner = room.inner.write();
        inner.changed = offset;
        let receipts = body.receipts.into_iter();
        // A receipt that is twice in one record would make the record supersede itself.
        receipts.filter_map(|r| inner.set_receipt(offset, r)).filter(|o| *o < offset).collect()
    }
}

impl Inner {
    /// Moves a receipt; returns the record whose receipts have now all moved on.
    pub(super) fn set_receipt(&mut self, offset: Offset, receipt: Receipt) -> Option<Offset> {
        let key = (receipt.user_id, receipt.receipt_type, receipt.thread_id);
        let entry = ReceiptEntry { offset, event_id: receipt.event_id, ts: receipt.ts };
        let before =
            self.receipts.get_key_value(&key).map(|(key, was)| (Arc::clone(key), was.offset));
        let key = before.as_ref().map_or_else(|| Arc::new(key), |(key, _)| Arc::clone(key));
        let left = before.and_then(|(_, was)| self.leave(was, &key));
        self.moved.entry(offset).or_default().push(Arc::clone(&key));
        self.receipts.insert(key, entry);
        left
    }

    pub(super) fn leave(&mut self, record: Offset, key: &Arc<ReceiptKey>) -> Option<Offset> {
        let keys = self.moved.get_mut(&record)?;
        keys.retain(|other| !Arc::ptr_eq(other, key));
        if !keys.is_empty() {
            return None;
        }
        self.moved.remove(&record);
        Some(record)
    }
}
