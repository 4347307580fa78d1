//! Restoring: a log as it was at an earlier moment, or all of it, and what may not be forgotten of
//! what came after.
//!
//! The records up to the moment are copied as they are. Then a new epoch begins, with
//! `server.restore`; the records after that say anew what of the abandoned future still counts
//! ([`carry`]). The new log is made aside and takes its place in one step ([`place`]): whoever is
//! interrupted begins again, and loses nothing.
//!
//! **One-time keys.** Which were handed out is known as far as the source goes. A log in its data
//! directory is all there was. An archive or a backup may end before the log did: then any key may
//! be out there, and all are dropped (`keys.drop`), so that devices upload new ones, and everyone's
//! devices are looked at anew.

mod carry;
mod place;
mod undone;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use ruma::{
    CanonicalJsonObject, CanonicalJsonValue, MilliSecondsSinceUnixEpoch, RoomId, UInt,
    events::TimelineEventType,
};
use serde::Serialize;

use crate::{
    base::{clock::Clock, disk},
    decide::{
        account::AccountLimit,
        ephemeral::Gather,
        erasure::{EraseAgain, reduced_event},
        send::SendEvent,
    },
    engine::{self, Engine},
    log::{
        Log, ReadError, VerifyError,
        erase::{Targets, erasure},
        store::{self, AtRest, DEFAULT_CACHE_BYTES, OpenError, SledLog, SledOptions, Store},
        verify::Checker,
    },
    ops::{
        backup::BackupError,
        history::moment::Moment,
        source::{Manifest, ManifestError, Source, SourceError},
    },
    record::{
        Command, Epoch, NewRecord, Offset, Origin, Record, Stream,
        command::{
            DelayedFinish, DelayedOutcome, KeysDrop, LogErase, Reduced, RoomReceipt, ServerRestore,
        },
        hex,
    },
    state::{ApplyError, State},
};
use carry::{Carrier, Carry, Key, Redaction};
use undone::UndoneRooms;
pub(crate) use writing::OfflineWriter;
pub use writing::WriteError;

/// What a log is restored from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// The log that is in the data directory already. It is kept aside.
    InPlace,
    /// An archive, a directory of backups, or another data directory.
    Place(PathBuf),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// From what.
    pub from: From,
    /// Up to which moment; none: all there is.
    pub to: Option<Moment>,
    /// The target directory.
    pub data_dir: PathBuf,
    /// Where the archive of the server in `data_dir` is, if it has one.
    pub archive_dir: Option<PathBuf>,
    /// Whether all one-time keys are dropped, also when all that was handed out is known.
    pub drop_keys: bool,
    /// Whether it is only said what would be done.
    pub dry_run: bool,
}

/// What was done, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// What it was restored from: `archive`, `backup` or `log`.
    pub source: String,
    /// How many records were restored.
    pub records: u64,
    /// The last of them.
    pub last: Offset,
    /// When that was written, in milliseconds since the Unix epoch.
    pub last_ms: u64,
    /// The chain value of the last, in hex.
    pub chain: String,
    /// [`State::digest`] as of the last, in hex.
    pub digest: String,
    /// How many records were left out at the source's end because the rest of their batch is not
    /// there.
    pub dropped: u64,
    /// How many bytes could not be read at an archive's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torn_bytes: Option<u64>,
    /// How many payloads the source still held that were erased later: they were left behind.
    pub erased: u64,
    /// The last record of the source, if it is after `last`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undone: Option<Offset>,
    /// Whether the source is known to hold everything that there was.
    pub complete: bool,
    /// By kind: how many records are lost.
    pub lost: BTreeMap<String, u64>,
    /// How many events are lost, of those, in rooms that were there before.
    pub lost_events: u64,
    /// How many rooms are lost.
    pub lost_rooms: u64,
    /// By kind: how many records were carried over.
    pub carried: BTreeMap<String, u64>,
    /// How many redactions were made again.
    pub redacted_again: u64,
    /// How many could not be, for example as their sender is not in the room: the texts are gone
    /// all the same.
    pub redacted_without: u64,
    /// Whether all one-time keys were dropped.
    pub keys_dropped: bool,
    /// How many uploaded files were copied.
    pub files: u64,
    /// How many uploaded files the restored log names and nobody has.
    pub missing_files: u64,
    /// The epoch that began.
    pub epoch: Epoch,
    /// The last record there is now.
    pub end: Offset,
    /// Where the log is that was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_log: Option<PathBuf>,
    /// Where the archive is that was there before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_archive: Option<PathBuf>,
}

/// Why a log could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The source cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// A backup cannot be read.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// A backup's manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A record of the source is not intact.
    #[error(transparent)]
    Verify(#[from] VerifyError),
    /// A record of the source cannot be applied.
    #[error(transparent)]
    Apply(#[from] ApplyError),
    /// There is a log already.
    #[error("{} is not empty; move it away first, it is not overwritten", .0.display())]
    NotEmpty(PathBuf),
    /// There is no moment to go back to.
    #[error("there is nothing in {0} at that moment")]
    Nothing(String),
    /// The source does not go so far.
    #[error("{place} ends at record {end}, before record {asked}")]
    Beyond {
        /// What is read.
        place: String,
        /// Its end.
        end: Offset,
        /// What was asked for.
        asked: Offset,
    },
    /// The source does not begin with the first record.
    #[error("{place} does not begin with record 1, but with {first}")]
    Incomplete {
        /// What is read.
        place: String,
        /// Its first record.
        first: Offset,
    },
    /// The directory that is restored to is the one that is read.
    #[error("{} is what is restored from: use --in-place", .0.display())]
    SameDirectory(PathBuf),
    /// A server ran meanwhile.
    #[error("the log in {} has gone on meanwhile: stop the server first", .0.display())]
    Moved(PathBuf),
    /// The new log cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The new log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The new log cannot be gone on with.
    #[error(transparent)]
    Engine(#[from] engine::OpenError),
    /// The new log does not take what was erased.
    #[error(transparent)]
    Rejected(#[from] engine::Rejected),
    /// A file or directory failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl RestoreError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// What is read from.
struct Origins {
    source: Source,
    name: &'static str,
    /// Whether it holds all that there was.
    complete: bool,
    /// Where uploaded files are, if it has any.
    media: Option<PathBuf>,
    /// No epoch up to this one is begun again.
    epochs: Epoch,
}

impl Origins {
    fn open(request: &Request) -> Result<Self, RestoreError> {
        let place = match &request.from {
            From::InPlace => {
                let source = Source::stopped(&request.data_dir)?;
                let (complete, epochs) = (true, Epoch::default());
                return Ok(Self { source, name: "log", complete, media: None, epochs });
            }
            From::Place(place) => place,
        };
        let manifests = Manifest::list(place)?;
        if manifests.is_empty() {
            let is_log = store::has_log(place);
            let same = |a: &Path, b: &Path| {
                a.canonicalize().ok().is_some_and(|a| b.canonicalize().is_ok_and(|b| a == b))
            };
            if is_log && same(place, &request.data_dir) {
                return Err(RestoreError::SameDirectory(place.clone()));
            }
            if !place.is_dir() {
                return Err(SourceError::Nothing(place.clone()).into());
            }
            let source = if is_log {
                Source::stopped(place)?
            } else {
                Source::open(&place.to_string_lossy())?
            };
            let media = is_log.then(|| crate::media::store::directory(place));
            let name = if is_log { "log" } else { "archive" };
            let epochs = Epoch::default();
            return Ok(Self { source, name, complete: is_log, media, epochs });
        }
        let all: Vec<_> =
            manifests.iter().map(|path| Manifest::read(path)).collect::<Result<_, _>>()?;
        let epochs = all.iter().map(|manifest| manifest.epoch).max().unwrap_or_default();
        // The newest, which knows most of what came after the moment; another only if the moment is
        // not in that one's history.
        let newest = all.iter().max_by_key(|manifest| manifest.moment());
        let manifest =
            newest.ok_or_else(|| BackupError::None { dir: place.clone(), offset: None })?;
        Ok(Self {
            source: Source::backup(place, manifest),
            name: "backup",
            complete: false,
            media: Some(place.join("media")),
            epochs,
        })
    }
}

/// What a first look at all records of the source gives.
struct Survey {
    /// The last record up to the moment, at the end of its batch.
    cut: Record,
    /// The last record at the end of its batch.
    end: Offset,
    /// How many follow that.
    dropped: u64,
    /// The last record, whole batch or not.
    read: Offset,
    /// The highest epoch.
    epoch: Epoch,
    /// What is erased, of the records up to the moment.
    targets: Targets,
}

impl Survey {
    fn of(origins: &Origins, to: Option<Moment>) -> Result<Self, RestoreError> {
        let source = &origins.source;
        let nothing = || RestoreError::Nothing(source.place().to_owned());
        let is_in = |record: &Record| match to {
            None | Some(Moment::Ago(_)) => true,
            Some(Moment::At(offset)) => record.offset() <= offset,
            Some(Moment::Time(ms)) => record.header.time_ms <= ms,
        };
        let mut checker = Checker::from_start();
        let (mut cut, mut end, mut epoch) = (None, Offset::ZERO, origins.epochs);
        let mut targets = Targets::default();
        for record in source.records(Offset::new(1))? {
            let record = record?;
            if checker.last() == Offset::ZERO && record.offset() != Offset::new(1) {
                let place = source.place().to_owned();
                return Err(RestoreError::Incomplete { place, first: record.offset() });
            }
            checker.check(&record)?;
            epoch = epoch.max(record.header.epoch);
            if let Some(erasure) = erasure(&record) {
                targets.add(&erasure);
            }
            if record.header.batch_remaining == 0 {
                end = record.offset();
                if is_in(&record) {
                    cut = Some(record);
                }
            }
        }
        if let Some(Moment::At(asked)) = to
            && asked > end
        {
            return Err(RestoreError::Beyond { place: source.place().to_owned(), end, asked });
        }
        let cut = cut.ok_or_else(nothing)?;
        let dropped = checker.last().get() - end.get();
        Ok(Self { cut, end, dropped, read: checker.last(), epoch, targets })
    }
}

/// Restores. Blocks for as long as it takes, in a runtime of its own thread.
///
/// # Errors
/// When the source is not intact, the directory is not empty, or a disk fails. What was there is
/// still there, and the same can be asked for again.
pub async fn restore(request: &Request) -> Result<Restored, RestoreError> {
    let clock = Clock::system();
    let now_ms = clock.now_ms();
    let to = request.to.map(|to| to.from_now(now_ms));
    let data_dir = &request.data_dir;
    let in_place = request.from == From::InPlace;
    // In place, the source takes the lock.
    let mut lock = None;
    if !in_place && !request.dry_run {
        lock = Some(store::lock_data_dir(data_dir)?);
        place::tidy(data_dir)?;
        place::must_be_empty(data_dir)?;
    } else if in_place && !request.dry_run {
        let tidying = store::lock_data_dir(data_dir)?;
        place::tidy(data_dir)?;
        drop(tidying);
    }
    let origins = Origins::open(request)?;
    let survey = Survey::of(&origins, to)?;
    let aside = place::aside(data_dir);
    let store = if request.dry_run {
        None
    } else {
        let log = store::log_dir(&aside);
        disk::make_private_dir(&log).map_err(RestoreError::io(&log))?;
        Some(Store::open(&log, DEFAULT_CACHE_BYTES)?)
    };
    let made = Making::make(request, &origins, &survey, store.as_ref(), now_ms)?;
    drop(store);
    let Making { state, mut restored, redactions, erasures, restored_at } = made;
    let named: BTreeSet<_> = state.media.all().into_iter().map(|(_, stored)| stored.hash).collect();
    let named: Vec<_> = named.into_iter().collect();
    restored.torn_bytes = origins.source.torn()?.map(|torn| torn.bytes);
    if request.dry_run {
        restored.redacted_again = redactions.len() as u64;
        return Ok(restored);
    }
    restored.end = go_on(&aside, state, &redactions, erasures, restored_at, &mut restored).await?;
    place::copy_files(origins.media.as_deref(), &named, data_dir, &mut restored)?;
    // A source in the same directory has its lock.
    drop(origins);
    let _lock = match lock {
        Some(lock) => lock,
        None => store::lock_data_dir(data_dir)?,
    };
    place::take(request, in_place.then_some(survey.read), &mut restored)?;
    Ok(restored)
}

/// A new log on its way.
struct Making {
    state: State,
    restored: Restored,
    redactions: Vec<Redaction>,
    erasures: Vec<LogErase>,
    /// The `server.restore` record.
    restored_at: Offset,
}

impl Making {
    fn make(
        request: &Request,
        origins: &Origins,
        survey: &Survey,
        store: Option<&Store>,
        now_ms: u64,
    ) -> Result<Self, RestoreError> {
        let cut = survey.cut.offset();
        let state = State::default();
        let mut restored = Restored {
            source: origins.name.to_owned(),
            last: cut,
            last_ms: survey.cut.header.time_ms,
            chain: hex(&survey.cut.chain),
            dropped: survey.dropped,
            undone: (survey.end > cut).then_some(survey.end),
            complete: origins.complete,
            epoch: Epoch(survey.epoch.0.saturating_add(1)),
            ..Restored::default()
        };
        let mut writing = OfflineWriter::begin(store, &survey.targets, &state);
        let mut records = origins.source.records(Offset::new(1))?;
        for record in records.by_ref() {
            let record = record?;
            writing.put(record)?;
            if state.applied() == cut {
                break;
            }
        }
        (restored.records, restored.erased) = (writing.records, writing.erased);
        restored.digest = state.digest().to_hex().to_string();
        let (mut redactions, mut erasures) = (Vec::new(), Vec::new());
        let restored_at = cut.next();
        let keys_dropped = !origins.complete || request.drop_keys;
        let mut carrier = Carrier::new(&state, cut);
        let mut last: BTreeMap<Key, (Offset, Record, Command)> = BTreeMap::new();
        let restore =
            ServerRestore { source: origins.name.to_owned(), last: cut, undone: restored.undone };
        writing.begin_epoch(restored.epoch, restore, now_ms)?;
        let mut rooms = BTreeSet::new();
        let mut undone_rooms = UndoneRooms::default();
        for record in records {
            let record = record?;
            if record.offset() > survey.end {
                break;
            }
            let kind = record.header.kind.to_string();
            // What an erased payload said was said anew by another, or is not to be known.
            let command = record
                .command()
                .map_err(|source| ApplyError::Command { offset: record.offset(), source })?;
            if let Some(Command::RoomEvent(body)) = &command {
                undone_rooms.note(&record, body);
            }
            let carry = command.map_or(Carry::Forget, |command| carrier.judge(&record, command));
            match carry {
                Carry::Forget => {
                    *restored.lost.entry(kind).or_default() += 1;
                    if &*record.header.kind == "room.event"
                        && let Some(room_id) = record.header.stream.room_id()
                    {
                        count_event(&state, room_id, &mut rooms, &mut restored);
                    }
                }
                Carry::Over(command) => {
                    let now = writing.add(again(&record, &command), now_ms)?;
                    carrier.moved(record.offset(), now);
                    *restored.carried.entry(kind).or_default() += 1;
                }
                Carry::Last(key, command) => {
                    last.insert(key, (record.offset(), record, *command));
                }
                Carry::Receipts(body) => {
                    for receipt in body.receipts {
                        let key = Key::Receipt(
                            body.room_id.clone(),
                            receipt.user_id.clone(),
                            receipt.receipt_type.clone(),
                            receipt.thread_id.clone(),
                        );
                        let room_id = body.room_id.clone();
                        let one = RoomReceipt { room_id, receipts: vec![receipt] };
                        last.insert(key, (record.offset(), record.clone(), one.into()));
                    }
                }
                Carry::Redact(redaction) => redactions.push(redaction),
                Carry::Erase(erasure) => {
                    for gone in &erasure.reduced {
                        // It was sent, and what was sent is gone: there is nothing left to send.
                        if let Some(delay_id) = state.delayed.waits_at(gone.offset) {
                            let (outcome, by_action) = (DelayedOutcome::Cancel, false);
                            let finish = DelayedFinish { delay_id, outcome, by_action, ts: now_ms };
                            writing.add(again(&record, &finish.into()), now_ms)?;
                        }
                    }
                    if erasure.count() > 0 {
                        erasures.push(erasure);
                    }
                }
            }
        }
        restored.lost_rooms = rooms.len() as u64;
        let mut last: Vec<_> = last.into_values().collect();
        last.sort_unstable_by_key(|(offset, ..)| *offset);
        for (offset, record, command) in last {
            let now = writing.add(again(&record, &command), now_ms)?;
            carrier.moved(offset, now);
            *restored.carried.entry(record.header.kind.to_string()).or_default() += 1;
        }
        for undone in undone_rooms.records(&state, restored.epoch) {
            let stream = Stream::user(&undone.user_id);
            writing.add(NewRecord::new(stream, Origin::server(), &undone.into()), now_ms)?;
        }
        if keys_dropped {
            restored.keys_dropped = true;
            let drop = Command::from(KeysDrop {});
            writing.add(NewRecord::new(Stream::server(), Origin::server(), &drop), now_ms)?;
        }
        restored.end = state.applied();
        writing.finish()?;
        Ok(Self { state, restored, redactions, erasures, restored_at })
    }
}

/// What `record` said, again, in the words of `command`.
fn again(record: &Record, command: &Command) -> NewRecord {
    NewRecord::new(record.header.stream.clone(), record.header.origin.clone(), command)
}

fn count_event(
    state: &State,
    room_id: &RoomId,
    rooms: &mut BTreeSet<ruma::OwnedRoomId>,
    restored: &mut Restored,
) {
    if state.rooms.get(room_id).is_some() {
        restored.lost_events += 1;
    } else {
        rooms.insert(room_id.to_owned());
    }
}

/// Goes on with the new log in `aside` as a server would: redacts again what was redacted, and
/// names what was erased. Gives its last record.
async fn go_on(
    aside: &Path,
    state: State,
    redactions: &[Redaction],
    erasures: Vec<LogErase>,
    restored_at: Offset,
    restored: &mut Restored,
) -> Result<Offset, RestoreError> {
    if redactions.is_empty() && erasures.is_empty() {
        return Ok(state.applied());
    }
    let name = state.server().map(|server| server.server_name.clone()).unwrap_or_default();
    let server_name =
        name.as_str().try_into().map_err(|_| RestoreError::Nothing(aside.display().to_string()))?;
    let log = Arc::new(SledLog::open(SledOptions::new(aside))?);
    let options = engine::Options {
        server_name,
        event_cache_bytes: 1024 * 1024,
        gather: Gather { window: Duration::ZERO, ..Gather::default() },
        accounts: AccountLimit::default(),
        quotas: Arc::default(),
        clock: Clock::system(),
    };
    // Boxed because the future contains the projections.
    let engine = Box::pin(Engine::start(Arc::clone(&log) as Arc<dyn Log>, state, options)).await?;
    let mut because = BTreeMap::new();
    for redaction in redactions {
        match redact(&engine, redaction).await? {
            Some(offset) => {
                because.insert(redaction.record, offset);
                restored.redacted_again += 1;
            }
            None => restored.redacted_without += 1,
        }
    }
    // Those of texts that the source still holds, and whose redaction nobody may make: they go now.
    let unmade = redactions.iter().filter(|redaction| !because.contains_key(&redaction.record));
    let mut reduced: BTreeMap<Offset, Reduced> = BTreeMap::new();
    for redaction in unmade {
        // What scheduled the event has the same content.
        let schedule = engine.state().delayed.sent_as(redaction.target);
        for event in [Some(redaction.target), schedule].into_iter().flatten() {
            if let Some(gone) = reduced_event(&engine.env(), event, restored_at)? {
                reduced.insert(gone.offset, gone);
            }
        }
    }
    let (mut superseded, mut taken) = (Vec::new(), Vec::new());
    for mut erasure in erasures {
        for run in &mut erasure.taken {
            if run.because > restored.last {
                run.because = restored_at;
            }
        }
        taken.push(LogErase { taken: erasure.taken, ..LogErase::default() });
        for mut gone in erasure.reduced {
            if gone.because > restored.last {
                gone.because = because.get(&gone.because).copied().unwrap_or(restored_at);
            }
            reduced.insert(gone.offset, gone);
        }
        superseded.extend(erasure.superseded);
    }
    let taken = taken.into_iter().filter(|piece| piece.count() > 0);
    for erase in in_pieces(reduced.into_values(), superseded).into_iter().chain(taken) {
        engine.propose(Origin::server(), EraseAgain { erase }).await?.into_inner();
    }
    let end = *log.durable().borrow();
    drop(engine);
    log.close();
    drop(log);
    // They were never in it.
    let made = AtRest::open(&store::log_dir(aside))?;
    made.note_compacted(end).map_err(WriteError::from)?;
    Ok(end)
}

/// Redacts once more, as the same user; none if they may not, as of that moment.
async fn redact(engine: &Engine, redaction: &Redaction) -> Result<Option<Offset>, RestoreError> {
    let Some(event) = engine.events().get(redaction.target)? else { return Ok(None) };
    let mut content = CanonicalJsonObject::new();
    if let Some(reason) = &redaction.reason {
        content.insert("reason".to_owned(), CanonicalJsonValue::String(reason.clone()));
    }
    let ts = UInt::new(engine.clock().now_ms()).unwrap_or_default();
    let proposal = SendEvent {
        room_id: redaction.room_id.clone(),
        sender: redaction.sender.clone(),
        event_type: TimelineEventType::RoomRedaction,
        state_key: None,
        content,
        redacts: Some(event.event_id.clone()),
        transaction: None,
        ts: MilliSecondsSinceUnixEpoch(ts),
    };
    let origin = Origin { user: redaction.sender.as_str().into(), ..Origin::server() };
    match engine.propose(origin, proposal).await {
        Ok(event_id) => {
            let event_id = event_id.into_inner();
            Ok(engine.state().event_in_room(&redaction.room_id, &event_id))
        }
        Err(engine::Rejected::Refused(_)) => Ok(None),
        Err(error) => Err(WriteError::new(&error).into()),
    }
}

/// About how many records share the pages that one `log.erase` record has written again: the store
/// writes its pages whole, and one group is to stay far below one of its segments.
const PIECE: u64 = 128;

/// About how many records share a page with one.
const PAGE: u64 = 16;

/// Records that name all of it, none of them too large.
fn in_pieces(
    reduced: impl Iterator<Item = Reduced>,
    superseded: Vec<(Offset, Offset)>,
) -> Vec<LogErase> {
    let mut pieces: Vec<_> = Vec::new();
    let reduced: Vec<_> = reduced.collect();
    for reduced in reduced.chunks((PIECE / PAGE) as usize) {
        pieces.push(LogErase { reduced: reduced.to_vec(), ..LogErase::default() });
    }
    let mut runs = superseded;
    runs.sort_unstable();
    let (mut piece, mut left) = (LogErase::default(), PIECE);
    for (mut first, last) in runs {
        while first <= last {
            let end = last.min(Offset::new(first.get().saturating_add(left - 1)));
            piece.superseded.push((first, end));
            left -= (end.get() - first.prev().get()).max(PAGE).min(left);
            first = end.next();
            if left == 0 {
                pieces.push(std::mem::take(&mut piece));
                left = PIECE;
            }
        }
    }
    pieces.push(piece);
    pieces.retain(|piece| piece.count() > 0);
    pieces
}

#[cfg(test)]
mod tests;
