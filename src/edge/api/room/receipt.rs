//! Receipts and read markers.

use ruma::{
    OwnedEventId, OwnedRoomId,
    api::client::{
        read_marker::set_read_marker::v3 as set_read_marker,
        receipt::create_receipt::v3::{self as create_receipt, ReceiptType},
    },
};

use serde::Deserialize;

use crate::{
    api::server::Server,
    http::{ApiError, Cx, Extended, Json},
};
use logcabin_decide::ephemeral::{SetFullyRead, SetReceipt, is_thread};

/// Whether the fully-read marker may move to an earlier event (MSC4446).
#[derive(Deserialize)]
pub(super) struct Backward {
    allow_backward: Option<bool>,
    #[serde(rename = "com.beeper.allow_backward")]
    unstable: Option<bool>,
}

impl Backward {
    fn is_allowed(&self) -> bool {
        self.allow_backward.or(self.unstable).unwrap_or(false)
    }
}

pub(super) async fn receipt(
    cx: Cx<Server>,
    Extended { request, more }: Extended<create_receipt::Request, Backward>,
) -> Result<Json, ApiError> {
    let allow_backward = more.is_allowed();
    let thread_id = request.thread.as_str().map(ToOwned::to_owned);
    if thread_id.as_deref().is_some_and(|id| !is_thread(id)) {
        return Err(ApiError::invalid_param("`thread_id` is not a thread."));
    }
    match request.receipt_type {
        ReceiptType::Read | ReceiptType::ReadPrivate if allow_backward => {
            let why = "Only `m.fully_read` can move backward.";
            return Err(ApiError::invalid_param(why));
        }
        ReceiptType::Read | ReceiptType::ReadPrivate => {
            let receipt_type = request.receipt_type.to_string();
            set(&cx, request.room_id, receipt_type, request.event_id, thread_id).await?;
        }
        ReceiptType::FullyRead if thread_id.is_none() => {
            set_fully_read(&cx, request.room_id, request.event_id, allow_backward).await?;
        }
        _ => return Err(ApiError::invalid_param("There is no such receipt.")),
    }
    Ok("{}".into())
}

pub(super) async fn read_markers(
    cx: Cx<Server>,
    Extended { request, more }: Extended<set_read_marker::Request, Backward>,
) -> Result<Json, ApiError> {
    let room_id = request.room_id;
    let receipt = async |receipt_type: &str, event_id: Option<OwnedEventId>| match event_id {
        Some(event_id) => set(&cx, room_id.clone(), receipt_type.to_owned(), event_id, None).await,
        None => Ok(()),
    };
    let marker = async |event_id: Option<OwnedEventId>| match event_id {
        Some(event_id) => set_fully_read(&cx, room_id.clone(), event_id, more.is_allowed()).await,
        None => Ok(()),
    };
    // Concurrently: in a large room, both receipts wait for the same turn.
    let (marked, read, read_privately) = tokio::join!(
        marker(request.fully_read),
        receipt("m.read", request.read_receipt),
        receipt("m.read.private", request.private_read_receipt),
    );
    marked.and(read).and(read_privately)?;
    Ok("{}".into())
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

async fn set_fully_read(
    cx: &Cx<Server>,
    room_id: OwnedRoomId,
    event_id: OwnedEventId,
    allow_backward: bool,
) -> Result<(), ApiError> {
    cx.is_active();
    let user_id = cx.caller.user_id.clone();
    let marker = SetFullyRead { room_id, user_id, event_id, allow_backward };
    cx.propose(marker).await?.into_inner();
    Ok(())
}
