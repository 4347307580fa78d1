//! Account data: what clients keep on the server for themselves.

use ruma::{
    RoomId, UserId,
    api::client::config::{
        get_global_account_data::v3 as get_global_account_data,
        get_room_account_data::v3 as get_room_account_data,
        set_global_account_data::v3 as set_global_account_data,
        set_room_account_data::v3 as set_room_account_data,
    },
    serde::Raw,
};
use serde_json::value::RawValue;

use super::Server;
use crate::{
    decide::account::SetAccountData,
    http::{ApiError, Cx},
    limits,
    push::ruleset,
    record::Command,
    state::History,
};

/// Types that the server itself keeps: written through endpoints of their own.
const OWN_TYPES: [&str; 2] = ["m.fully_read", ruleset::EVENT_TYPE];

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
    set(&cx, None, request.event_type.to_string(), request.data.into_json()).await?;
    Ok(set_global_account_data::Response::new())
}

pub(super) async fn set_room(
    cx: Cx<Server>,
    request: set_room_account_data::Request,
) -> Result<set_room_account_data::Response, ApiError> {
    cx.must_be(&request.user_id)?;
    cx.app.room(&request.room_id)?;
    let event_type = request.event_type.to_string();
    set(&cx, Some(&request.room_id), event_type, request.data.into_json()).await?;
    Ok(set_room_account_data::Response::new())
}

fn nothing() -> ApiError {
    ApiError::not_found("There is no account data of this type.")
}

/// The content of the account data of this type, as it is kept.
pub(super) fn find(
    cx: &Cx<Server>,
    user_id: &UserId,
    room_id: Option<&RoomId>,
    event_type: &str,
) -> Result<Option<Box<RawValue>>, ApiError> {
    let Some(account) = cx.app.engine.state().accounts.get(user_id) else { return Ok(None) };
    let key = (room_id.map(ToOwned::to_owned), event_type.to_owned());
    let offset = account.read().account_data.get(&key).map(History::last_change);
    Ok(match offset.map(|offset| cx.app.engine.events().command(offset)).transpose()?.flatten() {
        Some(Command::AccountDataSet(body)) => Some(body.content),
        _ => None,
    })
}

async fn set(
    cx: &Cx<Server>,
    room_id: Option<&RoomId>,
    event_type: String,
    content: Box<RawValue>,
) -> Result<(), ApiError> {
    if OWN_TYPES.contains(&event_type.as_str()) {
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
