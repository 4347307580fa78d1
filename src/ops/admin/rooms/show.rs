//! Show one room.

use ruma::{OwnedRoomAliasId, events::StateEventType};
use serde::{Deserialize, Serialize};

use super::{
    shutdown::{self, ShutdownStatus},
    summary::{RoomSummary, summary},
};
use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
};
use logcabin_record::Offset;
use logcabin_state::Membership;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ShowRoom {
    pub room: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoomDetails {
    /// As in a list.
    #[serde(flatten)]
    pub summary: RoomSummary,
    pub topic: Option<String>,
    pub avatar: Option<String>,
    /// How many devices its local members are logged in on.
    pub(crate) joined_local_devices: usize,
    /// Whether all who were in it have forgotten it.
    pub(crate) forgotten: bool,
    pub invited_members: u64,
    /// The aliases that point at it.
    pub aliases: Vec<OwnedRoomAliasId>,
    pub shutdowns: Vec<ShutdownStatus>,
}

impl Act for ShowRoom {
    const NAME: &'static str = "show-room";
    const DONE: &'static str = "room";
    type Done = Box<RoomDetails>;

    async fn perform(self, context: &ActContext, _: Attribution) -> Result<Self::Done, ActError> {
        details(context, &self.room).map(Box::new)
    }
}

pub fn details(context: &ActContext, name: &str) -> Result<RoomDetails, ActError> {
    let (room, state) = (context.room(name)?, context.engine.state());
    let mut joined_local_devices = 0;
    let mut members = Vec::new();
    room.each_joined_now(|user_id| members.push(user_id.clone()));
    for user_id in &members {
        joined_local_devices += context.devices(user_id).len();
    }
    let was_in = |membership| room.members(membership, Offset::MAX).into_iter();
    let mut left = was_in(Membership::Leave).chain(was_in(Membership::Ban));
    let forgotten = members.is_empty()
        && left.all(|(user_id, _)| {
            let part = state.memberships.part(&user_id, &room.id);
            part.is_none_or(|part| part.forgotten.latest() == Some(&true))
        });
    let shutdowns = state.closures.of_room(&room.id).into_iter();
    Ok(RoomDetails {
        summary: summary(context, &room)?,
        topic: context.state_text(&room, StateEventType::RoomTopic, "topic")?,
        avatar: context.state_text(&room, StateEventType::RoomAvatar, "url")?,
        joined_local_devices,
        forgotten,
        invited_members: room.counts(Offset::MAX).invited,
        aliases: state.aliases.of_room(&room.id, Offset::MAX),
        shutdowns: shutdowns.map(|shutdown| shutdown::status(&state, shutdown)).collect(),
    })
}
