//! "Why?": who changed a value, and when, with the records behind it.

use std::sync::Arc;

use maud::{Markup, html};

use super::{
    acts::button,
    parts::{
        at_second, encoded, field, long, moment, record, seconds, short, table, text, unanswered,
        value,
    },
    visitor::{ConsoleLogin, Visitor, show},
};
use crate::{
    api::server::Server,
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_engine::Engine;
use logcabin_ops::history::{
    History, Source,
    nearby::{Bounds, Nearby, nearby},
    resolution::{
        Resolution,
        explain::{Contender, Fate},
    },
    step::Step,
    why::{FORMS, Subject},
};

/// What an act of its own takes back, if nothing changed it since.
const UNDOABLE: [&str; 3] = ["user.status", "room.block", "media.quarantine"];

endpoint! {
    pub(super) struct Why = GET "/_logcabin/console/why";
    for ConsoleLogin;
    {
        of: Option<String> = parameter,
        at: Option<String> = parameter,
    }
}

pub(super) async fn page(cx: Cx<Server, Visitor>, request: Why) -> Result<Reply, ApiError> {
    show(&cx, ("Who changed it", "past"), |app| view(app, &request)).await
}

fn view(app: &Server, request: &Why) -> Result<Markup, ApiError> {
    let words = request.of.as_deref().unwrap_or_default();
    let found =
        (!words.is_empty()).then(|| look(&app.engine, words, request.at.as_deref())).transpose()?;
    let shown = Some(words.replace('\n', " "));
    Ok(html! {
        form.filters method="get" role="search" {
            (field("of", "What", &shown, "room !id name"))
            (field("at", "As of", &request.at, "record, time, or -10m"))
            button type="submit" { "Ask" }
        }
        @if let Some(found) = &found { (answer(app, words, found)?) } @else {
            p { "Name a value to see who changed it, and when:" }
            pre tabindex="0" { (FORMS) }
        }
    })
}

fn look(engine: &Engine, words: &str, at: Option<&str>) -> Result<Nearby, ApiError> {
    let head = engine.head().offset();
    let at = at.map(|at| moment(engine, at)).transpose()?.unwrap_or(head);
    // Links separate the words by lines, so that a word may contain spaces.
    let subject = match words.contains('\n') {
        true => Subject::of_words(&words.split('\n').collect::<Vec<_>>()),
        false => words.parse(),
    };
    let subject = subject.map_err(|error| ApiError::invalid_param(error.to_string()))?;
    let source = Source::own(Arc::clone(engine.log()), head);
    let history = History::live(&source, engine.state().share(), at);
    let bounds = Bounds { steps: limits::CONSOLE_ROWS, examined: limits::CONSOLE_LOOK };
    nearby(&history, &subject, bounds).map_err(unanswered)
}

fn answer(app: &Server, words: &str, found: &Nearby) -> Result<Markup, ApiError> {
    let newest = found.steps.last().map(|step| step.offset);
    let row = |step: &Step| {
        let reason = app.context.reason_for(step.offset)?;
        let is_undoable = newest == Some(step.offset) && UNDOABLE.contains(&&*step.kind);
        Ok(vec![
            record(step.offset),
            html! { (seconds(&step.time)) },
            text(&step.kind),
            text(&step.who),
            // One element: on a narrow page, each is a column.
            html! {
                div {
                    (text(&step.text))
                    @if let Some(reason) = &reason { p.note { "Because: " bdi { (long(reason)) } } }
                    @if let Some(resolution) = &step.resolution { (resolved(resolution)) }
                    @if is_undoable {
                        (button("Undo", "undo", &[("record", &step.offset.to_string())]))
                    }
                }
            },
            value(&step.before),
            value(&step.after),
        ])
    };
    let rows = found.steps.iter().rev().map(row).collect::<Result<Vec<_>, ApiError>>()?;
    let columns = ["Record", "Time", "Kind", "Who", "What", "Before", "After"];
    Ok(html! {
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
    })
}

/// What state resolution decided, and by which rules.
fn resolved(resolution: &Resolution) -> Markup {
    let one = |event: &Contender| {
        html! {
            li {
                (record(event.record)) " by " bdi { (short(event.sender.as_str())) } ", "
                (at_second(event.origin_server_ts)) ": "
                @let words = event.fate.words();
                @match event.fate {
                    Fate::Holds => { strong { (short(&words)) } }
                    _ => { (short(&words)) }
                }
            }
        }
    };
    html! {
        @if let Some(why) = &resolution.unexplained {
            p.note { "State resolution decided. This is not explained: " (short(why)) "." }
        }
        @for dispute in &resolution.disputes {
            p.note {
                "State resolution about " bdi { (short(&dispute.event_type)) }
                @if !dispute.state_key.is_empty() { " of " bdi { (short(&dispute.state_key)) } }
                ", in this order:"
            }
            ol { @for event in &dispute.events { (one(event)) } }
        }
    }
}
