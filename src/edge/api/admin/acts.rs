//! Every act that has a form, under its name: what Synapse has no endpoint for, too.

use std::sync::Arc;

use ruma::api::auth_scheme::AccessToken;
use serde::Deserialize;
use serde_json::{Value, json};

use super::parts::would_do;
use crate::{
    api::{answer::json as to_json, server::Server},
    http::{ApiError, Cx, Json, endpoint, read_body},
};
use logcabin_ops::admin::{
    act::{Order, Outcome},
    registry,
};

endpoint! {
    /// The acts, with the fields of each.
    pub(super) struct List = GET "/_logcabin/admin/v1/acts";
    for AccessToken;
    {}
}

pub(super) async fn list(_: Cx<Server>, _: List) -> Result<Json, ApiError> {
    let acts: serde_json::Map<_, _> = registry::forms()
        .map(|(name, form)| {
            let fields: Vec<_> = form
                .open()
                .chain(form.secrets())
                .map(|field| json!({ "name": field.name, "label": field.label }))
                .collect();
            let act = json!({ "title": form.title, "fields": fields, "final": form.is_final });
            (name.to_owned(), act)
        })
        .collect();
    to_json(&json!({ "acts": acts }))
}

endpoint! {
    /// An order for an act.
    pub(super) struct Perform = POST "/_logcabin/admin/v1/acts/{name}";
    for AccessToken;
    { name: String = path }
}

pub(super) async fn perform(cx: Cx<Server>, request: Perform) -> Result<Json, ApiError> {
    #[derive(Deserialize)]
    struct Body {
        #[serde(default)]
        act: Option<Value>,
        #[serde(default)]
        reason: Option<String>,
        #[serde(default)]
        dry_run: bool,
    }
    let name = request.name;
    if registry::form(&name).is_none() {
        return Err(ApiError::not_found("There is no such act."));
    }
    let Body { act, reason, dry_run } = read_body(&cx.body)?;
    let order = Order { act: act.unwrap_or_else(|| json!({})), reason, dry_run };
    let (context, origin) = (Arc::clone(&cx.app.context), cx.origin());
    let done =
        cx.complete(async move { registry::carry_out(&name, order, &context, origin).await });
    match done.await? {
        Outcome::WouldDo(effect) => to_json(&would_do(effect)),
        Outcome::Done(result) => to_json(&json!({ "result": result })),
    }
}
