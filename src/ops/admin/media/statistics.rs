//! How much each user has uploaded.

use std::{collections::BTreeMap, ops::RangeInclusive};

use ruma::OwnedUserId;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MediaStatistics {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Usage {
    pub users: Vec<MediaUsage>,
}

/// How much a user has uploaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaUsage {
    pub user_id: OwnedUserId,
    pub displayname: Option<String>,
    /// The number of files.
    pub media_count: usize,
    /// Their total size in bytes.
    pub media_length: u64,
}

impl Act for MediaStatistics {
    const NAME: &'static str = "media-statistics";
    const DONE: &'static str = "media-statistics";
    type Done = Usage;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Usage, ActError> {
        Ok(Usage { users: statistics(context, 0..=u64::MAX) })
    }
}

/// How much each user uploaded within `when`, in milliseconds since the Unix epoch; the users with
/// the most bytes first.
pub fn statistics(context: &ActContext, when: RangeInclusive<u64>) -> Vec<MediaUsage> {
    let mut by_user: BTreeMap<OwnedUserId, (usize, u64)> = BTreeMap::new();
    for (_, stored) in context.engine.state().media.all() {
        if let Some(user_id) = stored.user_id
            && when.contains(&stored.time_ms)
        {
            let (count, bytes) = by_user.entry(user_id).or_default();
            *count += 1;
            *bytes = bytes.saturating_add(stored.size);
        }
    }
    let accounts = &context.engine.state().accounts;
    let usage = |(user_id, (media_count, media_length)): (OwnedUserId, _)| {
        let account = accounts.get(&user_id);
        let displayname = account.and_then(|account| {
            let account = account.read();
            account.profile_field("displayname")?.as_str().map(ToOwned::to_owned)
        });
        MediaUsage { user_id, displayname, media_count, media_length }
    };
    let mut usage: Vec<_> = by_user.into_iter().map(usage).collect();
    usage.sort_by_key(|of| std::cmp::Reverse(of.media_length));
    usage
}
