//! What rules kept away, for people to see.

use std::collections::HashMap;

use parking_lot::Mutex;
use ruma::OwnedRoomId;

use logcabin_base::{limits, metrics::metrics};
use logcabin_record::Offset;

/// The rule that kept something away.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeptBy {
    /// The rule of this list in this record.
    List(OwnedRoomId, Offset),
    /// A setting of this name.
    Setting(&'static str),
}

/// Something that a rule kept away, or would have, had it not been told only to note it.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Of what: the name of a `PolicyArea`, or of a point at which a hook is asked.
    pub area: &'static str,
    /// The user, homeserver or room that the rule is about.
    pub subject: String,
    pub by: KeptBy,
    pub is_refused: bool,
    /// The end of the log when that happened first, and last.
    pub first: Offset,
    pub last: Offset,
    pub times: u64,
}

type Key = (&'static str, String, KeptBy, bool);

/// The latest of what was kept away. It is not recorded: whoever is kept away could fill the log.
#[derive(Debug, Default)]
pub struct KeptAway(Mutex<HashMap<Key, Kept>>);

impl KeptAway {
    pub fn note(
        &self,
        area: &'static str,
        subject: &str,
        by: &KeptBy,
        is_refused: bool,
        at: Offset,
    ) {
        let what = if is_refused { "refused" } else { "noted" };
        metrics().policy_matches.with_label_values(&[area, what]).inc();
        let key = (area, subject.to_owned(), by.clone(), is_refused);
        let mut kept = self.0.lock();
        if !kept.contains_key(&key) && kept.len() >= limits::POLICY_KEPT {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.last).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| kept.remove(&oldest));
        }
        let new = || Kept {
            area,
            subject: key.1.clone(),
            by: by.clone(),
            is_refused,
            first: at,
            last: at,
            times: 0,
        };
        let entry = kept.entry(key.clone()).or_insert_with(new);
        entry.last = at;
        entry.times += 1;
    }

    /// All of it, the latest first.
    pub fn latest(&self) -> Vec<Kept> {
        let mut kept: Vec<_> = self.0.lock().values().cloned().collect();
        kept.sort_by(|a, b| b.last.cmp(&a.last).then_with(|| a.subject.cmp(&b.subject)));
        kept
    }
}
