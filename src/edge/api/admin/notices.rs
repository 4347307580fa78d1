//! Server notices.

use ruma::api::auth_scheme::AccessToken;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::parts::{ActParameters, AdminParts as _};
use crate::{
    api::{room::send::transaction, server::Server},
    http::{ApiError, Cx, Json, endpoint},
};
use logcabin_ops::admin::notices::{NoticeSent, SendNotice};
use logcabin_record::command::Transaction;

/// A notice and its recipient.
#[derive(Deserialize)]
pub(super) struct Notice {
    user_id: String,
    #[serde(rename = "type")]
    event_type: Option<String>,
    state_key: Option<String>,
    content: Map<String, Value>,
}

endpoint! {
    /// `POST …/send_server_notice`
    pub(super) struct Send = POST "/_synapse/admin/v1/send_server_notice";
    for AccessToken;
    { body: Notice = parameters, terms: ActParameters = terms }
}

endpoint! {
    /// `PUT …/send_server_notice/{txn_id}`
    pub(super) struct SendOnce = PUT "/_synapse/admin/v1/send_server_notice/{txn_id}";
    for AccessToken;
    { txn_id: String = path, body: Notice = parameters, terms: ActParameters = terms }
}

/// Sends a notice to a user.
pub(super) async fn send(cx: Cx<Server>, request: Send) -> Result<Json, ApiError> {
    tell(&cx, request.body, None, request.terms).await
}

/// Sends a notice to a user, once for each transaction id of a session.
pub(super) async fn send_once(cx: Cx<Server>, request: SendOnce) -> Result<Json, ApiError> {
    let transaction = transaction(&cx, "send_server_notice".to_owned(), &request.txn_id)?;
    tell(&cx, request.body, Some(transaction), request.terms).await
}

async fn tell(
    cx: &Cx<Server>,
    notice: Notice,
    transaction: Option<Transaction>,
    terms: ActParameters,
) -> Result<Json, ApiError> {
    let act = SendNotice {
        user: notice.user_id,
        event_type: notice.event_type.unwrap_or_else(|| "m.room.message".to_owned()),
        state_key: notice.state_key,
        content: Value::Object(notice.content),
        transaction,
    };
    cx.act(act, terms, |NoticeSent { event_id, .. }| json!({ "event_id": event_id })).await
}
