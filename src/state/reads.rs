//! How far each user has read each room (client-server API, "Receipts"), with history.
//!
//! `m.read` and `m.read.private` count alike: the later one applies.

use std::{collections::BTreeMap, sync::Arc};

use dashmap::DashMap;
use parking_lot::RwLock;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::{Deserialize, Serialize};

use super::{history::History, serializers};
use logcabin_record::Offset;

/// What a receipt covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Covers {
    /// Every event (an unthreaded receipt).
    All,
    /// The events of one conversation.
    Only(Thread),
}

/// A conversation within a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Thread {
    /// Events outside of threads.
    Main,
    /// The thread whose root is the event at this offset.
    Root(Offset),
}

/// A user's read positions in a room: the offsets of the last events read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ReadMarkers {
    all: History<Offset>,
    main: History<Offset>,
    threads: BTreeMap<Offset, History<Offset>>,
    moved: History<()>,
}

impl ReadMarkers {
    fn history(&self, covers: Covers) -> Option<&History<Offset>> {
        match covers {
            Covers::All => Some(&self.all),
            Covers::Only(Thread::Main) => Some(&self.main),
            Covers::Only(Thread::Root(root)) => self.threads.get(&root),
        }
    }

    /// The position of receipts that cover exactly this as of `at`.
    pub fn at(&self, covers: Covers, at: Offset) -> Offset {
        let mark = self.history(covers).and_then(|history| history.at(at));
        mark.map_or(Offset::ZERO, |(_, up_to)| *up_to)
    }

    /// The last event of `thread` that was read as of `at`.
    pub fn read_up_to(&self, thread: Thread, at: Offset) -> Offset {
        self.at(Covers::All, at).max(self.at(Covers::Only(thread), at))
    }

    /// The last change of any position after `since`, up to and including `to`.
    pub fn moved(&self, since: Offset, to: Offset) -> Option<Offset> {
        self.moved.between(since, to).next_back().map(|(offset, ())| offset)
    }

    /// The changes of any position up to and including `to`.
    pub fn moves(&self, to: Offset) -> Vec<Offset> {
        self.moved.between(Offset::ZERO, to).map(|(offset, ())| offset).collect()
    }

    /// The present positions: all that remains when superseded records are erased.
    fn newest(&self) -> Vec<(Option<Offset>, Option<&Offset>)> {
        let threads = self.threads.iter().map(|(root, history)| (Some(*root), history.latest()));
        let room = [(None, self.all.latest()), (Some(Offset::ZERO), self.main.latest())];
        room.into_iter().chain(threads).collect()
    }

    fn advance(&mut self, offset: Offset, covers: Covers, up_to: Offset) {
        let history = match covers {
            Covers::All => &mut self.all,
            Covers::Only(Thread::Main) => &mut self.main,
            Covers::Only(Thread::Root(root)) => self.threads.entry(root).or_default(),
        };
        if history.latest().is_none_or(|before| *before < up_to) {
            history.push(offset, up_to);
            self.moved.push(offset, ());
        }
    }
}

type ByRoom = BTreeMap<OwnedRoomId, ReadMarkers>;

/// How far all users have read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reads(#[serde(with = "serializers::by_key")] DashMap<OwnedUserId, Arc<RwLock<ByRoom>>>);

impl Reads {
    /// Calls `look` with the positions of `user_id` in `room_id`.
    pub fn look<T>(
        &self,
        user_id: &UserId,
        room_id: &RoomId,
        look: impl FnOnce(&ReadMarkers) -> T,
    ) -> T {
        let rooms = self.0.get(user_id).map(|rooms| Arc::clone(&rooms));
        match rooms {
            Some(rooms) => match rooms.read().get(room_id) {
                Some(marks) => look(marks),
                None => look(&ReadMarkers::default()),
            },
            None => look(&ReadMarkers::default()),
        }
    }

    /// Removes the positions in a purged room.
    pub(super) fn forget_room(&self, room_id: &RoomId) {
        for user in &self.0 {
            user.value().write().remove(room_id);
        }
        self.0.retain(|_, rooms| !rooms.read().is_empty());
    }

    pub(super) fn advance(
        &self,
        offset: Offset,
        user_id: OwnedUserId,
        room_id: OwnedRoomId,
        covers: Covers,
        up_to: Offset,
    ) {
        let rooms = Arc::clone(&self.0.entry(user_id).or_default());
        rooms.write().entry(room_id).or_default().advance(offset, covers, up_to);
    }

    pub(super) fn digest(&self, digest: &mut super::digest::Digest) {
        let mut users: Vec<_> =
            self.0.iter().map(|entry| (entry.key().clone(), Arc::clone(entry.value()))).collect();
        users.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        for (user_id, rooms) in users {
            digest.add(&user_id);
            for (room_id, marks) in &*rooms.read() {
                digest.add(&(room_id, marks.newest()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_before_another_changes_nothing() {
        let mut marks = ReadMarkers::default();
        let offset = Offset::new;
        let thread = Thread::Root(offset(2));
        marks.advance(offset(10), Covers::Only(Thread::Main), offset(5));
        marks.advance(offset(11), Covers::Only(Thread::Main), offset(3));
        marks.advance(offset(12), Covers::Only(thread), offset(7));
        marks.advance(offset(13), Covers::All, offset(6));
        let up_to = |thread, at| marks.read_up_to(thread, offset(at)).get();
        assert_eq!([9, 10, 12, 13].map(|at| up_to(Thread::Main, at)), [0, 5, 5, 6]);
        assert_eq!([11, 12, 13].map(|at| up_to(thread, at)), [0, 7, 7]);
        assert_eq!(up_to(Thread::Root(offset(4)), 13), 6);
        let moved = |since, to| marks.moved(offset(since), offset(to)).map(Offset::get);
        assert_eq!([moved(0, 11), moved(10, 11), moved(10, 13)], [Some(10), None, Some(13)]);
        assert_eq!(marks.moves(offset(12)), [10, 12].map(offset));
    }
}
