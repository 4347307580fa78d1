//! Queries of other homeservers about local users and aliases (server-server API, "Querying for
//! information").

use ruma::{
    ServerName,
    api::federation::query::{
        get_profile_information::v1 as get_profile_information,
        get_room_information::v1 as get_room_information,
    },
};
use serde_json::json;

use crate::{
    api::{
        account::profile,
        answer::{can_leave, json as to_json},
        appservice::services as appservice,
        room::directory::must_be_listed,
        server::Server,
    },
    http::{ApiError, Cx, Homeserver, Json},
};

/// Only local users and aliases may be queried.
fn must_be_ours(own: &ServerName, server: &ServerName) -> Result<(), ApiError> {
    if server == own {
        Ok(())
    } else {
        Err(ApiError::invalid_param("This belongs to another server."))
    }
}

pub(super) async fn profile(
    cx: Cx<Server, Homeserver>,
    request: get_profile_information::Request,
) -> Result<Json, ApiError> {
    must_be_ours(&cx.app.config.server.name, request.user_id.server_name())?;
    let mut fields = profile::of_local(&cx.app.engine, &cx.app.outside, &request.user_id).await?;
    if let Some(field) = request.field {
        fields.retain(|name, _| *name == field.as_str());
    }
    // One that came in before such values were refused is left out by itself.
    fields.retain(|_, value| can_leave(value));
    to_json(&fields)
}

pub(super) async fn directory(
    cx: Cx<Server, Homeserver>,
    request: get_room_information::Request,
) -> Result<Json, ApiError> {
    must_be_ours(&cx.app.config.server.name, request.room_alias.server_name())?;
    let alias = &*request.room_alias;
    let room_id = appservice::resolve(&cx.app, alias.into()).await?;
    must_be_listed(&cx.app, &room_id, alias, None)?;
    to_json(&json!({ "room_id": room_id, "servers": [cx.app.config.server.name] }))
}
