//! The published head of the log, and the long-polls that wait for what concerns them.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use dashmap::DashMap;
use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedUserId, UserId};
use tokio::sync::{Notify, watch};

use crate::{
    record::{Offset, command::FileHash},
    state::{Effect, Membership, Room, State},
};

/// The last offset that is durable and applied, as readers may see it.
#[derive(Debug)]
pub struct Head {
    offset: AtomicU64,
    moved: watch::Sender<Offset>,
    waiting: DashMap<OwnedUserId, Waiting>,
    /// Whose presence changed since those concerned were last woken for it.
    presence: Mutex<BTreeSet<OwnedUserId>>,
    delayed: Notify,
    /// Rooms in which it changed whether guests may be there, until someone has looked.
    guest_access: Mutex<BTreeSet<OwnedRoomId>>,
    guest_access_changed: Notify,
    /// Files that no media id names any more, until someone has looked.
    unnamed: Mutex<BTreeSet<FileHash>>,
    files_unnamed: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    notify: Arc<Notify>,
    listeners: usize,
}

impl Head {
    pub(super) fn new(offset: Offset) -> Self {
        Self {
            offset: AtomicU64::new(offset.get()),
            moved: watch::Sender::new(offset),
            waiting: DashMap::new(),
            presence: Mutex::default(),
            delayed: Notify::new(),
            guest_access: Mutex::default(),
            guest_access_changed: Notify::new(),
            unnamed: Mutex::default(),
            files_unnamed: Notify::new(),
        }
    }

    /// The head now.
    #[must_use]
    pub fn offset(&self) -> Offset {
        Offset::new(self.offset.load(Ordering::Acquire))
    }

    /// The head as it moves: for those who follow everything.
    #[must_use]
    pub fn follow(&self) -> watch::Receiver<Offset> {
        self.moved.subscribe()
    }

    /// Waits until `offset` is published.
    pub(super) async fn reached(&self, offset: Offset) {
        if self.offset() < offset {
            // The sender is part of `self`: it does not go away.
            let _ = self.follow().wait_for(|head| *head >= offset).await;
        }
    }

    /// Begins to listen for what concerns `user_id`. What is published from now on wakes
    /// [`Listener::woken`].
    #[must_use]
    pub fn listen(&self, user_id: &UserId) -> Listener<'_> {
        let mut waiting = self.waiting.entry(user_id.to_owned()).or_default();
        waiting.listeners += 1;
        let notify = Arc::clone(&waiting.notify);
        drop(waiting);
        Listener { head: self, user_id: user_id.to_owned(), notify }
    }

    /// How many users have a long-poll open.
    #[must_use]
    pub fn waiting_users(&self) -> usize {
        self.waiting.len()
    }

    /// Publishes what was applied. Says whether anyone is to be woken.
    pub(super) fn publish(&self, offset: Offset) -> bool {
        self.offset.store(offset.get(), Ordering::Release);
        self.moved.send_replace(offset);
        !self.waiting.is_empty()
    }

    /// Is notified when events that are to be sent later were scheduled, put off or finished.
    #[must_use]
    pub const fn delayed(&self) -> &Notify {
        &self.delayed
    }

    /// The rooms in which it has changed whether guests may be there since this was last asked.
    /// Waits until there is one.
    pub async fn guest_access_changed(&self) -> BTreeSet<OwnedRoomId> {
        loop {
            let rooms = std::mem::take(&mut *self.guest_access.lock());
            if !rooms.is_empty() {
                return rooms;
            }
            // A notification that came before this is kept for it.
            self.guest_access_changed.notified().await;
        }
    }

    /// The files that no media id has named any more since this was last asked. Waits until there
    /// is one.
    pub async fn files_unnamed(&self) -> BTreeSet<FileHash> {
        loop {
            let files = std::mem::take(&mut *self.unnamed.lock());
            if !files.is_empty() {
                return files;
            }
            self.files_unnamed.notified().await;
        }
    }

    pub(super) fn note_unnamed(&self, effects: &[Effect]) {
        let files = effects.iter().filter_map(|effect| match effect {
            Effect::Unnamed(file) => Some(*file),
            _ => None,
        });
        let files: Vec<_> = files.collect();
        if !files.is_empty() {
            self.unnamed.lock().extend(files);
            self.files_unnamed.notify_one();
        }
    }

    pub(super) fn note_guest_access(&self, effects: &[Effect]) {
        let rooms = effects.iter().filter_map(|effect| match effect {
            Effect::GuestAccess(room_id) => Some(room_id.clone()),
            _ => None,
        });
        let rooms: Vec<_> = rooms.collect();
        if !rooms.is_empty() {
            self.guest_access.lock().extend(rooms);
            self.guest_access_changed.notify_one();
        }
    }

    /// Wakes exactly those whom published effects concern. Presence is kept for later: says whether
    /// the caller is to call [`Head::wake_for_presence`] in a while.
    #[must_use]
    pub(super) fn wake_all(&self, state: &State, mut effects: Vec<Effect>) -> bool {
        effects.sort_unstable();
        effects.dedup();
        let mut begins = false;
        for effect in effects {
            match effect {
                Effect::WakeUser(user_id) => self.wake(&user_id),
                Effect::WakeRoom(room_id) => {
                    if let Some(room) = state.rooms.get(&room_id) {
                        self.wake_room(&room);
                    }
                }
                Effect::WakePresence(user_id) => {
                    let mut presence = self.presence.lock();
                    begins |= presence.is_empty();
                    presence.insert(user_id);
                }
                Effect::Delayed | Effect::GuestAccess(_) | Effect::Unnamed(_) => {}
            }
        }
        begins
    }

    /// Wakes, once each, those who are in a room with anyone whose presence changed since the last
    /// time.
    pub(super) fn wake_for_presence(&self, state: &State) {
        let users = std::mem::take(&mut *self.presence.lock());
        let mut rooms: BTreeSet<OwnedRoomId> = BTreeSet::new();
        for user_id in &users {
            self.wake(user_id);
            let parts = state.memberships.of(user_id, Offset::MAX).into_iter();
            let joined = parts.filter(|part| part.membership == Membership::Join);
            rooms.extend(joined.map(|part| part.room_id));
        }
        let mut woken: BTreeSet<OwnedUserId> = users;
        for room in rooms.iter().filter_map(|room_id| state.rooms.get(room_id)) {
            room.each_joined_now(|user_id| {
                if self.waiting.contains_key(user_id) && woken.insert(user_id.clone()) {
                    self.wake(user_id);
                }
            });
        }
    }

    /// Costs the fewer of those in the room and those who wait.
    fn wake_room(&self, room: &Room) {
        if self.waiting.len() >= room.present_now() {
            room.each_member_now(|user_id| self.wake(user_id));
            return;
        }
        // Taken out first: no lock is held here while the room's is asked for.
        let waiting: Vec<_> = self
            .waiting
            .iter()
            .map(|entry| (entry.key().clone(), Arc::clone(&entry.value().notify)))
            .collect();
        room.each_present_of(&waiting, |notify| notify.notify_waiters());
    }

    fn wake(&self, user_id: &UserId) {
        if let Some(waiting) = self.waiting.get(user_id) {
            waiting.notify.notify_waiters();
        }
    }
}

/// One who listens for what concerns a user.
#[derive(Debug)]
pub struct Listener<'a> {
    head: &'a Head,
    user_id: OwnedUserId,
    notify: Arc<Notify>,
}

impl Listener<'_> {
    /// Resolves at the next publication that concerns the user. To be created before the state is
    /// looked at, and awaited after, so that nothing falls in between.
    pub fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.notify.notified()
    }
}

impl Drop for Listener<'_> {
    fn drop(&mut self) {
        self.head.waiting.remove_if_mut(&self.user_id, |_, waiting| {
            waiting.listeners -= 1;
            waiting.listeners == 0
        });
    }
}
