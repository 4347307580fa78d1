//! Restores a log to an earlier moment, or to its end, and keeps those later records that must
//! survive.
//!
//! The records up to the moment are copied unchanged. Then `server.restore` begins a new epoch. The
//! records after it repeat what still counts of the abandoned future ([`carry`]). The new log is
//! built in a directory of its own and replaces the old one in one step ([`install`]), so an
//! interrupted restore loses nothing and can be repeated.
//!
//! **One-time keys.** A log in its data directory is complete, so it is known which keys were
//! handed out. An archive or a backup may lack the newest records. Then any key may have been
//! handed out. The restore therefore drops all of them (`keys.drop`), so that devices upload new
//! ones, and lists all users' devices as changed.

mod carry;
mod install;
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
    backup::BackupError,
    history::moment::Moment,
    history::progress::Progress,
    source::{Manifest, ManifestError, Source, SourceError},
};
use carry::{Carrier, Carry, Key, Redaction};
use logcabin_base::{clock::Clock, disk, owner::OwnerError};
use logcabin_decide::{
    account::AccountLimit,
    ephemeral::Gather,
    erasure::{EraseAgain, reduced_event},
    send::SendEvent,
};
use logcabin_engine::{self as engine, Engine};
use logcabin_log::{
    Log, ReadError, VerifyError,
    erase::{Targets, erasure},
    store::{self, AtRest, DEFAULT_CACHE_BYTES, OpenError, SledLog, SledOptions, Store},
    verify::Checker,
};
use logcabin_read::invites::Strangers;
use logcabin_record::{
    Command, Epoch, NewRecord, Offset, Origin, Record, Stream,
    command::{
        Body as _, DelayedFinish, DelayedOutcome, KeysDrop, LogErase, Reduced, RoomEvent,
        RoomReceipt, ServerRestore,
    },
    hex,
};
use logcabin_state::{ApplyError, State};
use undone::UndoneRooms;
pub(crate) use writing::OfflineWriter;
pub use writing::WriteError;

/// The source of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreSource {
    /// The log in the data directory, which is kept under another name.
    InPlace,
    /// An archive, a directory of backups, or another data directory.
    Path(PathBuf),
}

/// The parameters of a restore.
#[derive(Clone, Debug)]
pub struct Request {
    /// The source.
    pub from: RestoreSource,
    /// The moment to restore to; none for the end of the source.
    pub to: Option<Moment>,
    /// The target directory.
    pub data_dir: PathBuf,
    /// The directory of the server's archive, if it has one.
    pub archive_dir: Option<PathBuf>,
    /// Drop all one-time keys, even if all that were handed out are known.
    pub drop_keys: bool,
    /// Only report what would be done.
    pub dry_run: bool,
}

/// The result of a restore, or of its dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// The kind of source: `archive`, `backup` or `log`.
    pub source: String,
    /// The number of restored records.
    pub records: u64,
    /// The last restored record.
    pub last: Offset,
    /// Its time, in milliseconds since the Unix epoch.
    pub last_ms: u64,
    /// Its chain value, in hex.
    pub chain: String,
    /// [`State::digest`] as of that record, in hex.
    pub digest: String,
    /// The number of records at the end of the source that were dropped because their batch is
    /// incomplete.
    pub dropped: u64,
    /// The number of unreadable bytes at the end of an archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub torn_bytes: Option<u64>,
    /// The number of payloads that the source still held, but that were erased later. They were not
    /// copied.
    pub erased: u64,
    /// The last record of the source, if it is after `last`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undone: Option<Offset>,
    /// Whether the source is known to be complete.
    pub complete: bool,
    /// The number of lost records, by kind.
    pub lost: BTreeMap<String, u64>,
    /// The number of lost events in rooms that existed at the moment.
    pub lost_events: u64,
    /// The number of lost rooms.
    pub lost_rooms: u64,
    /// The number of records that were carried over, by kind.
    pub carried: BTreeMap<String, u64>,
    /// The number of redactions that were repeated.
    pub redacted_again: u64,
    /// The number of redactions that could not be repeated, for example because the sender is not
    /// in the room. Their content is erased nevertheless.
    pub redacted_without: u64,
    /// Whether all one-time keys were dropped.
    pub keys_dropped: bool,
    /// The number of uploaded files that were copied.
    pub files: u64,
    /// The number of uploaded files that the restored log refers to but that no longer exist.
    pub missing_files: u64,
    /// The new epoch.
    pub epoch: Epoch,
    /// The last record of the new log.
    pub end: Offset,
    /// The path of the previous log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_log: Option<PathBuf>,
    /// The path of the previous archive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_archive: Option<PathBuf>,
}

/// Why a restore failed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
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
    /// The target directory has a log already.
    #[error("{} is not empty; move it away first, it is not overwritten", .0.display())]
    NotEmpty(PathBuf),
    /// The source has no record at or before the moment.
    #[error("{0} has no records as of that moment")]
    Nothing(String),
    /// The source ends before the requested record.
    #[error("{place} ends at record {end}, before record {asked}")]
    Beyond {
        /// The source.
        place: String,
        /// Its last record.
        end: Offset,
        /// The requested record.
        asked: Offset,
    },
    /// The source does not begin with the first record.
    #[error("{place} begins with record {first}, not with record 1")]
    Incomplete {
        /// The source.
        place: String,
        /// Its first record.
        first: Offset,
    },
    #[error("{} is both source and target: use --in-place", .0.display())]
    SameDirectory(PathBuf),
    /// A server wrote to the log during the restore.
    #[error("the log in {} has changed during the restore: stop the server first", .0.display())]
    Moved(PathBuf),
    /// The archive of the configuration is another data directory's.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The new log cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The new log cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The engine cannot continue the new log.
    #[error(transparent)]
    Engine(#[from] engine::OpenError),
    /// The erasures cannot be repeated in the new log.
    #[error(transparent)]
    Propose(#[from] engine::ProposeError),
    #[error("{}: {source}", .path.display())]
    Io { path: PathBuf, source: std::io::Error },
}

impl RestoreError {
    fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// The source of the records.
struct Origins {
    source: Source,
    name: &'static str,
    /// Whether it is known to be complete.
    complete: bool,
    /// The directory of uploaded files, if it has one.
    media: Option<PathBuf>,
    /// The highest epoch in use. The new one is higher.
    epochs: Epoch,
}

impl Origins {
    fn open(request: &Request) -> Result<Self, RestoreError> {
        let place = match &request.from {
            RestoreSource::InPlace => {
                let source = Source::stopped(&request.data_dir)?;
                let (complete, epochs) = (true, Epoch::default());
                return Ok(Self { source, name: "log", complete, media: None, epochs });
            }
            RestoreSource::Path(place) => place,
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
            let media = is_log.then(|| logcabin_media::store::directory(place));
            let name = if is_log { "log" } else { "archive" };
            let epochs = Epoch::default();
            return Ok(Self { source, name, complete: is_log, media, epochs });
        }
        let all: Vec<_> =
            manifests.iter().map(|path| Manifest::read(path)).collect::<Result<_, _>>()?;
        let epochs = all.iter().map(|manifest| manifest.epoch).max().unwrap_or_default();
        // The newest backup knows the most about what came after the moment. Another is used only
        // if its history does not contain the moment.
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

/// The result of a first pass over all records of the source.
struct Survey {
    /// The last record up to the moment, at the end of its batch.
    cut: Record,
    /// The last record that ends a batch.
    end: Offset,
    /// The number of records after that.
    dropped: u64,
    /// The last record, whether its batch is complete or not.
    read: Offset,
    /// The highest epoch.
    epoch: Epoch,
    /// The records up to the moment whose payloads were erased.
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
        let mut progress = Progress::begin(source.end()?);
        for record in source.records(Offset::new(1))? {
            let record = record?;
            progress.at(record.offset());
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

/// Performs a restore. Blocks the current thread until it is done.
///
/// # Errors
/// When the source is not intact, the directory is not empty, or a disk fails. The previous log is
/// then unchanged, and the restore can be repeated.
pub async fn restore(request: &Request) -> Result<Restored, RestoreError> {
    let clock = Clock::system();
    let now_ms = clock.now_ms();
    let to = request.to.map(|to| to.from_now(now_ms));
    let data_dir = &request.data_dir;
    let in_place = request.from == RestoreSource::InPlace;
    // In place, the source holds the lock.
    let mut lock = None;
    if !in_place && !request.dry_run {
        lock = Some(store::lock_data_dir(data_dir)?);
        install::tidy(data_dir)?;
        install::must_be_empty(data_dir)?;
    } else if in_place && !request.dry_run {
        let tidying = store::lock_data_dir(data_dir)?;
        install::tidy(data_dir)?;
        drop(tidying);
    }
    let origins = Origins::open(request)?;
    let _archive = match request.dry_run && !data_dir.exists() {
        true => None,
        false => install::claim_archive(request, &origins.source)?,
    };
    let survey = Survey::of(&origins, to)?;
    let aside = install::aside(data_dir);
    let store = if request.dry_run {
        None
    } else {
        let log = store::log_dir(&aside);
        disk::make_private_dir(&log).map_err(RestoreError::io(&log))?;
        Some(Store::open(&log, DEFAULT_CACHE_BYTES)?)
    };
    let made = RebuiltLog::make(request, &origins, &survey, store.as_ref(), now_ms)?;
    drop(store);
    let RebuiltLog { state, mut restored, redactions, erasures, restored_at } = made;
    let named: BTreeSet<_> = state.media.all().into_iter().map(|(_, stored)| stored.hash).collect();
    let named: Vec<_> = named.into_iter().collect();
    restored.torn_bytes = origins.source.torn()?.map(|torn| torn.bytes);
    if request.dry_run {
        restored.redacted_again = redactions.len() as u64;
        return Ok(restored);
    }
    restored.end = go_on(&aside, state, &redactions, erasures, restored_at, &mut restored).await?;
    install::copy_files(origins.media.as_deref(), &named, data_dir, &mut restored)?;
    // A source in the same directory holds its lock.
    drop(origins);
    let _lock = match lock {
        Some(lock) => lock,
        None => store::lock_data_dir(data_dir)?,
    };
    install::take(request, in_place.then_some(survey.read), &mut restored)?;
    Ok(restored)
}

/// A new log that is being built.
struct RebuiltLog {
    state: State,
    restored: Restored,
    redactions: Vec<Redaction>,
    erasures: Vec<LogErase>,
    /// The `server.restore` record.
    restored_at: Offset,
}

impl RebuiltLog {
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
        let mut progress = Progress::begin(cut);
        for record in records.by_ref() {
            let record = record?;
            progress.at(record.offset());
            writing.put(record)?;
            if state.applied() == cut {
                break;
            }
        }
        drop(progress);
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
            // The content of an erased record was either replaced by a later record or must stay
            // unknown.
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
                    if &*record.header.kind == RoomEvent::KIND.name
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
                Carry::Redact(more) => redactions.extend(more),
                Carry::Erase(erasure) => {
                    for gone in &erasure.reduced {
                        // The event was sent, and is lost with the restore: the schedule is not
                        // carried over either.
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

/// A new record for `command` with the stream, origin and original time of `record`.
fn again(record: &Record, command: &Command) -> NewRecord {
    let (stream, origin) = (record.header.stream.clone(), record.header.origin.clone());
    NewRecord::new(stream, origin, command).with_original_ms(record.original_ms())
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

/// Continues the new log in `aside` through an engine: repeats redactions and records the erasures.
/// Returns the last offset.
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
        strangers: Strangers::default(),
        clock: Clock::system(),
    };
    // Boxed because the future contains the projections.
    let engine = Box::pin(Engine::start(Arc::clone(&log) as Arc<dyn Log>, state, options)).await?;
    let mut because = BTreeMap::new();
    for redaction in redactions {
        match redact(&engine, redaction).await? {
            Some(offset) => {
                because.insert((redaction.record, redaction.target), offset);
                // What scheduled the event has the same content.
                if let Some(schedule) = engine.state().delayed.sent_as(redaction.target) {
                    because.insert((redaction.record, schedule), offset);
                }
                restored.redacted_again += 1;
            }
            None => restored.redacted_without += 1,
        }
    }
    // Content that the source still holds, and whose redaction is no longer allowed, is erased
    // directly.
    let is_made =
        |redaction: &&Redaction| because.contains_key(&(redaction.record, redaction.target));
    let unmade = redactions.iter().filter(|redaction| !is_made(redaction));
    let mut reduced: BTreeMap<Offset, Reduced> = BTreeMap::new();
    for redaction in unmade {
        // The record that scheduled the event has the same content.
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
                let again = because.get(&(gone.because, gone.offset)).copied();
                gone.because = again.unwrap_or(restored_at);
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
    // The erased payloads were never written to this store.
    let made = AtRest::open(&store::log_dir(aside))?;
    made.note_compacted(end).map_err(WriteError::from)?;
    Ok(end)
}

/// Repeats a redaction as the same user; returns none if the user is not allowed to redact.
async fn redact(engine: &Engine, redaction: &Redaction) -> Result<Option<Offset>, RestoreError> {
    // Nobody else can sign in the name of a user of another homeserver.
    if redaction.sender.server_name() != engine.env().server.name {
        return Ok(None);
    }
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
        content: content.into(),
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
        Err(engine::ProposeError::Refused(_)) => Ok(None),
        Err(error) => Err(WriteError::new(&error).into()),
    }
}

/// About how many records one `log.erase` record names. The store rewrites whole pages, and one
/// group must stay far below the size of one of its segments.
const PIECE: u64 = 128;

/// About how many records share a page.
const PAGE: u64 = 16;

/// Records that together name all erasures, each of limited size.
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
