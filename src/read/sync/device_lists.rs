//! Users whose device lists a client must query again or can forget (client-server API, "Tracking
//! the device list for a user").

use std::collections::BTreeSet;

use ruma::{OwnedUserId, UserId, events::StateEventType};
use serde::Serialize;

use crate::view::View;
use logcabin_base::planted::{self, Fault};
use logcabin_record::Offset;
use logcabin_state::{Membership, RoomMembership};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DeviceLists {
    /// Users who changed their devices or cross-signing keys, or with whom the user now shares an
    /// encrypted room.
    pub changed: BTreeSet<OwnedUserId>,
    /// Users with whom the user shares no encrypted room any more.
    pub left: BTreeSet<OwnedUserId>,
}

impl DeviceLists {
    pub fn is_empty(&self) -> bool {
        self.changed.is_empty() && self.left.is_empty()
    }

    /// The changes after `since` for the viewer. `rooms` are the user's rooms with any news since.
    pub fn between(view: &View<'_>, since: Offset, rooms: &[RoomMembership]) -> Self {
        let (me, at) = (view.user_id(), view.at());
        let mut changed = view.state.keys.changed_between(me, since, at);
        changed.extend(view.state.device_lists.changed_between(since, at));
        let shares_room = |other: &UserId| view.state.memberships.share_a_room(me, other, at);
        changed.retain(|user_id| user_id == me || shares_room(user_id));
        if planted::has(Fault::DevicesNotShown) {
            changed.clear();
        }
        let mut lists = Self { changed, left: BTreeSet::new() };
        for user_id in candidates(view, since, rooms) {
            let before = shares_encrypted(view, &user_id, since);
            let after = shares_encrypted(view, &user_id, at);
            if after && !before {
                lists.changed.insert(user_id);
            } else if before && !after {
                lists.left.insert(user_id);
            }
        }
        lists
    }
}

/// Users who may have begun or ceased to share an encrypted room.
fn candidates(view: &View<'_>, since: Offset, rooms: &[RoomMembership]) -> BTreeSet<OwnedUserId> {
    let (me, at) = (view.user_id(), view.at());
    let mut found = BTreeSet::new();
    for part in rooms {
        let Some(room) = view.state.rooms.get(&part.room_id) else { continue };
        let Some(encrypted) = room.state_event(&StateEventType::RoomEncryption, "", at) else {
            continue;
        };
        let is_joined = part.membership == Membership::Join;
        let was_joined = room.is_joined(me, since);
        if is_joined != was_joined || (is_joined && encrypted > since) {
            // Everyone who is or was in the room.
            for as_of in [since, at] {
                let members = room.members(Membership::Join, as_of).into_iter();
                found.extend(members.map(|(user_id, _)| user_id));
            }
        } else if is_joined {
            found.extend(room.members_changed(since, at));
        }
    }
    found.remove(me);
    found
}

/// Whether the viewer shared an encrypted room with `other` as of `at`.
fn shares_encrypted(view: &View<'_>, other: &UserId, at: Offset) -> bool {
    // Iterate over the rooms of the user who has fewer.
    let me = view.user_id();
    let memberships = &view.state.memberships;
    let (one, two) =
        if memberships.count(other) < memberships.count(me) { (other, me) } else { (me, other) };
    memberships.of(one, at).into_iter().any(|part| {
        part.membership == Membership::Join
            && view.state.rooms.get(&part.room_id).is_some_and(|room| {
                room.is_joined(two, at)
                    && room.state_event(&StateEventType::RoomEncryption, "", at).is_some()
            })
    })
}
