//! What an examination finds.

use serde::{Deserialize, Serialize};

use crate::history::terminal::clean;
use logcabin_base::limits;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// It was checked, and is well.
    Ok,
    /// It could not be checked.
    Unknown,
    /// It should be mended.
    Warning,
    /// Something does not work, or will not.
    Error,
}

impl Level {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The result of one check. Its texts are harmless to terminals, whatever they quote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the check.
    pub check: String,
    pub level: Level,
    /// What was found.
    pub what: String,
    /// Why it matters; empty if all is well.
    pub why: String,
    /// The command or the setting that mends it; empty if all is well.
    pub mend: String,
}

impl Finding {
    pub(super) fn new(
        check: &str,
        level: Level,
        what: impl AsRef<str>,
        why: &str,
        mend: impl AsRef<str>,
    ) -> Self {
        Self {
            check: check.to_owned(),
            level,
            what: harmless(what.as_ref()),
            why: why.to_owned(),
            mend: harmless(mend.as_ref()),
        }
    }

    pub(super) fn ok(check: &str, what: impl AsRef<str>) -> Self {
        Self::new(check, Level::Ok, what, "", "")
    }
}

/// Something that could not be checked, and why.
pub(super) fn unknown(check: &str, subject: &str, reason: &str, mend: &str) -> Finding {
    let why = "Nobody looked, so it may be broken.";
    Finding::new(check, Level::Unknown, format!("{subject} is not known: {reason}."), why, mend)
}

/// What can be done about checks that need a running server.
pub(super) const START: &str = "Start the server, and run logcabin doctor again.";

/// The reason that another gave, cut.
pub(super) fn failing(reason: &str) -> String {
    let mut cut: String = reason.chars().take(limits::DOCTOR_TEXT).collect();
    if cut.len() < reason.len() {
        cut.push('…');
    }
    cut.trim_end_matches('.').to_owned()
}

fn harmless(text: &str) -> String {
    clean(&text.chars().take(4 * limits::DOCTOR_TEXT).collect::<String>())
}

/// All findings of an examination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The worst level of all findings.
    pub level: Level,
    /// When the examination began, in milliseconds since the Unix epoch.
    pub checked_ms: u64,
    /// Whether the server runs.
    pub running: bool,
    /// The version of the program that examined it.
    pub version: String,
    /// The worst first.
    pub findings: Vec<Finding>,
}

impl Report {
    pub(super) fn of(mut findings: Vec<Finding>, checked_ms: u64, running: bool) -> Self {
        // The sort is stable: those of one level stay in the order of the checks.
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.level));
        Self {
            level: findings.first().map_or(Level::Unknown, |worst| worst.level),
            checked_ms,
            running,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            findings,
        }
    }

    /// How many findings are of this level.
    pub fn count(&self, level: Level) -> usize {
        self.findings.iter().filter(|finding| finding.level == level).count()
    }

    /// Whether it is younger than `ms` milliseconds. One from the future is not: the clock was set
    /// back.
    pub(super) fn is_newer(&self, now_ms: u64, ms: u64) -> bool {
        now_ms.checked_sub(self.checked_ms).is_some_and(|age| age < ms)
    }

    /// The exit code: 0 if all is well, 1 with warnings, 2 with errors. What is unknown counts as a
    /// warning, unless it is allowed.
    pub fn exit_code(&self, allow_unknown: bool) -> u8 {
        match self.level {
            Level::Ok => 0,
            Level::Unknown => u8::from(!allow_unknown),
            Level::Warning => 1,
            Level::Error => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(levels: &[Level]) -> Report {
        let finding = |level: &Level| Finding::new("x", *level, level.name(), "", "");
        Report::of(levels.iter().map(finding).collect(), 1_000, true)
    }

    #[test]
    fn the_worst_comes_first_and_decides() {
        use Level::{Error, Ok, Unknown, Warning};
        for (levels, code, allowing) in [
            (&[Ok, Ok][..], 0, 0),
            (&[Ok, Unknown], 1, 0),
            (&[Ok, Warning, Unknown], 1, 1),
            (&[Warning, Error, Ok], 2, 2),
            (&[], 1, 0),
        ] {
            let report = report(levels);
            assert_eq!((report.exit_code(false), report.exit_code(true)), (code, allowing));
            assert!(report.findings.is_sorted_by(|a, b| a.level >= b.level), "{report:?}");
        }
    }

    #[test]
    fn texts_of_others_are_cut_and_harmless() {
        let evil = format!("\u{1b}[2J\u{202e}{}", "x".repeat(10_000));
        let finding = Finding::new("x", Level::Error, failing(&evil), "", &evil);
        assert!(finding.what.chars().count() < 400 && finding.mend.len() < 2_000, "{finding:?}");
        let all = format!("{}{}", finding.what, finding.mend);
        assert!(!all.contains(['\u{1b}', '\u{202e}']), "{all}");
    }

    #[test]
    fn a_report_is_new_for_a_while() {
        let report = report(&[]);
        assert!(report.is_newer(1_500, 1_000));
        assert!(!report.is_newer(2_000, 1_000) && !report.is_newer(500, 1_000));
    }
}
