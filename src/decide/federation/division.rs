//! Changes of a room's state that do not fit into the record of one event: they are recorded in
//! parts, in records before it in the same batch.

use std::collections::BTreeMap;

use ruma::{OwnedEventId, OwnedRoomId, OwnedServerName, OwnedUserId};

use super::resolve::NoState;
use crate::Commit;
use logcabin_base::limits;
use logcabin_record::{
    Stream,
    command::{RoomPdu, RoomState, StateBase, StateBefore, StateChange},
    division::{bytes, parts, recorded},
};
use logcabin_state::Room;

/// Checks that these changes are not larger than one event may record.
pub(super) fn fit(changes: &[StateChange], most: usize) -> Result<(), NoState> {
    match bytes(changes) {
        bytes if bytes > most => Err(NoState::TooLarge(bytes)),
        _ => Ok(()),
    }
}

/// Records changes of a room's state, up to `most` bytes of them. Returns whether that is all.
pub(super) fn record_changes(
    commit: &mut Commit<'_>,
    (room_id, from): (&OwnedRoomId, &OwnedServerName),
    changes: Vec<StateChange>,
    most: usize,
) -> bool {
    let parts = parts(changes, limits::STATE_CHANGES_BYTES);
    let fitting = most / limits::STATE_CHANGES_BYTES;
    let is_all = parts.len() <= fitting;
    for changes in parts.into_iter().take(fitting) {
        let (room_id, from) = (room_id.clone(), from.clone());
        commit
            .append(Stream::room(&room_id), RoomState { room_id, from, changes, unverified: None });
    }
    is_all
}

/// Records which joins of users of other homeservers cannot be verified, if others are known.
pub(super) fn record_unverified(
    commit: &mut Commit<'_>,
    room: &Room,
    from: &OwnedServerName,
    joins: BTreeMap<OwnedUserId, OwnedEventId>,
) {
    let mut left = limits::UNVERIFIED_BYTES;
    let fits = |of: &(OwnedUserId, OwnedEventId)| {
        let rest = left.checked_sub(recorded(of));
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    let joins: BTreeMap<_, _> = joins.into_iter().take_while(fits).collect();
    let (known_from, known) = room.claims();
    if joins == known && (joins.is_empty() || known_from.as_ref() == Some(from)) {
        return;
    }
    let (room_id, from) = (room.id.clone(), from.clone());
    let record = RoomState { room_id, from, changes: Vec::new(), unverified: Some(joins) };
    commit.append(Stream::room(&room.id), record);
}

/// What the record of an event says of the state before it. What does not fit there is recorded
/// before it, with the event as an outlier, which the record of the event replaces. Outliers are
/// without content: nobody reads it, and it would have to be erased there, too.
pub(super) fn record_before(
    commit: &mut Commit<'_>,
    outlier: impl Fn(StateBefore) -> RoomPdu,
    before: StateBefore,
) -> StateBefore {
    if bytes(&before.changes) <= limits::EVENT_STATE_BYTES {
        return before;
    }
    let StateBefore { mut base, changes, mut links } = before;
    for (part, changes) in (1..).zip(parts(changes, limits::STATE_CHANGES_BYTES)) {
        let pdu = outlier(StateBefore { base, changes, links });
        commit.append(Stream::room(&pdu.room_id), pdu);
        (base, links) = (StateBase::Part(part), links + 1);
    }
    StateBefore { base, changes: Vec::new(), links }
}
