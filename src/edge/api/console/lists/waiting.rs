//! The registrations that wait for approval: who, since when, from where, and with which answer.

use maud::{Markup, html};

use super::{pages, start};
use crate::{
    api::{
        console::{
            acts::button,
            parts::{at_second, long, record, table, text, user},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::admin::users::{WaitingUser, waiting};

endpoint! {
    pub(in super::super) struct WaitingList = GET "/_logcabin/console/waiting";
    for ConsoleLogin;
    { from: Option<String> = parameter }
}

/// The buttons lead to what the acts would do for those who are ticked.
pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: WaitingList,
) -> Result<Reply, ApiError> {
    let from = start(&request.from)?;
    show(&cx, ("Waiting registrations", "waiting"), |app| {
        let (found, total) = waiting(&app.context, from, limits::CONSOLE_ROWS)?;
        let question = app.config.registration.question.as_deref();
        Ok(html! {
            @if let Some(question) = question {
                p { "They were asked: " q { bdi { (long(question)) } } }
            }
            @if found.len() > 1 {
                @let all: Vec<_> = found.iter().map(|one| one.user_id.as_str()).collect();
                @let all = all.join(" ");
                (button("Approve all that are shown", "approve-users", &[("users", &all)]))
            }
            form.choose method="post" {
                (rows(&found))
                @if !found.is_empty() {
                    p {
                        button type="submit" formaction="/_logcabin/console/act/approve-users" {
                            "Approve"
                        }
                        " "
                        button.second type="submit"
                            formaction="/_logcabin/console/act/refuse-users" { "Refuse" }
                    }
                    p.note { "Of those who are ticked. Nothing happens before you confirm." }
                }
            }
            (pages(&[], from, found.len(), total))
            p { a href="/_logcabin/console/log?kind=user.wait" { "All who waited" } }
        })
    })
    .await
}

fn rows(found: &[WaitingUser]) -> Markup {
    let rows: Vec<_> = found
        .iter()
        .map(|one| {
            let id = one.user_id.as_str();
            vec![
                html! {
                    input type="checkbox" name="users" value=(id) aria-label={ "Choose " (id) };
                },
                user(id),
                html! { (at_second(one.since_ms)) },
                text(one.address.as_deref().unwrap_or_default()),
                text(one.email.as_deref().unwrap_or_default()),
                html! { bdi { (long(one.answer.as_deref().unwrap_or_default())) } },
                record(one.record),
            ]
        })
        .collect();
    let columns = ["Choose", "User", "Since", "IP address", "E-mail", "Answer", "Record"];
    table(&columns, &rows, "Nobody waits for approval.")
}
