//! Registration tokens.

use maud::html;

use super::{pages, start};
use crate::{
    api::{
        console::{
            parts::{acts, at_second, table, text},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::tokens;

endpoint! {
    pub(in super::super) struct TokenList = GET "/_logcabin/console/tokens";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: TokenList,
) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Registration tokens", "tokens"), |app| {
        let all = tokens::list(&app.context);
        let shown = all.iter().skip(from).take(limits::CONSOLE_ROWS);
        let rows: Vec<_> = shown
            .map(|token| {
                let allowed = token.uses_allowed.map(|uses| uses.to_string());
                vec![
                    text(&token.id),
                    text(token.label.as_deref().unwrap_or_default()),
                    html! { (token.uses) " of " (allowed.as_deref().unwrap_or("any number")) },
                    html! {
                        @match token.expires_ms { Some(ms) => (at_second(ms)), None => "never" }
                    },
                    html! { @if token.good { "good" } @else { "used up or expired" } },
                    acts(
                        &["update-registration-token", "delete-registration-token"],
                        &[("token", &token.id)],
                    ),
                ]
            })
            .collect();
        let columns = ["Token", "Label", "Accounts", "Expires", "Status", "Acts"];
        Ok(html! {
            (acts(&["create-registration-token"], &[]))
            (table(&columns, &rows, "There is none."))
            (pages(&[], from, rows.len(), all.len()))
        })
    })
    .await
}
