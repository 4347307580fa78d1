//! Reads event bodies from the log, through a cache bounded in bytes.

use std::{
    any::{Any, TypeId},
    collections::HashSet,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use quick_cache::{Weighter, sync::Cache};
use ruma::{
    EventId, OwnedEventId, RoomId, UserId, events::TimelineEventType,
    room_version_rules::RoomVersionRules,
};
use serde_json::value::RawValue;

use super::{EventRef, StoredEvent};
use crate::{branches::Memos, invites::Strangers, policy_lists::PolicyLists};
use logcabin_base::{
    metrics::{CacheName, metrics},
    work,
};
use logcabin_log::{Log, ReadError};
use logcabin_record::{
    Command, Offset, Record,
    command::{LogErase, RoomEvent, RoomPdu},
    event_format::{differ, has_chosen_ids},
    lax_object::LaxObject,
    server_keys::ServerKeys,
};
use logcabin_state::{Room, State};

/// Reads events and other payloads by offset.
pub struct EventStore {
    log: Arc<dyn Log>,
    cache: Cache<Offset, EventRef, ByBytes>,
    /// The number of erasures so far.
    erasures: AtomicU64,
    derived: Cache<(TypeId, Offset), Arc<dyn Derived>, ByBytes>,
    lifetimes: OnceLock<Box<dyn Lifetimes>>,
    keys: OnceLock<Arc<ServerKeys>>,
    memos: Memos,
    policy_lists: PolicyLists,
    strangers: OnceLock<Strangers>,
}

/// The lifetimes of events other than state.
pub trait Lifetimes: Send + Sync {
    /// Whether the event has expired.
    fn is_over(&self, room: &Room, event: &StoredEvent) -> bool;

    /// The time before which events of the room may have expired, in milliseconds since the Unix
    /// epoch; `None` if none has.
    fn youngest_over_ms(&self, room: &Room) -> Option<u64>;
}

/// One part in this many of a store's cache is for values derived from payloads, for example the
/// push rules of users.
const DERIVED: u64 = 4;

/// A value derived from one payload that is worth caching, for example a parsed list.
pub trait Derived: Any + Send + Sync {
    /// Its approximate size in memory, in bytes.
    fn weight(&self) -> u64;
}

/// The kick or ban that a `room.redact_sender` names.
struct Because(Option<OwnedEventId>);

impl Derived for Because {
    fn weight(&self) -> u64 {
        self.0.as_ref().map_or(0, |event_id| event_id.as_str().len() as u64)
    }
}

#[derive(Clone)]
struct ByBytes;

impl Weighter<Offset, EventRef> for ByBytes {
    fn weight(&self, _: &Offset, event: &EventRef) -> u64 {
        event.weight()
    }
}

impl Weighter<(TypeId, Offset), Arc<dyn Derived>> for ByBytes {
    fn weight(&self, _: &(TypeId, Offset), derived: &Arc<dyn Derived>) -> u64 {
        64 + derived.weight()
    }
}

impl std::fmt::Debug for EventStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStore").field("cached_bytes", &self.cache.weight()).finish()
    }
}

impl EventStore {
    /// A store over `log` that caches up to about `cache_bytes`.
    pub fn new(log: Arc<dyn Log>, cache_bytes: u64) -> Self {
        // The estimate only sizes the cache's initial table: events take about 2 KiB.
        let derived_bytes = cache_bytes / DERIVED;
        let event_bytes = cache_bytes - derived_bytes;
        let estimated = usize::try_from(event_bytes / 2048).unwrap_or(1024).clamp(64, 1 << 20);
        Self {
            log,
            cache: Cache::with_weighter(estimated, event_bytes, ByBytes),
            erasures: AtomicU64::new(0),
            derived: Cache::with_weighter(1024, derived_bytes, ByBytes),
            lifetimes: OnceLock::new(),
            keys: OnceLock::new(),
            memos: Memos::default(),
            policy_lists: PolicyLists::default(),
            strangers: OnceLock::new(),
        }
    }

    /// Sets who may invite users with whom they share no room. To be called once.
    pub fn limit_strangers(&self, strangers: Strangers) {
        // A second call has no effect.
        let _ = self.strangers.set(strangers);
    }

    pub(crate) fn strangers(&self) -> Strangers {
        self.strangers.get().copied().unwrap_or_default()
    }

    /// The rules of the policy lists that this server applies.
    pub const fn policy_lists(&self) -> &PolicyLists {
        &self.policy_lists
    }

    pub(crate) const fn memos(&self) -> &Memos {
        &self.memos
    }

    pub fn log(&self) -> &dyn Log {
        &*self.log
    }

    /// Sets the lifetimes of events. To be called once.
    pub fn keep_to(&self, lifetimes: Box<dyn Lifetimes>) {
        // A second call has no effect.
        let _ = self.lifetimes.set(lifetimes);
    }

    /// Rotates to the server's newest key for signing.
    pub fn rotate_key(&self, state: &State) {
        let (Some(keys), Some(key)) = (self.keys.get(), state.federation_keys.own_key()) else {
            return;
        };
        if let Err(error) = keys.rotate(&key) {
            tracing::error!(%error, "the server keeps signing with its former key");
        }
    }

    /// Sets the keys that sign events in federation format. To be called once.
    pub fn sign_with(&self, keys: Arc<ServerKeys>) {
        // A second call has no effect.
        let _ = self.keys.set(keys);
    }

    /// The event, redacted if necessary, in the format that servers exchange, with this server's
    /// signature.
    pub fn in_federation_format(&self, room: &Room, event: &StoredEvent) -> Box<RawValue> {
        let signed = || {
            // Events of other homeservers have their signatures; our own have at most that of the
            // room's policy server.
            if event.received.is_some() || event.aside.is_some() {
                return None;
            }
            let mut pdu = LaxObject::parse(event.pdu.get()).ok()?;
            self.keys.get()?.sign_event(&mut pdu, &room.rules.redaction).ok()?;
            pdu.to_raw().ok()
        };
        signed().unwrap_or_else(|| event.pdu.clone())
    }

    /// The time before which events of the room may have expired, in milliseconds since the Unix
    /// epoch; later ones have not. `None` if events of the room do not expire.
    pub fn youngest_over_ms(&self, room: &Room) -> Option<u64> {
        self.lifetimes.get()?.youngest_over_ms(room)
    }

    /// Whether the event has expired and must be hidden. The next sweep deletes it (`room.erase`).
    /// State does not expire, and redactions expire with their targets.
    pub fn is_over(&self, room: &Room, event: &StoredEvent) -> bool {
        let Some(lifetimes) = self.lifetimes.get() else { return false };
        event.state_key.is_none()
            && event.event_type != TimelineEventType::RoomRedaction
            && lifetimes.is_over(room, event)
    }

    /// The value that `make` derives from the payload at `offset`, cached until the payload is
    /// erased.
    pub fn derived<T: Derived>(
        &self,
        offset: Offset,
        make: impl FnOnce() -> Result<T, ReadError>,
    ) -> Result<Arc<T>, ReadError> {
        let key = (TypeId::of::<T>(), offset);
        let kept = self.derived.get(&key).and_then(|kept| {
            let kept: Arc<dyn Any + Send + Sync> = kept;
            kept.downcast().ok()
        });
        metrics().looked_up(CacheName::Derived, kept.is_some());
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let made = Arc::new(make()?);
        self.derived.insert(key, Arc::clone(&made) as Arc<dyn Derived>);
        Ok(made)
    }

    /// The event at `offset`; `None` if there is no event there or its payload was erased.
    pub fn get(&self, offset: Offset) -> Result<Option<EventRef>, ReadError> {
        work::look();
        let kept = self.cache.get(&offset);
        metrics().looked_up(CacheName::Events, kept.is_some());
        if let Some(event) = kept {
            return Ok(Some(event));
        }
        let erasures = self.erasures.load(Ordering::SeqCst);
        let Some(record) = self.log.get(offset)? else { return Ok(None) };
        let event = match record.command() {
            Ok(Some(Command::RoomEvent(body))) => parse(&record, body),
            Ok(Some(Command::RoomPdu(body))) => parse_aside(&record, body),
            _ => None,
        };
        let Some(event) = event else { return Ok(None) };
        self.cache.insert(offset, Arc::clone(&event));
        if self.erasures.load(Ordering::SeqCst) != erasures {
            // It may have been read before its erasure, and cached after it.
            self.cache.remove(&offset);
        }
        Ok(Some(event))
    }

    /// The event because of which others were redacted by the record at `redaction`: that record
    /// itself, or the kick or ban that a `room.redact_sender` names.
    pub fn redacting(
        &self,
        state: &State,
        redaction: Offset,
    ) -> Result<Option<EventRef>, ReadError> {
        if let Some(event) = self.cache.get(&redaction) {
            return Ok(Some(event));
        }
        let because = self.derived(redaction, || {
            Ok(Because(match self.command(redaction)? {
                Some(Command::RoomRedactSender(body)) => Some(body.because),
                _ => None,
            }))
        })?;
        match &because.0 {
            Some(event_id) => self.find_shown(state, event_id),
            None => self.get(redaction),
        }
    }

    /// The events at `offsets`, in that order, without missing ones.
    pub fn get_all(&self, offsets: &[Offset]) -> Result<Vec<EventRef>, ReadError> {
        let mut events = Vec::with_capacity(offsets.len());
        for offset in offsets {
            events.extend(self.get(*offset)?);
        }
        Ok(events)
    }

    /// The event with this id, if `state` has it.
    pub fn find(&self, state: &State, event_id: &EventId) -> Result<Option<EventRef>, ReadError> {
        for offset in state.events.candidates(event_id) {
            if let Some(event) = self.get(offset)?
                && event.event_id == event_id
                // It may have expired, or its room may have been purged.
                && state.rooms.get(&event.room_id).is_some_and(|room| room.has_event(offset))
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The event with this id, if clients are shown it: in a timeline, or in a gap of a room's
    /// history.
    pub fn find_shown(
        &self,
        state: &State,
        event_id: &EventId,
    ) -> Result<Option<EventRef>, ReadError> {
        for offset in state.events.candidates(event_id) {
            if let Some(event) = self.get(offset)?
                && event.event_id == event_id
                && state.rooms.get(&event.room_id).is_some_and(|room| room.shows_event(offset))
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The event with this id, whether or not it is in the timeline of this room.
    pub fn find_known(
        &self,
        state: &State,
        room: &Room,
        event_id: &EventId,
    ) -> Result<Option<EventRef>, ReadError> {
        let mut best = None;
        for offset in state.events.candidates(event_id) {
            let in_timeline = room.has_event(offset);
            if !in_timeline && room.aside(offset).is_none() {
                continue;
            }
            if let Some(event) = self.get(offset)?
                && event.event_id == event_id
            {
                if in_timeline {
                    return Ok(Some(event));
                }
                // The latest decision holds.
                if best.as_ref().is_none_or(|best: &EventRef| best.offset < offset) {
                    best = Some(event);
                }
            }
        }
        Ok(best)
    }

    /// Whether another known event, in this room or another, has this event's id. That is possible
    /// only in room versions whose ids are chosen by homeservers; the first event keeps its id.
    pub fn is_taken(
        &self,
        state: &State,
        (room_id, rules): (&RoomId, &RoomVersionRules),
        event_id: &EventId,
        pdu: &RawValue,
    ) -> Result<bool, ReadError> {
        if !has_chosen_ids(rules) {
            return Ok(false);
        }
        for offset in state.events.candidates(event_id) {
            if let Some(event) = self.get(offset)?
                && event.event_id == event_id
                && let Some(room) = state.rooms.get(&event.room_id)
                && room.holds(offset)
                && (event.room_id != room_id || differ(&event.pdu, pdu, rules))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The event that a transaction of `session` sent, if it has sent one.
    pub fn find_transaction(
        &self,
        state: &State,
        session: Offset,
        scope: &str,
        id: &str,
    ) -> Result<Option<EventRef>, ReadError> {
        for offset in state.transactions.candidates(session, scope, id) {
            // What was sent before an import, the session says.
            if offset == session {
                let sent = self.sent_before(session, scope, id)?;
                if sent.is_some() {
                    return Ok(sent);
                }
                continue;
            }
            if let Some(event) = self.get(offset)?
                && event.transaction.as_ref().is_some_and(|t| t.scope == scope && t.id == id)
            {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn sent_before(
        &self,
        session: Offset,
        scope: &str,
        id: &str,
    ) -> Result<Option<EventRef>, ReadError> {
        let Some(Command::DeviceLogin(login)) = self.command(session)? else { return Ok(None) };
        let sent = login.sent.iter().find(|sent| sent.scope == scope && sent.id == id);
        sent.map_or(Ok(None), |sent| self.get(sent.event))
    }

    /// When what the record at `offset` says happened, in milliseconds since the Unix epoch.
    pub fn time_of(&self, offset: Offset) -> Result<Option<u64>, ReadError> {
        Ok(self.log.get(offset)?.map(|record| record.happened_ms()))
    }

    /// If the record at `offset` is an imported event, the number that the source gave it.
    pub(crate) fn number_at_source(&self, offset: Offset) -> Result<Option<i64>, ReadError> {
        let record = self.log.get(offset)?;
        Ok(record.and_then(|record| record.header.origin.import()?.event()))
    }

    /// The command at `offset`, for records other than events.
    pub fn command(&self, offset: Offset) -> Result<Option<Command>, ReadError> {
        let record = self.log.get(offset)?;
        // It could be decoded when it was applied.
        Ok(record.and_then(|record| record.command().ok().flatten()))
    }

    /// A user's account data as of `at`, global or of a room, as stored.
    pub fn account_data(
        &self,
        state: &State,
        user_id: &UserId,
        room_id: Option<&RoomId>,
        event_type: &str,
        at: Offset,
    ) -> Result<Option<Box<RawValue>>, ReadError> {
        let Some(account) = state.accounts.get(user_id) else { return Ok(None) };
        let offset = account.read().account_data_at(room_id, event_type, at);
        let Some(offset) = offset else { return Ok(None) };
        Ok(match self.command(offset)? {
            Some(Command::AccountDataSet(body)) => Some(body.content),
            _ => None,
        })
    }

    /// Drops what was erased from the log.
    pub fn forget(&self, erasure: &LogErase) {
        self.erasures.fetch_add(1, Ordering::SeqCst);
        self.memos.reduced(erasure.reduced.iter().map(|reduced| reduced.offset));
        for reduced in &erasure.reduced {
            self.cache.remove(&reduced.offset);
        }
        let reduced: HashSet<_> = erasure.reduced.iter().map(|reduced| reduced.offset).collect();
        let erased = |offset: &Offset| {
            reduced.contains(offset)
                || erasure.runs().any(|(from, to)| from <= *offset && *offset <= to)
        };
        self.derived.retain(|(_, offset), _| !erased(offset));
    }

    /// The event at `offset`, if it is cached.
    pub fn recall(&self, offset: Offset) -> Option<EventRef> {
        self.cache.get(&offset)
    }

    /// Caches the event of a record.
    pub fn remember(&self, record: &Record, body: RoomEvent) {
        if let Some(event) = parse(record, body) {
            self.cache.insert(record.offset(), event);
        }
    }
}

fn parse(record: &Record, body: RoomEvent) -> Option<EventRef> {
    let event = StoredEvent::new(record.offset(), body).ok()?;
    Some(Arc::new(StoredEvent { time_ms: record.happened_ms(), ..event }))
}

fn parse_aside(record: &Record, body: RoomPdu) -> Option<EventRef> {
    let event = StoredEvent::of_pdu(record.offset(), body).ok()?;
    Some(Arc::new(StoredEvent { time_ms: record.happened_ms(), ..event }))
}
