//! Upgrading rooms.

use ruma::api::client::room::upgrade_room::v3 as upgrade_room_v3;

use super::create_room::new_room_id;
use crate::{
    api::server::Server,
    http::{ApiError, Cx},
};
use logcabin_decide::upgrade::UpgradeRoom;

pub(super) async fn upgrade(
    cx: Cx<Server>,
    request: upgrade_room_v3::Request,
) -> Result<upgrade_room_v3::Response, ApiError> {
    let proposal = UpgradeRoom {
        room_id: request.room_id,
        replacement: new_room_id(&cx.app.config.server.name)?,
        version: request.new_version,
        additional_creators: request.additional_creators,
        sender: cx.caller.user_id.clone(),
        ts: cx.app.now(),
    };
    Ok(upgrade_room_v3::Response::new(cx.propose(proposal).await?.into_inner()))
}
