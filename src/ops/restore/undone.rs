//! The rooms that users entered in records that a restore undoes: their clients may know of these,
//! and must be told that the users are not in them.

use std::collections::{BTreeMap, btree_map::Entry};

use ruma::{OwnedRoomId, OwnedUserId};
use serde::Deserialize;

use logcabin_record::{
    Epoch, Offset, Record,
    command::{RoomEvent, RoomUndo, UndoneRoom},
};
use logcabin_state::{Membership, State};

/// How many rooms one record names. Even with the longest ids it stays far below the size limit of
/// a record.
const ROOMS: usize = 200;

/// The first record of each user's membership of each room.
#[derive(Debug, Default)]
pub(super) struct UndoneRooms(BTreeMap<(OwnedUserId, OwnedRoomId), (Epoch, Offset)>);

impl UndoneRooms {
    /// Notes an event after the moment.
    pub(super) fn note(&mut self, record: &Record, body: &RoomEvent) {
        #[derive(Deserialize)]
        struct Pdu {
            #[serde(rename = "type")]
            event_type: String,
            state_key: Option<OwnedUserId>,
            content: Content,
        }
        #[derive(Deserialize)]
        struct Content {
            membership: String,
        }
        // Invalid events are not member events.
        let Ok(pdu) = serde_json::from_str::<Pdu>(body.pdu.get()) else { return };
        let comes = matches!(pdu.content.membership.as_str(), "join" | "invite" | "knock");
        if pdu.event_type != "m.room.member" || !comes {
            return;
        }
        let Some(user_id) = pdu.state_key else { return };
        if let Entry::Vacant(first) = self.0.entry((user_id, body.room_id.clone())) {
            first.insert((record.header.epoch, record.offset()));
        }
    }

    /// The records for the new epoch: for users with an account who are not in the room according
    /// to `state`.
    pub(super) fn records(self, state: &State, begun: Epoch) -> Vec<RoomUndo> {
        let mut rooms: BTreeMap<OwnedUserId, Vec<UndoneRoom>> = BTreeMap::new();
        for ((user_id, room_id), (epoch, offset)) in self.0 {
            let part = state.memberships.in_room(&user_id, &room_id, state.applied());
            let part = part.map(|part| part.membership);
            let ended = matches!(part, None | Some(Membership::Leave | Membership::Ban));
            if ended && state.accounts.contains(&user_id) {
                rooms.entry(user_id).or_default().push(UndoneRoom { room_id, epoch, offset });
            }
        }
        let mut records = Vec::new();
        for (user_id, rooms) in rooms {
            for rooms in rooms.chunks(ROOMS) {
                records.push(RoomUndo { user_id: user_id.clone(), begun, rooms: rooms.to_vec() });
            }
        }
        records
    }
}
