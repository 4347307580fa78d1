//! What comes along from a source, what does not and why, how long it takes and how much room it
//! needs. Everything is read once, and nothing is written.

use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use ruma::OwnedServerName;
use serde::Serialize;

use crate::{
    ImportError,
    copy::{
        self,
        trial::{self, Trial},
    },
    facts::{About, Bad, Cursor, Fact, Judged, LeftTable, Section, Source, Told},
};
use logcabin_base::limits;

/// What was found.
#[derive(Debug, Serialize)]
pub struct Report {
    pub source: About,
    /// What comes along, in the order in which it is read.
    pub comes: Vec<Coming>,
    /// Events by what became of them at the source.
    pub events: BTreeMap<&'static str, u64>,
    /// What does not come along, by table.
    pub left: Vec<LeftTable>,
    /// Rows that do not come along as they are, and why; the first ones.
    pub faults: Vec<Bad>,
    /// How many there are in all.
    pub faults_in_all: u64,
    /// Work that the source has not done yet after an upgrade. It changes what is read.
    pub background_updates: Vec<String>,
    /// Why nothing can be copied as it is, if so.
    pub refused: Option<String>,
    /// Estimates.
    pub log_bytes: u64,
    /// Of files of media that are there.
    pub media_bytes: u64,
    /// How long reading took, which is a part of a copy.
    pub read_seconds: u64,
    /// How long a copy takes, apart from media that cannot be linked.
    pub copy_seconds: u64,
}

/// Facts of one section.
#[derive(Debug, Serialize)]
pub struct Coming {
    pub section: Section,
    pub facts: u64,
    pub faults: u64,
}

/// Facts that a copy writes in a second, on two slow cores.
const FACTS_PER_SECOND: u64 = 20_000;

/// Bytes of log for each byte of events, with headers and indexes.
const LOG_PER_EVENT_BYTE: u64 = 2;

/// Bytes of log for each fact that is no event.
const LOG_PER_FACT: u64 = 500;

/// Reads all of a source, as a copy does, and says what a copy would do. `media` is where its files
/// are.
pub fn check(source: &mut dyn Source, media: &Path) -> Result<Report, ImportError> {
    let begun = Instant::now();
    let about = source.about()?;
    let (left, background_updates) = (source.left()?, source.unfinished()?);
    let refused = copy::not_ready(&source.unready()?);
    let mut report = Report {
        source: about,
        comes: Vec::new(),
        events: BTreeMap::new(),
        left,
        faults: Vec::new(),
        faults_in_all: 0,
        background_updates,
        refused,
        log_bytes: 0,
        media_bytes: 0,
        read_seconds: 0,
        copy_seconds: 0,
    };
    let own = OwnedServerName::try_from(&*report.source.server_name).map_err(|_| {
        ImportError::Refused(format!("`{}` is no name of a server", report.source.server_name))
    })?;
    let mut trial = Trial::new(own);
    for section in trial::sections() {
        let mut coming = Coming { section, facts: 0, faults: 0 };
        let mut cursor = Cursor::START;
        loop {
            let slice = source.read(section, &cursor)?;
            for bad in slice.bad {
                coming.faults += 1;
                report.fault(bad);
            }
            for told in slice.facts {
                report.add(&told, media);
                coming.facts += 1;
                trial.fact(told, |path| media.join(path).is_file());
            }
            coming.leave(&mut report, trial.take_left());
            match slice.next {
                Some(next) => cursor = next,
                None => break,
            }
        }
        trial.end(section);
        coming.leave(&mut report, trial.take_left());
        report.comes.push(coming);
    }
    for bad in trial.useless_rooms() {
        report.fault(bad);
    }
    report.estimate(begun.elapsed());
    Ok(report)
}

impl Coming {
    /// Counts rows that do not come along.
    fn leave(&mut self, report: &mut Report, left: Vec<Bad>) {
        self.faults += left.len() as u64;
        self.facts = self.facts.saturating_sub(left.len() as u64);
        left.into_iter().for_each(|bad| report.fault(bad));
    }
}

impl Report {
    fn fault(&mut self, bad: Bad) {
        self.faults_in_all += 1;
        if !bad.why.is_empty() && self.faults.len() < limits::SOURCE_BAD_LISTED {
            self.faults.push(bad);
        }
    }

    fn add(&mut self, told: &Told, media: &Path) {
        match &told.fact {
            Fact::Event(event) => {
                self.log_bytes += event.json.len() as u64 * LOG_PER_EVENT_BYTE;
                *self.events.entry(name(&event.judged)).or_default() += 1;
            }
            Fact::Media(file) => {
                self.log_bytes += LOG_PER_FACT;
                self.media_bytes += size(&media.join(&file.path));
            }
            _ => self.log_bytes += LOG_PER_FACT,
        }
    }

    fn estimate(&mut self, took: Duration) {
        let facts = self.comes.iter().map(|coming| coming.facts).sum::<u64>();
        self.read_seconds = took.as_secs();
        self.copy_seconds = (facts / FACTS_PER_SECOND).max(took.as_secs()) + 1;
    }
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.len())
}

const fn name(judged: &Judged) -> &'static str {
    match judged {
        Judged::Timeline => "in the timeline",
        Judged::Backfilled => "from the past",
        Judged::Outlier { .. } => "outliers",
        Judged::SoftFailed => "soft-failed",
        Judged::Rejected { .. } => "rejected",
    }
}

/// Faults that are shown to a person at once; the rest is in the report as JSON.
const SHOWN: usize = 50;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        writeln!(
            f,
            "{} of {}: {}, tables of version {}",
            source.program, source.server_name, source.place, source.schema
        )?;
        writeln!(f, "\nComes along:")?;
        for coming in self.comes.iter().filter(|coming| coming.facts + coming.faults > 0) {
            let name = section_name(coming.section);
            write!(f, "  {:>10}  {name}", coming.facts)?;
            if coming.faults > 0 {
                write!(f, ", and {} that do not", coming.faults)?;
            }
            writeln!(f)?;
        }
        for (judged, count) in &self.events {
            writeln!(f, "  {count:>10}  events {judged}")?;
        }
        if !self.left.is_empty() {
            writeln!(f, "\nDoes not come along:")?;
        }
        for left in &self.left {
            writeln!(f, "  {:>10}  {}: {}", left.rows, left.table, left.why)?;
        }
        if self.faults_in_all > 0 {
            writeln!(f, "\nRows that do not come along as they are: {}", self.faults_in_all)?;
            for fault in self.faults.iter().take(SHOWN) {
                writeln!(f, "  {fault}")?;
            }
            if self.faults.len() > SHOWN {
                writeln!(f, "  and more, which --json lists")?;
            }
        }
        if !self.background_updates.is_empty() {
            writeln!(
                f,
                "\nSynapse has not completed its last upgrade: {}. Let it run until it has.",
                self.background_updates.join(", ")
            )?;
        }
        writeln!(
            f,
            "\nThe log takes about {} MB. Media are {} MB, which take no room if they can be linked.",
            self.log_bytes.div_ceil(1_000_000),
            self.media_bytes.div_ceil(1_000_000)
        )?;
        writeln!(
            f,
            "A copy takes about {} s; reading took {} s.",
            self.copy_seconds, self.read_seconds
        )
    }
}

/// `one time keys` for `OneTimeKeys`.
fn section_name(section: Section) -> String {
    let mut name = String::new();
    for letter in format!("{section:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push(' ');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}
