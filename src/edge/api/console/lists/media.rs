//! Uploaded files as a grid, the newest first.

use maud::{Markup, html};
use ruma::UserId;

use super::{
    choice,
    tiles::{FILES, Files, Only, Wanted},
};
use crate::{
    api::{
        console::{
            parts::{self, field, query},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};

endpoint! {
    pub(in super::super) struct MediaList = GET "/_logcabin/console/media";
    for ConsoleLogin;
    {
        user: Option<String> = parameter,
        name: Option<String> = parameter,
        only: Option<String> = parameter,
        before: Option<String> = parameter,
    }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: MediaList,
) -> Result<Reply, ApiError> {
    let MediaList { user, name, only, before } = &request;
    let start = parts::before(before)?;
    show(&cx, ("Media", "media"), |app| {
        let there = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let of = there(user);
        let of = of.as_deref().map(|user| <&UserId>::try_from(user.trim())).transpose();
        let of = of.map_err(|_| ApiError::invalid_param("`user` is the id of a user."))?;
        let kind = Only::NAMES.iter().find(|(name, ..)| Some(*name) == only.as_deref());
        let kind = kind.map(|(.., only)| *only).unwrap_or_default();
        let wanted = Wanted { user_id: of, name: there(name), only: kind };
        let files = Files::newest(app, &wanted, start, FILES)?;
        let choices = Only::NAMES.map(|(name, words, _)| (name, words));
        Ok(html! {
            form.filters method="get" role="search" {
                (field("user", "User", user, "@user:server"))
                (field("name", "Name", name, "part of a name or id"))
                (choice("only", "Only", only, &choices))
                button type="submit" { "Search" }
            }
            (grid(app, &files))
            @if files.left.is_some() || before.is_some() {
                p.pages {
                    @let given = query(&[("user", user), ("name", name), ("only", only)]);
                    @if before.is_some() { a href={ "?" (given) } { "Newest files" } }
                    @if let Some(left) = files.left {
                        a href={ "?" (given) "before=" (left) } { "Older files" }
                    }
                }
            }
        })
    })
    .await
}

/// The buttons lead to the forms of the acts, with the files filled in that are ticked.
fn grid(app: &Server, files: &Files) -> Markup {
    let act = |name: &str| format!("/_logcabin/console/act/{name}");
    html! {
        @if files.is_empty() {
            p.note {
                @if files.left.is_some() { "None of these files. There may be older ones." }
                @else { "No file has been uploaded." }
            }
        } @else {
            form.choose method="get" {
                (files.tiles(app, true))
                div.several {
                    p.note data-chosen { "Those that are ticked:" }
                    button type="submit" name="quarantined" value="yes"
                        formaction=(act("quarantine-media")) { "Quarantine" }
                    button.second type="submit" name="quarantined" value="no"
                        formaction=(act("quarantine-media")) { "Release" }
                    button.second type="submit" formaction=(act("delete-media")) { "Delete" }
                }
                p.note { "Nothing happens before you confirm." }
            }
        }
    }
}
