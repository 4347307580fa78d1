//! The frame that all pages of the console share: where one is, and where one can go.

use maud::{Markup, html};
use ruma::UserId;

use crate::api::{browser::page::Page, server::Server};

const SCRIPT: &str = include_str!("console.js");
const STYLE: &str = include_str!("console.css");
pub(super) const HOME: &str = "/_logcabin/console";

/// A group of pages: its title, and each page's name, path and title.
type Group = (&'static str, &'static [(&'static str, &'static str, &'static str)]);

/// The navigation. A group leads to its first page.
const GROUPS: [Group; 6] = [
    ("Home", &[("now", "", "Home")]),
    (
        "People",
        &[
            ("users", "/users", "Users"),
            ("tokens", "/tokens", "Registration tokens"),
            ("activity", "/activity", "Activity"),
        ],
    ),
    ("Rooms", &[("rooms", "/rooms", "Rooms"), ("media", "/media", "Media")]),
    (
        "Safety",
        &[
            ("reports", "/reports", "Reports"),
            ("policies", "/policies", "Policy lists"),
            ("waiting", "/waiting", "Waiting registrations"),
            ("erasures", "/erasures", "Erasures"),
            ("acts", "/act", "All acts"),
        ],
    ),
    (
        "History",
        &[
            ("log", "/log", "Log"),
            ("timeline", "/timeline", "Time line"),
            ("past", "/past", "Time travel"),
            ("proofs", "/proofs", "Proofs"),
        ],
    ),
    (
        "System",
        &[
            ("health", "/health", "Health"),
            ("federation", "/federation", "Federation"),
            ("work", "/work", "Work"),
            ("disk", "/disk", "Disk"),
            ("backups", "/backups", "Backups"),
            ("snapshots", "/snapshots", "Snapshots"),
            ("cluster", "/cluster", "Cluster"),
        ],
    ),
];

/// The paths and titles of the pages that are called so.
pub(super) fn pages_named(wanted: &str) -> Vec<(&'static str, &'static str)> {
    let wanted = wanted.to_lowercase();
    let all = GROUPS.iter().flat_map(|(_, pages)| *pages);
    let named = all.filter(|(.., title)| title.to_lowercase().contains(&wanted));
    named.map(|(_, path, title)| (*path, *title)).collect()
}

/// A page for this user: the one of this name in the navigation, or one below it.
pub(super) fn page(
    app: &Server,
    user_id: &UserId,
    (title, name): (&str, &str),
    body: Markup,
) -> Page {
    let server = app.config.server.name.as_str();
    let (reports, waiting) = {
        let state = app.engine.state();
        (state.reports.len(), state.accounts.waiting_count())
    };
    let group = GROUPS.iter().find(|(_, pages)| pages.iter().any(|(of, ..)| *of == name));
    let above = group.and_then(|(_, pages)| pages.iter().find(|(of, ..)| *of == name));
    let above = above.filter(|(.., page)| *page != title);
    // Only a page itself is the current page; what it is in is current, too.
    let current = |is: bool, is_exact: bool| is.then_some(if is_exact { "page" } else { "true" });
    let header = html! {
        a.skip href="#main" { "Skip to the content" }
        header {
            a.brand href=(HOME) { bdi { (server) } }
            button.second.menu type="button" popovertarget="pages" { "Menu" }
            nav #pages popover aria-label="Pages" {
                @for of in &GROUPS {
                    @let (group_title, pages) = of;
                    @let (first, path, _) = pages[0];
                    @let is_exact = above.is_none() && first == name;
                    @let mark = current(group == Some(of), is_exact);
                    a href={ (HOME) (path) } aria-current=[mark] {
                        (group_title)
                        @if *group_title == "Safety" { (count(reports + waiting)) }
                    }
                }
            }
            form.find role="search" aria-label="The whole server" method="get" action={ (HOME) "/find" } {
                input type="search" name="q" required placeholder="Find anything"
                    aria-label="Find a user, room, event, record, file, device or IP address"
                    autocapitalize="none" spellcheck="false";
            }
            form method="post" action={ (HOME) "/logout" } {
                span.who { bdi { (user_id) } }
                button.second type="submit" { "Log out" }
            }
        }
        @if let Some((group_title, pages)) = group.filter(|(_, pages)| pages.len() > 1) {
            nav.group aria-label=(group_title) {
                @for (page, path, page_title) in *pages {
                    @let mark = current(*page == name, above.is_none());
                    a href={ (HOME) (path) } aria-current=[mark] {
                        (page_title)
                        @match *page {
                            "reports" => { (count(reports)) }
                            "waiting" => { (count(waiting)) }
                            _ => {}
                        }
                    }
                }
            }
        }
        @if let Some((_, path, page_title)) = above {
            nav.above aria-label="Breadcrumb" {
                a href={ (HOME) (path) } { (page_title) } " › " span { bdi { (title) } }
            }
        }
    };
    let now_ms = app.engine.clock().now_ms();
    let body = html! {
        (body)
        p.note #zone data-now=(now_ms) { "Times are in UTC." }
    };
    Page::new(title, body).of_site(server).framed(STYLE, header).script(SCRIPT)
}

/// How many open reports or waiting registrations there are, if there are any.
fn count(open: usize) -> Markup {
    html! {
        @if open > 0 { " " span.count { (open) span.hidden { " open" } } }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_page_is_in_one_group() {
        let pages: Vec<_> = GROUPS.iter().flat_map(|(_, pages)| *pages).collect();
        let names: BTreeSet<_> = pages.iter().map(|(name, ..)| name).collect();
        assert_eq!(names.len(), pages.len());
        assert!(GROUPS.iter().all(|(_, pages)| !pages.is_empty()));
    }
}
