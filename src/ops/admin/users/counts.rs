//! How much a user of this homeserver or another did since a time: signs of spam.

use std::collections::BTreeSet;

use crate::{
    admin::context::{ActContext, ActError},
    history::moment::last_until,
};
use logcabin_decide::is_local;
use logcabin_log::ReadError;
use logcabin_record::Offset;
use logcabin_service::sent::{SentKind, SentQuery, SentSearch};
use logcabin_state::Membership;

/// The number of invites that a user sent at or after a time, in milliseconds since the Unix epoch.
/// Reads the log from that time on.
pub async fn sent_invites(
    context: &ActContext,
    user: &str,
    from_ms: u64,
) -> Result<usize, ActError> {
    let user_id = context.user_anywhere(user)?;
    let engine = &context.engine;
    let query = SentQuery {
        user_id,
        kind: SentKind::Invites,
        rooms: BTreeSet::new(),
        limit: None,
        after_ms: None,
        before_ms: None,
    };
    let until = engine.state().applied().next();
    let mut search = SentSearch::new(query, until).back_to(first_since(context, from_ms)?);
    let mut invites = 0;
    while let Some((rest, sent)) = search.next(engine).await? {
        search = rest;
        invites += sent.iter().filter(|event| event.happened_ms >= from_ms).count();
    }
    Ok(invites)
}

/// The number of rooms that a user joined at or after a time, in milliseconds since the Unix epoch,
/// whether or not they have left since. For a user of another homeserver, looks through all rooms.
pub fn rooms_joined(context: &ActContext, user: &str, from_ms: u64) -> Result<usize, ActError> {
    let user_id = context.user_anywhere(user)?;
    let first = first_since(context, from_ms)?;
    let state = context.engine.state();
    let mut joined = 0;
    let mut look = |changes: &[(Offset, Membership)]| {
        for at in joins(changes).into_iter().rev().take_while(|at| *at >= first) {
            // A record of an import tells of what happened before it.
            if context.time_of(at)? >= from_ms {
                joined += 1;
                break;
            }
        }
        Ok::<_, ReadError>(())
    };
    if is_local(&context.engine.env().server, &user_id) {
        for room in state.memberships.of(&user_id, Offset::MAX) {
            let Some(relation) = state.memberships.part(&user_id, &room.room_id) else { continue };
            let changes = relation.membership.changes().map(|(at, is)| (at, *is));
            look(&changes.collect::<Vec<_>>())?;
        }
    } else {
        for room in state.rooms.all() {
            look(&room.membership_changes(&user_id, Offset::MAX))?;
        }
    }
    Ok(joined)
}

/// Where somebody who was not in a room joined it, the oldest first. A member who changes their
/// name joins again, and does not count.
fn joins(changes: &[(Offset, Membership)]) -> Vec<Offset> {
    let mut before = None;
    let mut joins = Vec::new();
    for (at, membership) in changes {
        if *membership == Membership::Join && before != Some(Membership::Join) {
            joins.push(*at);
        }
        before = Some(*membership);
    }
    joins
}

/// The first record that was written at or after a time.
fn first_since(context: &ActContext, from_ms: u64) -> Result<Offset, ReadError> {
    let Some(before_ms) = from_ms.checked_sub(1) else { return Ok(Offset::new(1)) };
    let (head, log) = (context.engine.head().offset(), context.engine.log());
    let last = last_until(head, before_ms, |offset| {
        Ok::<_, ReadError>(log.get(offset)?.map(|record| record.header.time_ms))
    })?;
    Ok(last.next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_in_the_room_did_not_join_it_again() {
        let changes = [
            (1, Membership::Invite),
            (2, Membership::Join),
            (3, Membership::Join),
            (4, Membership::Leave),
            (5, Membership::Join),
        ]
        .map(|(at, membership)| (Offset::new(at), membership));
        assert_eq!(joins(&changes), [2, 5].map(Offset::new));
    }
}
