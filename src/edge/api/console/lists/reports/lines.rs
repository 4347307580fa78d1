//! The list of the inbox: a line for each message, user or room that is reported.

use maud::{Markup, html};

use super::{buttons::BUTTONS, detail, place::Place};
use crate::{
    api::{
        console::{lists::pages, parts::short},
        server::Server,
    },
    http::ApiError,
};
use logcabin_base::limits;
use logcabin_ops::{
    admin::reports::{ReportGroup, inbox, of_same_line},
    history::terminal::duration,
};
use logcabin_record::Offset;

/// What the keyboard does in the list.
pub(super) const KEYS: [(&str, &str); 5] = [
    ("j, ↓", "The next line (the arrows while the list has the focus)"),
    ("k, ↑", "The line before"),
    ("Enter", "Opens it"),
    ("x", "Ticks it"),
    ("?", "Shows this list"),
];

const KINDS: [(&str, &str); 4] =
    [("", "All"), ("messages", "Messages"), ("users", "Users"), ("rooms", "Rooms")];

const ORDERS: [(&str, &str); 2] = [("", "Newest first"), ("oldest", "Oldest first")];

pub(super) fn pane(
    app: &Server,
    place: &Place,
    from: usize,
    report: Option<Offset>,
) -> Result<Markup, ApiError> {
    let (found, total) = inbox(&app.context, place.inbox(), from, limits::CONSOLE_ROWS)?;
    let now_ms = app.engine.clock().now_ms();
    let chosen = report.map(|id| of_same_line(&app.context, id)).unwrap_or_default();
    let lines = found.iter().map(|group| {
        let is_chosen = chosen.contains(&group.newest.id);
        line(app, place, group, is_chosen, now_ms)
    });
    let lines = lines.collect::<Result<Vec<_>, _>>()?;
    Ok(html! {
        (filters(place))
        @if lines.is_empty() { p.note { "There are no open reports." } } @else {
            form method="post" action="/_logcabin/console/reports/decide" {
                (place.hidden())
                ol.lines { @for line in &lines { (line) } }
                p.bulk {
                    span { "Those that are ticked:" }
                    @for button in BUTTONS.iter().filter(|button| button.is_for_several) {
                        button.second name="decision" value=(button.name) { (button.title) }
                    }
                }
            }
        }
        (pages(&[("of", &place.of), ("order", &place.order)], from, lines.len(), total))
    })
}

/// Links that each change one thing about the list.
fn filters(place: &Place) -> Markup {
    let given = |value: &str| (!value.is_empty()).then(|| value.to_owned());
    let link = |title: &str, to: &Place| {
        let is_now = to.of == place.of && to.order == place.order;
        html! { a href=(to.address()) aria-current=[is_now.then_some("true")] { (title) } }
    };
    html! {
        nav.tabs.small aria-label="Which reports" {
            @for (of, title) in KINDS {
                (link(title, &Place { of: given(of), order: place.order.clone() }))
            }
        }
        nav.tabs.small aria-label="Order" {
            @for (order, title) in ORDERS {
                (link(title, &Place { of: place.of.clone(), order: given(order) }))
            }
        }
    }
}

fn line(
    app: &Server,
    place: &Place,
    group: &ReportGroup,
    is_chosen: bool,
    now_ms: u64,
) -> Result<Markup, ApiError> {
    let ReportGroup { newest, count, words } = group;
    let excerpt = detail::excerpt(app, newest)?;
    let room = newest.room_id.as_ref().map(|id| newest.name.as_deref().unwrap_or(id.as_str()));
    let who = newest.about().map(|user_id| user_id.as_str());
    let is_room = who.is_none() && newest.event_id.is_none();
    let title = if is_room { room } else { who };
    let ago = duration(now_ms.saturating_sub(newest.received_ts) / 1000);
    let words: Vec<_> = words.iter().filter(|words| !words.trim().is_empty()).collect();
    Ok(html! {
        li {
            input type="checkbox" name="reports" value=(newest.id)
                aria-label={ "Choose report " (newest.id) };
            a href={ (place.address()) "report=" (newest.id) }
                aria-current=[is_chosen.then_some("true")] {
                span.top {
                    strong { bdi { (short(title.unwrap_or("a message that is gone"))) } }
                    @if *count > 1 { " " span.count { (count) span.hidden { " reports" } } }
                }
                span.where {
                    @if let Some(room) = room.filter(|_| !is_room) {
                        "in " bdi { (short(room)) } ", "
                    }
                    (ago) " ago"
                }
                @if let Some(excerpt) = excerpt { span.excerpt { bdi { (short(&excerpt)) } } }
                @for words in &words { span.words { "“" bdi { (short(words)) } "”" } }
                @if words.is_empty() { span.words { "no reason given" } }
            }
        }
    })
}
