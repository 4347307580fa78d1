//! Where the pages of long lists ended, so that the next page continues there instead of from the
//! beginning. It is a bounded cache in memory; without an entry, the list is walked again.

use std::sync::Arc;

use quick_cache::{Weighter, sync::Cache};

use logcabin_base::limits;
use logcabin_read::view::relations::ThreadsWalk;

/// The size of a walk.
pub trait Walk {
    /// Its approximate size in memory, in bytes.
    fn weight(&self) -> u64;
}

impl Walk for ThreadsWalk {
    fn weight(&self) -> u64 {
        self.bytes()
    }
}

/// Walks of one kind, by the token of the next page together with the other parameters.
pub struct Walks<W>(Cache<String, Arc<W>, ByWeight>);

#[derive(Clone)]
struct ByWeight;

impl<W: Walk> Weighter<String, Arc<W>> for ByWeight {
    fn weight(&self, token: &String, walk: &Arc<W>) -> u64 {
        token.len() as u64 + 128 + walk.weight()
    }
}

impl<W: Walk> Default for Walks<W> {
    fn default() -> Self {
        // With this few entries, the cache has a single shard. With several, none would keep an
        // entry larger than itself.
        Self(Cache::with_weighter(32, limits::WALKS_BYTES, ByWeight))
    }
}

impl<W: Walk> Walks<W> {
    /// The walk that this page continues, if it is still cached. A page may be requested twice.
    pub fn get(&self, token: &str) -> Option<Arc<W>> {
        self.0.get(token)
    }

    /// Caches a walk for the page with this token.
    pub fn keep(&self, token: String, walk: W) {
        self.0.insert(token, Arc::new(walk));
    }
}
