//! What rules kept away since this node started.

use ruma::OwnedRoomId;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_log::ReadError;
use logcabin_read::policy_lists::KeptBy;
use logcabin_record::Offset;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ListKeptAway {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptAwayList {
    /// The latest first.
    pub kept_away: Vec<KeptLine>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeptLine {
    pub area: String,
    /// The user, homeserver or room that the rule matches.
    pub name: String,
    /// The list and the record of the rule; none for a setting.
    pub list: Option<OwnedRoomId>,
    pub rule: Option<Offset>,
    /// The setting whose rule it is.
    pub setting: Option<String>,
    /// False if it was only noted.
    pub refused: bool,
    pub times: u64,
    /// When it happened first and last, to the last record before it: milliseconds since the Unix
    /// epoch.
    pub first_ts: Option<u64>,
    pub last_ts: Option<u64>,
}

impl Act for ListKeptAway {
    const NAME: &'static str = "list-kept-away";
    const DONE: &'static str = "kept-away";
    type Done = KeptAwayList;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        Ok(KeptAwayList { kept_away: kept_away(context)? })
    }
}

/// What was kept away, the latest first.
pub fn kept_away(context: &ActContext) -> Result<Vec<KeptLine>, ReadError> {
    let events = context.engine.events();
    let kept = events.policy_lists().kept_away.latest().into_iter();
    kept.map(|kept| {
        let (list, rule, setting) = match kept.by {
            KeptBy::List(list, rule) => (Some(list), Some(rule), None),
            KeptBy::Setting(name) => (None, None, Some(name.to_owned())),
        };
        Ok(KeptLine {
            area: kept.area.to_owned(),
            name: kept.subject,
            list,
            rule,
            setting,
            refused: kept.is_refused,
            times: kept.times,
            first_ts: events.time_of(kept.first)?,
            last_ts: events.time_of(kept.last)?,
        })
    })
    .collect()
}
