//! Give a user the highest power level that a member of the room can grant.

use ruma::{OwnedRoomId, OwnedUserId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::moderation;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MakeRoomAdmin {
    pub room: String,
    pub user: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Empowered {
    pub room_id: OwnedRoomId,
    pub user_id: OwnedUserId,
    /// The member who granted it; none if the user had as much power already.
    pub by: Option<OwnedUserId>,
    pub invited: bool,
}

impl Act for MakeRoomAdmin {
    const NAME: &'static str = "make-room-admin";
    const DONE: &'static str = "empowered";
    type Done = Empowered;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Give a user power in a room",
        fields: &[Field::new("room", "Room", Kind::Text), Field::new("user", "User", Kind::Text)],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Empowered, ActError> {
        let (room, user_id) = (context.room(&self.room)?, context.active(&self.user)?);
        let (room_id, ts) = (room.id.clone(), context.engine.clock().timestamp());
        drop(room);
        let make =
            moderation::MakeRoomAdmin { room_id: room_id.clone(), user_id: user_id.clone(), ts };
        let moderation::Empowered { by, invited } =
            context.propose(by, make).await.map_err(ActError::of_room)?;
        Ok(Empowered { room_id, user_id, by, invited })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (room, user_id) = (context.room(&self.room)?, context.active(&self.user)?);
        Ok(vec![format!("{user_id} gets the greatest power that can be given in {}", room.id)])
    }
}
