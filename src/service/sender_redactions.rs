//! Redacts what kicks and bans say (MSC4293): what their users sent since they joined, the latest
//! first. If the server stops meanwhile, it walks through the room again, and passes over what was
//! redacted.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId};

use super::{
    orders::{OrderError, recorded},
    sent::{Step, steps},
};
use logcabin_base::{limits, shutdown::Shutdown};
use logcabin_decide::redaction::RedactSender;
use logcabin_engine::Engine;
use logcabin_record::{Offset, Origin};
use logcabin_state::{Effect, Room, SenderRedaction};

/// When a room is tried again in which something failed.
const PAUSE: Duration = Duration::from_secs(60);

/// Does what kicks and bans say, until the server shuts down. A room with much to redact does not
/// hold up others.
pub async fn keep(engine: Arc<Engine>, shutdown: Shutdown) {
    let mut work = engine.head().work();
    let is_removal = |effect: &Effect| matches!(effect, Effect::RedactSender).then_some(());
    let (mut running, mut busy) = (FuturesUnordered::new(), BTreeSet::new());
    loop {
        // The server may have ended before all was done.
        let state = engine.state();
        let rooms = state.sender_redactions.rooms().into_iter();
        for room_id in rooms.filter(|room_id| state.rooms.get(room_id).is_some()) {
            if running.len() < limits::REDACTING_ROOMS && busy.insert(room_id.clone()) {
                running.push(in_room(&engine, room_id));
            }
        }
        drop(state);
        tokio::select! {
            Some(room_id) = running.next() => drop(busy.remove(&room_id)),
            // If it lags, all that is pending is looked at, too.
            _ = work.next(is_removal) => {}
            () = shutdown.given() => return,
        }
    }
}

/// Redacts what is pending in a room. Returns its id.
async fn in_room(engine: &Arc<Engine>, room_id: OwnedRoomId) -> OwnedRoomId {
    if let Err(error) = redact(engine, &room_id).await {
        tracing::warn!(%room_id, %error, "what kicks or bans redact is redacted later");
        tokio::time::sleep(PAUSE).await;
    }
    room_id
}

async fn redact(engine: &Arc<Engine>, room_id: &OwnedRoomId) -> Result<(), OrderError> {
    loop {
        let pending = engine.state().sender_redactions.in_room(room_id);
        let room = engine.state().rooms.get(room_id);
        let Some(room) = room.filter(|_| !pending.is_empty()) else { return Ok(()) };
        let mut walk = Walk { engine, room, pending: &pending, out: BTreeSet::new() };
        if !walk.run().await? {
            continue;
        }
        for because in pending.into_keys() {
            let (room_id, events) = (room_id.clone(), Vec::new());
            let last = RedactSender { room_id, because, events, complete: true };
            recorded(engine, &Origin::server(), last).await??;
        }
    }
}

/// A walk back through a room.
struct Walk<'a> {
    engine: &'a Arc<Engine>,
    room: Arc<Room>,
    /// What is redacted on the way.
    pending: &'a BTreeMap<OwnedEventId, SenderRedaction>,
    /// Those who were not in the room before the events that were passed.
    out: BTreeSet<OwnedUserId>,
}

impl Walk<'_> {
    /// Whether it came to its end: it does not when something else is to be redacted, which may be
    /// newer.
    async fn run(&mut self) -> Result<bool, OrderError> {
        let pending = || self.pending.values();
        let since = pending().map(|of| of.since).min().unwrap_or(Offset::MAX);
        let begun = pending().map(|of| of.begun).max().unwrap_or(Offset::ZERO);
        let (after, most) = (since.prev(), limits::REDACTED_BY_A_RECORD);
        let mut until = begun;
        loop {
            let events = self.room.events_backward(until, after, most);
            let Some(last) = events.last() else { break };
            until = last.prev();
            self.pass(events, |event| event).await?;
            if self.is_outdated(begun) {
                return Ok(false);
            }
        }
        // The events in a gap come before the one at its offset.
        let gaps = self.room.gaps(begun, usize::MAX).into_iter();
        for gap in gaps.filter(|gap| *gap > since) {
            let mut number = 1;
            loop {
                let numbers = (number..).take(most);
                let events = numbers.map_while(|of| self.room.event_of_gap(gap, of));
                let events: Vec<_> = events.collect();
                if events.is_empty() {
                    break;
                }
                number += u32::try_from(events.len()).unwrap_or(u32::MAX);
                self.pass(events, |_| gap).await?;
                if self.is_outdated(begun) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether something else is to be redacted than what had begun by then.
    fn is_outdated(&self, begun: Offset) -> bool {
        self.engine.state().sender_redactions.has_since(&self.room.id, begun)
    }

    /// Redacts those of these events that are to be. Each has a position in the room.
    async fn pass(
        &mut self,
        events: Vec<Offset>,
        position: impl Fn(Offset) -> Offset,
    ) -> Result<(), OrderError> {
        let mut said: BTreeMap<OwnedUserId, Vec<Offset>> = BTreeMap::new();
        for (event, step) in steps(self.engine, events).await? {
            match step {
                Step::Said(user_id) if !self.out.contains(&user_id) => {
                    said.entry(user_id).or_default().push(event);
                }
                Step::Said(_) => {}
                // In the timeline, the offset says it, and a ban comes after what it redacts.
                Step::Out(user_id) if position(event) != event => drop(self.out.insert(user_id)),
                Step::Out(_) => {}
            }
        }
        for (because, SenderRedaction { begun, user_id, since, .. }) in self.pending {
            let is_in = |event: &Offset| (*since..*begun).contains(&position(*event));
            let of_user = said.get(user_id).into_iter().flatten().copied();
            let events: Vec<_> = of_user.filter(is_in).collect();
            if !events.is_empty() {
                let (room_id, because) = (self.room.id.clone(), because.clone());
                let redact = RedactSender { room_id, because, events, complete: false };
                recorded(self.engine, &Origin::server(), redact).await??;
            }
        }
        Ok(())
    }
}
