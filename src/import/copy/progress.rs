//! How far an import has come, in small files beside the log.
//!
//! `progress.json` names a record that ends a volume, and the fact after it: everything before is
//! durable, and an interrupted import goes on there. It is written after the volume, so a crash in
//! between only leaves a volume too many. `known` is what the writer remembers of the log up to
//! some earlier record. It may be missing, and is then found in the log. `marks` is what the copy
//! saw of the source: without it, everything is read again at the end.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    changes::Marks,
    known::KnownRooms,
    report::{Counts, failed},
    resume::Handled,
};
use crate::{
    ImportError,
    facts::{Cursor, Section, StateDelta},
};
use logcabin_base::disk;
use logcabin_record::{Offset, command::FileHash};

/// The format of the files. Another one is not read.
const FORMAT: u32 = 3;

/// How far an import has come.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Progress {
    format: u32,
    pub(super) server_name: String,
    /// The last durable record, which ends a volume, and its chain value.
    pub(super) offset: Offset,
    pub(super) chain: FileHash,
    /// How many rows of the index are about records up to there.
    pub(super) rows: u64,
    /// The time of all records that this pass makes, in milliseconds since the Unix epoch. It is
    /// settled before the first of them, so that one that is made again is the same.
    pub(super) now_ms: u64,
    pub(super) pass: Pass,
    /// The next section of the pass, by its number, the next slice in it, and the last fact of that
    /// slice which was handled.
    pub(super) section: usize,
    pub(super) cursor: Cursor,
    pub(super) handled: Option<Handled>,
    /// From where each section is to be read on, of those that only grow.
    pub(super) grown: BTreeMap<Section, Cursor>,
    /// The rooms of which events were left, because the source knew them in part only.
    pub(super) partial: BTreeSet<String>,
    /// The newest place in the source's stream when the last pass began.
    pub(super) head: i64,
    /// The last event that was read, by the source's number.
    pub(super) newest: i64,
    pub(super) oldest: i64,
    /// Redactions that were not of an event in the timeline, and take effect whatever it is: their
    /// senders may redact events of others.
    pub(super) moderated: BTreeSet<Offset>,
    pub(super) counts: Counts,
    pub(super) waiting: Waiting,
    /// What `finish` found, once it is done.
    pub(super) finished: Option<serde_json::Value>,
}

/// What the import is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Pass {
    /// The first copy, while the source may be in use.
    Copy,
    /// The copy is complete, and may take what is new.
    Follow,
    /// What is left, and what may have changed. The source is not in use. The pass is noted at its
    /// begin and at its end only. If it is interrupted, it begins again: the source may have been
    /// in use since, and what it took back must not come along.
    Finish,
    /// All records are there. The log is about to get its name.
    Sealed,
}

/// Changes of rooms' states that wait for their events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) by_room: BTreeMap<String, Vec<WaitingChange>>,
    /// Whether there was a change yet: older sources did not note them.
    pub(super) began: bool,
    pub(super) count: usize,
}

/// A change of a room's state in the source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct WaitingChange {
    pub(super) stream: i64,
    pub(super) event_type: String,
    pub(super) state_key: String,
    pub(super) event_id: Option<String>,
    /// How many events of the room have passed by.
    pub(super) passed: u32,
}

impl Waiting {
    pub(super) fn add(&mut self, delta: StateDelta) {
        self.began = true;
        self.count += 1;
        let StateDelta { stream, room_id, event_type, state_key, event_id, .. } = delta;
        let change = WaitingChange { stream, event_type, state_key, event_id, passed: 0 };
        self.by_room.entry(room_id).or_default().push(change);
    }

    /// The changes of a room up to a place in the source's stream.
    pub(super) fn take(&mut self, room_id: &str, up_to: i64) -> Vec<WaitingChange> {
        let Some(waiting) = self.by_room.get_mut(room_id) else { return Vec::new() };
        let all = std::mem::take(waiting);
        let (taken, later): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|change| change.stream <= up_to);
        self.count -= taken.len();
        if later.is_empty() {
            self.by_room.remove(room_id);
        } else {
            *waiting = later;
        }
        taken
    }

    /// Puts changes back whose events have not come yet.
    pub(super) fn put_back(&mut self, room_id: &str, changes: Vec<WaitingChange>) {
        if changes.is_empty() {
            return;
        }
        self.count += changes.len();
        let waiting = self.by_room.entry(room_id.to_owned()).or_default();
        drop(waiting.splice(..0, changes));
    }
}

/// The files of an import, in the data directory.
pub(super) struct Files {
    pub(super) dir: PathBuf,
}

impl Files {
    pub(super) fn of(data_dir: &Path) -> Self {
        Self { dir: data_dir.join("importing") }
    }

    fn progress(&self) -> PathBuf {
        self.dir.join("progress.json")
    }

    fn known(&self) -> PathBuf {
        self.dir.join("known")
    }

    fn marks(&self) -> PathBuf {
        self.dir.join("marks")
    }

    /// The index of events.
    pub(super) fn events(&self) -> PathBuf {
        self.dir.join("events")
    }

    /// The list of what was left.
    pub(super) fn list(&self) -> PathBuf {
        self.dir.join("left.txt")
    }

    pub(super) fn make(&self) -> Result<(), ImportError> {
        disk::make_private_dir(&self.dir).map_err(failed(&self.dir))
    }

    /// How far the import has come; `None` if it has not begun.
    pub(super) fn read_progress(&self) -> Result<Option<Progress>, ImportError> {
        let path = self.progress();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(ImportError::File { what: "read", path, source }),
        };
        let bad = |why: String| ImportError::Settings { path: path.clone(), why };
        let progress: Progress =
            serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        if progress.format != FORMAT {
            let why = "another version of logcabin began this import; begin it again in an empty \
                       directory, or go on with that version";
            return Err(bad(why.to_owned()));
        }
        Ok(Some(progress))
    }

    pub(super) fn write_progress(&self, progress: &Progress) -> Result<(), ImportError> {
        let path = self.progress();
        let text = serde_json::to_vec(progress)
            .map_err(|error| ImportError::Refused(format!("the progress is not JSON: {error}")))?;
        disk::write_whole(&path, &text).map_err(failed(&path))
    }

    /// What is remembered of the rooms, and the last record that it covers, with its chain value.
    /// `None` if that is to be found in the log.
    pub(super) fn read_known(&self) -> Option<(Offset, [u8; 32], KnownRooms)> {
        let kept = read_hashed(&self.known())?;
        let (format, offset, chain, rooms): (u32, Offset, [u8; 32], KnownRooms) =
            postcard::from_bytes(&kept).ok()?;
        (format == FORMAT).then_some((offset, chain, rooms))
    }

    /// Saves what is remembered of the rooms up to a record with this chain value.
    pub(super) fn write_known(
        &self,
        (offset, chain): (Offset, &[u8; 32]),
        rooms: &KnownRooms,
    ) -> Result<(), ImportError> {
        write_hashed(&self.known(), &(FORMAT, offset, *chain, rooms))
    }

    /// What the copy saw of the source; nothing if that is not known.
    pub(super) fn read_marks(&self) -> Marks {
        let kept = read_hashed(&self.marks());
        let read = kept.and_then(|kept| postcard::from_bytes::<(u32, Marks)>(&kept).ok());
        read.filter(|(format, _)| *format == FORMAT).map(|(_, marks)| marks).unwrap_or_default()
    }

    pub(super) fn write_marks(&self, marks: &Marks) -> Result<(), ImportError> {
        write_hashed(&self.marks(), &(FORMAT, marks))
    }

    pub(super) fn remove(&self) -> Result<(), ImportError> {
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&self.dir)(error)),
            _ => Ok(()),
        }
    }
}

/// What [`write_hashed`] has written; `None` if it is not there, or damaged.
fn read_hashed(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = fs::read(path).ok()?;
    let (kept, hash) = bytes.split_last_chunk::<32>()?;
    if blake3::hash(kept).as_bytes() != hash {
        return None;
    }
    bytes.truncate(bytes.len() - 32);
    Some(bytes)
}

fn write_hashed(path: &Path, value: &impl Serialize) -> Result<(), ImportError> {
    let mut bytes = postcard::to_allocvec(value)
        .map_err(|error| ImportError::Refused(format!("it cannot be saved: {error}")))?;
    let hash = blake3::hash(&bytes);
    bytes.extend_from_slice(hash.as_bytes());
    disk::write_whole(path, &bytes).map_err(failed(path))
}

impl Progress {
    /// The progress of an import that has not begun.
    pub(super) fn begin(server_name: &str, now_ms: u64) -> Self {
        Self {
            format: FORMAT,
            server_name: server_name.to_owned(),
            offset: Offset::ZERO,
            chain: FileHash([0; 32]),
            rows: 0,
            now_ms,
            pass: Pass::Copy,
            section: 0,
            cursor: Cursor::START,
            handled: None,
            grown: BTreeMap::new(),
            partial: BTreeSet::new(),
            head: 0,
            newest: 0,
            oldest: 0,
            moderated: BTreeSet::new(),
            counts: Counts::default(),
            waiting: Waiting::default(),
            finished: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(stream: i64, room_id: &str, state_key: &str) -> StateDelta {
        StateDelta {
            stream,
            room_id: room_id.to_owned(),
            event_type: "m.room.member".to_owned(),
            state_key: state_key.to_owned(),
            event_id: None,
            previous: None,
        }
    }

    #[test]
    fn changes_wait_in_their_order_for_the_events_of_their_room() {
        let mut waiting = Waiting::default();
        for (stream, room, key) in [(3, "!r", "a"), (3, "!s", "x"), (3, "!r", "b"), (9, "!r", "c")]
        {
            waiting.add(delta(stream, room, key));
        }
        let keys = |changes: &[WaitingChange]| -> Vec<String> {
            changes.iter().map(|change| change.state_key.clone()).collect()
        };
        let taken = waiting.take("!r", 5);
        assert_eq!(keys(&taken), ["a", "b"]);
        assert_eq!(waiting.count, 2);
        waiting.put_back("!r", taken[1..].to_vec());
        assert_eq!(keys(&waiting.take("!r", 9)), ["b", "c"]);
        assert!(waiting.take("!r", 9).is_empty());
        assert_eq!((waiting.count, waiting.by_room.len()), (1, 1));
    }

    #[test]
    fn damaged_memory_is_found_in_the_log_instead() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::of(dir.path());
        files.make().unwrap();
        let (offset, chain) = (Offset::new(7), [3; 32]);
        assert!(files.read_known().is_none());
        let mut rooms = KnownRooms::default();
        rooms.accounts.insert("@ann:a".into());
        files.write_known((offset, &chain), &rooms).unwrap();
        let (at, value, read) = files.read_known().unwrap();
        assert_eq!((at, value, read.accounts), (offset, chain, rooms.accounts));
        let mut bytes = fs::read(files.known()).unwrap();
        bytes[5] ^= 1;
        fs::write(files.known(), &bytes).unwrap();
        assert!(files.read_known().is_none());
        assert_eq!(files.read_marks(), Marks::default());
        let rooms = BTreeMap::from([("!r:a".to_owned(), offset)]);
        let marks = Marks { rooms, ..Marks::default() };
        files.write_marks(&marks).unwrap();
        assert_eq!(files.read_marks(), marks);
        let progress = Progress::begin("a", 5);
        files.write_progress(&progress).unwrap();
        assert_eq!(files.read_progress().unwrap().unwrap().now_ms, 5);
    }
}
