//! Checkpoints, the newest first, and proofs that rest on them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use maud::{Markup, html};
use serde_json::Value;

use crate::{
    api::{
        console::{
            parts::{acts, at_second, before, facts, lines, record, table, text},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::{
    admin::proofs::{CheckpointRow, Checkpoints, checkpoints},
    history::terminal::grouped,
};

endpoint! {
    pub(in super::super) struct ProofList = GET "/_logcabin/console/proofs";
    for ConsoleLogin;
    { before: Option<String> = parameter }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: ProofList,
) -> Result<Reply, ApiError> {
    let before = before(&request.before)?;
    show(&cx, ("Proofs", "proofs"), |app| {
        let found = checkpoints(&app.context, before, limits::CONSOLE_ROWS)?;
        Ok(body(&found))
    })
    .await
}

fn body(found: &Checkpoints) -> Markup {
    let Checkpoints { key, checkpoints, total, end } = found;
    let rows: Vec<_> = checkpoints
        .iter()
        .map(|CheckpointRow { record: of, upto, time_ms, who }| {
            vec![record(*of), html! { (at_second(*time_ms)) }, text(who), record(*upto)]
        })
        .collect();
    let (id, public) = match key {
        Some(key) => (text(&key.key_id), text(&key.public_key)),
        None => (html! { "none yet" }, html! { "none yet" }),
    };
    let left = checkpoints.last().filter(|_| checkpoints.len() == limits::CONSOLE_ROWS);
    html! {
        p {
            "A checkpoint is a signed statement about the whole log up to a record. With the "
            "public key, anyone can verify by it that a record is in the log, or that the log of "
            "one checkpoint goes on from that of another."
        }
        (facts(&[
            ("Key", id),
            ("Public key", public),
            ("Checkpoints", html! { (grouped(*total as u64)) " in all" }),
            ("The last record", record(*end)),
        ]))
        (acts(&["prove"], &[]))
        h2 { "Checkpoints" }
        (table(&["Record", "Signed", "By", "Covers records up to"], &rows, "None yet."))
        @if let Some(last) = left {
            p.pages { a href={ "?before=" (last.record) } { "Older checkpoints" } }
        }
        h2 { "From one checkpoint to another" }
        p { "A command proves that the log was only appended to between two checkpoints:" }
        pre tabindex="0" { "logcabin prove-consistency OFFSET|DIRECTORY [OFFSET]" }
    }
}

/// A proof that was made, to be taken elsewhere.
pub(in super::super) fn made(proof: &Value) -> Markup {
    let pretty = serde_json::to_string_pretty(proof).unwrap_or_default();
    let name = format!("proof-{}.json", proof["offset"].as_u64().unwrap_or_default());
    let file = format!("data:application/json;base64,{}", STANDARD.encode(proof.to_string()));
    html! {
        p.good role="status" { "The record is in the log. This is the proof:" }
        p { a href=(file) download=(name) { "Save it as " (name) } }
        pre tabindex="0" { (lines(&pretty)) }
        p.note { "Verify it where the public key comes from elsewhere:" }
        pre tabindex="0" { "cargo run --example verify_proof -- KEY " (name) }
    }
}
