//! The progress of this process's long work, for observers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::clock::millis;

/// A snapshot is written.
pub const SNAPSHOT: &str = "Writes a snapshot";

/// The projections are compared with the log.
pub const COMPARISON: &str = "Replays the log to compare its projections";

/// A sweep erases what is due.
pub const ERASURE: &str = "Erases what is due";

/// A sweep finds the records of erased users.
pub const SEARCH_FOR_USERS: &str = "Searches the log for what erased users left";

/// The records that a purge takes are searched for.
pub const SEARCH_FOR_ROOM: &str = "Searches the log for what a purge takes";

/// The members of a room leave it, because it is shut down or purged.
pub const DEPARTURE: &str = "Makes the members of a room leave";

/// A user is kicked or banned from many rooms, or many invites are rejected.
pub const MODERATION: &str = "Changes memberships";

/// The history of a room is purged.
pub const HISTORY: &str = "Purges the history of a room";

/// What a user sent is redacted.
pub const REDACTION: &str = "Redacts what a user sent";

/// What is under way: a few pieces of work, each for seconds or longer.
static UNDER_WAY: Mutex<Vec<Arc<Piece>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Piece {
    what: &'static str,
    about: String,
    begun: Instant,
    /// Where it began.
    from: u64,
    done: AtomicU64,
    total: AtomicU64,
}

/// A piece of work. It ends when this is dropped.
#[derive(Debug)]
pub struct Work(Arc<Piece>);

/// How far a piece of work has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is done, for people.
    pub what: String,
    /// The room or the user that it is about; empty if it is about none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// How much is done.
    pub done: u64,
    /// How much there is to do.
    pub total: u64,
    /// How long it has taken, in milliseconds.
    pub taken_ms: u64,
    /// How long it will probably take, in milliseconds; `None` before anything is done.
    pub left_ms: Option<u64>,
}

impl Work {
    /// Begins a piece of work, from `from` to `total`.
    pub fn begin(what: &'static str, from: u64, total: u64) -> Self {
        Self::about(what, "", from, total)
    }

    /// The same, about a room or a user.
    pub fn about(what: &'static str, about: &str, from: u64, total: u64) -> Self {
        let (begun, about) = (Instant::now(), about.to_owned());
        let (done, total) = (AtomicU64::new(from), AtomicU64::new(total));
        let piece = Arc::new(Piece { what, about, begun, from, done, total });
        UNDER_WAY.lock().push(Arc::clone(&piece));
        Self(piece)
    }

    /// Notes that this much is done.
    pub fn at(&self, done: u64) {
        self.0.done.store(done, Ordering::Relaxed);
        // There may be more to do than there was at first.
        self.0.total.fetch_max(done, Ordering::Relaxed);
    }

    /// Notes that this much more is done.
    pub fn add(&self, more: u64) {
        self.at(self.0.done.load(Ordering::Relaxed).saturating_add(more));
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        UNDER_WAY.lock().retain(|piece| !Arc::ptr_eq(piece, &self.0));
    }
}

/// What is under way, the oldest first.
pub fn under_way() -> Vec<Progress> {
    let pieces = UNDER_WAY.lock().clone();
    pieces.iter().map(|piece| piece.progress(piece.begun.elapsed())).collect()
}

impl Piece {
    fn progress(&self, taken: Duration) -> Progress {
        let total = self.total.load(Ordering::Relaxed);
        let done = self.done.load(Ordering::Relaxed).min(total);
        let (came, to_go) = (done.saturating_sub(self.from), total.saturating_sub(done));
        // As a float: the first steps of long work may estimate centuries.
        let left = (came > 0).then(|| taken.as_secs_f64() * 1000.0 * to_go as f64 / came as f64);
        Progress {
            what: self.what.to_owned(),
            about: self.about.clone(),
            done,
            total,
            taken_ms: millis(taken),
            left_ms: left.map(|left| left as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_estimated_from_what_was_done() {
        let work = Work::about("a test of progress", "!room", 100, 500);
        let own = || under_way().into_iter().find(|of| of.what == "a test of progress");
        assert_eq!(own().map(|of| (of.done, of.total, of.left_ms)), Some((100, 500, None)));
        assert_eq!(own().map(|of| of.about).as_deref(), Some("!room"));
        work.at(200);
        let progress = work.0.progress(Duration::from_secs(10));
        assert_eq!((progress.taken_ms, progress.left_ms), (10_000, Some(30_000)));
        work.add(100);
        let progress = work.0.progress(Duration::from_secs(10));
        assert_eq!((progress.done, progress.left_ms), (300, Some(10_000)));
        // More came meanwhile.
        work.at(900);
        let progress = work.0.progress(Duration::from_secs(10));
        assert_eq!((progress.done, progress.total, progress.left_ms), (900, 900, Some(0)));
        drop(work);
        assert_eq!(own(), None);
    }
}
