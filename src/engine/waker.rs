//! The waker: turns what is published into the wake-ups of exactly those long-polls that it
//! concerns.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, LazyLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time,
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
use logcabin_base::{
    limits,
    metrics::{WriteStage, metrics},
    planted::{self, Fault},
};
use logcabin_record::Offset;
use logcabin_state::{Effect, Membership, Room, State};

/// What was published together: the head, and the effects of the records that it moved over.
#[derive(Clone, Debug)]
pub struct Published {
    /// The head.
    pub offset: Offset,
    /// When it was published.
    pub at: time::Instant,
    pub effects: Arc<[Effect]>,
}

/// The users with open long-polls.
#[derive(Debug, Default)]
pub(super) struct Listeners(DashMap<OwnedUserId, Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    bell: Arc<LongPollBell>,
    listeners: usize,
}

/// What wakes the long-polls of a user.
#[derive(Debug, Default)]
pub(super) struct LongPollBell {
    notify: Notify,
    /// When what it was rung for last was published, in microseconds since [`EPOCH`]; 0 if never.
    published_us: AtomicU64,
}

/// The moment from which publications are timed.
static EPOCH: LazyLock<time::Instant> = LazyLock::new(time::Instant::now);

impl LongPollBell {
    fn ring(&self, published: time::Instant) {
        if planted::has(Fault::WakeUpDropped) {
            return;
        }
        let time = published.saturating_duration_since(*EPOCH).as_micros();
        self.published_us.store(u64::try_from(time).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.notify.notify_waiters();
    }
}

/// A long-poll that waits for what concerns a user.
#[derive(Debug)]
pub struct Listener {
    listeners: Arc<Listeners>,
    user_id: OwnedUserId,
    bell: Arc<LongPollBell>,
}

impl Listener {
    /// Resolves at the next publication that concerns the user. To be created before the state is
    /// read, and awaited after, so that no publication falls in between.
    pub fn woken(&self) -> tokio::sync::futures::Notified<'_> {
        self.bell.notify.notified()
    }

    /// When the last publication that woke the user's long-polls was made. To be called after one
    /// was woken.
    pub fn published(&self) -> time::Instant {
        *EPOCH + time::Duration::from_micros(self.bell.published_us.load(Ordering::Relaxed))
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
            Some(Ok(Published { effects, at, .. })) => {
                listeners.wake(&live.env().state, &effects, at, &mut presence);
                metrics().write_stage.since(WriteStage::Wake, at);
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
        let bell = Arc::clone(&waiting.bell);
        drop(waiting);
        Listener { listeners: Arc::clone(self), user_id: user_id.to_owned(), bell }
    }

    pub(super) fn users(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Wakes the users whom the effects concern. Changes of presence are only collected.
    fn wake(
        &self,
        state: &State,
        effects: &[Effect],
        at: time::Instant,
        presence: &mut BTreeSet<OwnedUserId>,
    ) {
        let effects: BTreeSet<_> = effects.iter().collect();
        for effect in effects {
            if planted::has(Fault::RoomNotWoken) && matches!(effect, Effect::WakeRoom(_)) {
                continue;
            }
            match effect {
                Effect::WakeUser(user_id) => self.wake_user(user_id, at),
                Effect::WakeRoom(room_id) => {
                    if let Some(room) = state.rooms.get(room_id) {
                        self.wake_room(&room, at);
                    }
                }
                Effect::WakePresence(user_id) => {
                    presence.insert(user_id.clone());
                }
                Effect::Delayed
                | Effect::GuestAccess(_)
                | Effect::RedactSender
                | Effect::Unnamed(_) => {}
            }
        }
    }

    /// Wakes, once each, the users who share a room with one of these.
    fn wake_contacts(&self, state: &State, users: BTreeSet<OwnedUserId>) {
        let mut rooms: BTreeSet<OwnedRoomId> = BTreeSet::new();
        let now = time::Instant::now();
        for user_id in &users {
            self.wake_user(user_id, now);
            let parts = state.memberships.of(user_id, Offset::MAX).into_iter();
            let joined = parts.filter(|part| part.membership == Membership::Join);
            rooms.extend(joined.map(|part| part.room_id));
        }
        let mut woken = users;
        for room in rooms.iter().filter_map(|room_id| state.rooms.get(room_id)) {
            room.each_joined_now(|user_id| {
                if self.0.contains_key(user_id) && woken.insert(user_id.clone()) {
                    self.wake_user(user_id, now);
                }
            });
        }
    }

    /// Iterates over the smaller set: the members of the room or the waiting users.
    fn wake_room(&self, room: &Room, at: time::Instant) {
        if self.0.len() >= room.present_now() {
            room.each_member_now(|user_id| self.wake_user(user_id, at));
            return;
        }
        // Collected first: no lock is held here while the room's is taken.
        let waiting: Vec<_> = self
            .0
            .iter()
            .map(|entry| (entry.key().clone(), Arc::clone(&entry.value().bell)))
            .collect();
        room.each_present_of(&waiting, |bell| bell.ring(at));
    }

    fn wake_user(&self, user_id: &UserId, published: time::Instant) {
        if let Some(waiting) = self.0.get(user_id) {
            waiting.bell.ring(published);
        }
    }

    fn wake_everyone(&self) {
        let now = time::Instant::now();
        self.0.iter().for_each(|entry| entry.value().bell.ring(now));
    }
}
