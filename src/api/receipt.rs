//! Receipts and read markers.

use ruma::{
    EventId, OwnedEventId, OwnedRoomId,
    api::client::{
        read_marker::set_read_marker::v3 as set_read_marker,
        receipt::create_receipt::v3::{self as create_receipt, ReceiptType},
    },
};
use serde_json::json;

use super::Server;
use crate::{
    decide::{account::SetAccountData, ephemeral::SetReceipt},
    events::to_raw,
    http::{ApiError, Cx},
    limits,
    record::Offset,
};

pub(super) async fn receipt(
    cx: Cx<Server>,
    request: create_receipt::Request,
) -> Result<create_receipt::Response, ApiError> {
    let thread_id = request.thread.as_str().map(ToOwned::to_owned);
    // `main`, or the event at the root of a thread: nothing else, and nothing longer, is kept.
    let is_thread = |id: &str| {
        id == "main" || (id.len() <= limits::IDENTIFIER_BYTES && <&EventId>::try_from(id).is_ok())
    };
    if thread_id.as_deref().is_some_and(|id| !is_thread(id)) {
        return Err(ApiError::invalid_param("`thread_id` is not a thread."));
    }
    match request.receipt_type {
        ReceiptType::Read | ReceiptType::ReadPrivate => {
            let receipt_type = request.receipt_type.to_string();
            set(&cx, request.room_id, receipt_type, request.event_id, thread_id).await?;
        }
        ReceiptType::FullyRead if thread_id.is_none() => {
            set_fully_read(&cx, request.room_id, request.event_id).await?;
        }
        _ => return Err(ApiError::invalid_param("There is no such receipt.")),
    }
    Ok(create_receipt::Response::new())
}

pub(super) async fn read_markers(
    cx: Cx<Server>,
    request: set_read_marker::Request,
) -> Result<set_read_marker::Response, ApiError> {
    let room_id = request.room_id;
    if let Some(event_id) = request.fully_read {
        set_fully_read(&cx, room_id.clone(), event_id).await?;
    }
    let receipts =
        [("m.read", request.read_receipt), ("m.read.private", request.private_read_receipt)];
    for (receipt_type, event_id) in receipts {
        if let Some(event_id) = event_id {
            set(&cx, room_id.clone(), receipt_type.to_owned(), event_id, None).await?;
        }
    }
    Ok(set_read_marker::Response::new())
}

async fn set(
    cx: &Cx<Server>,
    room_id: OwnedRoomId,
    receipt_type: String,
    event_id: OwnedEventId,
    thread_id: Option<String>,
) -> Result<(), ApiError> {
    cx.is_active();
    let user_id = cx.caller.user_id.clone();
    let ts = cx.app.engine.clock().now_ms();
    let receipt = SetReceipt { room_id, user_id, receipt_type, event_id, thread_id, ts };
    cx.propose(receipt).await?.into_inner();
    Ok(())
}

/// The fully-read marker is account data of the room that only this endpoint writes.
async fn set_fully_read(
    cx: &Cx<Server>,
    room_id: OwnedRoomId,
    event_id: OwnedEventId,
) -> Result<(), ApiError> {
    cx.is_active();
    let room = cx.app.room(&room_id)?;
    if !room.is_joined(&cx.caller.user_id, Offset::MAX) {
        return Err(ApiError::forbidden("You are not in this room."));
    }
    let proposal = SetAccountData {
        user_id: cx.caller.user_id.clone(),
        room_id: Some(room_id),
        event_type: "m.fully_read".to_owned(),
        content: to_raw(&json!({ "event_id": event_id })),
    };
    cx.propose(proposal).await?.into_inner();
    Ok(())
}
