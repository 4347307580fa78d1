//! Server notices.

use serde_json::{Map, Value, json};

use super::{Caller, Desk, nothing};
use crate::{
    edge::{
        api::send::transaction,
        http::{ApiError, RawRequest, Reply},
    },
    ops::admin::{Act, Done},
};

/// Tells a user something. Under a transaction id, the same session says it once.
pub(super) async fn send(cx: Caller, request: RawRequest) -> Result<Reply, ApiError> {
    let desk = Desk::open(cx, request)?;
    let scope = || "send_server_notice".to_owned();
    let transaction = match desk.args.first() {
        Some(id) => Some(transaction(&desk.cx, scope(), id)?),
        None => None,
    };
    let act = Act::SendNotice {
        user: desk.required("user_id")?,
        event_type: desk.field("type")?.unwrap_or_else(|| "m.room.message".to_owned()),
        state_key: desk.field("state_key")?,
        content: Value::Object(desk.required::<Map<String, Value>>("content")?),
        transaction,
    };
    desk.act(act, |done| match done {
        Done::NoticeSent { event_id, .. } => json!({ "event_id": event_id }),
        other => nothing(other),
    })
    .await
}
