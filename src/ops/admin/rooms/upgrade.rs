//! Replace a room by one of another version, as a member who may do that.

use ruma::{OwnedRoomId, OwnedUserId, RoomVersionId};
use serde::{Deserialize, Serialize};

use crate::admin::{
    act::{Act, Attribution},
    context::{ActContext, ActError},
    form::{Field, Form, Kind},
};
use logcabin_decide::upgrade;
use logcabin_record::room_version::DEFAULT_ROOM_VERSION;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UpgradeRoom {
    pub room: String,
    pub user: String,
    /// None for the default version.
    pub version: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Upgraded {
    pub room_id: OwnedRoomId,
    pub replacement: OwnedRoomId,
    pub version: RoomVersionId,
    pub user_id: OwnedUserId,
}

impl UpgradeRoom {
    fn version(&self) -> Result<RoomVersionId, ActError> {
        let version = self.version.as_deref();
        version.map_or(Ok(DEFAULT_ROOM_VERSION), |version| {
            RoomVersionId::try_from(version).map_err(ActError::invalid)
        })
    }
}

impl Act for UpgradeRoom {
    const NAME: &'static str = "upgrade-room";
    const DONE: &'static str = "upgraded";
    type Done = Upgraded;

    const FORM: Option<&'static Form> = Some(&Form {
        title: "Upgrade a room",
        fields: &[
            Field::new("room", "Room", Kind::Text),
            Field::new("user", "Member who upgrades it", Kind::Text),
            Field::new("version", "Version", Kind::TextIfAny),
        ],
        is_final: true,
        foretells: true,
    });

    async fn perform(self, context: &ActContext, by: Attribution) -> Result<Upgraded, ActError> {
        let (room_id, user_id) =
            (context.room(&self.room)?.id.clone(), context.active(&self.user)?);
        let version = self.version()?;
        let upgrade = upgrade::UpgradeRoom {
            room_id: room_id.clone(),
            replacement: context.new_room_id()?,
            version: version.clone(),
            additional_creators: Vec::new(),
            sender: user_id.clone(),
            ts: context.engine.clock().timestamp(),
        };
        let replacement = context.propose(by, upgrade).await.map_err(ActError::of_room)?;
        Ok(Upgraded { room_id, replacement, version, user_id })
    }

    async fn effect(&self, context: &ActContext) -> Result<Vec<String>, ActError> {
        let (user_id, room) = (context.active(&self.user)?, context.room(&self.room)?);
        let (id, version) = (&room.id, self.version()?);
        Ok(vec![
            format!(
                "{user_id} replaces {id} by a room of version {version}, which {user_id} creates"
            ),
            format!("{id} points to the new room, and members have to join that"),
        ])
    }
}
