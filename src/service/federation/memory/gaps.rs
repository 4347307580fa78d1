//! The in-memory state of backfilling gaps in rooms' histories: whose turn it is, and which
//! homeservers had nothing.
//!
//! All gaps share a number of slots. Each user has a few of them, and so has each homeserver, so
//! that neither keeps others from reading their rooms.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedServerName, OwnedUserId, RoomId, ServerName, UserId};
use tokio::{
    sync::{Mutex as Turn, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore},
    time::timeout_at,
};

use logcabin_base::{
    keyed_semaphore::{KeyedPermit, KeyedSemaphore},
    limits,
    rate::Limiter,
};
use logcabin_record::Offset;

/// The state of each gap, by room and gap.
type Turns = HashMap<(OwnedRoomId, Offset), Arc<Turn<GapMemory>>>;

/// The gaps that are being filled.
pub(crate) struct GapFilling {
    gaps: Mutex<Turns>,
    by_user: Arc<KeyedSemaphore<OwnedUserId>>,
    by_origin: Arc<KeyedSemaphore<OwnedServerName>>,
    places: Arc<Semaphore>,
    origins: Limiter<OwnedServerName>,
}

/// The turn to fill a gap, and the state of that gap.
pub(crate) struct GapTurn {
    pub(crate) memory: OwnedMutexGuard<GapMemory>,
    _of_user: KeyedPermit<OwnedUserId>,
}

/// The slot of a request to a homeserver.
pub(crate) struct AskingPlace {
    _of_origin: KeyedPermit<OwnedServerName>,
    _of_all: OwnedSemaphorePermit,
}

/// The results of asking homeservers about a gap.
#[derive(Debug, Default)]
pub(crate) struct GapMemory {
    servers: BTreeMap<OwnedServerName, Failure>,
    /// Since when none had anything.
    since: Option<Instant>,
}

#[derive(Debug)]
struct Failure {
    /// It answered, and had nothing.
    has_nothing: bool,
    tries: u32,
    again: Instant,
}

impl Default for GapFilling {
    fn default() -> Self {
        Self {
            gaps: Mutex::default(),
            by_user: Arc::new(KeyedSemaphore::new(limits::GAPS_OF_USER)),
            by_origin: Arc::new(KeyedSemaphore::new(limits::GAPS_OF_ORIGIN)),
            places: Arc::new(Semaphore::new(limits::GAPS_AT_ONCE)),
            origins: Limiter::new(limits::GAP_KIB),
        }
    }
}

impl GapFilling {
    /// Waits for a user's turn to fill a gap.
    pub(crate) async fn turn(&self, user_id: &UserId, room_id: &RoomId, gap: Offset) -> GapTurn {
        let of_user = self.by_user.take(user_id.to_owned()).await;
        let turn = {
            let mut gaps = self.gaps.lock();
            if gaps.len() >= limits::GAPS_REMEMBERED {
                // A turn that somebody waits for has other references.
                gaps.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            Arc::clone(gaps.entry((room_id.to_owned(), gap)).or_default())
        };
        GapTurn { memory: turn.lock_owned().await, _of_user: of_user }
    }

    /// Waits for a slot to ask a homeserver. `None` if there is none in time.
    ///
    /// A request takes the homeserver's slot before it waits for a global one, so an unresponsive
    /// homeserver does not block others.
    pub(crate) async fn place(&self, server: &ServerName, until: Instant) -> Option<AskingPlace> {
        let taken = async {
            let of_origin = self.by_origin.take(server.to_owned()).await;
            let of_all = Arc::clone(&self.places).acquire_owned().await.ok()?;
            Some(AskingPlace { _of_origin: of_origin, _of_all: of_all })
        };
        timeout_at(until.into(), taken).await.ok().flatten()
    }

    /// Counts bytes from a homeserver; false if it is over its rate.
    pub(crate) fn admits(&self, server: &ServerName, bytes: u64) -> bool {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let kib = NonZeroU32::new(kib).unwrap_or(NonZeroU32::MIN);
        self.origins.take_many(&server.to_owned(), kib).is_ok()
    }
}

impl GapMemory {
    /// Whether a homeserver is to be asked now.
    pub(crate) fn may_ask(&self, server: &ServerName) -> bool {
        let failure = self.servers.get(server);
        failure.is_none_or(|failure| !failure.has_nothing && failure.again <= Instant::now())
    }

    /// Notes that a homeserver had something.
    pub(crate) fn helped(&mut self) {
        *self = Self::default();
    }

    /// Notes that a homeserver answered, and had nothing for the gap.
    pub(crate) fn had_nothing(&mut self, server: &ServerName) {
        self.fail(server).has_nothing = true;
    }

    /// Notes that a homeserver was unreachable.
    pub(crate) fn could_not_be_asked(&mut self, server: &ServerName) {
        let failure = self.fail(server);
        let (first, most) = limits::GAP_RETRY;
        let pause = first.saturating_mul(1 << failure.tries.min(10)).min(most);
        failure.tries += 1;
        failure.again = Instant::now() + pause;
    }

    fn fail(&mut self, server: &ServerName) -> &mut Failure {
        let now = Instant::now();
        self.since.get_or_insert(now);
        let new = || Failure { has_nothing: false, tries: 0, again: now };
        self.servers.entry(server.to_owned()).or_insert_with(new)
    }

    /// Whether none of these homeservers will help: each has nothing, or none has been reachable
    /// for a long time.
    pub(crate) fn is_hopeless<'s>(
        &self,
        servers: impl IntoIterator<Item = &'s OwnedServerName>,
        patience: Duration,
    ) -> bool {
        let mut all = servers.into_iter();
        self.since.is_some_and(|since| since.elapsed() >= patience)
            || all.all(|server| self.servers.get(server).is_some_and(|of| of.has_nothing))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use ruma::{room_id, server_name, user_id};

    use super::*;

    #[tokio::test]
    async fn neither_a_user_nor_a_homeserver_takes_more_than_a_share_of_the_places() {
        const { assert!(2 * limits::GAPS_OF_USER <= limits::GAPS_AT_ONCE / 3) };
        const { assert!(2 * limits::GAPS_OF_ORIGIN <= limits::GAPS_AT_ONCE / 3) };
        let filling = GapFilling::default();
        let (ann, bob) = (user_id!("@ann:a"), user_id!("@bob:a"));
        let turn = async |user_id, gap| {
            filling.turn(user_id, room_id!("!r:b"), Offset::new(gap)).now_or_never()
        };
        let mut turns = Vec::new();
        for gap in 1..=limits::GAPS_OF_USER as u64 {
            turns.push(turn(ann, gap).await.expect("a turn of ann"));
        }
        assert!(turn(ann, 100).await.is_none(), "ann has had her share");
        assert!(turn(bob, 1).await.is_none(), "the gap is being filled");
        assert!(turn(bob, 100).await.is_some());
        turns.pop();
        assert!(turn(ann, 100).await.is_some());

        let now = Instant::now();
        let (slow, quick) = (server_name!("slow"), server_name!("quick"));
        let mut places = Vec::new();
        for _ in 0..limits::GAPS_OF_ORIGIN {
            places.push(filling.place(slow, now).await.expect("a place"));
        }
        assert!(filling.place(slow, now).await.is_none(), "it has its share");
        assert!(filling.place(quick, now).await.is_some());
        places.pop();
        assert!(filling.place(slow, now).await.is_some());
    }

    #[test]
    fn a_gap_is_hopeless_once_everybody_has_nothing_or_nobody_can_be_asked_for_long() {
        let server = |name: &str| -> OwnedServerName { name.try_into().unwrap() };
        let (a, b) = (server("a"), server("b"));
        let long = Duration::from_secs(3600);
        let mut memory = GapMemory::default();
        assert!(memory.may_ask(&a) && !memory.is_hopeless([&a, &b], long));
        memory.had_nothing(&a);
        assert!(!memory.may_ask(&a) && memory.may_ask(&b) && !memory.is_hopeless([&a, &b], long));
        memory.could_not_be_asked(&b);
        assert!(!memory.may_ask(&b) && !memory.is_hopeless([&a, &b], long));
        assert!(memory.is_hopeless([&a, &b], Duration::ZERO));
        memory.had_nothing(&b);
        assert!(memory.is_hopeless([&a, &b], long));
        memory.helped();
        assert!(memory.may_ask(&a) && memory.may_ask(&b));
    }
}
