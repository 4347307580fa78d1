//! Searches the log for what a user sent, from the latest to the first. The whole log may have to
//! be read, because no projection says it: so that takes half of a processor at most.

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use memchr::memmem::Finder;
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, UserId};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use logcabin_base::{background::Pace, threads};
use logcabin_engine::Engine;
use logcabin_log::ReadError;
use logcabin_record::{
    Command, Offset, Record,
    command::{Body as _, RoomEvent, RoomPdu},
};
use logcabin_state::State;

/// How many records are read at a time.
const RECORDS: u64 = 1024;

/// One part of the log is searched at a time, however many searches there are: together they take
/// half of a processor.
static SEARCHING: Semaphore = Semaphore::const_new(1);

/// Searches a part of the log in its turn.
async fn in_turn<T: Send + 'static>(search: impl FnOnce() -> T + Send + 'static) -> T {
    // It is never closed.
    let turn = SEARCHING.acquire().await.ok();
    let searching = threads::spawn_blocking(move || {
        // Reading the whole log must not slow others down.
        let mut pace = Pace::begin();
        let found = search();
        pace.rest();
        found
    });
    let searched = searching.await;
    drop(turn);
    match searched {
        Ok(found) => found,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    }
}

/// What an event does for the redaction of a user's stay in a room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The user said something.
    Said(OwnedUserId),
    /// The user was not in the room before the events that follow.
    Out(OwnedUserId),
}

/// What these events do, in their order.
pub(crate) async fn steps(
    engine: &Arc<Engine>,
    events: Vec<Offset>,
) -> Result<Vec<(Offset, Step)>, ReadError> {
    let engine = Arc::clone(engine);
    let read = move || {
        let mut steps = Vec::new();
        for offset in events {
            let Some(record) = engine.log().get(offset)? else { continue };
            let Ok(Some(
                Command::RoomEvent(RoomEvent { pdu, .. }) | Command::RoomPdu(RoomPdu { pdu, .. }),
            )) = record.command()
            else {
                continue;
            };
            let event = serde_json::from_str::<Event<'_>>(pdu.get()).ok();
            steps.extend(event.and_then(|event| event.step()).map(|step| (offset, step)));
        }
        Ok(steps)
    };
    in_turn(read).await
}

/// An event that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentEvent {
    pub offset: Offset,
    /// When it was recorded, in milliseconds since the Unix epoch; for an imported event, when its
    /// source had it.
    pub happened_ms: u64,
    pub room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
}

/// A kind of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentKind {
    /// What says something: messages of any type, and joins, which have a name and a picture.
    Said,
    /// Invites.
    Invites,
}

/// What is searched for.
#[derive(Clone, Debug)]
pub struct SentQuery {
    pub user_id: OwnedUserId,
    pub kind: SentKind,
    /// None means all.
    pub rooms: BTreeSet<OwnedRoomId>,
    /// This many of the latest events in each room.
    pub limit: Option<u64>,
    /// The times of the first and the last event, in milliseconds since the Unix epoch.
    pub after_ms: Option<u64>,
    pub before_ms: Option<u64>,
}

/// A search for what a user sent, from the latest to the first.
pub struct SentSearch {
    query: SentQuery,
    /// How many were found in each room.
    found: HashMap<OwnedRoomId, u64>,
    /// The first record that is searched.
    first: Offset,
    /// The records before this one were not searched yet.
    until: Offset,
}

impl SentSearch {
    /// Searches the records before `until`.
    pub fn new(query: SentQuery, until: Offset) -> Self {
        Self { query, found: HashMap::new(), first: Offset::new(1), until }
    }

    /// Does not search the records before this one.
    #[must_use]
    pub fn back_to(self, first: Offset) -> Self {
        Self { first: first.max(self.first), ..self }
    }

    /// The record before which the log was not searched yet.
    pub const fn until(&self) -> Offset {
        self.until
    }

    /// Searches the next part of the log. `None` at the end of the search.
    pub async fn next(
        self,
        engine: &Arc<Engine>,
    ) -> Result<Option<(Self, Vec<SentEvent>)>, ReadError> {
        if self.until <= self.first || self.has_enough() {
            return Ok(None);
        }
        let engine = Arc::clone(engine);
        in_turn(move || self.part(&engine)).await.map(Some)
    }

    fn part(mut self, engine: &Engine) -> Result<(Self, Vec<SentEvent>), ReadError> {
        let from = self.until.get().saturating_sub(RECORDS).max(self.first.get());
        let count = usize::try_from(self.until.get() - from).unwrap_or(usize::MAX);
        let records = engine.log().read(Offset::new(from), count)?;
        self.until = Offset::new(from);
        let (state, sender) = (engine.state(), as_written(&self.query.user_id));
        let finder = Finder::new(&sender);
        let sent = records.iter().rev().filter_map(|record| self.sent(&state, &finder, record));
        let sent = sent.collect();
        Ok((self, sent))
    }

    /// Whether every room that it is about has enough events.
    fn has_enough(&self) -> bool {
        let rooms = &self.query.rooms;
        !rooms.is_empty() && rooms.iter().all(|room_id| self.is_full(room_id))
    }

    fn is_full(&self, room_id: &OwnedRoomId) -> bool {
        let found = self.found.get(room_id).copied().unwrap_or(0);
        self.query.limit.is_some_and(|limit| found >= limit)
    }

    /// The event in this record, if it is one of those that are searched for.
    fn sent(&mut self, state: &State, sender: &Finder<'_>, record: &Record) -> Option<SentEvent> {
        let (kind, offset) = (&*record.header.kind, record.offset());
        let is_event = kind == RoomEvent::KIND.name || kind == RoomPdu::KIND.name;
        let payload = record.payload.bytes().filter(|_| is_event)?;
        sender.find(payload)?;
        let (Command::RoomEvent(RoomEvent { room_id, event_id, pdu, .. })
        | Command::RoomPdu(RoomPdu { room_id, event_id, pdu, .. })) = record.command().ok()??
        else {
            return None;
        };
        let rooms = &self.query.rooms;
        let is_wanted = rooms.is_empty() || rooms.contains(&room_id);
        if !is_wanted || self.is_full(&room_id) || !self.query.has(&pdu) {
            return None;
        }
        // An event may have several records, and is shown by one of them.
        if !state.rooms.get(&room_id)?.shows_event(offset) {
            return None;
        }
        *self.found.entry(room_id.clone()).or_default() += 1;
        Some(SentEvent { offset, happened_ms: record.happened_ms(), room_id, event_id })
    }
}

/// A user's id as the log has it, in JSON.
fn as_written(user_id: &UserId) -> Vec<u8> {
    serde_json::to_vec(user_id).unwrap_or_default()
}

impl SentQuery {
    /// Whether the user sent it at the time, and it is of the kind.
    fn has(&self, pdu: &RawValue) -> bool {
        let Ok(event) = serde_json::from_str::<Event<'_>>(pdu.get()) else { return false };
        let ts = event.origin_server_ts;
        event.sender == self.user_id.as_str()
            && self.after_ms.is_none_or(|after| ts >= after)
            && self.before_ms.is_none_or(|before| ts <= before)
            && event.is_of(self.kind)
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    sender: Cow<'a, str>,
    #[serde(default)]
    origin_server_ts: u64,
    #[serde(borrow, default)]
    state_key: Option<Cow<'a, str>>,
    content: Content<'a>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    membership: Option<&'a RawValue>,
}

impl Event<'_> {
    fn step(&self) -> Option<Step> {
        let id = |id: &str| OwnedUserId::try_from(id).ok();
        if self.is_of(SentKind::Said) {
            return id(&self.sender).map(Step::Said);
        }
        let user_id = self.state_key.as_ref().filter(|_| self.event_type == "m.room.member")?;
        id(user_id).map(Step::Out)
    }

    /// Of state, only joins say something: without other state, the room would be another.
    fn is_of(&self, kind: SentKind) -> bool {
        let is = |membership: &str| {
            let of = self.content.membership;
            self.event_type == "m.room.member"
                && of.is_some_and(|of| of.get().trim_matches('"') == membership)
        };
        match kind {
            SentKind::Said => {
                self.event_type != "m.room.redaction" && (self.state_key.is_none() || is("join"))
            }
            SentKind::Invites => self.state_key.is_some() && is("invite"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_user_is_found_whatever_is_in_the_id() {
        for id in ["@eve:test", "@a\"b\\c\u{7}:test"] {
            let user_id = <&UserId>::try_from(id).expect("an id");
            let payload = json!({ "pdu": { "sender": user_id } }).to_string();
            let sender = as_written(user_id);
            assert!(Finder::new(&sender).find(payload.as_bytes()).is_some(), "{payload}");
        }
    }

    #[test]
    fn what_a_user_said_is_redacted_and_the_state_of_rooms_is_not() {
        let of = |user_id: &str, times: [Option<u64>; 2]| SentQuery {
            user_id: user_id.try_into().expect("an id"),
            kind: SentKind::Said,
            rooms: BTreeSet::new(),
            limit: None,
            after_ms: times[0],
            before_ms: times[1],
        };
        let says = |event_type: &str, state_key: Option<&str>, content: serde_json::Value| {
            let mut event = json!({
                "type": event_type, "sender": "@eve:test", "content": content, "origin_server_ts": 5,
            });
            if let Some(state_key) = state_key {
                event["state_key"] = state_key.into();
            }
            let pdu = serde_json::value::to_raw_value(&event).expect("JSON");
            assert!(!of("@ann:test", [None; 2]).has(&pdu));
            for times in [[Some(6), None], [None, Some(4)]] {
                assert!(!of("@eve:test", times).has(&pdu));
            }
            of("@eve:test", [Some(5), Some(5)]).has(&pdu)
        };
        assert!(says("m.room.message", None, json!({ "body": "buy" })));
        assert!(says("m.reaction", None, json!({})));
        assert!(says("m.room.member", Some("@eve:test"), json!({ "membership": "join" })));
        assert!(!says("m.room.member", Some("@eve:test"), json!({ "membership": "leave" })));
        assert!(!says("m.room.member", Some("@bob:test"), json!({ "membership": "ban" })));
        assert!(!says("m.room.power_levels", Some(""), json!({})));
        assert!(!says("m.room.redaction", None, json!({ "reason": "mine" })));
        assert!(!says("m.room.topic", Some(""), json!({ "membership": 7 })));
    }

    #[test]
    fn an_invite_is_a_change_of_a_membership_to_invite() {
        let is_invite = |event_type: &str, state_key: Option<&str>, membership: &str| {
            let mut event = json!({
                "type": event_type, "sender": "@eve:test", "origin_server_ts": 5,
                "content": { "membership": membership },
            });
            if let Some(state_key) = state_key {
                event["state_key"] = state_key.into();
            }
            let pdu = serde_json::value::to_raw_value(&event).expect("JSON");
            let query = SentQuery {
                user_id: "@eve:test".try_into().expect("an id"),
                kind: SentKind::Invites,
                rooms: BTreeSet::new(),
                limit: None,
                after_ms: None,
                before_ms: None,
            };
            query.has(&pdu)
        };
        assert!(is_invite("m.room.member", Some("@bob:test"), "invite"));
        assert!(!is_invite("m.room.member", Some("@eve:test"), "join"));
        assert!(!is_invite("m.room.member", None, "invite"));
        assert!(!is_invite("m.room.message", Some("@bob:test"), "invite"));
    }
}
