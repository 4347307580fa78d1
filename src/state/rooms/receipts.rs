//! Receipts in a room.

use std::sync::Arc;

use ruma::{OwnedEventId, OwnedUserId, UserId};
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

    /// The receipts of this user that moved after `since` up to and including `to`, by type and
    /// thread.
    pub fn receipts_of(
        &self,
        user_id: &UserId,
        since: Offset,
        to: Offset,
    ) -> Vec<(Arc<ReceiptKey>, ReceiptEntry)> {
        let inner = self.inner.read();
        let first: ReceiptKey = (user_id.to_owned(), String::new(), None);
        let own = inner.receipts.range(first..).take_while(|(key, _)| key.0 == user_id);
        let moved = own.filter(|(_, entry)| entry.offset > since && entry.offset <= to);
        moved.map(|(key, entry)| (Arc::clone(key), entry.clone())).collect()
    }

    /// Of the receipts that moved after `since` up to and including `to`, those that moved last: at
    /// most `most` that are `wanted`, in no order. Only the last `looks` receipts are looked at,
    /// and as many more as moved in one record. Of the receipts of one record, the latest are
    /// taken.
    pub fn last_receipts(
        &self,
        since: Offset,
        to: Offset,
        (most, looks): (usize, usize),
        wanted: impl Fn(&ReceiptKey) -> bool,
    ) -> Vec<(Arc<ReceiptKey>, ReceiptEntry)> {
        if since >= to {
            return Vec::new();
        }
        let inner = self.inner.read();
        let (mut found, mut looked) = (Vec::new(), 0);
        for keys in inner.moved.range(since.next()..=to).rev().map(|(_, keys)| keys) {
            let left = most - found.len();
            if left == 0 || looked >= looks {
                break;
            }
            looked += keys.len();
            let of_record = keys.iter().filter(|key| wanted(key));
            let mut of_record: Vec<_> =
                of_record.filter_map(|key| Some((key, inner.receipts.get(key)?))).collect();
            if of_record.len() > left {
                // By key, too, so that the choice is the same after a restart.
                of_record.select_nth_unstable_by(left, |(key, receipt), (other, than)| {
                    than.ts.cmp(&receipt.ts).then_with(|| key.cmp(other))
                });
                of_record.truncate(left);
            }
            let cloned = |(key, entry): (&Arc<_>, &ReceiptEntry)| (Arc::clone(key), entry.clone());
            found.extend(of_record.into_iter().map(cloned));
        }
        found
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A room in which each of `records`, from offset 2 on, set receipts: of users, of a type.
    fn room(records: &[&[(&str, &str)]]) -> Arc<Room> {
        let rooms = Rooms::default();
        let room_id = ruma::owned_room_id!("!room:test");
        assert!(rooms.create(Offset::new(1), room_id.clone(), ruma::RoomVersionId::V11));
        for (record, receipts) in (2..).zip(records) {
            let receipt = |(ts, (user, receipt_type)): (u64, &(&str, &str))| Receipt {
                user_id: format!("@{user}:test").try_into().unwrap(),
                receipt_type: (*receipt_type).to_owned(),
                event_id: "$event".try_into().unwrap(),
                thread_id: None,
                ts,
            };
            let receipts = (1..).zip(*receipts).map(receipt).collect();
            let body = RoomReceipt { room_id: room_id.clone(), receipts };
            rooms.set_receipts(Offset::new(record), body);
        }
        rooms.get(&room_id).unwrap()
    }

    fn names(found: Vec<(Arc<ReceiptKey>, ReceiptEntry)>) -> String {
        let mut names: Vec<_> = found.iter().map(|(key, _)| key.0.localpart()).collect();
        names.sort_unstable();
        names.concat()
    }

    const READ: &str = "m.read";
    const PRIVATE: &str = "m.read.private";

    #[test]
    fn the_last_receipts_are_those_of_the_last_records_and_of_one_record_the_latest() {
        let room = room(&[
            &[("a", READ), ("b", READ), ("c", READ)],
            &[("f", READ), ("e", READ), ("d", READ)],
            &[("a", READ)],
        ]);
        let last = |since, to, most| {
            let (since, to) = (Offset::new(since), Offset::new(to));
            names(room.last_receipts(since, to, (most, 100), |_| true))
        };
        assert_eq!(last(0, 9, 1), "a");
        assert_eq!(last(0, 9, 3), "ade");
        assert_eq!(last(0, 9, 5), "acdef");
        assert_eq!(last(0, 9, 9), "abcdef");
        assert_eq!(last(2, 9, 9), "adef", "after the first record");
        assert_eq!(last(0, 3, 9), "bcdef", "before the last one");
        assert_eq!(last(3, 3, 9), "");
    }

    #[test]
    fn unwanted_receipts_take_no_place_but_are_looked_at() {
        let room = room(&[&[("a", READ)], &[("b", READ)], &[("c", PRIVATE)], &[("d", PRIVATE)]]);
        let last = |most, looks| {
            let wanted = |key: &ReceiptKey| key.1 == READ;
            names(room.last_receipts(Offset::ZERO, Offset::new(9), (most, looks), wanted))
        };
        assert_eq!(last(1, 100), "b");
        assert_eq!(last(9, 100), "ab");
        assert_eq!(last(9, 3), "b");
        assert_eq!(last(9, 2), "");
    }

    #[test]
    fn the_receipts_of_a_user_are_theirs_of_all_types() {
        let room = room(&[&[("a", READ), ("b", READ)], &[("b", PRIVATE), ("c", READ)]]);
        let of = |user: &str, since, to| {
            let user_id = UserId::parse(format!("@{user}:test")).unwrap();
            let found = room.receipts_of(&user_id, Offset::new(since), Offset::new(to));
            found.iter().map(|(key, _)| key.1.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of("b", 0, 9), [READ, PRIVATE]);
        assert_eq!(of("b", 2, 9), [PRIVATE]);
        assert_eq!(of("b", 0, 2), [READ]);
        assert_eq!(of("a", 0, 9), [READ]);
        assert_eq!(of("bb", 0, 9), [""; 0]);
    }
}
