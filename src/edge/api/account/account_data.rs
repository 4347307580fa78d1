//! Account data: data that clients store on the server.

use ruma::{
    OwnedRoomId, OwnedUserId, RoomId, UserId,
    api::{
        auth_scheme::AccessToken,
        client::{
            config::{
                get_global_account_data::v3 as get_global_account_data,
                get_room_account_data::v3 as get_room_account_data,
                set_global_account_data::v3 as set_global_account_data,
                set_room_account_data::v3 as set_room_account_data,
            },
            tag::{
                create_tag::v3 as create_tag, delete_tag::v3 as delete_tag,
                get_tags::v3 as get_tags,
            },
        },
    },
    serde::Raw,
};
use serde_json::{Map, Value, json, value::RawValue};

use crate::{
    api::{answer::json, server::Server},
    http::{ApiError, Cx, Json, endpoint, read_body},
};
use logcabin_base::limits;
use logcabin_decide::account_data::{SetAccountData, SetTag};
use logcabin_read::{events::to_raw, notifications::ruleset, sync::account_data::is_deleted};
use logcabin_record::Offset;

/// Types that the server maintains itself, through endpoints of their own.
const OWN_TYPES: [&str; 2] = ["m.fully_read", ruleset::EVENT_TYPE];

fn is_own(event_type: &str) -> bool {
    OWN_TYPES.contains(&event_type)
}

endpoint! {
    /// Deletes account data.
    pub(super) struct DeleteGlobal = DELETE
        "/_matrix/client/unstable/org.matrix.msc3391/user/{user_id}/account_data/{type}";
    for AccessToken;
    { user_id: OwnedUserId = path, event_type: String = path }
}

endpoint! {
    /// Deletes account data of a room.
    pub(super) struct DeleteOfRoom = DELETE
        "/_matrix/client/unstable/org.matrix.msc3391/user/{user_id}/rooms/{room_id}/account_data/{type}";
    for AccessToken;
    { user_id: OwnedUserId = path, room_id: OwnedRoomId = path, event_type: String = path }
}

pub(super) async fn get_global(
    cx: Cx<Server>,
    request: get_global_account_data::Request,
) -> Result<get_global_account_data::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let event_type = request.event_type.to_string();
    let content = find(&cx, &request.user_id, None, &event_type)?;
    let content = if event_type == ruleset::EVENT_TYPE {
        ruleset::shown_content(&request.user_id, content.as_deref())
    } else {
        content.ok_or_else(nothing)?
    };
    Ok(get_global_account_data::Response::new(Raw::from_json(content)))
}

pub(super) async fn get_room(
    cx: Cx<Server>,
    request: get_room_account_data::Request,
) -> Result<get_room_account_data::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let event_type = request.event_type.to_string();
    let content = find(&cx, &request.user_id, Some(&request.room_id), &event_type)?;
    let content = content.ok_or_else(nothing)?;
    Ok(get_room_account_data::Response::new(Raw::from_json(content)))
}

pub(super) async fn set_global(
    cx: Cx<Server>,
    request: set_global_account_data::Request,
) -> Result<set_global_account_data::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    let event_type = request.event_type.to_string();
    put(&cx, None, event_type, request.data.into_json()).await?;
    Ok(set_global_account_data::Response::new())
}

pub(super) async fn set_room(
    cx: Cx<Server>,
    request: set_room_account_data::Request,
) -> Result<set_room_account_data::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    must_have_a_part(&cx, &request.room_id)?;
    let event_type = request.event_type.to_string();
    put(&cx, Some(&request.room_id), event_type, request.data.into_json()).await?;
    Ok(set_room_account_data::Response::new())
}

/// `DELETE` of the account data of a type (MSC3391), global or, with a room in the path, for that
/// room.
pub(super) async fn delete_global(cx: Cx<Server>, request: DeleteGlobal) -> Result<Json, ApiError> {
    cx.must_be(&request.user_id)?;
    remove(&cx, None, request.event_type).await?;
    Ok("{}".into())
}

/// As [`delete_global`], of a room.
pub(super) async fn delete_of_room(
    cx: Cx<Server>,
    request: DeleteOfRoom,
) -> Result<Json, ApiError> {
    cx.must_be(&request.user_id)?;
    must_have_a_part(&cx, &request.room_id)?;
    remove(&cx, Some(&request.room_id), request.event_type).await?;
    Ok("{}".into())
}

/// Sets account data. Setting an empty object deletes it (MSC3391).
async fn put(
    cx: &Cx<Server>,
    room_id: Option<&RoomId>,
    event_type: String,
    content: Box<RawValue>,
) -> Result<(), ApiError> {
    let fields = serde_json::from_str::<Map<String, Value>>(content.get());
    if fields.is_ok_and(|fields| fields.is_empty()) {
        return remove(cx, room_id, event_type).await;
    }
    set(cx, room_id, event_type, content).await
}

async fn remove(
    cx: &Cx<Server>,
    room_id: Option<&RoomId>,
    event_type: String,
) -> Result<(), ApiError> {
    let is_there = find(cx, &cx.caller.user_id, room_id, &event_type)?.is_some();
    if is_there || is_own(&event_type) {
        set(cx, room_id, event_type, to_raw(&json!(null))).await?;
    }
    Ok(())
}

/// Refuses rooms that the caller has never been in, invited to or banned from, as if they did not
/// exist.
fn must_have_a_part(cx: &Cx<Server>, room_id: &RoomId) -> Result<(), ApiError> {
    let part = cx.app.engine.state().memberships.part(&cx.caller.user_id, room_id);
    part.map(drop).ok_or_else(|| ApiError::not_found("You have no such room."))
}

// Tags: account data of a room, which has endpoints of its own so that one tag is set at a time.

pub(super) async fn tags(cx: Cx<Server>, request: get_tags::Request) -> Result<Json, ApiError> {
    cx.must_be(&request.user_id)?;
    must_have_a_part(&cx, &request.room_id)?;
    #[derive(Default, serde::Deserialize)]
    struct Content {
        #[serde(default)]
        tags: Map<String, Value>,
    }
    let content = find(&cx, &request.user_id, Some(&request.room_id), "m.tag")?;
    // A client may have set any content by hand.
    let content = content.and_then(|content| serde_json::from_str::<Content>(content.get()).ok());
    json(&json!({ "tags": content.unwrap_or_default().tags }))
}

pub(super) async fn set_tag(
    cx: Cx<Server>,
    request: create_tag::Request,
) -> Result<create_tag::Response, ApiError> {
    // ruma knows only `order`; a tag may have other members.
    let info: Map<String, Value> = read_body(&cx.body)?;
    if request.tag_info.order.is_some_and(|order| !(0.0..=1.0).contains(&order)) {
        return Err(ApiError::invalid_param("`order` is a number from 0 to 1."));
    }
    if request.tag.is_empty() || request.tag.len() > limits::TAG_BYTES {
        return Err(ApiError::invalid_param("A tag's name has 1 to 255 bytes."));
    }
    if cx.body.len() > limits::TAG_INFO_BYTES {
        let most = limits::TAG_INFO_BYTES;
        return Err(ApiError::too_large(format!("A tag's content has at most {most} bytes.")));
    }
    change_tag(&cx, &request.user_id, &request.room_id, request.tag, Some(info)).await?;
    Ok(create_tag::Response::new())
}

pub(super) async fn delete_tag(
    cx: Cx<Server>,
    request: delete_tag::Request,
) -> Result<delete_tag::Response, ApiError> {
    change_tag(&cx, &request.user_id, &request.room_id, request.tag, None).await?;
    Ok(delete_tag::Response::new())
}

async fn change_tag(
    cx: &Cx<Server>,
    user_id: &UserId,
    room_id: &RoomId,
    tag: String,
    info: Option<Map<String, Value>>,
) -> Result<(), ApiError> {
    cx.must_be(user_id)?;
    must_have_a_part(cx, room_id)?;
    let (user_id, room_id) = (user_id.to_owned(), room_id.to_owned());
    cx.propose(SetTag { user_id, room_id, tag, info }).await?.into_inner();
    Ok(())
}

fn nothing() -> ApiError {
    ApiError::not_found("There is no account data of this type.")
}

/// The content of the account data of this type, as stored.
pub(crate) fn find(
    cx: &Cx<Server>,
    user_id: &UserId,
    room_id: Option<&RoomId>,
    event_type: &str,
) -> Result<Option<Box<RawValue>>, ApiError> {
    let (state, events) = (cx.app.engine.state(), cx.app.engine.events());
    let content = events.account_data(&state, user_id, room_id, event_type, Offset::MAX)?;
    Ok(content.filter(|content| !is_deleted(content)))
}

async fn set(
    cx: &Cx<Server>,
    room_id: Option<&RoomId>,
    event_type: String,
    content: Box<RawValue>,
) -> Result<(), ApiError> {
    if is_own(&event_type) {
        return Err(ApiError::new(
            crate::http::ErrorCode::BadJson,
            "This type is written through an endpoint of its own.",
        )
        .with_status(http::StatusCode::METHOD_NOT_ALLOWED));
    }
    if event_type.len() > limits::IDENTIFIER_BYTES {
        return Err(ApiError::invalid_param("The type is too long."));
    }
    if content.get().len() > limits::ACCOUNT_DATA_BYTES {
        return Err(ApiError::too_large("This is too large for account data."));
    }
    let proposal = SetAccountData {
        user_id: cx.caller.user_id.clone(),
        room_id: room_id.map(ToOwned::to_owned),
        event_type,
        content,
    };
    cx.propose(proposal).await?.into_inner();
    Ok(())
}
