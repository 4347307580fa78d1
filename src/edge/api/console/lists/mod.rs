//! Lists of what administrators look after, page by page, and a page for each user and room. They
//! show what the acts of the command line show.

pub(super) mod media;
pub(super) mod reports;
pub(super) mod rooms;
pub(super) mod tokens;
pub(super) mod users;

use http::HeaderMap;
use maud::{Markup, html};

use super::{Visitor, parts::query, visitor};
use crate::edge::{
    api::{Server, server::Whose},
    http::{ApiError, Cx, Reply},
};

/// A page whose body is long work of the visitor's.
pub(super) async fn show(
    cx: &Cx<Server, ()>,
    headers: &HeaderMap,
    (title, name): (&str, &str),
    body: impl FnOnce(&Server) -> Result<Markup, ApiError>,
) -> Result<Reply, ApiError> {
    let visitor: Visitor = match visitor(cx, headers).await? {
        Ok(visitor) => visitor,
        Err(elsewhere) => return Ok(elsewhere),
    };
    let whose = Whose::User(visitor.session.user_id.clone());
    let body = cx.app.long_work.run(&whose, true, || body(&cx.app)).await;
    let body = body.map_err(|busy| ApiError::limit_exceeded(busy.retry_after))??;
    Ok(visitor.page(title, name, body).reply())
}

/// How many rows are passed over, as a page was asked for.
fn start(from: &Option<String>) -> Result<usize, ApiError> {
    let from = from.as_deref().map(str::parse).transpose();
    Ok(from.map_err(|_| ApiError::invalid_param("`from` is a number."))?.unwrap_or(0))
}

/// Links to the pages before and after.
fn pages(parts: &[(&str, &Option<String>)], from: usize, shown: usize, total: usize) -> Markup {
    let most = crate::base::limits::CONSOLE_ROWS;
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
