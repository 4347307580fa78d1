//! "Why?": who changed a value, and when, with the records behind it.

use std::sync::Arc;

use http::HeaderMap;
use maud::{Markup, html};
use ruma::api::auth_scheme::NoAccessToken;
use serde_json::Value;

use super::{
    parts::{encoded, field, moment, record, seconds, short, table, text, unanswered},
    visitor,
};
use crate::{
    base::limits,
    edge::{
        api::{Server, browser::page::refusal, server::Whose},
        http::{ApiError, Cx, Reply, endpoint},
    },
    ops::history::{
        History, Source,
        nearby::{Bounds, Nearby, nearby},
        step::Step,
        why::{FORMS, Subject},
    },
};

endpoint! {
    /// The page.
    pub(super) struct Why = GET "/_logcabin/console/why";
    for NoAccessToken;
    refusal refusal;
    {
        of: Option<String> = parameter,
        at: Option<String> = parameter,
        headers: HeaderMap = headers,
    }
}

pub(super) async fn page(cx: Cx<Server, ()>, request: Why) -> Result<Reply, ApiError> {
    let visitor = match visitor(&cx, &request.headers).await? {
        Ok(visitor) => visitor,
        Err(elsewhere) => return Ok(elsewhere),
    };
    let words = request.of.as_deref().unwrap_or_default();
    let found = match words.is_empty() {
        true => None,
        false => {
            let whose = Whose::User(visitor.session.user_id.clone());
            let found = cx.app.long_work.run(&whose, true, || look(&cx.app, &request)).await;
            Some(found.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))??)
        }
    };
    let shown = Some(words.replace('\n', " "));
    let body = html! {
        form.filters method="get" role="search" {
            (field("of", "What", &shown, "room !id name"))
            (field("at", "As of", &request.at, "record, time, or -10m"))
            button type="submit" { "Ask" }
        }
        @if let Some(found) = &found { (answer(words, found)) } @else {
            p { "Name a value to see who changed it, and when:" }
            pre tabindex="0" { (FORMS) }
        }
    };
    Ok(visitor.page("Who changed it", "past", body).reply())
}

fn look(app: &Server, request: &Why) -> Result<Nearby, ApiError> {
    let head = app.engine.head().offset();
    let at = request.at.as_deref().map(|at| moment(app, at)).transpose()?.unwrap_or(head);
    let words = request.of.as_deref().unwrap_or_default();
    // Links separate the words by lines, so that a word may contain spaces.
    let subject = match words.contains('\n') {
        true => Subject::of_words(&words.split('\n').collect::<Vec<_>>()),
        false => words.parse(),
    };
    let subject = subject.map_err(|error| ApiError::invalid_param(error.to_string()))?;
    let source = Source::own(Arc::clone(app.engine.log()), head);
    let history = History::live(&source, app.engine.state().share(), at);
    let bounds = Bounds { steps: limits::CONSOLE_ROWS, examined: limits::CONSOLE_LOOK };
    nearby(&history, &subject, bounds).map_err(unanswered)
}

fn answer(words: &str, found: &Nearby) -> Markup {
    let value = |value: &Option<Value>| match value {
        None => html! { span.note { "–" } },
        Some(Value::String(value)) => text(value),
        Some(value) => text(&value.to_string()),
    };
    let row = |step: &Step| {
        vec![
            record(step.offset),
            html! { (seconds(&step.time)) },
            text(&step.kind),
            text(&step.who),
            text(&step.text),
            value(&step.before),
            value(&step.after),
        ]
    };
    let rows: Vec<_> = found.steps.iter().rev().map(row).collect();
    let columns = ["Record", "Time", "Kind", "Who", "What", "Before", "After"];
    html! {
        h2 { bdi { (short(&words.replace('\n', " "))) } }
        (table(&columns, &rows, "No record about it was found."))
        @if let Some(left) = found.left {
            @if !found.is_known {
                p.note { "The records after " (left) " were examined. What they do not say is older." }
            }
            p {
                a href={ "?of=" (encoded(words)) "&at=" (left) } { "Earlier" }
            }
        }
    }
}
