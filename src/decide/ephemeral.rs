//! Receipts and typing.
//!
//! They are decided on a stream of their own, `ephemeral/<room>`, so that they never stand in the
//! way of a message. The receipts of one commit are one record; in a large room, commits are put
//! off for a moment, so a burst of receipts makes few records and wakes waiting clients rarely.

use std::{collections::BTreeMap, time::Duration};

use ruma::{EventId, OwnedEventId, OwnedRoomId, OwnedUserId, RoomId, UserId};
use serde::Deserialize;
use serde_json::json;

use super::{Commit, Env, Proposal, Refusal};
use logcabin_base::{
    limits,
    planted::{self, Fault},
};
use logcabin_read::events::{EventRef, to_raw};
use logcabin_record::{
    Command, NewRecord, Offset, Origin, Stream,
    command::{AccountDataSet, Receipt, RoomReceipt, RoomTyping},
};
use logcabin_state::{Room, rooms::ReceiptKey};

/// How receipts and typing in large rooms are batched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The delay of a turn.
    pub window: Duration,
    /// The fewest joined users of a large room.
    pub members: u64,
}

impl Default for Gather {
    fn default() -> Self {
        Self { window: Duration::from_millis(100), members: 100 }
    }
}

impl Gather {
    pub(super) fn lingers(&self, env: &Env, room_id: &RoomId) -> Duration {
        let room = env.state.rooms.get(room_id);
        let joined = room.map_or(0, |room| room.counts(Offset::MAX).joined);
        if joined >= self.members { self.window } else { Duration::ZERO }
    }
}

/// The receipts and typing of a room in one commit.
#[derive(Debug, Default)]
pub(super) struct EphemeralBatch {
    room_id: Option<OwnedRoomId>,
    receipts: BTreeMap<ReceiptKey, (Receipt, Offset, Origin)>,
    typing: BTreeMap<OwnedUserId, (RoomTyping, Origin)>,
}

impl EphemeralBatch {
    /// The records of the commit. What several did together has the server for its origin.
    pub(super) fn into_records(self) -> Vec<NewRecord> {
        let Some(room_id) = self.room_id else { return Vec::new() };
        let mut records = Vec::new();
        let mut receipts: Vec<_> = self.receipts.into_values().collect();
        receipts.sort_by_key(|(_, event, _)| *event);
        for piece in pieces(receipts) {
            let origin = match &*piece {
                [(_, _, origin)] => origin.clone(),
                all => {
                    let first = all.first().map(|(_, _, origin)| origin.clone());
                    let same = all.windows(2).all(|pair| pair[0].2 == pair[1].2);
                    first.filter(|_| same).unwrap_or_else(Origin::server)
                }
            };
            let receipts = piece.into_iter().map(|(receipt, _, _)| receipt).collect();
            let body = RoomReceipt { room_id: room_id.clone(), receipts };
            let stream = Stream::ephemeral(&room_id);
            records.push(NewRecord::new(stream, origin, &Command::from(body)));
        }
        for (body, origin) in self.typing.into_values() {
            let stream = Stream::ephemeral(&room_id);
            records.push(NewRecord::new(stream, origin, &Command::from(body)));
        }
        records
    }
}

type Moved = (Receipt, Offset, Origin);

/// Splits receipts so that each part fits into a record.
fn pieces(receipts: Vec<Moved>) -> Vec<Vec<Moved>> {
    let mut pieces: Vec<Vec<Moved>> = Vec::new();
    let mut room = 0;
    for moved in receipts {
        let Receipt { user_id, receipt_type, event_id, thread_id, .. } = &moved.0;
        let thread = thread_id.as_ref().map_or(0, String::len);
        // Each byte of an identifier can become six in JSON; names and punctuation take less than
        // 128.
        let ids = user_id.as_str().len() + event_id.as_str().len() + thread;
        let bytes = 128 + receipt_type.len() + 6 * ids;
        if room < bytes {
            room = limits::RECEIPTS_BYTES;
            pieces.push(Vec::new());
        }
        room -= bytes.min(room);
        pieces.last_mut().into_iter().for_each(|piece| piece.push(moved.clone()));
    }
    pieces
}

/// Move a receipt.
#[derive(Clone, Debug)]
pub struct SetReceipt {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// `m.read` or `m.read.private`.
    pub receipt_type: String,
    pub event_id: OwnedEventId,
    /// The thread, as given by the client.
    pub thread_id: Option<String>,
    /// The time, in milliseconds since the Unix epoch.
    pub ts: u64,
}

impl Proposal for SetReceipt {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::ephemeral(&self.room_id)
    }

    fn passes_in(&self) -> Option<&RoomId> {
        Some(&self.room_id)
    }

    /// A receipt that is there already, or further on, stays: nothing is written.
    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let env = commit.env;
        let room = room_of(env, &self.room_id, &self.user_id)?;
        if is_in_gap(env, &room, &self.event_id)? {
            return Ok(());
        }
        let event = event_of(env, &self.room_id, &self.event_id)?;
        if let Some(thread_id) = &self.thread_id
            && !is_in_thread(env, &room, &event, thread_id)?
        {
            return Err(Refusal::InvalidParam("The event is not in this thread.".to_owned()));
        }
        let key = (self.user_id.clone(), self.receipt_type.clone(), self.thread_id.clone());
        let before = match commit.passing.receipts.get(&key) {
            Some((_, before, _)) => Some(*before),
            None => match room.receipt(&key) {
                Some(before) => env.events.find(&env.state, &before.event_id)?.map(|e| e.offset),
                None => None,
            },
        };
        if before.is_some_and(|before| before >= event.offset)
            && !planted::has(Fault::ReceiptGoesBack)
        {
            return Ok(());
        }
        let receipt = Receipt {
            user_id: self.user_id.clone(),
            receipt_type: self.receipt_type.clone(),
            event_id: self.event_id.clone(),
            thread_id: self.thread_id.clone(),
            ts: self.ts,
        };
        commit.passing.room_id = Some(self.room_id.clone());
        commit.passing.receipts.insert(key, (receipt, event.offset, commit.origin.clone()));
        Ok(())
    }
}

fn room_of(env: &Env, room_id: &RoomId, user_id: &UserId) -> Result<std::sync::Arc<Room>, Refusal> {
    let room = env.state.rooms.get(room_id);
    let room = room.filter(|room| room.is_joined(user_id, Offset::MAX));
    room.ok_or_else(|| Refusal::Forbidden("You are not in this room.".to_owned()))
}

/// Whether the event was found later, for a gap in the room's history. Such events are not in the
/// timeline, are not unread, and nobody's receipt is set to them.
fn is_in_gap(env: &Env, room: &Room, event_id: &EventId) -> Result<bool, Refusal> {
    if !room.is_gapped() {
        return Ok(false);
    }
    let shown = env.events.find_shown(&env.state, event_id)?;
    Ok(shown.is_some_and(|event| event.room_id == room.id && event.aside.is_some()))
}

fn event_of(env: &Env, room_id: &RoomId, event_id: &EventId) -> Result<EventRef, Refusal> {
    let event = env.events.find(&env.state, event_id)?;
    let event = event.filter(|event| event.room_id == room_id);
    event.ok_or_else(|| Refusal::NotFound("There is no such event here.".to_owned()))
}

/// Whether this is `main`, or the id of a thread's root: nothing else, and nothing longer, is
/// stored with a receipt.
pub fn is_thread(id: &str) -> bool {
    id == "main" || (id.len() <= limits::IDENTIFIER_BYTES && <&EventId>::try_from(id).is_ok())
}

/// Whether a receipt in this thread may be set to `event` (client-server API, "Threaded read
/// receipts"). A thread's root is in the main timeline, but clients put the thread's first receipt
/// there. The thread of a redacted event is unknown.
fn is_in_thread(env: &Env, room: &Room, event: &EventRef, thread: &str) -> Result<bool, Refusal> {
    #[derive(Deserialize)]
    struct Content {
        #[serde(rename = "m.relates_to")]
        relates_to: Option<Relation>,
    }
    #[derive(Deserialize)]
    struct Relation {
        #[serde(default)]
        rel_type: Option<String>,
        #[serde(default)]
        event_id: Option<OwnedEventId>,
    }
    if event.event_id == thread {
        return Ok(true);
    }
    let mut event = event.clone();
    // The event and its targets, as far as the specification recommends to follow.
    for _ in 0..=3 {
        if room.redaction_of(event.offset, Offset::MAX).is_some() {
            return Ok(true);
        }
        let relation = event.content_as::<Content>().ok().and_then(|content| content.relates_to);
        let Some(Relation { rel_type, event_id: Some(about) }) = relation else { break };
        if rel_type.as_deref() == Some("m.thread") {
            return Ok(about == thread);
        }
        match env.events.find(&env.state, &about)? {
            Some(about) if about.room_id == room.id => event = about,
            _ => break,
        }
    }
    Ok(thread == "main")
}

/// Move the fully-read marker, which is account data of the room that cannot be set otherwise.
#[derive(Clone, Debug)]
pub struct SetFullyRead {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    pub event_id: OwnedEventId,
    /// Whether it may move to an earlier event (MSC4446).
    pub allow_backward: bool,
}

impl Proposal for SetFullyRead {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    /// As with receipts, a marker that is there already, or further on, stays, unless it may move
    /// backward.
    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        #[derive(Deserialize)]
        struct Content {
            event_id: OwnedEventId,
        }
        let env = commit.env;
        let room = room_of(env, &self.room_id, &self.user_id)?;
        if is_in_gap(env, &room, &self.event_id)? {
            return Ok(());
        }
        let event = event_of(env, &self.room_id, &self.event_id)?;
        let key = (Some(self.room_id.clone()), "m.fully_read".to_owned());
        let account = env.state.accounts.get(&self.user_id);
        let before = account.and_then(|account| {
            account.read().account_data.get(&key).map(|history| history.last_change())
        });
        if let Some(offset) = before
            && let Some(Command::AccountDataSet(before)) = env.events.command(offset)?
            && let Ok(before) = serde_json::from_str::<Content>(before.content.get())
            && let Some(before) = env.events.find(&env.state, &before.event_id)?
            && (before.offset == event.offset
                || before.offset > event.offset && !self.allow_backward)
        {
            return Ok(());
        }
        commit.append(
            Stream::user(&self.user_id),
            AccountDataSet {
                user_id: self.user_id.clone(),
                room_id: Some(self.room_id.clone()),
                event_type: "m.fully_read".to_owned(),
                content: to_raw(&json!({ "event_id": self.event_id })),
            },
        );
        Ok(())
    }
}

/// Start or stop typing.
#[derive(Clone, Debug)]
pub struct SetTyping {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// When it expires, in milliseconds since the Unix epoch; 0 stops.
    pub until_ms: u64,
    /// Only if the present typing expires at this time: for the timer that ends it.
    pub only_if_until: Option<u64>,
}

impl Proposal for SetTyping {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::ephemeral(&self.room_id)
    }

    fn passes_in(&self) -> Option<&RoomId> {
        Some(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let room = room_of(commit.env, &self.room_id, &self.user_id)?;
        let typist = room.typist(&self.user_id);
        let before = typist.map_or(0, |typist| typist.until_ms);
        let until = commit.passing.typing.get(&self.user_id).map_or(before, |(t, _)| t.until_ms);
        if until == self.until_ms || self.only_if_until.is_some_and(|only| until != only) {
            return Ok(());
        }
        if before == self.until_ms {
            // Begun and ended within the commit: nobody has seen it.
            commit.passing.typing.remove(&self.user_id);
            return Ok(());
        }
        let typing = RoomTyping {
            room_id: self.room_id.clone(),
            user_id: self.user_id.clone(),
            until_ms: self.until_ms,
            since: typist.map(|typist| typist.since).filter(|_| self.until_ms != 0),
        };
        commit.passing.room_id = Some(self.room_id.clone());
        commit.passing.typing.insert(self.user_id.clone(), (typing, commit.origin.clone()));
        Ok(())
    }
}
