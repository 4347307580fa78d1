//! How far the long work of this process has come, for those who watch it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// What is under way: a few pieces of work, each for seconds or longer.
static UNDER_WAY: Mutex<Vec<Arc<Piece>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Piece {
    what: &'static str,
    begun: Instant,
    /// Where it began.
    from: u64,
    done: AtomicU64,
    total: u64,
}

/// A piece of work. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Work(Arc<Piece>);

/// How far a piece of work has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// What is done, for people.
    pub(crate) what: &'static str,
    /// How much is done.
    pub(crate) done: u64,
    /// How much there is to do.
    pub(crate) total: u64,
    /// How long it has taken.
    pub(crate) taken: Duration,
    /// How long it will take, if it goes on as it did; none before that is known.
    pub(crate) left: Option<Duration>,
}

impl Work {
    /// Begins a piece of work, from `from` to `total`.
    pub(crate) fn begin(what: &'static str, from: u64, total: u64) -> Self {
        let done = AtomicU64::new(from);
        let piece = Arc::new(Piece { what, begun: Instant::now(), from, done, total });
        UNDER_WAY.lock().push(Arc::clone(&piece));
        Self(piece)
    }

    /// It has come this far.
    pub(crate) fn at(&self, done: u64) {
        self.0.done.store(done, Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        UNDER_WAY.lock().retain(|piece| !Arc::ptr_eq(piece, &self.0));
    }
}

/// What is under way, the oldest first.
pub(crate) fn under_way() -> Vec<Progress> {
    let pieces = UNDER_WAY.lock().clone();
    pieces.iter().map(|piece| piece.progress(piece.begun.elapsed())).collect()
}

impl Piece {
    fn progress(&self, taken: Duration) -> Progress {
        let done = self.done.load(Ordering::Relaxed).min(self.total);
        let (came, to_go) = (done.saturating_sub(self.from), self.total.saturating_sub(done));
        let left = (came > 0).then(|| taken.mul_f64(to_go as f64 / came as f64));
        Progress { what: self.what, done, total: self.total, taken, left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_estimated_from_what_was_done() {
        let work = Work::begin("a test of progress", 100, 500);
        let own = || under_way().into_iter().find(|of| of.what == "a test of progress");
        assert_eq!(own().map(|of| (of.done, of.total, of.left)), Some((100, 500, None)));
        work.at(200);
        let progress = work.0.progress(Duration::from_secs(10));
        assert_eq!(progress.left, Some(Duration::from_secs(30)));
        work.at(900);
        assert_eq!(work.0.progress(Duration::from_secs(10)).left, Some(Duration::ZERO));
        drop(work);
        assert_eq!(own(), None);
    }
}
