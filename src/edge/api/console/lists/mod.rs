//! Lists of what administrators look after, page by page, and a page for each user and room. They
//! show what the acts of the command line show.

pub(super) mod bans;
pub(super) mod media;
mod members;
pub(super) mod policies;
pub(super) mod reports;
pub(super) mod room;
pub(super) mod rooms;
mod said;
mod spaces;
mod tiles;
pub(super) mod tokens;
pub(super) mod user;
pub(super) mod users;
pub(super) mod waiting;
mod wording;

use maud::{Markup, html};

use super::parts::query;
use crate::http::ApiError;
use logcabin_base::limits;

/// What it is called that all is done about a spammer at once.
const CLEAN_UP: &str = "Ban everywhere and clean up";

/// What the form of that act is filled in with. An account that is closed, or not here, is not
/// active, and cannot be suspended.
fn clean_up(user: &str, is_active: bool, close_reports: bool) -> Vec<(&'static str, &str)> {
    let account = if is_active { "suspend" } else { "keep" };
    let yes = ["ban", "reject_invites", "redact", "quarantine"].map(|name| (name, "yes"));
    let mut given = vec![("user", user), ("account", account)];
    given.extend(yes);
    given.extend(close_reports.then_some(("close_reports", "yes")));
    given
}

/// How many rows are passed over, as a page was asked for.
pub(super) fn start(from: &Option<String>) -> Result<usize, ApiError> {
    let from = from.as_deref().map(str::parse).transpose();
    Ok(from.map_err(|_| ApiError::invalid_param("`from` is a number."))?.unwrap_or(0))
}

/// Links to the pages before and after.
pub(super) fn pages(
    parts: &[(&str, &Option<String>)],
    from: usize,
    shown: usize,
    total: usize,
) -> Markup {
    let most = limits::CONSOLE_ROWS;
    let query = query(parts);
    html! {
        p.pages {
            span { (total) " in all" }
            @if from > 0 {
                " " a href={ "?" (query) "from=" (from.saturating_sub(most)) } { "Back" }
            }
            @if from + shown < total {
                " " a href={ "?" (query) "from=" (from + shown) } { "Next" }
            }
        }
    }
}

/// A choice of the form that searches.
fn choice(name: &str, label: &str, given: &Option<String>, choices: &[(&str, &str)]) -> Markup {
    let given = given.as_deref().unwrap_or_default();
    html! {
        div {
            label for=(name) { (label) }
            select id=(name) name=(name) {
                @for (value, shown) in choices {
                    option value=(value) selected[*value == given] { (shown) }
                }
            }
        }
    }
}
