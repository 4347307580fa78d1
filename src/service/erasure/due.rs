//! Finds what is due without a request for each item: expired events and files, and the data of
//! erased users.
//!
//! Each find becomes a record (`room.erase`, `media.remove`, `user.erase`), which hides it from
//! everyone; the sweep then erases the payloads. If this is interrupted, the next sweep finds the
//! rest.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use ruma::{MxcUri, OwnedRoomId, OwnedUserId, RoomId, UserId, events::StateEventType};
use serde::Deserialize;
use serde_json::value::RawValue;

use logcabin_base::{
    clock::millis,
    progress::{self, Work},
    threads,
};
use logcabin_decide::{
    Env, Proposal,
    erasure::{AT_ONCE, EraseMedia, EraseMessages, EraseUser, ExpireEvents, ExpireMedia, RUNS},
    retention::SweepPolicy,
};
use logcabin_engine::{Engine, ProposeError};
use logcabin_log::{Log, ReadError};
use logcabin_record::{
    Command, Holds, Offset, Origin, Record, Remains,
    command::{MediaUpload, RoomEvent, RoomPdu},
    remains, runs,
    threepid::{Threepid, ThreepidAdd, ThreepidBind},
};
use logcabin_state::erasures::PendingErasure;

/// Why a sweep was not completed.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log takes no writes.
    #[error(transparent)]
    Propose(#[from] ProposeError),
}

/// How many rooms are examined in one go.
const ROOMS: usize = 100;

/// How many records are read at a time.
const RECORDS: usize = 1024;

/// Expired events of one type in one room.
struct Expired {
    room_id: OwnedRoomId,
    event_type: Box<str>,
    lifetime_ms: u64,
    until: Offset,
}

/// Whether any event or file has expired.
pub(super) fn anything_expired(engine: &Engine, policy: &SweepPolicy) -> Result<bool, ReadError> {
    if !expired(engine, policy, 1)?.is_empty() {
        return Ok(true);
    }
    let media = &engine.state().media;
    match policy.media_until(engine.clock().now_ms()) {
        Some(until_ms) if !media.until(until_ms, 1, |_| true).is_empty() => {
            let kept = pictures(engine)?;
            Ok(!media.until(until_ms, 1, |id| !kept.contains(id)).is_empty())
        }
        _ => Ok(false),
    }
}

/// Removes expired events. Returns their number.
pub(super) async fn expire_events(
    engine: &Engine,
    policy: &SweepPolicy,
) -> Result<u64, SweepError> {
    let mut count = 0;
    loop {
        let before = count;
        for Expired { room_id, event_type, lifetime_ms, until } in expired(engine, policy, ROOMS)? {
            let retention = Arc::clone(&policy.retention);
            let expire = ExpireEvents { room_id, event_type, lifetime_ms, until, retention };
            count += repeat(engine, &expire).await?;
        }
        if count == before {
            return Ok(count);
        }
    }
}

/// Proposes removals of up to [`AT_ONCE`] until nothing is left. Returns how many were removed.
async fn repeat<P>(engine: &Engine, proposal: &P) -> Result<u64, SweepError>
where
    P: Proposal<Outcome = u64> + Clone,
{
    let mut count = 0;
    loop {
        let more = engine.propose(Origin::server(), proposal.clone()).await?.into_inner();
        count += more;
        if more < AT_ONCE as u64 {
            return Ok(count);
        }
    }
}

/// Up to about `limit` rooms with expired events. The cost is proportional to the expired events
/// and the number of lifetimes.
fn expired(engine: &Engine, policy: &SweepPolicy, limit: usize) -> Result<Vec<Expired>, ReadError> {
    let retention = &policy.retention;
    let (state, now_ms) = (engine.state(), engine.clock().now_ms());
    let rooms = &state.rooms;
    let mut ends: HashMap<u64, Offset> = HashMap::new();
    let mut end = |lifetime_ms: u64| match ends.get(&lifetime_ms) {
        Some(end) => Ok::<_, ReadError>(*end),
        None => {
            let end = last_until(engine, now_ms.saturating_sub(lifetime_ms))?;
            ends.insert(lifetime_ms, end);
            Ok(end)
        }
    };
    let mut expired = Vec::new();
    for class in rooms.lifetimes.classes() {
        let lifetime = retention.lifetime_ms(None, &class.event_type, class.own);
        let Some(lifetime_ms) = lifetime else { continue };
        let until = end(lifetime_ms)?;
        let unnamed = |room_id: &RoomId| !retention.names(room_id);
        for room_id in rooms.lifetimes.rooms(&class, until, limit, unnamed) {
            let event_type = class.event_type.clone();
            expired.push(Expired { room_id, event_type, lifetime_ms, until });
        }
        if expired.len() >= limit {
            return Ok(expired);
        }
    }
    let named: BTreeSet<&RoomId> = retention.rooms().collect();
    for room in named.into_iter().filter_map(|room_id| rooms.get(room_id)) {
        let own = room.lifetime();
        for event_type in room.message_types() {
            let lifetime = retention.lifetime_ms(Some(&room.id), &event_type, own);
            let Some(lifetime_ms) = lifetime else { continue };
            let until = end(lifetime_ms)?;
            if !room.messages(&event_type, until, 1).is_empty() {
                let room_id = room.id.clone();
                expired.push(Expired { room_id, event_type, lifetime_ms, until });
            }
        }
    }
    Ok(expired)
}

/// The last record such that no event up to it came after `time_ms`.
pub fn last_until(engine: &Engine, time_ms: u64) -> Result<Offset, ReadError> {
    // Times do not decrease along the log.
    let (mut low, mut high) = (0, engine.head().offset().get());
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        let offset = Offset::new(middle);
        let record = engine.log().get(offset)?.ok_or(ReadError::Missing(offset))?;
        if record.header.time_ms <= time_ms {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    // What was imported is older than its records.
    Ok(Offset::new(low).max(engine.state().imports.until(time_ms)))
}

/// Removes expired files. Returns their number.
pub(super) async fn expire_media(engine: &Engine, policy: &SweepPolicy) -> Result<u64, SweepError> {
    let Some(until_ms) = policy.media_until(engine.clock().now_ms()) else { return Ok(0) };
    let Some(lifetime_ms) = policy.media_after.map(millis) else { return Ok(0) };
    let mut count = 0;
    while !engine.state().media.until(until_ms, 1, |_| true).is_empty() {
        // Before the scan: what is applied meanwhile is examined in the commit.
        let looked = engine.state().applied();
        let pictures = Arc::new(pictures(engine)?);
        let expire = ExpireMedia { lifetime_ms, until_ms, pictures, looked };
        let more = engine.propose(Origin::server(), expire).await?.into_inner();
        if more == 0 {
            break;
        }
        count += more;
    }
    Ok(count)
}

/// The files of this server that are current avatars of users and rooms, which stay.
pub fn pictures(engine: &Engine) -> Result<HashSet<String>, ReadError> {
    #[derive(Deserialize)]
    struct Avatar {
        url: String,
    }
    let env = engine.env();
    let state = &env.state;
    let mut pictures = HashSet::new();
    for user_id in state.accounts.user_ids() {
        if let Some(account) = state.accounts.get(&user_id)
            && let Some(url) = account.read().profile_field("avatar_url")
        {
            pictures.extend(url.as_str().and_then(|url| own_media(&env, url)));
        }
    }
    for room in state.rooms.all() {
        if let Some(offset) = room.state_event(&StateEventType::RoomAvatar, "", Offset::MAX)
            && let Some(event) = env.events.get(offset)?
            && let Ok(avatar) = event.content_as::<Avatar>()
        {
            pictures.extend(own_media(&env, &avatar.url));
        }
    }
    Ok(pictures)
}

/// The media id in an address of this server.
fn own_media(env: &Env, url: &str) -> Option<String> {
    let (server, media_id) = <&MxcUri>::from(url).parts().ok()?;
    (*server == env.server.name).then(|| media_id.to_owned())
}

/// Finds and removes the data of erased users. Returns the number of events.
pub(super) async fn erase_users(engine: &Engine) -> Result<u64, SweepError> {
    let (log, end) = (Arc::clone(engine.log()), engine.head().offset());
    let (owed, told) = {
        let erasures = &engine.state().erasures;
        (erasures.owed(), erasures.superseded(usize::MAX))
    };
    if owed.is_empty() {
        return Ok(0);
    }
    let looked_for =
        ScanTargets { users: owed.iter().cloned().collect(), told: told.into_iter().collect() };
    // It scans the whole log.
    let finding = threads::spawn_blocking(move || Traces::find(&*log, end, &looked_for));
    let mut traces = match finding.await {
        Ok(found) => found?,
        Err(panic) => std::panic::resume_unwind(panic.into_panic()),
    };
    let mut count = 0;
    for (user_id, PendingErasure { because, media, .. }) in owed {
        let trace = traces.0.remove(&user_id).unwrap_or_default();
        count += erase_user(engine, user_id, because, media, trace).await?;
    }
    Ok(count)
}

/// Removes what was found of a user. Returns the number of events.
async fn erase_user(
    engine: &Engine,
    user_id: OwnedUserId,
    because: Offset,
    media: bool,
    trace: Trace,
) -> Result<u64, SweepError> {
    let mut count = 0;
    for (room_id, events) in trace.messages {
        for events in events.chunks(AT_ONCE) {
            let (user_id, room_id) = (user_id.clone(), room_id.clone());
            let erase = EraseMessages { user_id, because, room_id, events: events.to_vec() };
            count += engine.propose(Origin::server(), erase).await?.into_inner();
        }
    }
    if media {
        repeat(engine, &EraseMedia { user_id: user_id.clone(), because }).await?;
    }
    let runs = runs(trace.records);
    let mut pieces = runs.chunks(RUNS).peekable();
    loop {
        let records = pieces.next().unwrap_or_default().to_vec();
        let more = pieces.peek().is_some();
        let addresses = if more { BTreeMap::new() } else { trace.addresses.clone() };
        let erase = EraseUser { user_id: user_id.clone(), because, records, addresses, more };
        engine.propose(Origin::server(), erase).await?.into_inner();
        if !more {
            return Ok(count);
        }
    }
}

/// What a scan looks for.
struct ScanTargets {
    users: BTreeMap<OwnedUserId, PendingErasure>,
    /// Records about messages to devices that all recipients have received.
    told: BTreeSet<Offset>,
}

impl ScanTargets {
    fn user(&self, user_id: &UserId) -> Option<&OwnedUserId> {
        self.users.get_key_value(user_id).map(|(user_id, _)| user_id)
    }
}

/// A user's data in the log.
#[derive(Default)]
struct Traces(BTreeMap<OwnedUserId, Trace>);

#[derive(Default)]
struct Trace {
    /// Records with the user's data.
    records: BTreeSet<Offset>,
    /// If the user's messages are to be erased: these, by room.
    messages: BTreeMap<OwnedRoomId, Vec<Offset>>,
    /// The user's addresses, each with the records of its validations.
    addresses: BTreeMap<Threepid, Vec<Offset>>,
    /// The user's uploads.
    files: BTreeSet<String>,
}

impl Traces {
    /// Scans the records up to `end`, for each user up to the end of the account.
    fn find(log: &dyn Log, end: Offset, of: &ScanTargets) -> Result<Self, ReadError> {
        let mut traces = Self::default();
        // A validation begins before the address is anybody's.
        let mut asked: BTreeMap<Threepid, Vec<Offset>> = BTreeMap::new();
        // The users whom the current batch concerns.
        let mut concerned: BTreeSet<OwnedUserId> = BTreeSet::new();
        let mut from = Offset::new(1);
        let work = Work::begin(progress::SEARCH_FOR_USERS, 0, end.get());
        while from <= end {
            let records = log.read(from, RECORDS)?;
            let Some(last) = records.last() else { return Err(ReadError::Missing(from)) };
            work.at(last.offset().get());
            from = last.offset().next();
            for record in &records {
                traces.note(record, of, &mut asked, &mut concerned);
                if record.header.batch_remaining == 0 {
                    concerned.clear();
                }
            }
        }
        for trace in traces.0.values_mut() {
            for (address, records) in &mut trace.addresses {
                records.extend(asked.get(address).into_iter().flatten());
            }
        }
        Ok(traces)
    }

    fn note(
        &mut self,
        record: &Record,
        of: &ScanTargets,
        asked: &mut BTreeMap<Threepid, Vec<Offset>>,
        concerned: &mut BTreeSet<OwnedUserId>,
    ) {
        let stream = record.header.stream.as_str();
        if let Some(name) = stream.strip_prefix("user/") {
            let streams_user = of.users.keys().find(|user_id| user_id.localpart() == name);
            concerned.extend(streams_user.cloned());
        }
        if remains(&record.header.kind) == Remains::Everything {
            return;
        }
        let Ok(Some(command)) = record.command() else { return };
        match &command {
            Command::ThreepidAdd(ThreepidAdd { user_id, threepid, .. })
            | Command::ThreepidBind(ThreepidBind { user_id, threepid, .. }) => {
                if let Some(user_id) = of.user(user_id) {
                    self.of(user_id).addresses.entry(threepid.clone()).or_default();
                }
            }
            Command::RoomPdu(body) => return self.note_pdu(record.offset(), body, of),
            Command::MediaUpload(MediaUpload { user_id: Some(user_id), media_id, .. }) => {
                if let Some(user_id) = of.user(user_id) {
                    self.of(user_id).files.insert(media_id.clone());
                }
            }
            _ => {}
        }
        let offset = record.offset();
        let users: Vec<&UserId> = match command.holds() {
            Holds::Nothing | Holds::Room(_) => return,
            Holds::Event(body) => return self.note_event(offset, body, of),
            Holds::Address(address) => {
                asked.entry(address.clone()).or_default().push(offset);
                return;
            }
            Holds::Of(user_id) => vec![user_id],
            Holds::OfBoth(user_id, other) => vec![user_id, other],
            Holds::Report { by, of, .. } => of.into_iter().chain([by]).collect(),
            Holds::Letter(_) if !of.told.contains(&offset) => return,
            Holds::Letter(letter) => {
                letter.messages.keys().map(|to| &**to).chain([&*letter.sender]).collect()
            }
            Holds::Files(media_ids) => {
                let owned = |user_id: &&OwnedUserId| {
                    let trace = self.0.get(*user_id);
                    trace.is_some_and(|trace| media_ids.iter().any(|id| trace.files.contains(id)))
                };
                let owners = of.users.iter().filter(|(_, owed)| owed.media);
                owners.map(|(user_id, _)| user_id).filter(owned).map(|id| &**id).collect()
            }
            Holds::Reason => {
                of.users.keys().filter(|id| concerned.contains(*id)).map(|id| &**id).collect()
            }
        };
        for user_id in users {
            if let Some((user_id, owed)) = of.users.get_key_value(user_id)
                && offset < owed.because
            {
                concerned.insert(user_id.clone());
                self.of(user_id).records.insert(offset);
            }
        }
    }

    /// As [`Self::note_event`]. An event that is in no timeline may be in a gap of its room, from
    /// which it goes like a message. In both cases its record is named.
    fn note_pdu(&mut self, offset: Offset, body: &RoomPdu, of: &ScanTargets) {
        self.note_facts(offset, &body.room_id, &body.pdu, of);
        let is_message = EventFacts::of(&body.pdu).is_some_and(|facts| facts.state_key.is_none());
        if let Some((user_id, owed)) = of.users.get_key_value(&body.sender)
            && is_message
            && owed.messages
        {
            self.of(user_id).records.insert(offset);
        }
    }

    fn note_event(&mut self, offset: Offset, body: &RoomEvent, of: &ScanTargets) {
        self.note_facts(offset, &body.room_id, &body.pdu, of);
    }

    fn note_facts(&mut self, offset: Offset, room_id: &RoomId, pdu: &RawValue, of: &ScanTargets) {
        let Some(facts) = EventFacts::of(pdu) else { return };
        match &facts.state_key {
            // Their names in rooms.
            Some(key) if facts.event_type == "m.room.member" => {
                let member = <&UserId>::try_from(&**key).ok();
                if let Some(user_id) = member.and_then(|id| of.user(id)) {
                    self.of(user_id).records.insert(offset);
                }
            }
            None => {
                let sender = <&UserId>::try_from(&*facts.sender).ok();
                let sender = sender.and_then(|id| of.users.get_key_value(id));
                if let Some((user_id, _)) = sender.filter(|(_, owed)| owed.messages) {
                    let rooms = &mut self.of(user_id).messages;
                    rooms.entry(room_id.to_owned()).or_default().push(offset);
                }
            }
            Some(_) => {}
        }
    }

    fn of(&mut self, user_id: &OwnedUserId) -> &mut Trace {
        self.0.entry(user_id.clone()).or_default()
    }
}

/// What the scan needs of an event.
#[derive(Deserialize)]
struct EventFacts {
    #[serde(rename = "type")]
    event_type: String,
    sender: String,
    #[serde(default)]
    state_key: Option<String>,
}

impl EventFacts {
    fn of(pdu: &RawValue) -> Option<Self> {
        serde_json::from_str(pdu.get()).ok()
    }
}
