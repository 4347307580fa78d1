//! Every act that has a form, under its name: what Synapse has no endpoint for, too.

use std::sync::Arc;

use ruma::api::auth_scheme::AccessToken;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::parts::{ActParameters, AdminParts as _, would_do};
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
    let acts: Map<_, _> = registry::forms()
        .map(|(name, form)| {
            let fields: Vec<_> = form
                .open()
                .chain(form.secrets())
                .map(|field| {
                    let (kind, required) = field.kind.in_words();
                    json!({
                        "name": field.name, "label": field.label,
                        "type": kind, "required": required,
                    })
                })
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
    { name: String = path, terms: ActParameters = terms }
}

pub(super) async fn perform(cx: Cx<Server>, request: Perform) -> Result<Json, ApiError> {
    // What is misspelt must not become an order for something else.
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        act: Map<String, Value>,
        #[serde(default, rename = "reason")]
        _reason: Option<String>,
        #[serde(default)]
        dry_run: bool,
    }
    let Perform { name, terms } = request;
    let form = registry::form(&name);
    let form = form.ok_or_else(|| ApiError::not_found("There is no such act."))?;
    let Body { mut act, dry_run, .. } = read_body(&cx.body)?;
    form.complete(&mut act);
    let act = Value::Object(act);
    registry::check(&name, &act)?;
    let order = Order { act, reason: terms.reason, dry_run: dry_run || terms.dry_run };
    let (context, origin) = (Arc::clone(&cx.app.context), cx.origin());
    let done =
        cx.complete(async move { registry::carry_out(&name, order, &context, origin).await });
    match done.await? {
        Outcome::WouldDo(effect) => to_json(&would_do(effect)),
        Outcome::Done(result) => to_json(&json!({ "result": result })),
    }
}
