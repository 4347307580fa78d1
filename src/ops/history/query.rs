//! Rooms, users, records and counts as of a moment. The projections are rebuilt by replay. Bodies
//! of events are read from the log only for what an answer shows.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use ruma::{
    OwnedRoomAliasId, OwnedRoomId, OwnedUserId, RoomAliasId, RoomId, events::StateEventType,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    HistoryError, describe,
    moment::{Moment, Time, last_until},
    progress::Progress,
    terminal::grouped,
};
use crate::source::Source;
use logcabin_base::{clock::Clock, traces::trace_of};
use logcabin_log::erase::erasure;
use logcabin_read::events::StoredEvent;
use logcabin_record::{
    Class, Command, Offset, Payload, Record,
    command::{AccountKind, Body as _, ImportBegin, ImportEnd, RoomEvent},
    mask,
};
use logcabin_snapshot as snapshot;
use logcabin_state::{Membership, Room, State};

/// How many event bodies are held in memory while a timeline is written.
const CHUNK: usize = 512;

/// How many rooms the statistics list.
const BUSIEST: usize = 10;

/// A log, replayed up to a moment.
#[derive(Debug)]
pub struct History<'a> {
    source: &'a Source,
    state: Arc<State>,
    /// The moment, if the projections are newer.
    at: Option<Offset>,
    /// The offset of the snapshot that the replay started from; [`Offset::ZERO`] for none.
    base: Offset,
}

/// The last record up to a moment; [`Offset::ZERO`] if there is none.
pub(crate) fn offset_of(source: &Source, moment: Moment) -> Result<Offset, HistoryError> {
    let end = source.end()?;
    let until = match moment.from_now(Clock::system().now_ms()) {
        Moment::At(offset) => return Ok(offset.min(end)),
        Moment::Time(ms) | Moment::Ago(ms) => ms,
    };
    last_until(end, until, |offset| {
        let mut time_ms = None;
        source.fetch(&[offset], |record| {
            time_ms = Some(record.header.time_ms);
            Ok::<_, HistoryError>(())
        })?;
        Ok(time_ms)
    })
}

/// Refuses a moment, by its last record, at which an import was not completed. Its records are of
/// the time of the import, and what they say happened is older.
fn must_be_after_import(source: &Source, to: Offset) -> Result<(), HistoryError> {
    // The first record of a log names the server, and an import follows it.
    let next = to.max(Offset::new(1)).next();
    if next > source.end()? {
        return Ok(());
    }
    let mut imported_ms = None;
    source.fetch(&[next], |record| {
        let header = &record.header;
        let is_of_import = header.origin.import().is_some()
            || [ImportBegin::KIND.name, ImportEnd::KIND.name].contains(&&*header.kind);
        imported_ms = is_of_import.then_some(header.time_ms);
        Ok::<_, HistoryError>(())
    })?;
    imported_ms.map_or(Ok(()), |time_ms| Err(HistoryError::Imported(Time(time_ms))))
}

impl<'a> History<'a> {
    /// The state of `source` as of `at`, or now. Starts from the nearest earlier snapshot, if there
    /// is one, and replays the records after it.
    pub fn open(source: &'a Source, at: Option<Moment>) -> Result<Self, HistoryError> {
        let to = at.map(|at| offset_of(source, at)).transpose()?;
        if let (Some(Moment::Time(_) | Moment::Ago(_)), Some(to)) = (at, to) {
            must_be_after_import(source, to)?;
        }
        let mut history = Self::beginning(source);
        if let Some(state) = nearest(source, to) {
            history.base = state.applied();
            history.state = Arc::new(state);
        }
        history.go_on(to.map(Moment::At), |_| ())?;
        Ok(history)
    }

    /// What the live projections of a server say of a moment, without a replay. They know when
    /// rooms, profiles, passwords, devices, account data and aliases changed. Of everything else
    /// (the status of an account, addresses, pushers, files) the answers are the present ones.
    pub fn live(source: &'a Source, state: Arc<State>, at: Offset) -> Self {
        Self { source, state, at: Some(at), base: Offset::ZERO }
    }

    /// Replays the whole log and passes each record to `each`.
    pub fn walk(source: &'a Source, each: impl FnMut(&Record)) -> Result<Self, HistoryError> {
        let mut history = Self::beginning(source);
        history.go_on(None, each)?;
        Ok(history)
    }

    /// The empty state, before the first record.
    fn beginning(source: &'a Source) -> Self {
        Self { source, state: Arc::default(), at: None, base: Offset::ZERO }
    }

    /// Applies the records up to `to`, or up to the last one, and passes each to `each`.
    pub fn go_on(
        &mut self,
        to: Option<Moment>,
        mut each: impl FnMut(&Record),
    ) -> Result<(), HistoryError> {
        let end = match to {
            Some(to) => offset_of(self.source, to)?,
            None => self.source.end()?,
        };
        if self.end() >= end {
            return Ok(());
        }
        let mut progress = Progress::begin(end);
        for record in self.source.records(self.end().next())? {
            let record = record?;
            let _ = self.state.apply(&record)?;
            each(&record);
            progress.at(record.offset());
            if record.offset() >= end {
                break;
            }
        }
        Ok(())
    }

    /// How the moment was reached, for people: from which snapshot, and by how many records.
    pub fn way(&self) -> String {
        let (end, base) = (self.end().get(), self.base.get());
        let replayed = grouped(end - base);
        match base {
            0 => format!("as of record {}: {replayed} records were replayed", grouped(end)),
            base => format!(
                "as of record {}: {replayed} records were replayed after the snapshot at {}",
                grouped(end),
                grouped(base)
            ),
        }
    }

    /// The source of the records.
    pub const fn source(&self) -> &'a Source {
        self.source
    }

    /// The projections as of the moment.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The offset of the last record.
    pub fn end(&self) -> Offset {
        self.at.unwrap_or_else(|| self.state.applied())
    }

    /// Finds a room by its id, its alias, the beginning of either, or its name if only one room has
    /// it. In live projections only by its id or alias, because everything else reads all rooms, or
    /// the log.
    ///
    /// # Errors
    /// When no room or several rooms match.
    pub fn room(&self, name: &str) -> Result<Arc<Room>, HistoryError> {
        let rooms = &self.state.rooms;
        match self.room_now(name) {
            Ok(room) => return Ok(room),
            Err(error) if self.at.is_some() => return Err(error),
            Err(_) => {}
        }
        let mut matches = BTreeSet::new();
        let sigil = |id: &str| id.get(1..).is_some_and(|rest| rest.starts_with(name));
        for room in rooms.all() {
            if room.id.as_str().starts_with(name) || sigil(room.id.as_str()) {
                matches.insert(room.id.clone());
            }
        }
        for (alias, target) in self.state.aliases.all(Offset::MAX) {
            if alias.as_str().starts_with(name) || sigil(alias.as_str()) {
                matches.insert(target.room_id);
            }
        }
        if matches.is_empty() {
            // Names are in event bodies, which are read only if nothing else matches.
            for row in self.rooms()? {
                if row.name.is_some_and(|called| called.eq_ignore_ascii_case(name)) {
                    matches.insert(row.room_id);
                }
            }
        }
        let found = matches.first().and_then(|id| rooms.get(id));
        match (found, matches.len()) {
            (Some(room), 1) => Ok(room),
            (_, 0) => self.room_by_later_name(name),
            _ => Err(HistoryError::ManyRooms {
                name: name.to_owned(),
                rooms: matches.into_iter().collect(),
            }),
        }
    }

    /// Finds a room that got its name after the moment, by its current name.
    fn room_by_later_name(&self, name: &str) -> Result<Arc<Room>, HistoryError> {
        if self.end() >= self.source.end()? {
            return Err(HistoryError::NoRoom(name.to_owned()));
        }
        let now = Self::open(self.source, None)?;
        let room_id = now.room(name)?.id.clone();
        let not_yet = || HistoryError::NotYet { name: room_id.to_string(), at: self.end() };
        self.state.rooms.get(&room_id).ok_or_else(not_yet)
    }

    /// The room with this id or present alias.
    pub fn room_now(&self, name: &str) -> Result<Arc<Room>, HistoryError> {
        let rooms = &self.state.rooms;
        let by_id = <&RoomId>::try_from(name).ok().and_then(|id| rooms.get(id));
        let target = <&RoomAliasId>::try_from(name).ok();
        let target = target.and_then(|alias| self.state.aliases.get(alias, Offset::MAX));
        let found = by_id.or_else(|| target.and_then(|target| rooms.get(&target.room_id)));
        found.ok_or_else(|| HistoryError::NoRoom(name.to_owned()))
    }

    /// Reads the events at `offsets`, in any order and with repeats.
    pub(super) fn load(&self, offsets: &[Offset]) -> Result<HashMap<Offset, Loaded>, HistoryError> {
        let offsets: Vec<_> =
            offsets.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
        let mut loaded = HashMap::with_capacity(offsets.len());
        self.source.fetch(&offsets, |record| {
            let time = Time(record.happened_ms());
            let offset = record.offset();
            let event = match record.command() {
                Ok(Some(Command::RoomEvent(body))) => StoredEvent::new(offset, body).ok(),
                _ => None,
            };
            loaded.insert(offset, Loaded { time, event });
            Ok::<_, HistoryError>(())
        })?;
        Ok(loaded)
    }

    /// All rooms, in the order of their creation.
    pub fn rooms(&self) -> Result<Vec<RoomRow>, HistoryError> {
        let at = self.end();
        let mut aliases: HashMap<OwnedRoomId, Vec<OwnedRoomAliasId>> = HashMap::new();
        for (alias, target) in self.state.aliases.all(at) {
            aliases.entry(target.room_id).or_default().push(alias);
        }
        let rooms = self.state.rooms.all();
        let key = |room: &Room, event_type| room.state_event(&event_type, "", at);
        let mut wanted = Vec::new();
        for room in &rooms {
            wanted.extend(key(room, StateEventType::RoomName));
            wanted.extend(key(room, StateEventType::RoomCanonicalAlias));
            wanted.extend(room.last_event(at));
            wanted.push(room.created);
        }
        let loaded = self.load(&wanted)?;
        let text = |offset: Option<Offset>, key: &str| -> Option<String> {
            let event = loaded.get(&offset?)?.event.as_ref()?;
            let content: Value = event.content_as().ok()?;
            Some(content.get(key)?.as_str().filter(|text| !text.is_empty())?.to_owned())
        };
        let time = |offset: Option<Offset>| Some(loaded.get(&offset?)?.time.to_string());
        Ok(rooms
            .iter()
            .map(|room| {
                let counts = room.counts(at);
                let aliases = aliases.remove(&room.id).unwrap_or_default();
                let main = text(key(room, StateEventType::RoomCanonicalAlias), "alias");
                RoomRow {
                    room_id: room.id.clone(),
                    alias: main.or_else(|| aliases.first().map(ToString::to_string)),
                    name: text(key(room, StateEventType::RoomName), "name"),
                    version: room.version.to_string(),
                    public: room.is_public(),
                    joined: counts.joined,
                    invited: counts.invited,
                    events: room.event_count(at) as u64,
                    created: time(Some(room.created)),
                    last_event: time(room.last_event(at)),
                }
            })
            .collect())
    }

    /// Passes the events of `room` after `after` and up to `to`, inclusive, to `found`, oldest
    /// first. With `last`, only that many of the newest.
    pub fn timeline(
        &self,
        room: &Room,
        after: Offset,
        to: Offset,
        last: Option<usize>,
        mut found: impl FnMut(EventRow) -> Result<(), HistoryError>,
    ) -> Result<(), HistoryError> {
        let mut offsets = room.events_forward(after, to, usize::MAX);
        if let Some(last) = last {
            offsets.drain(..offsets.len().saturating_sub(last));
        }
        for chunk in offsets.chunks(CHUNK) {
            let mut loaded = self.load(chunk)?;
            for offset in chunk {
                if let Some(event) = loaded.remove(offset) {
                    found(self.event_row(room, *offset, event))?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn event_row(&self, room: &Room, offset: Offset, loaded: Loaded) -> EventRow {
        let redacted_by = room.redaction_of(offset, self.end());
        let time = loaded.time;
        let Some(event) = loaded.event else {
            return EventRow {
                offset,
                time: time.to_string(),
                text: "(the event was erased)".to_owned(),
                ..EventRow::default()
            };
        };
        let before = event
            .state_key
            .as_deref()
            .and_then(|target| OwnedUserId::try_from(target).ok())
            .and_then(|target| room.membership(&target, offset.prev()))
            .map(|(_, membership)| membership);
        // If two events of the room share the 64-bit hash of their ids, no record is named.
        let about = describe::about(&event).and_then(|event_id| {
            let mut candidates = self.state.events.candidates(&event_id);
            candidates.retain(|offset| room.has_event(*offset));
            candidates.pop().filter(|_| candidates.is_empty())
        });
        let text = match redacted_by {
            // Redacted content is not shown here. `show` displays what the log still holds.
            Some(by) => format!("(redacted by record {by})"),
            None => describe::of_event(&event, describe::Context { before, about }),
        };
        let content = event.content_as().ok().filter(|_| redacted_by.is_none());
        EventRow {
            offset,
            time: time.to_string(),
            event_id: event.event_id.to_string(),
            event_type: event.event_type.to_string(),
            sender: event.sender.to_string(),
            state_key: event.state_key.as_deref().map(str::to_owned),
            content,
            redacted_by,
            text,
        }
    }

    /// The state of `room` as of `at`, by type and state key.
    pub fn room_state(&self, room: &Room, at: Offset) -> Result<Vec<EventRow>, HistoryError> {
        let mut rows = self.events(room, &room.full_state(at))?;
        rows.sort_by(|a, b| (&a.event_type, &a.state_key).cmp(&(&b.event_type, &b.state_key)));
        Ok(rows)
    }

    /// All users, sorted by id.
    pub fn users(&self) -> Result<Vec<UserRow>, HistoryError> {
        let at = self.end();
        let mut rows = Vec::new();
        let mut wanted = Vec::new();
        for user_id in self.state.accounts.user_ids() {
            let Some(account) = self.state.accounts.get(&user_id) else { continue };
            let account = account.read();
            let rooms = self.state.memberships.of(&user_id, at);
            let joined = rooms.iter().filter(|room| room.membership == Membership::Join).count();
            wanted.extend([account.registered, account.changed]);
            let display_name = account.profile_field("displayname").map(describe::plain);
            rows.push((
                account.registered,
                account.changed,
                UserRow {
                    user_id: user_id.to_string(),
                    display_name,
                    guest: account.kind == AccountKind::Guest,
                    devices: account.active_devices().map(|(id, _)| id.to_string()).collect(),
                    rooms: joined as u64,
                    registered: None,
                    changed: None,
                },
            ));
        }
        let loaded = self.load(&wanted)?;
        let time = |offset: Offset| Some(loaded.get(&offset)?.time.to_string());
        Ok(rows
            .into_iter()
            .map(|(registered, changed, row)| UserRow {
                registered: time(registered),
                changed: time(changed),
                ..row
            })
            .collect())
    }
}

/// A record that was read for its event.
pub(super) struct Loaded {
    pub(super) time: Time,
    pub(super) event: Option<StoredEvent>,
}

/// The newest usable snapshot at or before `to`. An unusable one is skipped; the replay then takes
/// longer.
fn nearest(source: &Source, to: Option<Offset>) -> Option<State> {
    let snapshots = snapshot::list(&snapshot::directory(source.dir()?)).ok()?;
    let fits = |(offset, _): &(Offset, _)| to.is_none_or(|to| *offset <= to);
    snapshots.into_iter().filter(fits).find_map(|(offset, path)| {
        let mut chain = None;
        let found = source.fetch(&[offset], |record| {
            chain = Some(record.chain);
            Ok::<_, HistoryError>(())
        });
        found.ok()?;
        snapshot::read_with(&path, |_| Ok(chain))
            .and_then(|held| held.exact(&path))
            .ok()
            .map(|(state, _)| state)
    })
}

/// Statistics of the log as of `at`.
pub fn stats(source: &Source, at: Option<Moment>) -> Result<Stats, HistoryError> {
    let mut kinds: BTreeMap<String, KindRow> = BTreeMap::new();
    let mut times: Option<(u64, u64)> = None;
    let mut history = History::beginning(source);
    history.go_on(at, |record| {
        let header = &record.header;
        let row = kinds.entry(header.kind.to_string()).or_default();
        row.records += 1;
        row.bytes += u64::from(header.payload_len);
        times = Some((times.map_or(header.time_ms, |(first, _)| first), header.time_ms));
    })?;
    let at = history.end();
    let state = history.state();
    let mut busiest = state.rooms.all();
    busiest.sort_by_key(|room| std::cmp::Reverse(room.event_count(at)));
    let busiest: BTreeSet<_> = busiest.iter().take(BUSIEST).map(|room| room.id.clone()).collect();
    let mut busiest: Vec<_> =
        history.rooms()?.into_iter().filter(|row| busiest.contains(&row.room_id)).collect();
    busiest.sort_by_key(|row| std::cmp::Reverse(row.events));
    Ok(Stats {
        records: at.get(),
        bytes: kinds.values().map(|row| row.bytes).sum(),
        first: times.map(|(first, _)| Time(first).to_string()),
        last: times.map(|(_, last)| Time(last).to_string()),
        counts: Counts::of(state),
        kinds: kinds.into_iter().map(|(kind, row)| KindRow { kind, ..row }).collect(),
        busiest,
    })
}

/// The record at `offset`, with its secrets masked.
pub fn show(source: &Source, offset: Offset) -> Result<RecordView, HistoryError> {
    let mut found = None;
    source.fetch(&[offset], |record| {
        found = Some(RecordView::of(&record));
        Ok::<_, HistoryError>(())
    })?;
    match found {
        Some(view) if view.payload_is == "whole" => Ok(view),
        Some(view) => Ok(RecordView { erasure: erasure_of(source, offset)?, ..view }),
        None => Err(HistoryError::NoRecord { offset, end: source.end()? }),
    }
}

/// The erasure that removed the payload of the record at `offset`. Reads all records after it.
fn erasure_of(source: &Source, offset: Offset) -> Result<Option<ErasureView>, HistoryError> {
    for record in source.records(offset.next())? {
        let record = record?;
        let Some(erase) = erasure(&record) else { continue };
        let reduced = erase.reduced.iter().find(|reduced| reduced.offset == offset);
        let taken = erase.taken.iter().find(|run| (run.first..=run.last).contains(&offset));
        let because = reduced.map(|of| of.because).or_else(|| taken.map(|of| of.because));
        let because = because.filter(|because| *because > Offset::ZERO);
        let superseded = reduced.is_some()
            || erase.superseded.iter().any(|(first, last)| (*first..=*last).contains(&offset));
        if because.is_none() && !superseded {
            continue;
        }
        let mut redaction = None;
        let wanted: Vec<_> = because.into_iter().collect();
        source.fetch(&wanted, |record| {
            let words = describe::of_record(&record);
            let how = (&*record.header.kind != RoomEvent::KIND.name).then_some(words.text);
            redaction = Some(((words.who, how), Time(record.happened_ms())));
            Ok::<_, HistoryError>(())
        })?;
        let (who, redacted) = redaction.unzip();
        let (who, how) = who.unzip();
        return Ok(Some(ErasureView {
            record: record.offset(),
            time: Time(record.header.time_ms).to_string(),
            because,
            who,
            how: how.flatten(),
            redacted: redacted.map(|time| time.to_string()),
        }));
    }
    Ok(None)
}

/// The number of entities in the projections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Accounts.
    pub users: u64,
    /// Devices that are logged in.
    pub devices: u64,
    pub rooms: u64,
    /// Events in all rooms.
    pub events: u64,
    /// Aliases that point at a room.
    pub aliases: u64,
}

impl Counts {
    /// The counts of `state`.
    pub fn of(state: &State) -> Self {
        let accounts = state.accounts.user_ids();
        let accounts = accounts.iter().filter_map(|user_id| state.accounts.get(user_id));
        let rooms = state.rooms.all();
        Self {
            users: state.accounts.len() as u64,
            devices: accounts.map(|account| account.read().active_devices().count() as u64).sum(),
            rooms: rooms.len() as u64,
            events: rooms.iter().map(|room| room.event_count(Offset::MAX) as u64).sum(),
            aliases: state.aliases.all(Offset::MAX).len() as u64,
        }
    }
}

/// A room at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct RoomRow {
    pub room_id: OwnedRoomId,
    /// Its canonical alias, or else its first alias.
    pub alias: Option<String>,
    pub name: Option<String>,
    pub version: String,
    /// Whether the public directory lists it.
    pub public: bool,
    /// The number of joined users.
    pub joined: u64,
    /// The number of invited users.
    pub invited: u64,
    /// The number of events.
    pub events: u64,
    /// The time of its creation.
    pub created: Option<String>,
    /// The time of its last event.
    pub last_event: Option<String>,
}

/// An event of a timeline or a state.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EventRow {
    /// The offset of its record.
    pub offset: Offset,
    /// The time when the record was appended.
    pub time: String,
    pub event_id: String,
    #[serde(rename = "type")]
    pub event_type: String,
    pub sender: String,
    /// Its state key, if it is a state event.
    pub state_key: Option<String>,
    /// Its content; none if it was redacted.
    pub content: Option<Value>,
    /// The record that redacts it.
    pub redacted_by: Option<Offset>,
    /// A description for people.
    pub text: String,
}

/// A user at a glance.
#[derive(Clone, Debug, Serialize)]
pub struct UserRow {
    pub user_id: String,
    pub display_name: Option<String>,
    /// Whether this is a guest account.
    pub guest: bool,
    /// The devices that are logged in.
    pub devices: Vec<String>,
    /// The number of joined rooms.
    pub rooms: u64,
    /// The time of the registration.
    pub registered: Option<String>,
    /// The time of the last change to the account, except in rooms.
    pub changed: Option<String>,
}

/// Statistics of a log.
#[derive(Clone, Debug, Serialize)]
pub struct Stats {
    /// The number of records.
    pub records: u64,
    /// The total size of the payloads, in bytes.
    pub bytes: u64,
    /// The time of the first record.
    pub first: Option<String>,
    /// The time of the last record.
    pub last: Option<String>,
    /// The number of entities in the projections.
    #[serde(flatten)]
    pub counts: Counts,
    /// Records by kind.
    pub kinds: Vec<KindRow>,
    /// The rooms with the most events, in descending order.
    pub busiest: Vec<RoomRow>,
}

/// The records of one kind.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KindRow {
    pub kind: String,
    /// The number of records.
    pub records: u64,
    /// The total size of their payloads, in bytes.
    pub bytes: u64,
}

/// A record with its secrets masked.
#[derive(Clone, Debug, Serialize)]
pub struct RecordView {
    pub offset: Offset,
    /// The time when it was appended.
    pub time: String,
    /// For an imported record, the time when it happened at its source, if that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original: Option<String>,
    pub kind: String,
    /// The version of its payload.
    pub version: u16,
    pub stream: String,
    /// The room it concerns.
    pub room: Option<String>,
    /// The acting user.
    pub who: String,
    /// A description for people.
    pub text: String,
    /// The user who made the request, if any.
    pub user: String,
    /// The device the request came from, if any.
    pub device: String,
    /// The request's id, if any.
    pub request: String,
    /// The id of the request's trace, if it was traced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// The epoch of the log that it belongs to.
    pub epoch: u32,
    /// The number of records of its batch that follow it.
    pub batch_remaining: u32,
    /// Whether a restore to an earlier moment keeps it.
    pub must_not_rewind: bool,
    /// Whether compaction may drop its payload.
    pub ephemeral: bool,
    /// The length of its payload, in bytes.
    pub payload_len: u32,
    /// The blake3 hash of its payload, in hex.
    pub payload_hash: String,
    /// Its chain value, in hex.
    pub chain: String,
    /// `whole`, `reduced` or `erased`.
    pub payload_is: &'static str,
    /// What erased its payload; only if a single record was requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub erasure: Option<ErasureView>,
    /// Its payload, or what remains of it, with secrets masked; none if erased or sealed.
    pub payload: Option<Value>,
}

/// Why a payload was erased or reduced.
#[derive(Clone, Debug, Serialize)]
pub struct ErasureView {
    /// The offset of the `log.erase` record.
    pub record: Offset,
    /// The time when that was appended.
    pub time: String,
    /// The record that caused the erasure, such as a redaction; none for superseded content.
    pub because: Option<Offset>,
    /// The user who caused it.
    pub who: Option<String>,
    /// A description of the cause, unless it is a redaction.
    pub how: Option<String>,
    /// The time of the redaction.
    pub redacted: Option<String>,
}

impl RecordView {
    /// The time when it happened.
    pub fn happened(&self) -> &str {
        self.original.as_deref().unwrap_or(&self.time)
    }

    /// The view of `record`, with its secrets masked.
    pub fn of(record: &Record) -> Self {
        let header = &record.header;
        let words = describe::of_record(record);
        let hex = |hash: [u8; 32]| blake3::Hash::from_bytes(hash).to_hex().to_string();
        Self {
            offset: header.offset,
            time: Time(header.time_ms).to_string(),
            original: record.original_ms().map(|ms| Time(ms).to_string()),
            kind: header.kind.to_string(),
            version: header.version,
            stream: header.stream.to_string(),
            room: words.room,
            who: words.who,
            text: words.text,
            user: header.origin.user.to_string(),
            device: header.origin.device.to_string(),
            request: header.origin.request.to_string(),
            trace: trace_of(&header.origin.request).map(str::to_owned),
            epoch: header.epoch.0,
            batch_remaining: header.batch_remaining,
            must_not_rewind: header.class == Class::MustNotRewind,
            ephemeral: header.ephemeral,
            payload_len: header.payload_len,
            payload_hash: hex(header.payload_hash),
            chain: hex(record.chain),
            payload_is: match record.payload {
                Payload::Present(_) => "whole",
                Payload::Reduced(_) => "reduced",
                Payload::Erased => "erased",
            },
            erasure: None,
            payload: mask::payload(record),
        }
    }
}
