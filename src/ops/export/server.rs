//! The export of a whole server.

use std::{collections::BTreeMap, path::Path};

use super::{
    Entry, ExportError, ExportScope, Manifest,
    folder::{Folder, Lines},
    hex, line,
};
use crate::{former, history::progress::Progress, source::Source};
use logcabin_base::clock::Clock;
use logcabin_log::{
    erase::{Audit, remainder},
    verify::Checker,
};
use logcabin_record::{Offset, Record};
use logcabin_state::State;

/// How many times the log of a running server is read further because it erased payloads meanwhile.
/// Each pass is shorter.
const CATCH_UP: u32 = 64;

/// Exports the server in `data_dir`, running or stopped, to `dest`: every record, and every
/// uploaded file that a record refers to. The directory must be empty or missing. Files of records
/// are at most `file_bytes` long, unless one record is longer. Blocks.
pub fn export_server(
    data_dir: &Path,
    dest: &Path,
    file_bytes: u64,
) -> Result<Manifest, ExportError> {
    if former::is_for_rehearsals(data_dir) {
        return Err(ExportError::Rehearsal(data_dir.to_owned()));
    }
    let source = Source::data_dir(data_dir)?;
    if source.end()? == Offset::ZERO {
        return Err(ExportError::Empty);
    }
    let mut walk = Walk {
        folder: Folder::begin(dest)?,
        file_bytes,
        current: None,
        pieces: 0,
        checker: Checker::from_start(),
        audit: Audit::default(),
        state: State::default(),
    };
    let mut progress = Progress::begin(source.end()?);
    for _ in 0..CATCH_UP {
        for record in source.records(walk.checker.last().next())? {
            let record = record?;
            walk.take(&record)?;
            progress.at(record.offset());
        }
        // A running server may erase payloads that have not been read yet. The record of that comes
        // later: the export continues until it has read it.
        if source.log().is_some() || walk.audit.finish().is_ok() {
            break;
        }
    }
    walk.finish(data_dir, source.log().is_none())
}

/// The walk through the log.
struct Walk {
    folder: Folder,
    file_bytes: u64,
    current: Option<Lines>,
    pieces: u64,
    checker: Checker,
    audit: Audit,
    state: State,
}

impl Walk {
    fn take(&mut self, record: &Record) -> Result<(), ExportError> {
        self.checker.check(record)?;
        self.audit.note(record);
        self.state.apply(record)?;
        let text = line::write(record).map_err(|error| unwritable(record.offset(), &error))?;
        let is_full = |lines: &Lines| lines.bytes() + text.len() as u64 > self.file_bytes;
        if self.current.as_ref().is_none_or(is_full) {
            self.close()?;
            self.pieces += 1;
            let mut lines = self.folder.lines(&format!("log/{:06}.ndjson", self.pieces))?;
            lines.begins_with(record.offset());
            self.current = Some(lines);
        }
        match &mut self.current {
            Some(lines) => lines.write(&text),
            None => Ok(()),
        }
    }

    fn close(&mut self) -> Result<(), ExportError> {
        self.current.take().map_or(Ok(()), |lines| self.folder.add(lines))
    }

    fn finish(mut self, data_dir: &Path, running: bool) -> Result<Manifest, ExportError> {
        self.close()?;
        self.audit.finish()?;
        self.erase_late()?;
        let chain = hex(self.checker.chain());
        self.checker.finish()?;
        let files: BTreeMap<_, _> =
            self.state.media.all().into_iter().map(|(_, file)| (file.hash, file.size)).collect();
        for (hash, size) in files {
            self.folder.copy_media(data_dir, &hash, size)?;
        }
        let mut manifest = Manifest::of(ExportScope::Server, &self.state, chain)?;
        manifest.exported_ms = Clock::system().now_ms();
        manifest.running = running;
        manifest.state_digest = Some(self.state.digest().to_hex().to_string());
        let identity = self.state.server().ok_or(ExportError::Empty)?;
        self.folder.finish(manifest, &identity)
    }

    /// Removes payloads from the files that were erased by a later record.
    fn erase_late(&mut self) -> Result<(), ExportError> {
        let late: BTreeMap<_, _> = self.audit.whole().collect();
        let is_concerned = |entry: &Entry| {
            let Some(first) = entry.first else { return false };
            let end = Offset::new(first.get() + entry.lines.unwrap_or_default());
            late.range(first..end).next().is_some()
        };
        let files = self.folder.files().iter().enumerate();
        let files: Vec<_> =
            files.filter(|(_, entry)| is_concerned(entry)).map(|(index, _)| index).collect();
        for index in files {
            self.folder.rewrite(index, |text| {
                let mut record =
                    line::read(text).map_err(|error| unwritable(Offset::ZERO, &error))?;
                let offset = record.offset();
                let Some(target) = late.get(&offset) else { return Ok(text.to_vec()) };
                record.payload =
                    remainder(&record, target).map_err(|error| unwritable(offset, &error))?;
                line::write(&record).map_err(|error| unwritable(offset, &error))
            })?;
        }
        Ok(())
    }
}

fn unwritable(offset: Offset, error: &dyn std::fmt::Display) -> ExportError {
    ExportError::Record { offset, reason: error.to_string() }
}
