//! The filters of syncs, parsed once.

use std::{fmt, sync::Arc};

use quick_cache::{Weighter, sync::Cache};

use logcabin_base::{
    limits,
    metrics::{CacheName, metrics},
};
use logcabin_config as config;
use logcabin_read::{
    sync::v3::SyncFilter,
    view::filter::{BadFilter, EventFilter, Filter},
};

/// Parsed filters of syncs, by their text. Clients of one kind send the same filter, so all their
/// waiting syncs share one.
pub struct Filters {
    ready: Cache<Box<str>, Arc<SyncFilter>, ByText>,
    timeline_limit: usize,
    max_timeline_limit: usize,
    presence: bool,
}

#[derive(Clone)]
struct ByText;

impl Weighter<Box<str>, Arc<SyncFilter>> for ByText {
    fn weight(&self, text: &Box<str>, _: &Arc<SyncFilter>) -> u64 {
        // A parsed list of names takes up to ten times the size of its text.
        (size_of::<SyncFilter>() + 10 * text.len()) as u64
    }
}

impl Filters {
    /// Filters within the limits of the configuration.
    pub fn new(sync: &config::Sync, presence: &config::Presence) -> Self {
        let to_usize = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            ready: Cache::with_weighter(1024, limits::FILTERS_BYTES, ByText),
            timeline_limit: to_usize(sync.timeline_limit),
            max_timeline_limit: to_usize(sync.max_timeline_limit),
            presence: presence.enabled,
        }
    }

    /// The filter with this text, if it was parsed before.
    pub fn known(&self, text: &str) -> Option<Arc<SyncFilter>> {
        let ready = self.ready.get(text);
        metrics().looked_up(CacheName::Filters, ready.is_some());
        ready
    }

    /// Parses a filter, and keeps it for the next sync with the same text.
    pub fn parse(&self, text: &str) -> Result<Arc<SyncFilter>, BadFilter> {
        let filter = Filter::parse(text)?;
        let mut filter = SyncFilter::new(filter, self.timeline_limit, self.max_timeline_limit);
        if !self.presence {
            filter.presence = EventFilter::nothing();
        }
        let filter = Arc::new(filter);
        self.ready.insert(text.into(), Arc::clone(&filter));
        Ok(filter)
    }
}

impl fmt::Debug for Filters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filters").field("ready", &self.ready.len()).finish_non_exhaustive()
    }
}
