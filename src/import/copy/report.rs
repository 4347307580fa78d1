//! What was read, what of it was left and why: counts for the log, and a list with keys for people.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{
    ImportError,
    facts::{Bad, Origin, Section},
};
use logcabin_base::limits;
use logcabin_record::command::{FileHash, LeftOut};

/// What was read and left so far. It is saved with the position up to which that was.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Counts {
    /// The section that is being read.
    section: Option<Section>,
    /// Rows read, by section and table.
    rows: BTreeMap<Section, BTreeMap<String, u64>>,
    /// Records made, by kind.
    pub(super) written: BTreeMap<String, u64>,
    /// What was left, by section, table and reason.
    #[serde(with = "pairs")]
    left: BTreeMap<Section, BTreeMap<(String, String), u64>>,
    /// A digest of each section, and how many facts it covers.
    digests: BTreeMap<Section, (FileHash, u64)>,
    /// How long the list is, in bytes.
    listed: u64,
}

impl Counts {
    /// Adds a fact of a section to its digest.
    pub(super) fn read(&mut self, section: Section, table: &str, fact: &blake3::Hash) {
        let digest = self.digests.entry(section).or_insert((FileHash([0; 32]), 0));
        let mut hasher = blake3::Hasher::new();
        hasher.update(&digest.0.0).update(fact.as_bytes());
        *digest = (hasher.finalize().into(), digest.1 + 1);
        add(self.rows.entry(section).or_default(), table);
    }

    /// What is left from now on is of this section.
    pub(super) fn enter(&mut self, section: Section) {
        self.section = Some(section);
    }

    /// Forgets a section that is read again from the start.
    pub(super) fn begin(&mut self, section: Section) {
        self.digests.remove(&section);
        self.rows.remove(&section);
        self.left.remove(&section);
    }

    /// Rows read, by table.
    pub(super) fn read_rows(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (table, count) in self.rows.values().flatten() {
            *all.entry(table.clone()).or_default() += count;
        }
        all
    }

    /// Counts a row that does not come along.
    pub(super) fn leave(&mut self, origin: &Origin, reason: &str) {
        let of_section = self.left.entry(self.section.unwrap_or(Section::Server)).or_default();
        *of_section.entry((origin.table.to_owned(), reason.to_owned())).or_default() += 1;
    }

    pub(super) fn wrote(&mut self, kind: &str) {
        add(&mut self.written, kind);
    }

    /// blake3 over all that was read: of each section with facts, in order, its name, their number
    /// and their digest.
    pub(super) fn digest(&self) -> FileHash {
        let mut hasher = blake3::Hasher::new();
        for section in Section::ALL {
            if let Some((digest, count)) = self.digests.get(&section) {
                let name = serde_json::to_string(&section).unwrap_or_default();
                hasher.update(name.as_bytes()).update(&count.to_be_bytes()).update(&digest.0);
            }
        }
        hasher.finalize().into()
    }

    /// What was left, by table and reason.
    pub(super) fn left(&self) -> Vec<LeftOut> {
        let mut all: BTreeMap<(String, String), u64> = BTreeMap::new();
        for (of, count) in self.left.values().flatten() {
            *all.entry(of.clone()).or_default() += count;
        }
        let left = all.into_iter();
        left.map(|((table, reason), count)| LeftOut { table, reason, count }).collect()
    }
}

fn add(counts: &mut BTreeMap<String, u64>, name: &str) {
    match counts.get_mut(name) {
        Some(count) => *count += 1,
        None => {
            counts.insert(name.to_owned(), 1);
        }
    }
}

/// JSON has no maps whose keys are pairs.
mod pairs {
    use std::collections::BTreeMap;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    use super::Section;

    type Left = BTreeMap<Section, BTreeMap<(String, String), u64>>;

    pub(super) fn serialize<S: Serializer>(left: &Left, to: S) -> Result<S::Ok, S::Error> {
        let list = left.iter().map(|(section, of)| (section, of.iter().collect::<Vec<_>>()));
        list.collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Left, D::Error> {
        let list = Vec::<(Section, Vec<((String, String), u64)>)>::deserialize(from)?;
        Ok(list.into_iter().map(|(section, of)| (section, of.into_iter().collect())).collect())
    }
}

/// The list of what was left. It begins with the table and the key of each row.
pub(super) struct List {
    path: PathBuf,
    file: BufWriter<File>,
}

impl List {
    /// Opens the list, which is cut after what `counts` cover.
    pub(super) fn open(path: &Path, counts: &Counts) -> Result<Self, ImportError> {
        let failed = failed(path);
        let mut options = OpenOptions::new();
        let file = options.append(true).create(true).mode(0o600).open(path).map_err(&failed)?;
        let length = file.metadata().map_err(&failed)?.len();
        file.set_len(length.min(counts.listed)).map_err(&failed)?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file) })
    }

    /// Notes a row that does not come along. `why` may tell particulars, `reason` is what the log
    /// keeps for ever, and the same for many rows.
    pub(super) fn leave(
        &mut self,
        counts: &mut Counts,
        origin: &Origin,
        (reason, why): (&str, &str),
    ) -> Result<(), ImportError> {
        counts.leave(origin, reason);
        if counts.listed < limits::IMPORT_REPORT_BYTES {
            let line = format!("{origin}: {}\n", why.escape_debug());
            self.file.write_all(line.as_bytes()).map_err(failed(&self.path))?;
            counts.listed += line.len() as u64;
        }
        Ok(())
    }

    /// Notes a row that the reader could not tell as a fact.
    pub(super) fn leave_bad(&mut self, counts: &mut Counts, bad: &Bad) -> Result<(), ImportError> {
        self.leave(counts, &bad.origin, ("it cannot be read", &bad.why))
    }

    /// A line that is about no row.
    pub(super) fn note(&mut self, counts: &mut Counts, line: &str) -> Result<(), ImportError> {
        if counts.listed < limits::IMPORT_REPORT_BYTES {
            let line = format!("{}\n", line.escape_debug());
            self.file.write_all(line.as_bytes()).map_err(failed(&self.path))?;
            counts.listed += line.len() as u64;
        }
        Ok(())
    }

    pub(super) fn save(&mut self) -> Result<(), ImportError> {
        let saved = self.file.flush().and_then(|()| self.file.get_ref().sync_data());
        saved.map_err(failed(&self.path))
    }
}

/// The error of a file of the import.
pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> ImportError + '_ {
    move |source| ImportError::File { what: "write", path: path.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Key;

    #[test]
    fn a_list_that_was_interrupted_goes_on_where_its_counts_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        let origin = |number| Origin { table: "events", key: Key::Number(number) };
        let mut counts = Counts::default();
        let mut list = List::open(&path, &counts).unwrap();
        list.leave(&mut counts, &origin(1), ("it is odd", "it is odd: \u{1b}[2J")).unwrap();
        list.save().unwrap();
        let saved = counts.clone();
        list.leave(&mut counts, &origin(2), ("it is odd", "it is odd: 2")).unwrap();
        list.save().unwrap();
        drop(list);
        let mut counts = saved;
        let mut list = List::open(&path, &counts).unwrap();
        list.leave(&mut counts, &origin(3), ("it is odd", "it is odd: 3")).unwrap();
        list.save().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "events 1: it is odd: \\u{1b}[2J\nevents 3: it is odd: 3\n");
        let left = LeftOut { table: "events".into(), reason: "it is odd".into(), count: 2 };
        assert_eq!(counts.left(), [left]);
    }

    #[test]
    fn a_digest_depends_on_what_was_read_and_in_which_order() {
        let facts = [blake3::hash(b"1"), blake3::hash(b"2")];
        let digest = |order: &[usize], section| {
            let mut counts = Counts::default();
            order.iter().for_each(|at| counts.read(section, "table", &facts[*at]));
            counts.digest()
        };
        let first = digest(&[0, 1], Section::Events);
        assert_eq!(first, digest(&[0, 1], Section::Events));
        assert_ne!(first, digest(&[1, 0], Section::Events));
        assert_ne!(first, digest(&[0, 1], Section::Backfilled));
        assert_ne!(first, digest(&[0], Section::Events));
    }
}
