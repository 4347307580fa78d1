//! Whether the log takes writes, whether its archive follows, and whether the projections are what
//! the log adds up to.

use super::{Finding, Level, STOPPED, Subject, failing, finding::START, unknown};
use crate::history::terminal::grouped;
use logcabin_log::AppendError;
use logcabin_record::Offset;
use logcabin_snapshot::Status;

/// An archive that lacks so many records does not keep up: it is written within a second.
const BEHIND: u64 = 10_000;

/// How the archive is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Archived {
    Off,
    /// It is written, but for so many records.
    Behind(u64),
    Failing(String),
    /// Nothing is known of that of a stopped server.
    Unknown,
}

/// Whether the log takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Writes {
    Taken,
    /// A restart is necessary.
    Failed(String),
    /// Room is necessary.
    Full(String),
    Unknown(String),
}

pub(super) fn findings(of: &Subject<'_>) -> Vec<Finding> {
    let status = of.context.map(|context| (context.snapshots.status(), context.engine.head()));
    let status = status.map(|(status, head)| (status, head.offset()));
    let every = of.config.snapshots.every_records;
    let mut found = vec![judge_writes(&writes(of)), judge_archive(&archived(of))];
    found.push(match status {
        Ok((status, head)) => judge_projections(&status, head, every),
        Err(reason) => {
            unknown("projections", "Whether they are those of the log", &failing(reason), START)
        }
    });
    found
}

fn writes(of: &Subject<'_>) -> Writes {
    match of.running.map(|running| running.log.refusal()) {
        None => Writes::Unknown(STOPPED.to_owned()),
        Some(None | Some(AppendError::Closed)) => Writes::Taken,
        Some(Some(AppendError::Full(reason))) => Writes::Full(reason),
        Some(Some(error)) => Writes::Failed(error.to_string()),
    }
}

pub(super) fn archived(of: &Subject<'_>) -> Archived {
    if of.config.archive_dir().is_none() {
        return Archived::Off;
    }
    let Some(archive) = of.running.and_then(|running| running.archive.as_ref()) else {
        return Archived::Unknown;
    };
    if let Some(reason) = &*archive.failure.borrow() {
        return Archived::Failing(reason.clone());
    }
    let archived = *archive.archived.borrow();
    let head = of.context.map_or(archived, |context| context.engine.head().offset());
    Archived::Behind(head.get().saturating_sub(archived.get()))
}

fn judge_writes(writes: &Writes) -> Finding {
    let why = "The server refuses messages, logins and everything else that writes.";
    match writes {
        Writes::Taken => Finding::ok("log", "The log takes writes."),
        Writes::Unknown(reason) => unknown("log", "Whether the log takes writes", reason, START),
        Writes::Full(reason) => Finding::new(
            "log",
            Level::Error,
            format!("The log takes no writes: {}.", failing(reason)),
            why,
            "Make room on the disk; the server notices it by itself.",
        ),
        Writes::Failed(reason) => Finding::new(
            "log",
            Level::Error,
            format!("A write to the log failed: {}.", failing(reason)),
            why,
            "Look for errors of the disk (dmesg), and then restart the server.",
        ),
    }
}

fn judge_archive(archived: &Archived) -> Finding {
    const CHECK: &str = "archive";
    let why = "From the archive, the log is rebuilt if its database is damaged.";
    match archived {
        Archived::Unknown => unknown(CHECK, "How the archive is", STOPPED, START),
        Archived::Off => Finding::new(
            CHECK,
            Level::Warning,
            "There is no archive.",
            why,
            "log.archive_dir = \"auto\", or a directory on another disk",
        ),
        Archived::Failing(reason) => Finding::new(
            CHECK,
            Level::Error,
            format!("The archive cannot be written: {}.", failing(reason)),
            why,
            "Mend the directory of log.archive_dir; it is tried again all the time.",
        ),
        Archived::Behind(records) if *records > BEHIND => Finding::new(
            CHECK,
            Level::Warning,
            format!("The archive is {} records behind the log.", grouped(*records)),
            "What it lacks would be lost with the log.",
            "Wait after an import; otherwise set log.archive_dir to a faster disk.",
        ),
        Archived::Behind(_) => Finding::ok(CHECK, "The archive follows the log."),
    }
}

fn judge_projections(status: &Status, head: Offset, every: u64) -> Finding {
    const CHECK: &str = "projections";
    if let Some(fault) = &status.fault {
        return Finding::new(
            CHECK,
            Level::Error,
            format!(
                "What the server computed from the log differs from the log: {}.",
                fault.projections.join(", ")
            ),
            "Users may be shown something wrong; the log itself is intact.",
            "Stop the server, delete the directory snapshots in the data directory, and start it; \
             docs/verification.md says how to report it.",
        );
    }
    let behind = head.get().saturating_sub(status.snapshot.get());
    if behind > every.saturating_mul(3) {
        return Finding::new(
            CHECK,
            Level::Warning,
            format!(
                "The newest snapshot is {} records old; one is due every {}.",
                grouped(behind),
                grouped(every)
            ),
            "A start takes long, because it replays everything since.",
            "logcabin snapshot write; what prevents snapshots is in the server's output",
        );
    }
    let seen = match status.verified_through {
        Offset::ZERO => "They were not compared with a replay yet".to_owned(),
        through => format!("They matched a replay up to record {through}"),
    };
    let what = format!("The newest snapshot is {} records old. {seen}.", grouped(behind));
    Finding::ok(CHECK, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_snapshot::{Fault, FaultLocation};

    #[test]
    fn a_log_that_refuses_writes_is_found() {
        for (writes, level) in [
            (Writes::Taken, Level::Ok),
            (Writes::Unknown("it is stopped".to_owned()), Level::Unknown),
            (Writes::Full("no room".to_owned()), Level::Error),
            (Writes::Failed("input/output error".to_owned()), Level::Error),
        ] {
            assert_eq!(judge_writes(&writes).level, level, "{writes:?}");
        }
    }

    #[test]
    fn an_archive_that_fails_or_lags_is_found() {
        for (archived, level) in [
            (Archived::Off, Level::Warning),
            (Archived::Unknown, Level::Unknown),
            (Archived::Failing("read-only".to_owned()), Level::Error),
            (Archived::Behind(BEHIND + 1), Level::Warning),
            (Archived::Behind(5), Level::Ok),
        ] {
            assert_eq!(judge_archive(&archived).level, level, "{archived:?}");
        }
    }

    #[test]
    fn wrong_projections_and_old_snapshots_are_found() {
        let judged =
            |status: &Status, head| judge_projections(status, Offset::new(head), 100).level;
        let mut status = Status { snapshot: Offset::new(1_000), ..Status::default() };
        assert_eq!(judged(&status, 1_300), Level::Ok);
        assert_eq!(judged(&status, 1_301), Level::Warning);
        status.fault = Some(Fault {
            held: FaultLocation::Server,
            after: Offset::ZERO,
            by: Offset::new(7),
            first: None,
            projections: vec!["rooms".to_owned()],
        });
        assert_eq!(judged(&status, 1_000), Level::Error);
    }
}
