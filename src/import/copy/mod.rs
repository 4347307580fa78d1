//! From facts to records: writes the log of a data directory that no server uses.
//!
//! [`copy`] takes what is large while the source is in use, and [`finish`] the rest once it has
//! stopped. Both may be interrupted at any moment and called again, and in the end the log has the
//! same bytes as without the interruption. What a copy made so far counts; what `finish` made after
//! the copy is made again, from what the source holds by then.
//!
//! The log is in `log.importing/` until it is complete, and what must be remembered beside it in
//! `importing/`: see [`progress`].

mod backups;
mod changes;
mod compare;
mod convert;
mod destinations;
mod gaps;
mod gather;
mod index;
mod known;
mod late;
mod media;
mod pipeline;
mod place;
mod prepare;
mod progress;
mod redactions;
mod report;
mod resume;
mod rules;
mod sections;
mod states;
#[cfg(test)]
mod tests;
pub(crate) mod trial;
mod writer;

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use ruma::OwnedServerName;
use serde::{Deserialize, Serialize};

pub use self::compare::DifferingRoom;
use self::{
    gather::Gather,
    media::MediaPlaces,
    pipeline::{Feeder, feed},
    progress::{Files, Pass},
    report::failed,
    resume::Place,
    sections::{Ended, Sections},
    writer::Writer,
};
use super::{
    ImportError,
    facts::{About, Cursor, Fact, Section, ServerKey, Source},
};
use logcabin_base::{
    clock::{Clock, millis},
    limits,
};
use logcabin_log::store::{self, importing_dir, log_dir};
use logcabin_record::{
    Command,
    command::{ImportBegin, ImportEnd, ImportSource, LeftOut},
    hex,
};

/// Whether to stop at the next opportunity.
type Stop<'a> = &'a dyn Fn() -> bool;

/// Where an import goes.
#[derive(Clone, Debug)]
pub struct Options {
    pub data_dir: PathBuf,
    /// The name of the server, as the source must have it.
    pub server_name: String,
    /// Whether a copy goes on and takes what is new, until it is stopped.
    pub follow: bool,
    /// Whether the log is only for rehearsals. Only for [`finish`].
    pub rehearsal: bool,
}

/// How far an import has come, now and then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// What is being read.
    pub section: Section,
    /// How many rows were read.
    pub rows: u64,
    /// How many records there are.
    pub records: u64,
    /// The newest event that was read, by the source's number.
    pub newest: i64,
}

/// What a copy made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// How many records the log has.
    pub records: u64,
    /// The chain value of the last one, in hex.
    pub chain: String,
    /// Rows read, by table, and records made, by kind, since the import began.
    pub read: BTreeMap<String, u64>,
    pub written: BTreeMap<String, u64>,
    pub left: Vec<Left>,
    /// The newest event that was read, by the source's number.
    pub newest: i64,
    /// Whether it was stopped before it was complete.
    pub stopped: bool,
    pub took_ms: u64,
}

/// Rows that do not come along for the same reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Left {
    pub table: String,
    pub reason: String,
    pub count: u64,
}

impl From<LeftOut> for Left {
    fn from(LeftOut { table, reason, count }: LeftOut) -> Self {
        Self { table, reason, count }
    }
}

/// What an import made, once it is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finished {
    /// The offset of `import.end`, the last record.
    pub last: u64,
    pub copied: Copied,
    /// blake3 of what was read, in hex.
    pub digest: String,
    /// How many rooms were compared with the source, and which differ; of more than a thousand, the
    /// first.
    pub compared: u64,
    pub differing: u64,
    pub differing_rooms: Vec<DifferingRoom>,
    /// How many rooms have more forward extremities in the source than are kept.
    pub cut_rooms: u64,
    /// The list of everything that was left, with keys.
    pub report: PathBuf,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { section, rows, records, .. } = self;
        write!(f, "{section:?}: {rows} rows read, {records} records written")
    }
}

impl fmt::Display for Copied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: u64 = self.read.values().sum();
        let left: u64 = self.left.iter().map(|left| left.count).sum();
        let seconds = self.took_ms / 1000;
        write!(f, "{rows} rows read, {} records written, {left} rows left", self.records)?;
        write!(f, ", in {seconds} s")?;
        for Left { table, reason, count } in &self.left {
            write!(f, "\n  left of {table}: {count}, because {reason}")?;
        }
        if self.stopped {
            write!(f, "\nIt was stopped. The same command goes on.")?;
        }
        Ok(())
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.copied)?;
        write!(f, "\n{} rooms compared, {} differ", self.compared, self.differing)?;
        for DifferingRoom { room_id, state, extremities } in &self.differing_rooms {
            let tips = if *extremities { ", and its forward extremities" } else { "" };
            write!(f, "\n  {room_id}: {state} keys of its state{tips}")?;
        }
        if self.cut_rooms > 0 {
            write!(f, "\n{} rooms have more forward extremities than are kept", self.cut_rooms)?;
            write!(f, ": the older ones are in their history, and new events do not name them")?;
        }
        write!(f, "\nEverything that was left is listed in {}.", self.report.display())
    }
}

/// The name of the list of what was left, in the data directory.
const REPORT: &str = "import-report.txt";

/// Copies what is large, and what is new since the last copy. The source may be in use; its files
/// are in `media`. Blocks.
pub fn copy(
    source: &mut dyn Source,
    media: Option<&Path>,
    options: &Options,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Copied, ImportError> {
    let began = Instant::now();
    let data_dir = &options.data_dir;
    let _lock = lock(data_dir)?;
    if store::has_log(data_dir) {
        return Err(has_log(data_dir));
    }
    let mut import = Import::begin(source, options)?;
    match import.progress.pass {
        Pass::Copy | Pass::Follow => {}
        // What was finished so far is not noted: the copy goes on where it was.
        Pass::Finish => import.progress.pass = Pass::Follow,
        Pass::Sealed => {
            let why = "the import is complete; finish it, or remove the directory";
            return Err(ImportError::Refused(format!("{}: {why}", data_dir.display())));
        }
    }
    let stopped = || stop.load(Ordering::SeqCst);
    import.work(source, media, options, (&stopped, progress), |sections| {
        let mut ended = sections.go_on()?;
        let mut is_last = false;
        while ended == Ended::Complete && !is_last && !stopped() {
            is_last = !options.follow;
            let before = sections.writer.log.tip().offset;
            if sections.is_behind()? {
                sections.begin_round();
                ended = sections.complete()?;
            }
            if options.follow && sections.writer.log.tip().offset == before {
                std::thread::sleep(limits::IMPORT_FOLLOW);
            }
        }
        if ended == Ended::Complete {
            sections.begin_round();
            sections.writer.save(Place::start(0, &Cursor::START), true)?;
        }
        Ok(copied(sections.writer, ended == Ended::Stopped, began))
    })
}

/// Takes what is left, compares, and gives the log its name. The source should have stopped: what
/// it writes meanwhile is not taken. Blocks.
pub fn finish(
    source: &mut dyn Source,
    media: Option<&Path>,
    options: &Options,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Finished, ImportError> {
    let began = Instant::now();
    let data_dir = &options.data_dir;
    let _lock = lock(data_dir)?;
    let files = Files::of(data_dir);
    if store::has_log(data_dir) {
        // It may have been interrupted after its last step.
        let sealed = files.read_progress()?.filter(|progress| progress.pass == Pass::Sealed);
        let finished =
            sealed.and_then(|progress| progress.finished).ok_or_else(|| has_log(data_dir))?;
        return seal(data_dir, &files, finished);
    }
    let import = Import::begin(source, options)?;
    if import.progress.pass == Pass::Sealed {
        let finished = import.progress.finished.unwrap_or_default();
        return seal(data_dir, &files, finished);
    }
    let stopped = || stop.load(Ordering::SeqCst);
    let finished = import.work(source, media, options, (&stopped, progress), |sections| {
        sections.writer.feeder.stopped()?;
        // Without a copy, it is made now.
        let mut ended = sections.go_on()?;
        if ended == Ended::Complete {
            sections.begin_finish()?;
            ended = sections.complete()?;
        }
        if ended == Ended::Stopped {
            return Err(ImportError::Refused(
                "it was stopped; run the same command again to go on".to_owned(),
            ));
        }
        sections.end_import(began, options)
    })?;
    seal(data_dir, &files, finished)
}

fn lock(data_dir: &Path) -> Result<File, ImportError> {
    store::lock_data_dir(data_dir).map_err(|error| ImportError::Refused(error.to_string()))
}

fn has_log(data_dir: &Path) -> ImportError {
    let why = "has a log already; an import needs a directory of its own";
    ImportError::Refused(format!("{} {why}", data_dir.display()))
}

/// Whether all records were made, so that an interrupted [`finish`] only has to move the log.
///
/// # Errors
/// When what was noted cannot be read.
pub fn is_complete(data_dir: &Path) -> Result<bool, ImportError> {
    let progress = Files::of(data_dir).read_progress()?;
    Ok(progress.is_some_and(|progress| progress.pass == Pass::Sealed))
}

/// Removes what was only needed for the import. Until then, [`finish`] says again what it has
/// found, so that nothing is lost if the caller is killed before it has noted that.
pub fn forget(data_dir: &Path) -> Result<(), ImportError> {
    Files::of(data_dir).remove()
}

/// Gives a complete log its name.
fn seal(
    data_dir: &Path,
    files: &Files,
    finished: serde_json::Value,
) -> Result<Finished, ImportError> {
    let finished: Finished = serde_json::from_value(finished).map_err(|error| {
        ImportError::Refused(format!("what was finished is not known: {error}"))
    })?;
    let (made, log) = (importing_dir(data_dir), log_dir(data_dir));
    if made.exists() {
        logcabin_base::disk::put_in_place(&made, &log).map_err(failed(&log))?;
    }
    let list = files.list();
    if list.exists() {
        fs::rename(&list, &finished.report).map_err(failed(&finished.report))?;
    }
    Ok(finished)
}

fn copied(writer: &Writer<'_>, stopped: bool, began: Instant) -> Copied {
    let progress = &writer.progress;
    let tip = writer.log.tip();
    Copied {
        records: tip.offset.get(),
        chain: hex(&tip.chain),
        read: progress.counts.read_rows(),
        written: progress.counts.written.clone(),
        left: progress.counts.left().into_iter().map(Left::from).collect(),
        newest: progress.newest,
        stopped,
        took_ms: millis(began.elapsed()),
    }
}

/// Why nothing can be copied while this work is not done.
pub(crate) fn not_ready(unready: &[String]) -> Option<String> {
    (!unready.is_empty()).then(|| {
        format!(
            "Synapse has not completed its last upgrade, and what it holds cannot be read before: \
             {}. Let it run until it has",
            unready.join(", ")
        )
    })
}

/// An import that is about to go on.
struct Import {
    own: OwnedServerName,
    about: About,
    keys: Vec<ServerKey>,
    progress: progress::Progress,
}

impl Import {
    /// Looks at the source, and where an earlier run has come.
    fn begin(source: &mut dyn Source, options: &Options) -> Result<Self, ImportError> {
        let about = source.about()?;
        if about.server_name != options.server_name {
            return Err(ImportError::Refused(format!(
                "{} is the database of `{}`, and not of `{}`",
                about.place, about.server_name, options.server_name
            )));
        }
        let own = OwnedServerName::try_from(&*about.server_name).map_err(|_| {
            ImportError::Refused(format!("`{}` is no name of a server", about.server_name))
        })?;
        if let Some(why) = not_ready(&source.unready()?) {
            return Err(ImportError::Refused(why));
        }
        let mut keys = Vec::new();
        let mut cursor = Cursor::START;
        loop {
            let slice = source.read(Section::Server, &cursor)?;
            keys.extend(slice.facts.into_iter().filter_map(|told| match told.fact {
                Fact::ServerKey(key) => Some(key),
                _ => None,
            }));
            match slice.next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        let files = Files::of(&options.data_dir);
        let progress = match files.read_progress()? {
            Some(progress) if progress.server_name != about.server_name => {
                return Err(ImportError::Refused(format!(
                    "{} has an import of `{}`",
                    options.data_dir.display(),
                    progress.server_name
                )));
            }
            Some(progress) => progress,
            None => {
                // The time of its records is settled before there is one.
                let now_ms = Clock::system().now_ms();
                let progress = progress::Progress::begin(&about.server_name, now_ms);
                files.make()?;
                files.write_progress(&progress)?;
                progress
            }
        };
        Ok(Self { own, about, keys, progress })
    }

    /// Goes on with the import: calls `work` with everything opened.
    fn work<T>(
        self,
        source: &mut dyn Source,
        media: Option<&Path>,
        options: &Options,
        (stop, progress_of): (Stop<'_>, &mut dyn FnMut(&Progress)),
        work: impl FnOnce(&mut Sections<'_, '_>) -> Result<T, ImportError>,
    ) -> Result<T, ImportError> {
        let Self { own, about, keys, progress } = self;
        let current = keys.iter().find(|key| key.seed.is_some());
        let identity = current
            .and_then(|key| convert::peers::identity(own.as_str(), key))
            .ok_or_else(|| ImportError::Refused("there is no signing key".to_owned()))?;
        let secret = identity.private_key.expose().as_bytes().to_vec();
        let places = media.map(|from| MediaPlaces::new(from, &options.data_dir));
        feed(source, &own, |feeder: &mut Feeder| {
            let mut writer =
                Writer::resume(feeder, &options.data_dir, (own.clone(), &secret), progress)?;
            if writer.log.tip().offset.get() == 0 {
                writer.say(&Command::from(identity))?;
                writer.say(&Command::from(ImportBegin {
                    source: ImportSource::Synapse,
                    version: about.version.clone(),
                    schema: about.schema,
                    database: about.database.clone(),
                    tool: env!("CARGO_PKG_VERSION").to_owned(),
                    begun_ms: writer.progress.now_ms,
                }))?;
                // The others sign until the source stops.
                let old = keys.iter().filter_map(|key| convert::peers::old_key(key, None));
                for key in old {
                    writer.say(&Command::from(key))?;
                }
            }
            let mut sections = Sections {
                writer: &mut writer,
                gather: Gather::default(),
                media: places.as_ref(),
                stop,
                secret: &secret,
                keys: &keys,
                progress: progress_of,
                knows_rooms: false,
            };
            work(&mut sections)
        })
    }
}

impl Sections<'_, '_> {
    /// Goes on with an interrupted pass to its end, unless it is the last one.
    fn go_on(&mut self) -> Result<Ended, ImportError> {
        let progress = &mut self.writer.progress;
        match progress.pass {
            Pass::Copy => {}
            Pass::Follow => {
                // What was made since the last save is made again, at another time.
                progress.now_ms = progress.now_ms.max(Clock::system().now_ms());
                if progress.section == 0 && progress.cursor.is_start() && progress.handled.is_none()
                {
                    return Ok(Ended::Complete);
                }
            }
            Pass::Finish | Pass::Sealed => return Ok(Ended::Complete),
        }
        self.complete()
    }

    /// Goes on with the pass to its end.
    fn complete(&mut self) -> Result<Ended, ImportError> {
        let pass = self.writer.progress.pass;
        let ended = self.run(Self::of(pass))?;
        if pass == Pass::Copy && ended == Ended::Complete {
            self.writer.save_marks()?;
        }
        Ok(ended)
    }

    /// Begins the last pass. If it was begun before and the source has not moved on since, its
    /// records have the same time as then.
    fn begin_finish(&mut self) -> Result<(), ImportError> {
        let head = self.writer.feeder.head()?;
        let progress = &mut self.writer.progress;
        if progress.pass == Pass::Finish && progress.head == head {
            // They are looked at once more.
            self.knows_rooms = false;
            return Ok(());
        }
        progress.head = head;
        // They are looked at once more.
        self.knows_rooms = false;
        self.writer.begin_pass(Pass::Finish, Clock::system().now_ms())
    }

    /// Begins to take what is new. It is not noted: a round makes few records, and a volume for
    /// each would be too many.
    fn begin_round(&mut self) {
        let progress = &mut self.writer.progress;
        progress.pass = Pass::Follow;
        progress.now_ms = progress.now_ms.max(Clock::system().now_ms());
        (progress.section, progress.cursor, progress.handled) = (0, Cursor::START, None);
    }

    /// Whether the source has newer events.
    fn is_behind(&mut self) -> Result<bool, ImportError> {
        Ok(self.writer.feeder.head()? > self.writer.progress.newest)
    }

    /// Writes the last record, and notes what was found. The log is complete then.
    fn end_import(
        &mut self,
        began: Instant,
        options: &Options,
    ) -> Result<serde_json::Value, ImportError> {
        let comparison = std::mem::take(&mut self.gather.comparison);
        let writer = &mut *self.writer;
        let until_ms = Some(writer.progress.now_ms);
        let in_use = self.keys.iter().filter(|key| key.expired_ms.is_none());
        for key in in_use.filter_map(|key| convert::peers::old_key(key, until_ms)) {
            writer.say(&Command::from(key))?;
        }
        writer.note_useless_rooms()?;
        let progress = &writer.progress;
        let digest = progress.counts.digest();
        let positions = BTreeMap::from([
            ("backfilled".to_owned(), progress.oldest),
            ("events".to_owned(), progress.newest),
        ]);
        let end = ImportEnd {
            source: ImportSource::Synapse,
            digest,
            positions,
            read: progress.counts.read_rows(),
            left: progress.counts.left(),
            differing_rooms: comparison.differing,
            rehearsal: options.rehearsal,
        };
        let last = writer.say(&Command::from(end))?;
        let finished = Finished {
            last: last.get(),
            copied: copied(writer, false, began),
            digest: digest.to_string(),
            compared: comparison.compared,
            differing: comparison.differing,
            differing_rooms: comparison.rooms,
            cut_rooms: comparison.cut,
            report: options.data_dir.join(REPORT),
        };
        let finished = serde_json::to_value(&finished)
            .map_err(|error| ImportError::Refused(format!("it cannot be noted: {error}")))?;
        writer.progress.finished = Some(finished.clone());
        writer.begin_pass(Pass::Sealed, 0)?;
        Ok(finished)
    }
}
