//! Where the pages of long lists ended: so the next page goes on from there, rather than from the
//! beginning. All of it is memory, bounded, and may be forgotten: then the way is gone again.

use std::sync::Arc;

use quick_cache::{Weighter, sync::Cache};

use crate::base::limits;

/// What a walk weighs.
pub(crate) trait Walk {
    /// About how many bytes it takes in memory.
    fn weight(&self) -> u64;
}

/// Walks of one kind by the token of the page that goes on with them, and all else that was asked.
pub(crate) struct Walks<W>(Cache<String, Arc<W>, ByWeight>);

#[derive(Clone)]
struct ByWeight;

impl<W: Walk> Weighter<String, Arc<W>> for ByWeight {
    fn weight(&self, token: &String, walk: &Arc<W>) -> u64 {
        token.len() as u64 + 128 + walk.weight()
    }
}

impl<W: Walk> Default for Walks<W> {
    fn default() -> Self {
        // As few as this make a cache of one part: of several, none would keep what is larger than
        // it.
        Self(Cache::with_weighter(32, limits::WALKS_BYTES, ByWeight))
    }
}

impl<W: Walk> Walks<W> {
    /// The walk that this page goes on with, if it is known still. A page may be asked for twice.
    pub(super) fn get(&self, token: &str) -> Option<Arc<W>> {
        self.0.get(token)
    }

    /// Keeps a walk for the page with this token.
    pub(super) fn keep(&self, token: String, walk: W) {
        self.0.insert(token, Arc::new(walk));
    }
}
