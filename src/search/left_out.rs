//! What stands in for the index in a program without it.

use std::{convert::Infallible, io, path::Path, sync::Arc};

use super::{DIRECTORY, Hit, Query, SearchError};
use logcabin_engine::Engine;
use logcabin_record::Offset;

/// In place of the index: it finds nothing and says why.
#[derive(Debug)]
pub struct Search {
    engine: Arc<Engine>,
}

/// There are no snapshots of an index that is not there.
#[derive(Clone, Copy, Debug)]
pub enum Snapshot {}

impl Search {
    /// Removes the index that another build has left in `data_dir`: nobody would remove redacted
    /// and erased texts from it.
    pub fn start(data_dir: &Path, engine: Arc<Engine>) -> io::Result<Self> {
        match std::fs::remove_dir_all(data_dir.join(DIRECTORY)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { engine })
    }

    /// Does not wait: there is nothing to catch up.
    pub async fn reach(&self, _: Offset) -> Offset {
        self.complete()
    }

    /// # Errors
    /// Always.
    pub fn look<T>(
        &self,
        _: impl FnOnce(&Snapshot) -> Result<T, Infallible>,
    ) -> Result<T, SearchError> {
        Err(SearchError::LeftOut)
    }

    pub const fn stop(&self) {}

    /// Nothing lags behind.
    pub fn complete(&self) -> Offset {
        self.engine.head().offset()
    }
}

impl Snapshot {
    pub const fn hits(&self, _: &Query<'_>) -> Result<Vec<Hit>, Infallible> {
        match *self {}
    }

    pub const fn versions(&self, _: Offset) -> Result<Vec<Offset>, Infallible> {
        match *self {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use logcabin_base::clock::Clock;
    use logcabin_engine::Options;
    use logcabin_log::memory::MemoryLog;

    #[tokio::test]
    async fn an_index_that_nobody_maintains_is_removed_and_a_search_says_why_it_finds_nothing() {
        let clock = Clock::manual(1_700_000_000_000);
        let log = Arc::new(MemoryLog::new(clock.clone()));
        let engine = Arc::new(Engine::open(log, Options::small(clock)).await.unwrap());
        let data_dir = tempfile::tempdir().unwrap();
        let index = data_dir.path().join(DIRECTORY);
        std::fs::create_dir(&index).unwrap();
        for _ in 0..2 {
            let search = Search::start(data_dir.path(), Arc::clone(&engine)).unwrap();
            assert!(!index.exists());
            let found = search.look(|snapshot| snapshot.versions(Offset::ZERO));
            assert!(matches!(found, Err(SearchError::LeftOut)));
            assert_eq!(search.reach(Offset::MAX).await, engine.head().offset());
        }
    }
}
