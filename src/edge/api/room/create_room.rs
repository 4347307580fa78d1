//! Creating rooms.

use ruma::{
    CanonicalJsonObject, OwnedRoomId, RoomAliasId, RoomId, ServerName,
    api::client::room::create_room::v3::{self as create_room_v3, RoomPreset},
    events::TimelineEventType,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tracing::warn;

use super::{address_invite::Addressee, directory::is_public};
use crate::{
    api::{appservice::services::check_alias, server::Server},
    http::{ApiError, Cx},
};
use logcabin_base::{clock::random_letters, limits};
use logcabin_decide::{
    Refusal, canonical,
    create_room::{CreateRoom, InitialState, Preset},
};

pub(super) async fn create_room(
    cx: Cx<Server>,
    request: create_room_v3::Request,
) -> Result<create_room_v3::Response, ApiError> {
    let server_name = &cx.app.config.server.name;
    let public = is_public(&request.visibility)?;
    let preset = match &request.preset {
        Some(RoomPreset::PrivateChat) => Preset::PrivateChat,
        Some(RoomPreset::TrustedPrivateChat) => Preset::TrustedPrivateChat,
        Some(RoomPreset::PublicChat) => Preset::PublicChat,
        Some(_) => return Err(ApiError::invalid_param("There is no such preset.")),
        None if public => Preset::PublicChat,
        None => Preset::PrivateChat,
    };
    let invites = request.invite.len() + request.invite_3pid.len();
    if request.initial_state.len() + invites > limits::ROOM_EVENTS
        || request.invite_3pid.len() > limits::ADDRESS_INVITES
    {
        return Err(ApiError::too_large(
            "A room cannot be created with this much state or this many invites.",
        ));
    }
    let mut invite = request.invite;
    let mut unknown = Vec::new();
    let addressees = request.invite_3pid.iter().map(|invite| Addressee::read(&cx.app, invite));
    for addressee in addressees.collect::<Result<Vec<_>, _>>()? {
        match addressee.user(&cx.app).await? {
            Some(user_id) if invite.contains(&user_id) => {}
            Some(user_id) => invite.push(user_id),
            None => unknown.push(addressee),
        }
    }
    let (elsewhere, invite): (Vec<_>, Vec<_>) =
        invite.into_iter().partition(|invitee| cx.is_remote(invitee.server_name()));
    for invitee in &invite {
        super::membership::check_invitee(&cx, invitee).await?;
    }
    let alias = match &request.room_alias_name {
        Some(name) if !name.is_empty() => Some(
            RoomAliasId::parse(format!("#{name}:{server_name}"))
                .map_err(|_| ApiError::invalid_param("This cannot be an alias."))?,
        ),
        _ => None,
    };
    if alias.as_ref().is_some_and(|alias| alias.as_str().len() > limits::IDENTIFIER_BYTES) {
        return Err(ApiError::invalid_param("The alias is too long."));
    }
    if let Some(alias) = &alias {
        check_alias(&cx.app.outside.services, alias, &cx.caller)?;
    }
    let object = |raw: Option<&RawValue>| match raw {
        Some(raw) => canonical(raw).map_err(ApiError::from),
        None => Ok(CanonicalJsonObject::new()),
    };
    // All of it may have megabytes.
    let read = || {
        let creation_content = object(request.creation_content.as_ref().map(|raw| raw.json()))?;
        let power_levels =
            object(request.power_level_content_override.as_ref().map(|raw| raw.json()))?;
        let state = request.initial_state.iter().map(|raw| initial_state(raw.json()));
        Ok((creation_content, power_levels, state.collect::<Result<_, ApiError>>()?))
    };
    let (creation_content, power_levels, initial_state) = cx.at_length(read).await?;
    let proposal = CreateRoom {
        room_id: new_room_id(&cx.app.config.server.name)?,
        creator: cx.caller.user_id.clone(),
        version: request
            .room_version
            .unwrap_or_else(|| cx.app.config.rooms.default_version.0.clone()),
        preset,
        creation_content,
        power_levels,
        initial_state,
        name: request.name,
        topic: request.topic,
        alias,
        invite,
        is_direct: request.is_direct,
        public,
        ts: cx.app.now(),
    };
    let room_id = cx.propose(proposal).await?.into_inner();
    cx.invite_all_elsewhere(&room_id, elsewhere, request.is_direct).await;
    for addressee in unknown {
        // The room exists: a client that got an error would create another.
        if let Err(error) = addressee.invite(&cx, &room_id).await {
            warn!(%room_id, %error, "an address could not be invited to a new room");
        }
    }
    Ok(create_room_v3::Response::new(room_id))
}

pub(super) fn new_room_id(server_name: &ServerName) -> Result<OwnedRoomId, ApiError> {
    RoomId::parse(format!("!{}:{server_name}", random_letters(18))).map_err(ApiError::internal)
}

fn initial_state(raw: &RawValue) -> Result<InitialState, ApiError> {
    #[derive(Deserialize)]
    struct InitialStateEvent<'a> {
        #[serde(rename = "type")]
        event_type: String,
        #[serde(default)]
        state_key: String,
        #[serde(borrow)]
        content: &'a RawValue,
    }
    let given: InitialStateEvent<'_> = serde_json::from_str(raw.get())
        .map_err(|_| ApiError::bad_json("`initial_state` holds state events."))?;
    let content = canonical(given.content).map_err(|refusal| match refusal {
        Refusal::BadJson(reason) => Refusal::InvalidRoomState(reason),
        other => other,
    })?;
    Ok(InitialState {
        event_type: TimelineEventType::from(given.event_type),
        state_key: given.state_key,
        content,
    })
}
