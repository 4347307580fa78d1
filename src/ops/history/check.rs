//! Checks a whole log, and what lies beside it.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{HistoryError, progress::Progress, query::Counts, terminal::grouped};
use crate::{
    proof::{self, Witness},
    socket::SocketError,
    source::{Source, SourceError},
};
use logcabin_log::{
    ReadError, VerifyError,
    archive::{ArchiveError, ArchiveReader, archive_dir},
    erase::Audit,
    fault::Fault,
    store::{OpenError, RepairError, Repaired},
    verify::Checker,
};
use logcabin_media::store;
use logcabin_record::{CHAIN_START, Offset, Record, codec::CodecError};
use logcabin_snapshot as snapshot;
use logcabin_snapshot::shutdown_digest::ShutdownDigest;
use logcabin_state::{State, media::Stored};

/// How many records are compared with the archive at a time.
const CHUNK: usize = 512;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Everything is right.
    Passed,
    /// There is a fault.
    Failed,
    /// There was nothing to check, or no way to check it.
    Skipped,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub outcome: Outcome,
    pub detail: String,
}

/// The results of checking a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// What was checked.
    pub place: String,
    /// Whether no check failed.
    pub intact: bool,
    /// How many records are intact, from the first.
    pub records: u64,
    /// How many of their payloads were erased or reduced.
    pub erased: u64,
    /// The last chain value, in hex.
    pub chain: String,
    /// The digest of the resulting state, in hex.
    pub digest: String,
    /// The offset of the first fault.
    pub fault: Option<Offset>,
    /// The checks, in order.
    pub checks: Vec<Check>,
    /// The size of the projections.
    #[serde(flatten)]
    pub counts: Counts,
}

impl Report {
    fn add(&mut self, name: &'static str, outcome: Outcome, detail: impl Into<String>) {
        self.intact &= outcome != Outcome::Failed;
        self.checks.push(Check { name, outcome, detail: detail.into() });
    }

    /// Adds the result of a repair that preceded the checks.
    pub fn note_repair(&mut self, repair: &Result<Vec<Repaired>, RepairError>) {
        let (outcome, detail) = match repair {
            Ok(repaired) if repaired.is_empty() => {
                (Outcome::Skipped, "no volume of the log is damaged".to_owned())
            }
            Ok(repaired) => {
                let runs = repaired.iter().flat_map(|volume| {
                    volume.runs.iter().map(|(first, last)| {
                        let name = volume.path.file_name().unwrap_or_default().to_string_lossy();
                        format!("records {first} to {last} of {name}")
                    })
                });
                let runs = runs.collect::<Vec<_>>().join(", ");
                (Outcome::Passed, format!("taken from the archive: {runs}"))
            }
            Err(error) => (Outcome::Failed, error.to_string()),
        };
        self.intact &= outcome != Outcome::Failed;
        self.checks.insert(0, Check { name: "repair", outcome, detail });
    }

    fn fail(&mut self, name: &'static str, at: Offset, detail: impl Into<String>) {
        self.fault = Some(self.fault.map_or(at, |fault| fault.min(at)));
        self.add(name, Outcome::Failed, detail);
    }
}

/// The checks of the records, in the order in which they are made.
const STEPS: [&str; 4] = ["chain", "payloads", "commands", "replay"];

/// Checks everything about `source`: its records, the digest that its server stored when it
/// stopped, and, for a stopped server's log, the archive in `archive_dir` or else the default one.
///
/// # Errors
/// When it cannot be read at all; faults of the log are in the report.
pub fn check_all(source: &Source, archive: Option<&Path>) -> Result<Report, HistoryError> {
    let at_shutdown = source.dir().map(ShutdownDigest::read).transpose()?.flatten();
    let mut report = check(source, at_shutdown.as_ref())?;
    let default = source.dir().map(archive_dir).filter(|dir| dir.is_dir());
    if let Some(dir) = archive.map(Path::to_owned).or(default) {
        check_archive(&mut report, source, &dir)?;
    }
    Ok(report)
}

/// Checks every record of `source`: position, chain, payload hash, command, replay. Then compares
/// the state at `at_shutdown` with the stored digest.
///
/// # Errors
/// When the source cannot be read at all; faults of the log are in the report.
pub fn check(
    source: &Source,
    at_shutdown: Option<&ShutdownDigest>,
) -> Result<Report, HistoryError> {
    let snapshots = source.dir().map(snapshots_in).unwrap_or_default();
    let at = snapshots.iter().map(|(offset, _)| *offset).collect();
    let mut walk = Walk::new(source.place(), at_shutdown, at);
    let mut progress = Progress::begin(source.end().or_else(|error| match fault_of(&error) {
        // The walk will find it, and report where.
        Some(_) => Ok(Offset::ZERO),
        None => Err(error),
    })?);
    let records = match source.records(Offset::new(1)) {
        Ok(records) => records,
        Err(error) => return walk.broken(error),
    };
    for record in records {
        let record = match record {
            Ok(record) => record,
            Err(error) => return walk.broken(error),
        };
        if let Err((step, at, reason)) = walk.take(&record) {
            return Ok(walk.faulty(step, at, reason));
        }
        progress.at(record.offset());
    }
    let (server, files) = (walk.state.server(), walk.state.media.all());
    let (erased, _) = walk.state.erasures.last();
    let digests = std::mem::take(&mut walk.digests);
    let mut report = walk.finish();
    check_snapshots(&mut report, source, &snapshots, &digests, erased);
    if let (Some(dir), Some(server)) = (source.dir(), server) {
        check_media(&mut report, dir, &server.server_name, &files);
    }
    if let Some(torn) = source.torn()? {
        let detail = format!(
            "the last {} bytes of {} are an unfinished entry, as a crash leaves it",
            torn.bytes,
            torn.path.display()
        );
        report.add("end", Outcome::Skipped, detail);
    }
    Ok(report)
}

/// The snapshots of a data directory. Those that cannot be listed count as missing: nothing depends
/// on them.
fn snapshots_in(dir: &Path) -> Vec<(Offset, PathBuf)> {
    snapshot::list(&snapshot::directory(dir)).unwrap_or_default()
}

/// Compares each snapshot from which a server would start with the replayed log, whose digests are
/// in `digests`, and adds the result to `report`. A snapshot from before the erasure at `erased`
/// cannot be compared.
fn check_snapshots(
    report: &mut Report,
    source: &Source,
    snapshots: &[(Offset, PathBuf)],
    digests: &BTreeMap<Offset, String>,
    erased: Offset,
) {
    const NAME: &str = "snapshots";
    let (mut good, mut passed_over) = (0, Vec::new());
    for (offset, path) in snapshots {
        let header = match source.log() {
            Some(log) => snapshot::read(path, log).and_then(|held| held.exact(path)).map(
                |(state, mut header)| {
                    header.digest = state.digest().to_hex().to_string();
                    header
                },
            ),
            None => snapshot::header(path),
        };
        match header {
            Ok(_) if *offset < erased => {
                passed_over.push(format!("the one at record {offset} is older than an erasure"));
            }
            Ok(header) if digests.get(offset) == Some(&header.digest) => good += 1,
            Ok(_) => {
                let detail = "differs from the state of the log there; delete it";
                report.fail(NAME, *offset, format!("{} {detail}", path.display()));
            }
            Err(error) => passed_over.push(error.to_string()),
        }
    }
    if report.checks.iter().any(|check| check.name == NAME) {
        return;
    }
    let over = match passed_over.as_slice() {
        [] => String::new(),
        passed_over => format!("; skipped: {}", passed_over.join("; ")),
    };
    match good {
        0 if over.is_empty() => report.add(NAME, Outcome::Skipped, "there are none"),
        0 => report.add(NAME, Outcome::Skipped, format!("none can be used{over}")),
        good => report.add(NAME, Outcome::Passed, format!("{good} match the log{over}")),
    }
}

/// Checks that each file that a record refers to exists and is intact, and adds the result to
/// `report`.
fn check_media(report: &mut Report, dir: &Path, server: &str, files: &[(Box<str>, Stored)]) {
    const NAME: &str = "media";
    let (mut good, mut bytes) = (BTreeSet::new(), 0);
    for (media_id, stored) in files {
        if good.contains(&stored.hash) {
            continue;
        }
        match store::verify(dir, &stored.hash, stored.size) {
            Ok(()) => {
                good.insert(stored.hash);
                bytes += stored.size;
            }
            Err(reason) => {
                let place = store::place(Path::new("media"), &stored.hash);
                let detail = format!(
                    "mxc://{server}/{media_id}: {reason}; a backup may have it as {}",
                    place.display()
                );
                report.fail(NAME, stored.offset, detail);
            }
        }
    }
    if good.is_empty() && files.is_empty() {
        report.add(NAME, Outcome::Skipped, "nothing was uploaded");
    } else if !report.checks.iter().any(|check| check.name == NAME) {
        let (files, bytes) = (grouped(good.len() as u64), grouped(bytes));
        report.add(NAME, Outcome::Passed, format!("all {files} files ({bytes} bytes) are intact"));
    }
}

/// The report on a log that cannot be opened: the error is all that can be said.
///
/// # Errors
/// `error` itself, if it does not concern the log.
pub fn unopened(place: &str, error: OpenError) -> Result<Report, HistoryError> {
    match &error {
        OpenError::Damaged(fault) => {
            let step = step_of(&fault.fault);
            Ok(Walk::new(place, None, BTreeSet::new()).faulty(
                step,
                fault.offset,
                fault.fault.to_string(),
            ))
        }
        OpenError::Lost { found, known, .. } => {
            let first = if found < known { found.next() } else { *known };
            Ok(Walk::new(place, None, BTreeSet::new()).faulty("chain", first, error.to_string()))
        }
        // The underlying database does not say where it is damaged: no record can be read.
        OpenError::Store { .. } | OpenError::Volume(_) => Ok(Walk::new(
            place,
            None,
            BTreeSet::new(),
        )
        .faulty("chain", Offset::new(1), error.to_string())),
        OpenError::InUse { .. }
        | OpenError::Io { .. }
        | OpenError::Full { .. }
        | OpenError::Importing(_) => Err(SourceError::Open(error).into()),
    }
}

/// Checks that the archive in `dir` is a prefix of the log of `source`, as far as that is intact,
/// and adds the result to `report`.
pub(crate) fn check_archive(
    report: &mut Report,
    source: &Source,
    dir: &Path,
) -> Result<(), HistoryError> {
    const NAME: &str = "archive";
    let place = dir.display();
    let Some(log) = source.log() else { return Ok(()) };
    let archive = ArchiveReader::open(dir)?;
    let Some(first) = archive.first() else {
        report.add(NAME, Outcome::Skipped, format!("there is none in {place}"));
        return Ok(());
    };
    let mut last = first.prev();
    let mut records = archive.records(first);
    let mut ours = Vec::new().into_iter();
    for record in records.by_ref() {
        let record = match record {
            Ok(record) => record,
            Err(error @ ArchiveError::Io { .. }) => return Err(error.into()),
            Err(error) => {
                let at = last.next();
                report.fail(NAME, at, format!("record {at} is damaged in the archive: {error}"));
                return Ok(());
            }
        };
        let offset = record.offset();
        let same: Option<Record> = match ours.next() {
            Some(same) => Some(same),
            None => {
                // A fault of the log itself was reported already.
                ours = log.read(offset, CHUNK).unwrap_or_default().into_iter();
                ours.next()
            }
        };
        match same {
            Some(same) if same.offset() == offset && same.chain == record.chain => {}
            Some(_) => {
                report.fail(
                    NAME,
                    offset,
                    format!("{place} is not an archive of this log: its record {offset} differs"),
                );
                return Ok(());
            }
            None => {
                let end = offset.prev();
                report.fail(
                    NAME,
                    offset,
                    format!("the log ends at record {end}, but {place} has later records: the log has lost records, or cannot be read from there; `logcabin restore --from-archive` rebuilds it"),
                );
                return Ok(());
            }
        }
        last = offset;
    }
    let torn = records.torn().map_or_else(String::new, |torn| {
        format!("; the last {} bytes are an unfinished entry", torn.bytes)
    });
    report.add(
        NAME,
        Outcome::Passed,
        format!("records {first} to {last} in {place} equal the log's{torn}"),
    );
    Ok(())
}

struct Walk<'a> {
    place: String,
    at_shutdown: Option<&'a ShutdownDigest>,
    checker: Checker,
    state: State,
    /// The digest at the offset of `at_shutdown`.
    digest: Option<String>,
    /// Further offsets at which digests are needed.
    wanted: BTreeSet<Offset>,
    /// The digests there.
    digests: BTreeMap<Offset, String>,
    audit: Audit,
    witness: Witness,
    /// The first checkpoint that disagrees with the records.
    refuted: Option<(Offset, proof::Fault)>,
}

impl<'a> Walk<'a> {
    fn new(place: &str, at_shutdown: Option<&'a ShutdownDigest>, wanted: BTreeSet<Offset>) -> Self {
        let mut walk = Self {
            place: place.to_owned(),
            at_shutdown,
            checker: Checker::from_start(),
            state: State::default(),
            digest: None,
            wanted,
            digests: BTreeMap::new(),
            audit: Audit::default(),
            witness: Witness::default(),
            refuted: None,
        };
        walk.compare();
        walk
    }

    fn take(&mut self, record: &Record) -> Result<(), (&'static str, Offset, String)> {
        let broken =
            |error: VerifyError| (step_of(&error.fault), error.offset, error.fault.to_string());
        self.checker.check(record).map_err(broken)?;
        let command = record.command();
        command.map_err(|error| ("commands", record.offset(), error.to_string()))?;
        let applied = self.state.apply(record);
        applied.map_err(|error| ("replay", record.offset(), error.to_string()))?;
        self.audit.note(record);
        let vouched = self.witness.take(record, self.state.server().as_deref());
        if let (Err(fault), None) = (vouched, &self.refuted) {
            self.refuted = Some((record.offset(), fault));
        }
        self.compare();
        Ok(())
    }

    fn compare(&mut self) {
        let at = self.state.applied();
        if self.at_shutdown.is_some_and(|digest| digest.offset == at) {
            self.digest = Some(self.state.digest().to_hex().to_string());
        }
        if self.wanted.contains(&at) {
            self.digests.insert(at, self.state.digest().to_hex().to_string());
        }
    }

    fn report(&self) -> Report {
        let hex = |hash: [u8; 32]| blake3::Hash::from_bytes(hash).to_hex().to_string();
        Report {
            place: self.place.clone(),
            intact: true,
            records: self.state.applied().get(),
            erased: self.audit.gone(),
            chain: hex(if self.state.applied() == Offset::ZERO {
                CHAIN_START
            } else {
                *self.checker.chain()
            }),
            digest: self.state.digest().to_hex().to_string(),
            fault: None,
            checks: Vec::new(),
            counts: Counts::of(&self.state),
        }
    }

    /// The report when the source fails: a fault of the log, or none.
    fn broken(self, error: SourceError) -> Result<Report, HistoryError> {
        match fault_of(&error) {
            Some((step, at)) => {
                let at = at.unwrap_or_else(|| self.state.applied().next());
                Ok(self.faulty(step, at, error.to_string()))
            }
            None => Err(error.into()),
        }
    }

    fn faulty(self, step: &'static str, at: Offset, reason: String) -> Report {
        let mut report = self.report();
        for name in STEPS {
            if name == step {
                let detail = if reason.contains(&format!("record {at}")) {
                    reason.clone()
                } else {
                    format!("record {at}: {reason}")
                };
                report.fail(name, at, detail);
            } else {
                let detail = format!("checked up to record {}", at.prev());
                report.add(name, Outcome::Skipped, detail);
            }
        }
        report.add("checkpoint", Outcome::Skipped, "not compared");
        report
    }

    fn finish(self) -> Report {
        let mut report = self.report();
        let count = grouped(report.records);
        let erased = match report.erased {
            0 => String::new(),
            erased => {
                format!(", except {} that were erased", grouped(erased))
            }
        };
        let behind = match self.audit.behind() {
            0 => String::new(),
            behind => format!("; {} more are still to be erased here", grouped(behind)),
        };
        if let Err(error) = self.checker.clone().finish() {
            report.fail("chain", error.offset, error.to_string());
        } else {
            report.add("chain", Outcome::Passed, format!("{count} records form one hash chain"));
        }
        match self.audit.finish() {
            Ok(()) => report.add(
                "payloads",
                Outcome::Passed,
                format!("{count} payloads match their hashes{erased}{behind}"),
            ),
            Err(error) => report.fail("payloads", error.offset, error.to_string()),
        }
        report.add("commands", Outcome::Passed, "every command can be decoded");
        let digest = report.digest.clone();
        report.add(
            "replay",
            Outcome::Passed,
            format!("all records applied; state digest {digest}"),
        );
        match (&self.refuted, self.witness.vouched()) {
            (Some((offset, fault)), _) => report.fail("proofs", *offset, fault.to_string()),
            (None, Some(upto)) => {
                let count = grouped(self.witness.checked());
                let detail = format!(
                    "{count} signed checkpoints match the records, the last one up to record {upto}"
                );
                report.add("proofs", Outcome::Passed, detail);
            }
            (None, None) => {
                report.add("proofs", Outcome::Skipped, "there is no signed checkpoint");
            }
        }
        self.compared(&mut report);
        report
    }

    fn compared(&self, report: &mut Report) {
        const NAME: &str = "checkpoint";
        let Some(ShutdownDigest { offset, digest, version }) = self.at_shutdown else {
            report.add(NAME, Outcome::Skipped, "there is none to compare with; a server stores one in its data directory when it stops");
            return;
        };
        match &self.digest {
            _ if !self.at_shutdown.is_some_and(ShutdownDigest::is_comparable) => {
                report.add(
                    NAME,
                    Outcome::Skipped,
                    format!("version {version} stored it, and its digests are not comparable"),
                );
            }
            None => {
                let end = self.state.applied();
                report.fail(
                    NAME,
                    end.next(),
                    format!("a server stopped at record {offset}, but the log ends at {end}: records were lost"),
                );
            }
            Some(found) if found != digest && self.state.erasures.last().0 > *offset => report.add(
                NAME,
                Outcome::Skipped,
                format!("a later erasure has changed the state at record {offset}"),
            ),
            Some(found) if found == digest => report.add(
                NAME,
                Outcome::Passed,
                format!("the state at record {offset} is the one that the server stopped with"),
            ),
            Some(found) => report.fail(
                NAME,
                *offset,
                format!("at record {offset} the server had the state digest {digest}, but a replay gives {found}"),
            ),
        }
    }
}

fn step_of(fault: &Fault) -> &'static str {
    match fault {
        Fault::Damaged(CodecError::PayloadHash | CodecError::ReducedHash)
        | Fault::Gone
        | Fault::Replaced => "payloads",
        Fault::Command(_) => "commands",
        _ => "chain",
    }
}

/// The check that a failing source fails, and the offset if the error names one; `None` if the
/// error does not concern the log.
fn fault_of(error: &SourceError) -> Option<(&'static str, Option<Offset>)> {
    match error {
        SourceError::Open(OpenError::Damaged(fault))
        | SourceError::Socket(SocketError::Damaged(fault)) => {
            Some((step_of(&fault.fault), Some(fault.offset)))
        }
        SourceError::Read(ReadError::Damaged { offset, .. } | ReadError::Missing(offset))
        | SourceError::Socket(SocketError::Frame { offset, .. })
        | SourceError::Archive(ArchiveError::Gap { missing: offset, .. }) => {
            Some(("chain", Some(*offset)))
        }
        SourceError::Read(ReadError::Storage(_))
        | SourceError::Archive(ArchiveError::Damaged { .. })
        | SourceError::Socket(SocketError::Refused(_)) => Some(("chain", None)),
        SourceError::Nothing(_)
        | SourceError::NoLog(_)
        | SourceError::InUse { .. }
        | SourceError::Open(_)
        | SourceError::Archive(_)
        | SourceError::Manifest(_)
        | SourceError::Socket(_) => None,
    }
}
