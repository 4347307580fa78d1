//! The reports' inbox: the open reports beside the one that is looked at, what can be decided, and
//! what was decided last.

mod buttons;
pub(in super::super) mod decide;
mod decided;
mod deciding;
mod detail;
mod lines;
mod place;

use maud::{Markup, html};

pub(in super::super) use decided::list as decided;

use self::place::{Place, REPORTS, number, tabs};
use super::start;
use crate::{
    api::{
        console::visitor::{ConsoleLogin, Visitor, show},
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_record::Offset;

/// How many reports are named that were just closed.
const NAMED: usize = 10;

endpoint! {
    pub(in super::super) struct ReportList = GET "/_logcabin/console/reports";
    for ConsoleLogin;
    {
        of: Option<String> = parameter,
        order: Option<String> = parameter,
        from: Option<String> = parameter,
        report: Option<String> = parameter,
        closed: Option<String> = parameter,
    }
}

endpoint! {
    pub(in super::super) struct OneReport = GET "/_logcabin/console/reports/{id}";
    for ConsoleLogin;
    { id: String = path }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: ReportList,
) -> Result<Reply, ApiError> {
    let ReportList { of, order, from, report, closed } = request;
    let from = start(&from)?;
    let report = report.as_deref().map(number).transpose()?;
    let closed = closed.iter().flat_map(|ids| ids.split_whitespace()).map(number);
    let closed = closed.collect::<Result<Vec<_>, _>>()?;
    let place = Place { of, order };
    inbox(&cx, &place, from, report, &closed).await
}

/// A report in the whole inbox.
pub(in super::super) async fn one(
    cx: Cx<Server, Visitor>,
    request: OneReport,
) -> Result<Reply, ApiError> {
    let report = number(&request.id)?;
    inbox(&cx, &Place::default(), 0, Some(report), &[]).await
}

async fn inbox(
    cx: &Cx<Server, Visitor>,
    place: &Place,
    from: usize,
    report: Option<Offset>,
    closed: &[Offset],
) -> Result<Reply, ApiError> {
    let title = report.map_or_else(|| "Reports".to_owned(), |id| format!("Report {id}"));
    show(cx, (&title, "reports"), |app| {
        let of_report = report.map(|id| detail::shown(app, place, id)).transpose()?;
        Ok(html! {
            (tabs(false))
            @for id in closed.iter().take(NAMED) { (decided::closed(app, *id)?) }
            @if closed.len() > NAMED {
                p.good {
                    "And " (closed.len() - NAMED) " more: see "
                    a href={ (REPORTS) "/decided" } { "what was decided" } "."
                }
            }
            div.inbox.chosen[of_report.is_some()] id="inbox" {
                section.list aria-label="Open reports" {
                    (lines::pane(app, place, from, report)?)
                }
                @if let Some(of_report) = of_report {
                    section.report aria-label=(title) {
                        p.back { a href=(place.address()) { "All open reports" } }
                        (of_report)
                    }
                }
            }
            (keys())
        })
    })
    .await
}

/// What the keyboard does. The script shows it, for it is what listens.
fn keys() -> Markup {
    html! {
        details id="keys" hidden {
            summary { "Keyboard" }
            label {
                input type="checkbox" checked; " Single letters do something on this page"
            }
            dl.record {
                @for (key, what) in lines::KEYS { dt { kbd { (key) } } dd { (what) } }
                @for button in &buttons::BUTTONS {
                    dt { kbd { (button.key) } } dd { (button.title) }
                }
            }
        }
    }
}
