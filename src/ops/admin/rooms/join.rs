//! Make a user join a room, by an invite of one of its members if necessary.

use ruma::{OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::moderation::HaveJoin;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinRoom {
    pub user: String,
    pub room: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Joined {
    pub user_id: OwnedUserId,
    pub room_id: OwnedRoomId,
}

impl Act for JoinRoom {
    const NAME: &'static str = "join-room";
    const DONE: &'static str = "joined";
    type Done = Joined;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Make a user join a room",
        fields: &[Field::new("user", "User", Kind::Text), Field::new("room", "Room", Kind::Text)],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Joined, ActError> {
        let (room, user_id) = (context.room(&self.room)?, context.active(&self.user)?);
        let (room_id, ts) = (room.id.clone(), context.engine.clock().timestamp());
        drop(room);
        let join = HaveJoin { room_id: room_id.clone(), user_id: user_id.clone(), ts };
        context.propose(by, join).await.map_err(ActError::of_room)?;
        Ok(Joined { user_id, room_id })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (user_id, room) = (context.active(&self.user)?, context.room(&self.room)?);
        Ok(vec![format!("{user_id} joins {}", room.id)])
    }
}
