//! Block a room, so that nobody can join it, or unblock it.

use ruma::OwnedRoomId;
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::moderation;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BlockRoom {
    /// The room need not exist here.
    pub room: String,
    pub blocked: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Blocked {
    pub room_id: OwnedRoomId,
    pub blocked: bool,
    pub changed: bool,
}

impl Act for BlockRoom {
    const NAME: &'static str = "block-room";
    const DONE: &'static str = "blocked";
    type Done = Blocked;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Block or unblock a room",
        fields: &[
            Field::new("room", "Room", Kind::Text),
            Field::new("blocked", "Blocked", Kind::Flag),
        ],
        is_final: false,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Blocked, ActError> {
        let (room_id, blocked) = (context.room_id(&self.room)?, self.blocked);
        let Attribution { origin, reason } = by;
        let block = moderation::BlockRoom { room_id: room_id.clone(), blocked, reason };
        let changed = context.engine.propose(origin, block).await?.into_inner();
        Ok(Blocked { room_id, blocked, changed })
    }

    async fn effect(&self, _: &ActContext) -> Result<Vec<String>, ActError> {
        let does = if self.blocked { "can get into" } else { "is kept out of" };
        Ok(vec![format!("nobody {does} {} any more", self.room)])
    }
}

/// Whether a room is blocked, and then by whom.
pub fn block_status(context: &ActContext, room: &str) -> Result<(bool, Option<String>), ActError> {
    let blocked = context.engine.state().closures.blocked(&context.room_id(room)?);
    Ok((blocked.is_some(), blocked.map(|offset| context.author_of(offset)).transpose()?))
}
