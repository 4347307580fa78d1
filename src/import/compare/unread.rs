//! What each user has not read yet.

use std::collections::BTreeSet;

use ruma::{OwnedRoomId, OwnedUserId};

use super::{Compared, Imported, Reason, Subject, each, lost, users::id};
use crate::{
    ImportError,
    facts::{Fact, Section, Source},
};
use logcabin_read::notifications::Unread;

const OTHER_RULES: &str = "what is unread is counted by the user's push rules, and without ignored \
                           users, of the time of the copy";

const HAS_WRITTEN: &str = "what comes before a user's own message counts as read here";

pub(super) fn counts(
    source: &mut dyn Source,
    copy: &Imported,
    users: &BTreeSet<String>,
    compared: &mut Compared,
) -> Result<(), ImportError> {
    // Whose events were judged by other rules than everybody's.
    let mut own_rules: BTreeSet<String> = BTreeSet::new();
    for section in [Section::PushRules, Section::PushRuleChanges, Section::AccountData] {
        each(source, section, |fact| {
            match fact {
                Fact::PushRule(rule) => own_rules.insert(rule.user_id),
                Fact::PushRuleChange(change) => own_rules.insert(change.user_id),
                Fact::AccountData(data) if data.event_type == "m.ignored_user_list" => {
                    own_rules.insert(data.user_id)
                }
                _ => false,
            };
            Ok(())
        })?;
    }
    let unread = Unread::default();
    for user_id in users.iter().filter_map(|user_id| id(users, user_id)) {
        let Some(theirs) = source.unread(user_id.as_str())? else { continue };
        for part in copy.state.memberships.of(&user_id, copy.at) {
            if part.membership != logcabin_state::Membership::Join {
                continue;
            }
            let theirs = theirs.get(part.room_id.as_str()).copied().unwrap_or_default();
            let there = (theirs.notifications, theirs.highlights);
            let here = of_room(copy, &unread, &user_id, &part.room_id)?;
            let found = if Some(there) == here {
                Ok(())
            } else {
                let (n, h) = here.unwrap_or_default();
                let what = format!("{} ({} highlighted) there, {n} ({h}) here", there.0, there.1);
                Err(if own_rules.contains(user_id.as_str()) {
                    Reason::explained(what, OTHER_RULES)
                } else if n <= there.0 && h <= there.1 {
                    Reason::explained(what, HAS_WRITTEN)
                } else {
                    Reason::fault(what)
                })
            };
            compared.is(Subject::Unread, format!("{user_id} {}", part.room_id), found);
        }
    }
    Ok(())
}

fn of_room(
    copy: &Imported,
    unread: &Unread,
    user_id: &OwnedUserId,
    room_id: &OwnedRoomId,
) -> Result<Option<(i64, i64)>, ImportError> {
    let Some(room) = copy.state.rooms.get(room_id) else { return Ok(None) };
    let counts = unread.counts(&copy.state, &copy.events, user_id, &room, copy.at).map_err(lost)?;
    let total = counts.total();
    let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    Ok(Some((number(total.notifications), number(total.highlights))))
}
