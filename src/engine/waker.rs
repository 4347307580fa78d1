//! The waker: turns what is published into the wake-ups of exactly those long-polls that it
//! concerns.

use std::{
    collections::BTreeSet,
    sync::{Arc, Weak},
};

use dashmap::DashMap;
use ruma::{OwnedRoomId, OwnedUserId, UserId};
use tokio::{
    sync::{
        Notify,
        broadcast::{self, error::RecvError},
    },
    time::{Instant, sleep_until},
};

use super::projections::Live;
use crate::{
    base::limits,
    record::Offset,
    state::{Effect, Membership, Room, State},
};

/// What was published together: the head, and the effects of the records that it moved over.
#[derive(Clone, Debug)]
pub struct Published {
    /// The head.
    pub offset: Offset,
    /// The effects.
    pub effects: Arc<[Effect]>,
}

/// The users with open long-polls.
#[derive(Debug, Default)]
pub(super) struct Listeners(DashMap<OwnedUserId, Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    notify: Arc<Notify>,
    listeners: usize,
}

/// A long-poll that waits for what concerns a user.
#[derive(Debug)]
pub struct Listener {
    listeners: Arc<Listeners>,
    user_id: OwnedUserId,
    notify: Arc<Notify>,
}

impl Listener {
    /// Resolves at the next publication that concerns the user. To be created before the state is
    /// read, and awaited after, so that no publication falls in between.
    pub fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.notify.notified()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.listeners.0.remove_if_mut(&self.user_id, |_, waiting| {
            waiting.listeners -= 1;
            waiting.listeners == 0
        });
    }
}

/// Wakes until the engine is gone. Runs apart from the log's follower, so that waking thousands of
/// long-polls does not delay the writer.
pub(super) async fn run(
    mut published: broadcast::Receiver<Published>,
    listeners: Arc<Listeners>,
    live: Weak<Live>,
) {
    // The users whose presence changed since their contacts were last woken for it.
    let mut presence = BTreeSet::new();
    let mut wave = None;
    loop {
        let received = tokio::select! {
            received = published.recv() => Some(received),
            () = sleep_until(wave.unwrap_or_else(Instant::now)), if wave.is_some() => None,
        };
        // Only while waking: once the engine is dropped, the log may be opened again at once.
        let Some(live) = live.upgrade() else { return };
        match received {
            Some(Ok(Published { effects, .. })) => {
                listeners.wake(&live.env().state, &effects, &mut presence);
            }
            // It is not known whom the lost effects concern.
            Some(Err(RecvError::Lagged(_))) => listeners.wake_everyone(),
            Some(Err(RecvError::Closed)) => return,
            None => {
                wave = None;
                listeners.wake_contacts(&live.env().state, std::mem::take(&mut presence));
            }
        }
        if !presence.is_empty() {
            wave.get_or_insert_with(|| Instant::now() + limits::PRESENCE_WAVE);
        }
    }
}

impl Listeners {
    pub(super) fn listen(self: &Arc<Self>, user_id: &UserId) -> Listener {
        let mut waiting = self.0.entry(user_id.to_owned()).or_default();
        waiting.listeners += 1;
        let notify = Arc::clone(&waiting.notify);
        drop(waiting);
        Listener { listeners: Arc::clone(self), user_id: user_id.to_owned(), notify }
    }

    pub(super) fn users(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes those whom the effects concern. Changes of presence are only collected.
    fn wake(&self, state: &State, effects: &[Effect], presence: &mut BTreeSet<OwnedUserId>) {
        let effects: BTreeSet<_> = effects.iter().collect();
        for effect in effects {
            match effect {
                Effect::WakeUser(user_id) => self.wake_user(user_id),
                Effect::WakeRoom(room_id) => {
                    if let Some(room) = state.rooms.get(room_id) {
                        self.wake_room(&room);
                    }
                }
                Effect::WakePresence(user_id) => {
                    presence.insert(user_id.clone());
                }
                Effect::Delayed | Effect::GuestAccess(_) | Effect::Unnamed(_) => {}
            }
        }
    }

    /// Wakes, once each, those who share a room with one of the users.
    fn wake_contacts(&self, state: &State, users: BTreeSet<OwnedUserId>) {
        let mut rooms: BTreeSet<OwnedRoomId> = BTreeSet::new();
        for user_id in &users {
            self.wake_user(user_id);
            let parts = state.memberships.of(user_id, Offset::MAX).into_iter();
            let joined = parts.filter(|part| part.membership == Membership::Join);
            rooms.extend(joined.map(|part| part.room_id));
        }
        let mut woken = users;
        for room in rooms.iter().filter_map(|room_id| state.rooms.get(room_id)) {
            room.each_joined_now(|user_id| {
                if self.0.contains_key(user_id) && woken.insert(user_id.clone()) {
                    self.wake_user(user_id);
                }
            });
        }
    }

    /// Iterates over the smaller set: the members of the room or the waiting users.
    fn wake_room(&self, room: &Room) {
        if self.0.len() >= room.present_now() {
            room.each_member_now(|user_id| self.wake_user(user_id));
            return;
        }
        // Collected first: no lock is held here while the room's is taken.
        let waiting: Vec<_> = self
            .0
            .iter()
            .map(|entry| (entry.key().clone(), Arc::clone(&entry.value().notify)))
            .collect();
        room.each_present_of(&waiting, |notify| notify.notify_waiters());
    }

    fn wake_user(&self, user_id: &UserId) {
        if let Some(waiting) = self.0.get(user_id) {
            waiting.notify.notify_waiters();
        }
    }

    fn wake_everyone(&self) {
        self.0.iter().for_each(|entry| entry.value().notify.notify_waiters());
    }
}
