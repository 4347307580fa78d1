//! What a sweep erases: expired events and files, the data of users who asked for its erasure, and
//! the payloads of superseded records.
//!
//! A sweep looks for what is due, and proposes. Each proposal is decided on the state at that time:
//! for example, a file that has become an avatar since the sweep looked stays.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use ruma::{OwnedRoomId, OwnedUserId, UserId};

use super::{Commit, Env, Proposal, Refusal, retention::Retention};
use logcabin_log::{ReadError, erase::MAX_ERASED};
use logcabin_record::{
    Command, Offset, Payload, Record, Remains, Stream,
    command::{
        ErasedRun, EventsEnd, LogErase, MediaEnd, MediaRemove, Reduced, RoomErase, RoomEvent,
        RoomPdu, UserErase,
    },
    reduced, remains, runs,
    threepid::Threepid,
};
use logcabin_state::{State, erasures::PendingErasure};

/// The most events that one `room.erase` takes, and files that one `media.remove` does.
pub const AT_ONCE: usize = 1000;

/// The most runs of records in one `user.erase`: they fit into a payload.
pub const RUNS: usize = 4000;

/// How many records are read at a time.
const RECORDS: usize = 1024;

/// Erase expired events of one type in one room: at most [`AT_ONCE`].
#[derive(Clone, Debug)]
pub struct ExpireEvents {
    pub room_id: OwnedRoomId,
    pub event_type: Box<str>,
    /// The lifetime of such events that the sweep found, in milliseconds.
    pub lifetime_ms: u64,
    /// The last record that is old enough.
    pub until: Offset,
    /// How long events live.
    pub retention: Arc<Retention>,
}

impl Proposal for ExpireEvents {
    /// How many events went. None if the room now asks for another lifetime.
    type Outcome = u64;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<u64, Refusal> {
        let Self { room_id, event_type, lifetime_ms, until, retention } = self;
        let Some(room) = commit.env.state.rooms.get(room_id) else { return Ok(0) };
        let lifetime = retention.lifetime_ms(Some(room_id), event_type, room.lifetime());
        if lifetime != Some(*lifetime_ms) {
            return Ok(0);
        }
        let events = room.messages(event_type, *until, AT_ONCE);
        let count = events.len() as u64;
        if count > 0 {
            let (event_type, lifetime_ms) = (event_type.to_string(), *lifetime_ms);
            let why = EventsEnd::Lifetime { event_type, lifetime_ms };
            commit.append(self.stream(), RoomErase { room_id: room_id.clone(), events, why });
        }
        Ok(count)
    }
}

/// Remove files that were kept long enough and are nobody's picture and no room's: at most
/// [`AT_ONCE`].
#[derive(Clone, Debug)]
pub struct ExpireMedia {
    /// How long files are kept, in milliseconds.
    pub lifetime_ms: u64,
    /// Until when those came that are due, in milliseconds since the Unix epoch.
    pub until_ms: u64,
    /// The pictures as of `looked`.
    pub pictures: Arc<HashSet<String>>,
    /// The last record that had been applied when it was looked for pictures.
    pub looked: Offset,
}

impl Proposal for ExpireMedia {
    /// How many files went.
    type Outcome = u64;

    fn stream(&self) -> Stream {
        Stream::server()
    }

    // A file becomes a picture on the stream of any user and any room.
    fn is_exclusive(&self) -> bool {
        true
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<u64, Refusal> {
        let Self { lifetime_ms, until_ms, .. } = *self;
        let address = address_of_files(commit.env);
        let mut named = HashSet::new();
        each_since(commit.env, self.looked, |record| named.extend(files_in(record, &address)))?;
        let is_free = |id: &str| !self.pictures.contains(id) && !named.contains(id);
        let due = commit.env.state.media.until(until_ms, AT_ONCE, is_free);
        Ok(remove(commit, due, MediaEnd::Lifetime { lifetime_ms }))
    }
}

/// Take away events of a user who is to be erased with what they sent.
#[derive(Clone, Debug)]
pub struct EraseMessages {
    pub user_id: OwnedUserId,
    /// The `user.deactivate` that asks for it.
    pub because: Offset,
    /// The room of the events.
    pub room_id: OwnedRoomId,
    /// The events: at most [`AT_ONCE`].
    pub events: Vec<Offset>,
}

impl Proposal for EraseMessages {
    /// How many events went.
    type Outcome = u64;

    fn stream(&self) -> Stream {
        Stream::room(&self.room_id)
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<u64, Refusal> {
        let Self { user_id, because, room_id, events } = self.clone();
        let owed = owed_to(&commit.env.state, &user_id, because);
        if events.is_empty() || !owed.is_some_and(|owed| owed.messages) {
            return Ok(0);
        }
        let count = events.len() as u64;
        let why = EventsEnd::Sender { user_id, because };
        commit.append(self.stream(), RoomErase { room_id, events, why });
        Ok(count)
    }
}

/// Remove files of a user who is to be erased with them: at most [`AT_ONCE`].
#[derive(Clone, Debug)]
pub struct EraseMedia {
    pub user_id: OwnedUserId,
    /// The `user.deactivate` that asks for it.
    pub because: Offset,
}

impl Proposal for EraseMedia {
    /// How many files went.
    type Outcome = u64;

    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<u64, Refusal> {
        let Self { user_id, because } = self.clone();
        let state = &commit.env.state;
        if !owed_to(state, &user_id, because).is_some_and(|owed| owed.media) {
            return Ok(0);
        }
        let files = state.media.of_user(&user_id).into_iter();
        let files = files.take(AT_ONCE).map(|(media_id, _)| media_id).collect();
        Ok(remove(commit, files, MediaEnd::Owner { user_id, because }))
    }
}

/// Take away what is kept of a user who is to be erased.
#[derive(Clone, Debug)]
pub struct EraseUser {
    pub user_id: OwnedUserId,
    /// The `user.deactivate` that asks for it.
    pub because: Offset,
    /// The records that hold what was theirs, in runs: at most [`RUNS`].
    pub records: Vec<(Offset, Offset)>,
    /// The addresses that were theirs, each with the records in which it was to be proven to be.
    pub addresses: BTreeMap<Threepid, Vec<Offset>>,
    /// Whether more of their records follow: then `addresses` are for the last.
    pub more: bool,
}

impl Proposal for EraseUser {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::user(&self.user_id)
    }

    // An address becomes another's on the stream of any user.
    fn is_exclusive(&self) -> bool {
        !self.more
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        let Self { user_id, because, records, addresses, more } = self.clone();
        if owed_to(&commit.env.state, &user_id, because).is_none() {
            return Ok(());
        }
        if more {
            commit.append(self.stream(), UserErase { user_id, because, records, more });
            return Ok(());
        }
        let records = records.into_iter().flat_map(|(first, last)| first.get()..=last.get());
        let mut records: BTreeSet<Offset> = records.map(Offset::new).collect();
        records.extend(asked_of(&commit.env.state, &addresses, because));
        let records = runs(records);
        let mut pieces = records.chunks(RUNS).peekable();
        loop {
            let records = pieces.next().unwrap_or_default().to_vec();
            let more = pieces.peek().is_some();
            let user_id = user_id.clone();
            commit.append(self.stream(), UserErase { user_id, because, records, more });
            if !more {
                return Ok(());
            }
        }
    }
}

/// The records that asked for these addresses to be validated, before the one at `until`. An
/// address that is another's by now is theirs, and so is what they are about to prove.
fn asked_of(
    state: &State,
    addresses: &BTreeMap<Threepid, Vec<Offset>>,
    until: Offset,
) -> Vec<Offset> {
    let is_free = |address: &Threepid| state.threepids.owner(address).is_none();
    let free = addresses.iter().filter(|(address, _)| is_free(address));
    let records = free.flat_map(|(_, records)| records.iter().copied());
    let mut asked: Vec<_> = records.filter(|record| *record < until).collect();
    // What was begun before and is asked for once more since is one.
    asked.extend(state.validations.records_of(|found| {
        addresses.contains_key(&found.threepid)
            && is_free(&found.threepid)
            && found.records.iter().any(|record| *record < until)
    }));
    asked
}

/// Erase the payloads of condemned records, of events that were redacted long enough ago, and of
/// superseded records: as many as one piece holds.
#[derive(Clone, Copy, Debug)]
pub struct EraseDue {
    /// Until when events were redacted that are due, in milliseconds since the Unix epoch; `None`:
    /// no redacted event is.
    pub until_ms: Option<u64>,
    /// The last record that the archive has whole: later ones are not touched.
    pub archived: Offset,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// What one [`EraseDue`] took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erased {
    /// How many records lost their content or payload: none once nothing is due.
    pub records: u64,
    /// How many of them were merely superseded.
    pub superseded: u64,
}

impl Proposal for EraseDue {
    type Outcome = Erased;

    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<Erased, Refusal> {
        let (erase, superseded) = self.piece(commit.env)?;
        let records = erase.count();
        if records > 0 {
            commit.append(self.stream(), erase);
        }
        Ok(Erased { records, superseded })
    }
}

/// How many redactions are looked at for one piece: more than it takes, so that one that cannot be
/// carried out does not stand in the way of others.
const LOOKED_AT: usize = 10_000;

/// A piece ends once the pages it writes again hold this many bytes: the store writes its pages
/// whole, and one group is to stay far below one of its segments.
const PIECE_BYTES: u64 = 1024 * 1024;

/// About as many records as share a page of the default store.
const PAGE_RECORDS: u64 = 16;

impl EraseDue {
    /// What is to be erased next, and how many of those records were merely superseded.
    fn piece(&self, env: &Env) -> Result<(LogErase, u64), ReadError> {
        let mut space = Space::new(env);
        let erasures = &env.state.erasures;
        let mut parts = BTreeMap::new();
        let (mut taken, mut whole) = (BTreeMap::new(), BTreeSet::new());
        let redacted = self.until_ms.map(|until_ms| erasures.redacted(until_ms, LOOKED_AT));
        let redacted = redacted.into_iter().flatten();
        let redacted = redacted.map(|redacted| (redacted.event, redacted.because));
        for (offset, because) in redacted.chain(erasures.condemned(LOOKED_AT)) {
            if offset > self.archived {
                continue;
            }
            let Some(record) = space.take(offset)? else { break };
            match remains(&record.header.kind) {
                Remains::Nothing => {
                    taken.insert(offset, because);
                }
                Remains::Part => {
                    let part = reduction(&env.state, &record, because);
                    parts.extend(part.map(|part| (offset, part)));
                }
                // Whoever condemned it looked at its kind before.
                Remains::Everything => {}
            }
        }
        let mut superseded = 0;
        let most = usize::try_from(MAX_ERASED).unwrap_or(usize::MAX);
        // Nothing but the record is needed for these to be forgotten.
        let ended = env.state.validations.ended(self.now_ms, most);
        let done: BTreeSet<_> = erasures.superseded(most).into_iter().chain(ended).collect();
        for offset in done {
            if offset > self.archived {
                break;
            }
            if taken.contains_key(&offset) || parts.contains_key(&offset) {
                continue;
            }
            let Some(record) = space.take(offset)? else { break };
            if remains(&record.header.kind) != Remains::Part {
                superseded += u64::from(whole.insert(offset));
            } else if let Some(part) = reduction(&env.state, &record, Offset::ZERO) {
                superseded += u64::from(parts.insert(offset, part).is_none());
            }
        }
        let (reduced, taken) = (parts.into_values().collect(), in_runs(taken));
        Ok((LogErase { reduced, superseded: runs(whole), taken }, superseded))
    }
}

/// Records next to each other that go for the same reason, as one.
fn in_runs(taken: BTreeMap<Offset, Offset>) -> Vec<ErasedRun> {
    let mut found: Vec<ErasedRun> = Vec::new();
    for (offset, because) in taken {
        match found.last_mut() {
            Some(run) if run.because == because && run.last.next() == offset => run.last = offset,
            _ => found.push(ErasedRun { first: offset, last: offset, because }),
        }
    }
    found
}

/// Erase what another log of this server says was erased: for a log that was restored.
#[derive(Clone, Debug)]
pub struct EraseAgain {
    /// What: of records up to the end of the log.
    pub erase: LogErase,
}

impl Proposal for EraseAgain {
    type Outcome = ();

    fn stream(&self) -> Stream {
        Stream::server()
    }

    fn decide(&self, commit: &mut Commit<'_>) -> Result<(), Refusal> {
        commit.append(self.stream(), self.erase.clone());
        Ok(())
    }
}

/// What is left of the event at `event` when the record `because` takes its content; `None` if
/// nothing more can be taken.
pub fn reduced_event(
    env: &Env,
    event: Offset,
    because: Offset,
) -> Result<Option<Reduced>, ReadError> {
    let Some(record) = env.events.log().get(event)? else { return Ok(None) };
    if !matches!(record.payload, Payload::Present(_)) {
        return Ok(None);
    }
    Ok(reduction(&env.state, &record, because))
}

fn reduction(state: &State, record: &Record, because: Offset) -> Option<Reduced> {
    let offset = record.offset();
    let room_version = match record.command() {
        Ok(Some(
            Command::RoomEvent(RoomEvent { room_id, .. })
            | Command::RoomPdu(RoomPdu { room_id, .. }),
        )) => {
            let version = state.rooms.get(&room_id).map(|room| room.version.clone());
            let purged = || state.erasures.purged(&room_id).map(|purged| purged.version);
            Some(version.or_else(purged)?)
        }
        _ => None,
    };
    let left = match &record.payload {
        Payload::Present(bytes) => reduced(&record.header.kind, bytes, room_version.as_ref()),
        Payload::Reduced(bytes) => Ok(bytes.clone()),
        Payload::Erased => return None,
    };
    match left {
        Ok(left) => {
            let hash = *blake3::hash(&left).as_bytes();
            Some(Reduced { offset, because, room_version, hash })
        }
        Err(error) => {
            // Every record that this server wrote can be.
            tracing::error!(%offset, %error, "a record cannot be erased");
            None
        }
    }
}

/// The space that one piece has.
struct Space<'e> {
    env: &'e Env,
    pages: HashSet<u64>,
    /// The records of the page that was read last.
    page: Vec<Record>,
    bytes: u64,
    left: u64,
}

impl<'e> Space<'e> {
    fn new(env: &'e Env) -> Self {
        Self { env, pages: HashSet::new(), page: Vec::new(), bytes: 0, left: MAX_ERASED }
    }

    /// Makes space for a record, if there is any, and gives it.
    fn take(&mut self, offset: Offset) -> Result<Option<Record>, ReadError> {
        if self.left == 0 || self.bytes >= PIECE_BYTES {
            return Ok(None);
        }
        self.left -= 1;
        let log = self.env.events.log();
        let page = offset.get() / PAGE_RECORDS;
        if self.pages.insert(page) {
            let first = Offset::new((page * PAGE_RECORDS).max(1));
            self.page = log.read(first, PAGE_RECORDS as usize)?;
            let bytes = |payload: &Payload| payload.bytes().map_or(0, bytes::Bytes::len) as u64;
            self.bytes += self.page.iter().map(|record| 512 + bytes(&record.payload)).sum::<u64>();
        }
        if let Some(record) = self.page.iter().find(|record| record.offset() == offset) {
            return Ok(Some(record.clone()));
        }
        log.get(offset)?.ok_or(ReadError::Missing(offset)).map(Some)
    }
}

/// How the addresses of this server's files begin.
pub(super) fn address_of_files(env: &Env) -> String {
    format!("mxc://{}/", env.server.name)
}

/// The ids of files that a payload names by their address, which begins with `address`.
pub fn files_in<'r>(record: &'r Record, address: &str) -> impl Iterator<Item = String> + use<'r> {
    let text = record.payload.bytes().and_then(|bytes| std::str::from_utf8(bytes).ok());
    let mut parts = text.unwrap_or_default().split(address);
    let is_of_id = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    parts.next();
    let address_ends = parts.map(move |part| {
        let end = part.find(|letter| !is_of_id(letter)).unwrap_or(part.len());
        part[..end].to_owned()
    });
    // `split` borrows the address: what there is, is taken out of it.
    address_ends.collect::<Vec<_>>().into_iter()
}

/// Shows `look` each record that was applied after the one at `looked`.
pub(super) fn each_since(
    env: &Env,
    looked: Offset,
    mut look: impl FnMut(&Record),
) -> Result<(), ReadError> {
    let (mut from, end) = (looked.next(), env.state.applied());
    while from <= end {
        let records = env.events.log().read(from, RECORDS)?;
        let Some(last) = records.last() else { return Err(ReadError::Missing(from)) };
        from = last.offset().next();
        records.iter().for_each(&mut look);
    }
    Ok(())
}

/// What is still to be done for this user, for the `user.deactivate` at `because`.
fn owed_to(state: &State, user_id: &UserId, because: Offset) -> Option<PendingErasure> {
    let mut owed = state.erasures.owed().into_iter();
    let (_, owed) = owed.find(|(of, owed)| of == user_id && owed.because == because)?;
    Some(owed)
}

/// Removes files. Says how many.
fn remove(commit: &mut Commit<'_>, files: Vec<Box<str>>, why: MediaEnd) -> u64 {
    let count = files.len() as u64;
    if count > 0 {
        let media_ids = files.into_iter().map(String::from).collect();
        commit.append(Stream::server(), MediaRemove { media_ids, why });
    }
    count
}
