//! What is remembered, in memory, of filling gaps in rooms' histories: whose turn it is, and which
//! homeservers could not help.

use std::{
    collections::{BTreeMap, HashMap},
    num::NonZeroU32,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use ruma::{OwnedRoomId, OwnedServerName, RoomId, ServerName};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::{
    base::{limits, rate::Limiter},
    record::Offset,
};

/// What is remembered, by the room and the gap.
type Turns = HashMap<(OwnedRoomId, Offset), Arc<Turn<Memory>>>;

/// Gaps that are being filled.
pub(crate) struct GapFilling {
    gaps: Mutex<Turns>,
    places: Arc<Semaphore>,
    origins: Limiter<OwnedServerName>,
}

/// The turn to fill a gap, and what is remembered of it.
pub(crate) struct GapTurn {
    pub(crate) memory: OwnedMutexGuard<Memory>,
    _place: OwnedSemaphorePermit,
}

/// What homeservers did for a gap.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    servers: BTreeMap<OwnedServerName, Failure>,
    /// Since when none could help.
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
            places: Arc::new(Semaphore::new(limits::GAPS_AT_ONCE)),
            origins: Limiter::new(limits::GAP_KIB),
        }
    }
}

impl GapFilling {
    /// Waits for the turn to fill a gap.
    pub(crate) async fn turn(&self, room_id: &RoomId, gap: Offset) -> Option<GapTurn> {
        let turn = {
            let mut gaps = self.gaps.lock();
            if gaps.len() >= limits::GAPS_REMEMBERED {
                // Those that somebody waits for are held elsewhere, too.
                gaps.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            Arc::clone(gaps.entry((room_id.to_owned(), gap)).or_default())
        };
        let memory = turn.lock_owned().await;
        let place = Arc::clone(&self.places).acquire_owned().await.ok()?;
        Some(GapTurn { memory, _place: place })
    }

    /// Counts what came from a homeserver; false if that is too much for now.
    pub(crate) fn admits(&self, server: &ServerName, bytes: u64) -> bool {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
        let kib = NonZeroU32::new(kib).unwrap_or(NonZeroU32::MIN);
        self.origins.take_many(&server.to_owned(), kib).is_ok()
    }
}

impl Memory {
    /// Whether a homeserver is to be asked now.
    pub(crate) fn may_ask(&self, server: &ServerName) -> bool {
        let failure = self.servers.get(server);
        failure.is_none_or(|failure| !failure.has_nothing && failure.again <= Instant::now())
    }

    /// A homeserver helped.
    pub(crate) fn helped(&mut self) {
        *self = Self::default();
    }

    /// A homeserver answered, and had nothing for the gap.
    pub(crate) fn had_nothing(&mut self, server: &ServerName) {
        self.fail(server).has_nothing = true;
    }

    /// A homeserver could not be asked.
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

    /// Whether none of these homeservers will help: each has nothing, or none could be asked for
    /// long.
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
    use super::*;

    #[test]
    fn a_gap_is_hopeless_once_everybody_has_nothing_or_nobody_can_be_asked_for_long() {
        let server = |name: &str| -> OwnedServerName { name.try_into().unwrap() };
        let (a, b) = (server("a"), server("b"));
        let long = Duration::from_secs(3600);
        let mut memory = Memory::default();
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
