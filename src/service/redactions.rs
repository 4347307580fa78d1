//! Redacts what a user sent, as an administrator ordered.
//!
//! The log is searched backwards from the order, so that the latest messages go first, and each
//! event is redacted by an event of its own. If the server stops meanwhile, it starts the search
//! again after the next start, and passes over what was redacted.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use futures_util::future::join_all;
use memchr::memmem::Finder;
use parking_lot::Mutex;
use ruma::{OwnedEventId, OwnedRoomId, OwnedUserId, UserId};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;

use logcabin_base::{
    background::Pace,
    limits,
    progress::{self, Work},
    threads,
};
use logcabin_decide::{
    Proposal, Refusal,
    redaction::{FinishRedaction, Redact},
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::{AppendError, ReadError};
use logcabin_record::{
    Command, Offset, Origin, Record,
    command::{Body as _, RoomEvent, RoomPdu, UserRedactFinish},
};
use logcabin_state::{State, UserRedaction};

/// How many records are read at a time.
const RECORDS: u64 = 1024;

/// One part of the log is searched at a time, however many users' events are redacted: together
/// they take half of a processor.
static SEARCHING: Semaphore = Semaphore::const_new(1);

/// The redactions that this process works on.
static UNDER_WAY: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Why a redaction did not come to its end. It continues at the next start.
#[derive(Debug, thiserror::Error)]
pub enum RedactionError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log was closed, or the end could not be recorded.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// An event that is to be redacted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentEvent {
    pub offset: Offset,
    pub room_id: OwnedRoomId,
    pub event_id: OwnedEventId,
}

/// What is searched for.
#[derive(Clone, Debug)]
pub struct SentQuery {
    pub user_id: OwnedUserId,
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
    /// The records before this one were not searched yet.
    until: Offset,
}

impl SentSearch {
    /// Searches the records before `until`.
    pub fn new(query: SentQuery, until: Offset) -> Self {
        Self { query, found: HashMap::new(), until }
    }

    /// Searches the next part of the log. `None` at the end of the search.
    pub async fn next(
        self,
        engine: &Arc<Engine>,
    ) -> Result<Option<(Self, Vec<SentEvent>)>, ReadError> {
        if self.until <= Offset::new(1) || self.has_enough() {
            return Ok(None);
        }
        // It is never closed.
        let turn = SEARCHING.acquire().await.ok();
        let engine = Arc::clone(engine);
        let searching = threads::spawn_blocking(move || {
            // Reading the whole log must not slow others down.
            let mut pace = Pace::begin();
            let found = self.part(&engine);
            pace.rest();
            found
        });
        let searched = searching.await;
        drop(turn);
        match searched {
            Ok(found) => found.map(Some),
            Err(panic) => std::panic::resume_unwind(panic.into_panic()),
        }
    }

    fn part(mut self, engine: &Engine) -> Result<(Self, Vec<SentEvent>), ReadError> {
        let from = self.until.get().saturating_sub(RECORDS).max(1);
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
        Some(SentEvent { offset, room_id, event_id })
    }
}

/// A user's id as the log has it, in JSON.
fn as_written(user_id: &UserId) -> Vec<u8> {
    serde_json::to_vec(user_id).unwrap_or_default()
}

impl SentQuery {
    /// Whether the user sent it at the time, and said something with it: a message of any type, or
    /// a join, which has a name and a picture. Without other state, the room would be another.
    fn has(&self, pdu: &RawValue) -> bool {
        #[derive(Deserialize)]
        struct Event<'a> {
            #[serde(borrow, rename = "type")]
            event_type: Cow<'a, str>,
            #[serde(borrow)]
            sender: Cow<'a, str>,
            #[serde(default)]
            origin_server_ts: u64,
            #[serde(default)]
            state_key: Option<IgnoredAny>,
            content: Content<'a>,
        }
        #[derive(Deserialize)]
        struct Content<'a> {
            #[serde(borrow, default)]
            membership: Option<&'a RawValue>,
        }
        let Ok(event) = serde_json::from_str::<Event<'_>>(pdu.get()) else { return false };
        let is_join = || {
            event.event_type == "m.room.member"
                && event.content.membership.is_some_and(|membership| membership.get() == "\"join\"")
        };
        let ts = event.origin_server_ts;
        event.sender == self.user_id.as_str()
            && self.after_ms.is_none_or(|after| ts >= after)
            && self.before_ms.is_none_or(|before| ts <= before)
            && event.event_type != "m.room.redaction"
            && (event.state_key.is_none() || is_join())
    }
}

/// Continues the redactions that the end of the server interrupted.
pub fn resume(engine: &Arc<Engine>) {
    let engine = Arc::clone(engine);
    tokio::spawn(async move {
        for redaction in engine.state().redactions.under_way() {
            let user_id = redaction.user_id.clone();
            if let Err(error) = go_on(&engine, redaction).await {
                tracing::warn!(%user_id, %error, "the redaction of what a user sent could not continue");
            }
        }
    });
}

/// Does the rest of a redaction, in the name of whoever ordered it.
pub async fn go_on(engine: &Arc<Engine>, redaction: UserRedaction) -> Result<(), RedactionError> {
    let Some(_running) = Running::begin(&redaction.id) else { return Ok(()) };
    let UserRedaction { id, begun, user_id, rooms, limit, after_ms, before_ms, by, ended: _ } =
        redaction;
    let order = engine.log().get(begun)?.ok_or(ReadError::Missing(begun))?;
    let origin = order.header.origin.clone();
    let say = match order.command() {
        Ok(Some(Command::UserRedact(order))) => order.say,
        _ => None,
    };
    let work = Work::about(progress::REDACTION, user_id.as_str(), 0, begun.get());
    let (of, rooms) = (user_id.clone(), rooms.into_iter().collect());
    let query = SentQuery { user_id: of, rooms, limit, after_ms, before_ms };
    let mut search = SentSearch::new(query, begun);
    let (redacted, failures, failed) = (0, 0, BTreeMap::new());
    let mut done = UserRedactFinish { id, user_id, redacted, failures, failed };
    while let Some((rest, sent)) = search.next(engine).await? {
        for sent in sent.chunks(limits::REDACTED_AT_ONCE) {
            let redacting = sent.iter().map(|event| {
                let redact = Redact {
                    room_id: event.room_id.clone(),
                    event_id: event.event_id.clone(),
                    by: by.clone(),
                    say: say.clone(),
                    ts: engine.clock().timestamp(),
                };
                recorded(engine, &origin, redact)
            });
            for (event, refusal) in sent.iter().zip(join_all(redacting).await) {
                count(&mut done, (&engine.state(), begun), event, refusal?.err());
            }
        }
        work.at(begun.get() - rest.until.get());
        search = rest;
    }
    recorded(engine, &origin, FinishRedaction(done)).await??;
    Ok(())
}

/// Proposes until the log takes it. Returns why it did not, if that would not change.
///
/// # Errors
/// When the log was closed.
async fn recorded<P: Proposal + Clone>(
    engine: &Engine,
    origin: &Origin,
    proposal: P,
) -> Result<Result<(), ProposeError>, ProposeError> {
    let [pauses @ .., last] = limits::REDACTION_PAUSES;
    let mut pauses = pauses.into_iter();
    loop {
        match engine.propose(origin.clone(), proposal.clone()).await {
            Ok(recorded) => {
                recorded.into_inner();
                return Ok(Ok(()));
            }
            Err(error @ ProposeError::Log(AppendError::Closed)) => return Err(error),
            Err(error) if error.is_for_now() => {
                tokio::time::sleep(pauses.next().unwrap_or(last)).await;
            }
            Err(error) => return Ok(Err(error)),
        }
    }
}

/// Work on a redaction, until this is dropped.
struct Running(String);

impl Running {
    /// `None` if this process works on it already.
    fn begin(id: &str) -> Option<Self> {
        UNDER_WAY.lock().insert(id.to_owned()).then(|| Self(id.to_owned()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        UNDER_WAY.lock().remove(&self.0);
    }
}

/// Counts what was done with an event since the order at `begun`.
fn count(
    done: &mut UserRedactFinish,
    (state, begun): (&State, Offset),
    event: &SentEvent,
    error: Option<ProposeError>,
) {
    let room = state.rooms.get(&event.room_id);
    let redaction = room.and_then(|room| room.redaction_of(event.offset, Offset::MAX));
    match (redaction, error) {
        // Perhaps before the server stopped.
        (Some(redaction), _) => done.redacted += u64::from(redaction > begun),
        // It, or its room, is gone.
        (None, None | Some(ProposeError::Refused(Refusal::NotFound(_)))) => {}
        (None, Some(error)) => {
            done.failures += 1;
            if done.failed.len() < limits::REDACTIONS_NAMED {
                done.failed.insert(event.event_id.clone(), error.to_string());
            }
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
}
