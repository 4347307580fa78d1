//! Typing, of users of this server and of others: timers that end it, and waves in which it is
//! recorded in large rooms.
//!
//! In a large room, users begin and stop typing all the time. Each record would wake every waiting
//! client, which would ask again and find the next record. So the server records the first change
//! at once, and the following ones together at the end of the [wave](limits::TYPING_WAVE). If a
//! user begins and stops within a wave, nothing is recorded. Both kinds of sync, application
//! services and other homeservers read the records, and so are told as rarely.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedUserId, RoomId, UserId};

use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_decide::ephemeral::SetTyping;
use logcabin_engine::{Durable, Engine, ProposeError};
use logcabin_record::{Offset, Origin};

/// The longest time until a typing notification must be repeated.
pub const LONGEST: Duration = Duration::from_secs(120);

/// Who begins and stops typing.
#[derive(Debug)]
pub struct Typing {
    engine: Arc<Engine>,
    /// The large rooms with a wave under way, each with what is recorded at its end.
    waves: Mutex<HashMap<OwnedRoomId, Wave>>,
}

/// By user, what they set last; behind that, by the time for which they are, the timers that end
/// it. They are decided in this order.
type Wave = BTreeMap<(OwnedUserId, Option<u64>), (Origin, SetTyping)>;

impl Typing {
    pub fn new(engine: &Arc<Engine>) -> Self {
        Self { engine: Arc::clone(engine), waves: Mutex::default() }
    }

    /// Restarts the timers that end typing after a restart of the server, for waiting syncs.
    pub fn resume(self: &Arc<Self>) {
        for room in self.engine.state().rooms.all() {
            for (user_id, until_ms) in room.typing() {
                let lasts = until_ms.saturating_sub(self.engine.clock().now_ms());
                let typing =
                    SetTyping { room_id: room.id.clone(), user_id, until_ms, only_if_until: None };
                self.end_after(Duration::from_millis(lasts).min(LONGEST), typing);
            }
        }
    }

    /// Sets a user's typing. In a large room this may be recorded later.
    ///
    /// # Errors
    /// When the user is not in the room, or nothing can be recorded.
    pub async fn set(
        self: &Arc<Self>,
        origin: Origin,
        typing: SetTyping,
    ) -> Result<(), ProposeError> {
        if self.waits(&origin, &typing) {
            return Ok(());
        }
        self.engine.propose(origin, typing).await.map(Durable::into_inner)
    }

    /// When the user's typing ends that is set last, recorded or not.
    pub fn until_ms(&self, room_id: &RoomId, user_id: &UserId) -> Option<u64> {
        let waiting = {
            let waves = self.waves.lock();
            let set = waves.get(room_id).and_then(|wave| wave.get(&(user_id.to_owned(), None)));
            set.map(|(_, typing)| typing.until_ms)
        };
        match waiting {
            Some(until_ms) => Some(until_ms).filter(|until_ms| *until_ms > 0),
            None => {
                let room = self.engine.state().rooms.get(room_id)?;
                room.typist(user_id).map(|typist| typist.until_ms)
            }
        }
    }

    /// Ends a user's typing after a while, unless it was repeated or ended by then.
    pub fn end_after(self: &Arc<Self>, lasts: Duration, typing: SetTyping) {
        if planted::has(Fault::TypingNeverEnds) {
            return;
        }
        let this = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(lasts).await;
            let until = Some(typing.until_ms);
            let stop = SetTyping { until_ms: 0, only_if_until: until, ..typing };
            // A user who has left meanwhile has stopped typing already.
            if let Err(error) = this.set(Origin::server(), stop).await {
                tracing::debug!(%error, "typing was not ended");
            }
        });
    }

    /// Keeps a change for the end of the wave in a large room. The first begins a wave, and does
    /// not wait itself.
    fn waits(self: &Arc<Self>, origin: &Origin, typing: &SetTyping) -> bool {
        let SetTyping { room_id, user_id, only_if_until, .. } = typing;
        let state = self.engine.state();
        let Some(room) = state.rooms.get(room_id) else { return false };
        // This is refused.
        if !room.is_joined(user_id, Offset::MAX) {
            return false;
        }
        let mut waves = self.waves.lock();
        let Some(wave) = waves.get_mut(room_id) else {
            if self.is_large(room_id) {
                waves.insert(room_id.clone(), Wave::new());
                tokio::spawn(Arc::clone(self).run_waves(room_id.clone()));
            }
            return false;
        };
        wave.insert((user_id.clone(), *only_if_until), (origin.clone(), typing.clone()));
        true
    }

    /// Records what waits at the end of each wave, until one ends in which nothing did.
    async fn run_waves(self: Arc<Self>, room_id: OwnedRoomId) {
        loop {
            tokio::time::sleep(self.wave_of(&room_id)).await;
            let wave = {
                let mut waves = self.waves.lock();
                let wave = waves.get_mut(&room_id).map(std::mem::take).unwrap_or_default();
                if wave.is_empty() {
                    waves.remove(&room_id);
                    return;
                }
                wave
            };
            let set =
                wave.into_values().map(|(origin, typing)| self.engine.propose(origin, typing));
            for proposed in join_all(set).await {
                match proposed {
                    Ok(set) => set.into_inner(),
                    Err(error) => tracing::debug!(%error, "typing was not recorded"),
                }
            }
        }
    }

    fn joined(&self, room_id: &RoomId) -> u64 {
        let room = self.engine.state().rooms.get(room_id);
        room.map_or(0, |room| room.counts(Offset::MAX).joined)
    }

    fn is_large(&self, room_id: &RoomId) -> bool {
        self.joined(room_id) >= self.engine.env().gather.members
    }

    fn wave_of(&self, room_id: &RoomId) -> Duration {
        let (shortest, longest) = limits::TYPING_WAVE;
        Duration::from_millis(self.joined(room_id)).clamp(shortest, longest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use ruma::{CanonicalJsonObject, MilliSecondsSinceUnixEpoch, RoomVersionId, UInt};
    use tokio::time::timeout;

    use super::*;
    use logcabin_base::clock::Clock;
    use logcabin_decide::{
        account::Register,
        create_room::{CreateRoom, Preset},
        ephemeral::Gather,
        membership::{Change, ChangeMembership},
    };
    use logcabin_engine::Options;
    use logcabin_log::memory::MemoryLog;

    fn user(name: &str) -> OwnedUserId {
        format!("@{name}:test").try_into().unwrap()
    }

    /// A room of ann and bob, on a server where a room of `large` is large.
    async fn world(large: u64) -> (Arc<Typing>, OwnedRoomId) {
        let clock = Clock::manual(1_700_000_000_000);
        let gather = Gather { window: Duration::ZERO, members: large };
        let options = Options { gather, ..Options::small(clock.clone()) };
        let engine =
            Arc::new(Engine::open(Arc::new(MemoryLog::new(clock)), options).await.unwrap());
        let ts = MilliSecondsSinceUnixEpoch(UInt::from(1_u32));
        for name in ["ann", "bob", "eve"] {
            let register = Register::user(user(name));
            engine.propose(Origin::server(), register).await.unwrap().into_inner();
        }
        let room_id: OwnedRoomId = "!room:test".try_into().unwrap();
        let version = RoomVersionId::V10;
        let create = CreateRoom {
            power_levels: CanonicalJsonObject::new(),
            ..CreateRoom::new(room_id, user("ann"), version, Preset::PublicChat, ts)
        };
        let room_id = engine.propose(Origin::server(), create).await.unwrap().into_inner();
        let join =
            ChangeMembership::new(room_id.clone(), user("bob"), user("bob"), Change::Join, ts);
        drop(engine.propose(Origin::server(), join).await.unwrap().into_inner());
        (Arc::new(Typing::new(&engine)), room_id)
    }

    /// What a user sets, until a number of milliseconds after the server's time.
    fn set(room_id: &RoomId, name: &str, lasts: u64) -> SetTyping {
        let until_ms = if lasts == 0 { 0 } else { 1_700_000_000_000 + lasts };
        let room_id = room_id.to_owned();
        SetTyping { room_id, user_id: user(name), until_ms, only_if_until: None }
    }

    fn typists(typing: &Typing, room_id: &RoomId) -> Vec<String> {
        let room = typing.engine.state().rooms.get(room_id).unwrap();
        room.typing().iter().map(|(user, _)| user.localpart().to_owned()).collect()
    }

    #[tokio::test]
    async fn in_a_small_room_each_change_is_recorded_at_once() {
        let (typing, room_id) = world(3).await;
        for _ in 0..10 {
            for (lasts, expected) in [(9000, &["ann"][..]), (0, &[])] {
                typing.set(Origin::server(), set(&room_id, "ann", lasts)).await.unwrap();
                assert_eq!(typists(&typing, &room_id), expected);
            }
        }
    }

    #[tokio::test]
    async fn in_a_large_room_the_first_change_is_recorded_at_once_and_the_next_ones_together() {
        let (typing, room_id) = world(2).await;
        let began = Instant::now();
        typing.set(Origin::server(), set(&room_id, "ann", 9000)).await.unwrap();
        assert_eq!(typists(&typing, &room_id), ["ann"], "the first");
        let at = typing.engine.head().offset();
        for lasts in 1..=50 {
            typing.set(Origin::server(), set(&room_id, "ann", 0)).await.unwrap();
            assert_eq!(typing.until_ms(&room_id, &user("ann")), None, "what was set last");
            typing.set(Origin::server(), set(&room_id, "bob", 9000 + lasts)).await.unwrap();
            typing.set(Origin::server(), set(&room_id, "ann", 9000)).await.unwrap();
            assert_eq!(typing.until_ms(&room_id, &user("ann")), Some(1_700_000_009_000));
        }
        typing.set(Origin::server(), set(&room_id, "eve", 9000)).await.unwrap_err();
        assert_eq!(typing.engine.head().offset(), at, "nothing was recorded");
        let mut head = typing.engine.head().follow();
        let moved = head.wait_for(|head| *head > at);
        timeout(Duration::from_secs(20), moved).await.unwrap().unwrap();
        assert!(began.elapsed() >= limits::TYPING_WAVE.0);
        assert_eq!(typists(&typing, &room_id), ["ann", "bob"]);
        assert_eq!(typing.engine.head().offset(), at.next(), "that ann goes on is none");
    }

    #[tokio::test]
    async fn a_timer_ends_what_it_is_for_recorded_or_not() {
        let (typing, room_id) = world(2).await;
        let timer = |name: &str, lasts| {
            let of = set(&room_id, name, lasts);
            SetTyping { until_ms: 0, only_if_until: Some(of.until_ms), ..of }
        };
        typing.set(Origin::server(), set(&room_id, "ann", 9000)).await.unwrap();
        let at = typing.engine.head().offset();
        for change in [
            // Ann's first typing ends, and not what she began meanwhile; bob's second does.
            set(&room_id, "ann", 9500),
            timer("ann", 9000),
            set(&room_id, "bob", 5000),
            set(&room_id, "bob", 1000),
            timer("bob", 1000),
            timer("bob", 5000),
        ] {
            typing.set(Origin::server(), change).await.unwrap();
        }
        let mut head = typing.engine.head().follow();
        let moved = head.wait_for(|head| *head > at);
        timeout(Duration::from_secs(20), moved).await.unwrap().unwrap();
        assert_eq!(typists(&typing, &room_id), ["ann"]);
        assert_eq!(typing.until_ms(&room_id, &user("ann")), Some(1_700_000_009_500));
        assert_eq!(typing.engine.head().offset(), at.next(), "bob's is not in the log");
    }
}
