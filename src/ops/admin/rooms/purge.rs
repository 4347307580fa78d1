//! Remove a room from the server, with everything that was ever sent in it.

use ruma::{OwnedRoomId, RoomId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_base::progress::{self, Work};
use logcabin_record::{Offset, Origin};
use logcabin_service::{
    accounts::closing,
    erasure::purge::{self, Purge, PurgeError},
};
use logcabin_state::Membership;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PurgeRoom {
    pub room: String,
    /// Whether joined members are made to leave; otherwise a room with members is refused.
    pub force: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomPurged {
    pub room_id: OwnedRoomId,
    /// How many events, and the bytes of their payloads.
    pub events: u64,
    pub bytes: u64,
    /// How many users had to leave.
    pub left: u64,
    pub aliases: Vec<String>,
    /// How many files only this room referred to, and their bytes.
    pub files: u64,
    pub file_bytes: u64,
}

impl From<PurgeError> for ActError {
    fn from(error: PurgeError) -> Self {
        match error {
            PurgeError::NoRoom(_) => Self::invalid(error),
            PurgeError::Read(error) => Self::Read(error),
            PurgeError::Propose(error) => Self::Propose(error),
        }
    }
}

impl Act for PurgeRoom {
    const NAME: &'static str = "purge-room";
    const DONE: &'static str = "room-purged";
    type Done = RoomPurged;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Purge a room",
        fields: &[
            Field::new("room", "Room", Kind::Text),
            Field::new("force", "Make its members leave", Kind::Flag),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<RoomPurged, ActError> {
        let room = context.room(&self.room)?;
        let (room_id, joined) =
            (room.id.clone(), room.members(Membership::Join, Offset::MAX).len());
        drop(room);
        if joined > 0 && !self.force {
            let why = format!(
                "{joined} user(s) are joined to {room_id}: with --force they are made to leave first"
            );
            return Err(ActError::Invalid(why));
        }
        let Attribution { origin, reason } = by;
        empty(context, &origin, &room_id).await;
        let purge = purge::purge(&context.engine, origin, &room_id, reason).await?;
        Ok(RoomPurged {
            room_id,
            events: purge.events,
            bytes: purge.bytes,
            left: joined as u64,
            aliases: purge.aliases,
            files: purge.media_ids.len() as u64,
            file_bytes: purge.media_bytes,
        })
    }

    /// Reads the whole log.
    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let room_id = context.room(&self.room)?.id.clone();
        let looked = purge::look(&context.engine, &room_id).await?;
        let Purge { events, bytes, joined, aliases, media_ids, media_bytes, .. } = looked;
        let mut effect = Vec::new();
        if joined > 0 {
            effect.push(format!("{joined} user(s) leave {room_id}, with --force"));
        }
        effect.push(format!("{room_id} is purged, with {events} event(s) of {bytes} bytes"));
        if !aliases.is_empty() {
            effect.push(format!("its aliases are removed: {}", aliases.join(", ")));
        }
        let files = media_ids.len();
        effect.push(format!("{files} file(s) that only it names are deleted: {media_bytes} bytes"));
        Ok(effect)
    }
}

/// Makes all members leave a room.
async fn empty(context: &ActContext, origin: &Origin, room_id: &RoomId) {
    let Some(room) = context.engine.state().rooms.get(room_id) else { return };
    let memberships = [Membership::Invite, Membership::Knock, Membership::Join];
    let members = memberships.map(|membership| room.members(membership, Offset::MAX)).concat();
    let work = Work::about(progress::DEPARTURE, room_id.as_str(), 0, members.len() as u64);
    for (user_id, _) in members {
        closing::leave(&context.engine, origin, room_id.to_owned(), &user_id).await;
        work.add(1);
    }
}
