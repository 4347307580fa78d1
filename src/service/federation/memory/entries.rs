//! Rooms of other homeservers that this one is entering.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use ruma::{OwnedRoomId, RoomId};
use tokio::sync::watch;

/// The rooms that users are entering. For others, this homeserver is in a room as soon as one of
/// them has accepted a join, and what they send from then on comes before it has recorded the room.
#[derive(Default)]
pub(crate) struct Entries(Mutex<HashMap<OwnedRoomId, Weak<watch::Sender<()>>>>);

/// An attempt to enter a room, until it is dropped.
pub(crate) struct Entering(#[expect(dead_code, reason = "it is held")] Arc<watch::Sender<()>>);

impl Entries {
    /// Somebody enters a room.
    pub(crate) fn begin(&self, room_id: &RoomId) -> Entering {
        let mut all = self.0.lock();
        all.retain(|_, entering| entering.strong_count() > 0);
        if let Some(entering) = all.get(room_id).and_then(Weak::upgrade) {
            return Entering(entering);
        }
        let entering = Arc::new(watch::Sender::new(()));
        all.insert(room_id.to_owned(), Arc::downgrade(&entering));
        Entering(entering)
    }

    /// Waits until nobody enters this room.
    pub(crate) async fn ended(&self, room_id: &RoomId) {
        let entering = self.0.lock().get(room_id).and_then(Weak::upgrade);
        let Some(mut end) = entering.as_deref().map(watch::Sender::subscribe) else { return };
        drop(entering);
        // Nothing is ever sent: it ends with the last sender.
        let _ = end.changed().await;
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use ruma::room_id;

    use super::*;

    #[test]
    fn one_waits_until_all_have_entered_a_room_and_for_no_other() {
        let (entries, room, other) = (Entries::default(), room_id!("!a:a"), room_id!("!b:a"));
        assert!(entries.ended(room).now_or_never().is_some());
        let (first, second) = (entries.begin(room), entries.begin(room));
        let mut waiting = Box::pin(entries.ended(room));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(entries.ended(other).now_or_never().is_some());
        drop(first);
        assert!((&mut waiting).now_or_never().is_none());
        drop(second);
        assert!(waiting.now_or_never().is_some());
        assert!(entries.ended(room).now_or_never().is_some());
        drop(entries.begin(other));
        drop(entries.begin(room));
        assert_eq!(entries.0.lock().len(), 1);
    }
}
