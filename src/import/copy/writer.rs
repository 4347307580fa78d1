//! The one that writes: it appends records to the log, remembers them, and says up to where all is
//! durable.

use std::collections::BTreeMap;

use ruma::OwnedServerName;

use super::{
    changes::Marks,
    convert::Made,
    index::{Status, known_group},
    known::{self, Known, fingerprint},
    pipeline::Feeder,
    prepare::EventFacts,
    progress::{Files, Pass, Progress},
    report::{List, failed},
    resume::Place,
};
use crate::{
    ImportError,
    facts::{Cursor, Event, Judged, Origin},
};
use logcabin_base::limits;
use logcabin_log::{
    Appended,
    bulk::{BulkError, BulkLog},
    store::importing_dir,
};
use logcabin_record::{
    Command, NewRecord, Offset, Origin as RecordOrigin, Stream,
    command::{FileHash, ImportSource, RoomEvent, RoomPdu},
};

/// The frames of a volume, in bytes. Tests make many small ones.
const VOLUME_BYTES: u64 = if cfg!(test) { 8 << 10 } else { limits::IMPORT_VOLUME_BYTES };

/// Writes the log of an import. See the module's documentation.
pub(super) struct Writer<'a> {
    pub(super) feeder: &'a mut Feeder,
    pub(super) log: BulkLog,
    pub(super) known: Known,
    pub(super) progress: Progress,
    pub(super) files: Files,
    pub(super) list: List,
    pub(super) marks: Marks,
    pub(super) own: OwnedServerName,
    pub(super) source: ImportSource,
    /// Up to which place in the source's stream a ban redacts what a user has sent, by room and
    /// user; everything without it.
    pub(super) banned: BTreeMap<(String, String), Option<i64>>,
    /// How many whole volumes there were when the rooms were saved last.
    saved_at: usize,
    /// Up to which record what is saved of the rooms goes.
    saved: Offset,
}

impl From<BulkError> for ImportError {
    fn from(error: BulkError) -> Self {
        match error {
            BulkError::Io { path, source } => Self::File { what: "write", path, source },
            error => Self::Refused(format!("writing the log failed: {error}")),
        }
    }
}

/// A row that the log has no place for. The reason is the same for many rows.
pub(super) type Left = (&'static str, String);

impl<'a> Writer<'a> {
    /// Goes on where an import stands. `secret` is the same for the whole import, and nobody
    /// else's.
    pub(super) fn resume(
        feeder: &'a mut Feeder,
        data_dir: &std::path::Path,
        (own, secret): (OwnedServerName, &[u8]),
        progress: Progress,
    ) -> Result<Self, ImportError> {
        let files = Files::of(data_dir);
        files.make()?;
        let mut log = BulkLog::open(&importing_dir(data_dir), VOLUME_BYTES)?;
        if log.durable() < progress.offset {
            return Err(ImportError::Refused(format!(
                "the log that is being written ends with record {}, and {} says that it has {}: \
                 remove {} and {} to begin again",
                log.durable(),
                files.dir.display(),
                progress.offset,
                files.dir.display(),
                importing_dir(data_dir).display(),
            )));
        }
        // What follows is written again, the same as before.
        log.truncate(progress.offset)?;
        if FileHash(log.tip().chain) != progress.chain {
            return Err(ImportError::Refused(format!(
                "{} does not belong to the log beside it",
                files.dir.display()
            )));
        }
        let (known, saved) = Self::remember(&mut log, &files, &progress, (own.as_str(), secret))?;
        let list = List::open(&files.list(), &progress.counts)?;
        let (saved_at, marks) = (log.volumes(), files.read_marks());
        let source = ImportSource::Synapse;
        let banned = BTreeMap::new();
        Ok(Self {
            feeder,
            log,
            known,
            progress,
            files,
            list,
            marks,
            own,
            source,
            banned,
            saved_at,
            saved,
        })
    }

    /// What is to be remembered of the log: as it was saved up to the record that is returned, and
    /// from the records after that.
    fn remember(
        log: &mut BulkLog,
        files: &Files,
        progress: &Progress,
        (own, secret): (&str, &[u8]),
    ) -> Result<(Known, Offset), ImportError> {
        let mut known = Known::new(own, secret);
        let read = |source| ImportError::File { what: "read", path: files.events(), source };
        let has_rows = known.events.load(&files.events(), progress.rows).map_err(read)?;
        let mut from = Offset::new(1);
        if has_rows {
            // Its last record must be this log's, and one that was not cut off.
            let saved = files.read_known().filter(|(at, ..)| *at <= progress.offset);
            if let Some((at, chain, rooms)) = saved
                && log.get(at)?.is_some_and(|record| record.chain == chain)
            {
                known.all = rooms;
                from = at.next();
            }
        } else {
            tracing::warn!("the index of events is missing; it is made again from the log");
            known = Known::new(own, secret);
        }
        log.each(from, |record| {
            let odd =
                |why| ImportError::Refused(format!("the log is not as it was written: {why}"));
            known.note_record(&record, !has_rows).map_err(odd)
        })?;
        if !has_rows {
            known.events.begin_again(&files.events()).map_err(failed(&files.events()))?;
        }
        Ok((known, from.prev()))
    }

    /// The record for a command from a row of the source.
    pub(super) fn record(
        &self,
        stream: Stream,
        row: &str,
        original_ms: Option<i64>,
        command: &Command,
    ) -> NewRecord {
        let original_ms = original_ms.and_then(|ms| u64::try_from(ms).ok()).filter(|ms| *ms > 0);
        NewRecord::imported(stream, self.source, row, original_ms, command)
    }

    /// Appends a batch. Nothing was written if it is left.
    pub(super) fn append(
        &mut self,
        records: Vec<NewRecord>,
    ) -> Result<Result<Appended, Left>, ImportError> {
        #[cfg(test)]
        super::tests::property::before_records(records.len());
        let kinds: Vec<&'static str> = records.iter().map(|record| record.kind).collect();
        match self.log.append(records, self.progress.now_ms) {
            Ok(appended) => {
                kinds.into_iter().for_each(|kind| self.progress.counts.wrote(kind));
                Ok(Ok(appended))
            }
            Err(BulkError::TooLarge(why)) => Ok(Err(("it is larger than a record may be", why))),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends what the server itself says of the import.
    pub(super) fn say(&mut self, command: &Command) -> Result<Offset, ImportError> {
        let record = NewRecord::new(Stream::server(), RecordOrigin::server(), command);
        match self.append(vec![record])? {
            Ok(appended) => Ok(appended.last),
            Err((_, why)) => Err(ImportError::Refused(why)),
        }
    }

    /// Whether all of this was written before.
    pub(super) fn was_put(&self, origin: &Origin, made: &Made) -> bool {
        let records = self.records(origin, made.original_ms, &made.commands);
        records.iter().all(|record| self.has(record))
    }

    /// Appends commands from a row of the source as one batch, unless each of them was written
    /// before. Leaves the row if the log does not take them.
    pub(super) fn put(
        &mut self,
        origin: &Origin,
        original_ms: Option<i64>,
        commands: &[(Stream, Command)],
    ) -> Result<Option<Offset>, ImportError> {
        let records = self.records(origin, original_ms, commands);
        let is_purged = |(_, command): &(Stream, Command)| {
            let room_id = match command {
                Command::AccountDataSet(body) => body.room_id.as_ref(),
                Command::RoomReceipt(body) => Some(&body.room_id),
                _ => None,
            };
            room_id.is_some_and(|room_id| self.known.all.purged.contains_key(room_id.as_str()))
        };
        // What was written of a room is gone with it.
        if records.iter().all(|record| self.has(record)) && !commands.iter().any(is_purged) {
            return Ok(None);
        }
        self.put_records(origin, commands, records)
    }

    /// The same, whatever was written before.
    pub(super) fn put_again(
        &mut self,
        origin: &Origin,
        original_ms: Option<i64>,
        commands: &[(Stream, Command)],
    ) -> Result<Option<Offset>, ImportError> {
        let records = self.records(origin, original_ms, commands);
        self.put_records(origin, commands, records)
    }

    fn records(
        &self,
        origin: &Origin,
        original_ms: Option<i64>,
        commands: &[(Stream, Command)],
    ) -> Vec<NewRecord> {
        let of = |(stream, command): &(Stream, Command)| {
            self.record(stream.clone(), origin.table, original_ms, command)
        };
        commands.iter().map(of).collect()
    }

    /// Whether a record like this was written before.
    fn has(&self, record: &NewRecord) -> bool {
        let print = fingerprint(record.kind, record.stream.as_str(), &record.payload);
        self.known.all.written.contains(&print)
    }

    /// Appends the records of these commands. Returns the last one, if there is one.
    fn put_records(
        &mut self,
        origin: &Origin,
        commands: &[(Stream, Command)],
        records: Vec<NewRecord>,
    ) -> Result<Option<Offset>, ImportError> {
        if records.is_empty() {
            return Ok(None);
        }
        let payloads: Vec<_> = records
            .iter()
            .map(|record| (record.kind, record.stream.clone(), record.payload.clone()))
            .collect();
        let appended = match self.append(records)? {
            Ok(appended) => appended,
            Err((reason, why)) => {
                self.leave(origin, reason, &why)?;
                return Ok(None);
            }
        };
        let offsets = (appended.first.get()..).map(Offset::new);
        for ((offset, (kind, stream, payload)), (_, command)) in offsets.zip(payloads).zip(commands)
        {
            self.known.note_other(offset, (kind, stream.as_str(), &payload), command);
        }
        Ok(Some(appended.last))
    }

    /// Notes that a row does not come along.
    pub(super) fn leave(
        &mut self,
        origin: &Origin,
        reason: &'static str,
        why: &str,
    ) -> Result<(), ImportError> {
        self.list.leave(&mut self.progress.counts, origin, (reason, why))
    }

    /// Notes an event that was appended to the timeline.
    pub(super) fn note_event(
        &mut self,
        offset: Offset,
        body: &RoomEvent,
        facts: &EventFacts,
        event: &Event,
    ) {
        if body.redacts.is_none() {
            self.note_redaction(offset, facts, event);
        }
        let seen = known::seen(offset, Status::Timeline, facts, event.group);
        self.known.events.put(body.event_id.as_str(), seen, event.stream);
        // As it is read from the index.
        let group = known_group(event.group);
        self.known.note_event(offset, body, facts, group);
    }

    /// Notes an event that was appended, and not to the timeline.
    pub(super) fn note_pdu(
        &mut self,
        offset: Offset,
        body: &RoomPdu,
        facts: &EventFacts,
        event: &Event,
    ) {
        let is_past = event.judged == Judged::Backfilled;
        if is_past || event.judged == Judged::SoftFailed {
            self.note_redaction(offset, facts, event);
        }
        let status = known::status_of(&body.outcome, is_past);
        let seen = known::seen(offset, status, facts, event.group);
        self.known.events.put(body.event_id.as_str(), seen, event.stream);
        self.known.note_pdu(offset, body, facts);
    }

    /// Notes what the source knows of a redaction, and its record does not say.
    fn note_redaction(&mut self, offset: Offset, facts: &EventFacts, event: &Event) {
        if facts.redacts.is_some() && !event.metadata.recheck_redaction {
            self.progress.moderated.insert(offset);
        }
    }

    /// To be called between two facts, when nothing else is remembered of the ones before. `place`
    /// is the next one. Ends a full volume, and notes that all before is durable, unless the pass
    /// begins again after an interruption.
    pub(super) fn between(&mut self, place: Place<'_>) -> Result<(), ImportError> {
        if self.log.fullness() == 0 {
            return Ok(());
        }
        if self.progress.pass == Pass::Finish {
            self.log.end_volume()?;
            return Ok(());
        }
        self.save(place, false)
    }

    /// To be called between two facts, as [`Self::between`], when nothing more is to be read.
    pub(super) fn stop(&mut self, place: Place<'_>) -> Result<(), ImportError> {
        if self.progress.pass == Pass::Finish { Ok(()) } else { self.save(place, true) }
    }

    /// To be called when more is remembered than what can be read again. A volume must not take
    /// more memory than it may.
    pub(super) fn within(&mut self) -> Result<(), ImportError> {
        if self.log.fullness() > 1 {
            self.log.end_volume()?;
        }
        Ok(())
    }

    /// Makes everything durable, and notes that the import goes on at `place`. With `fully`, what
    /// is remembered of rooms is saved, too, so that it goes on at once.
    pub(super) fn save(&mut self, place: Place<'_>, fully: bool) -> Result<(), ImportError> {
        self.log.end_volume()?;
        let path = self.files.events();
        self.known.events.save(&path).map_err(failed(&path))?;
        self.list.save()?;
        let tip = self.log.tip();
        let (offset, chain) = (tip.offset, tip.chain);
        self.progress.offset = offset;
        self.progress.chain = FileHash(chain);
        self.progress.rows = self.known.events.rows();
        self.progress.section = place.section;
        self.progress.cursor = place.cursor.clone();
        self.progress.handled = place.handled;
        if self.progress.pass == Pass::Copy {
            // Before the place: what is marked after it is marked again.
            self.save_marks()?;
        }
        self.files.write_progress(&self.progress)?;
        let volumes = self.log.volumes() as u64;
        let is_due = volumes >= self.saved_at as u64 + limits::IMPORT_SAVE_VOLUMES;
        if (fully || is_due) && self.saved != offset {
            self.files.write_known((offset, &chain), &self.known.all)?;
            (self.saved_at, self.saved) = (self.log.volumes(), offset);
        }
        Ok(())
    }

    /// Begins another pass, whose records have this time.
    pub(super) fn begin_pass(&mut self, pass: Pass, now_ms: u64) -> Result<(), ImportError> {
        self.progress.pass = pass;
        self.progress.now_ms = now_ms.max(self.progress.now_ms);
        // The last pass is begun again from here if it is interrupted.
        self.save(Place::start(0, &Cursor::START), pass == Pass::Finish)
    }

    /// Keeps what the copy saw of the source.
    pub(super) fn save_marks(&self) -> Result<(), ImportError> {
        self.files.write_marks(&self.marks)
    }
}
