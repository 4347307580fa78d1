//! Uploaded files, the newest first.

use maud::html;
use ruma::UserId;

use crate::{
    api::{
        console::{
            parts::{self, acts, at_second, field, query, table, text, user as user_link},
            visitor::{ConsoleLogin, Visitor, show},
        },
        server::Server,
    },
    http::{ApiError, Cx, Reply, endpoint},
};
use logcabin_base::limits;
use logcabin_ops::{
    admin::media::{MediaOf, list as describe},
    history::terminal::bytes,
};

endpoint! {
    pub(in super::super) struct MediaList = GET "/_logcabin/console/media";
    for ConsoleLogin;
    {
        user: Option<String> = parameter,
        before: Option<String> = parameter,
    }
}

pub(in super::super) async fn list(
    cx: Cx<Server, Visitor>,
    request: MediaList,
) -> Result<Reply, ApiError> {
    let MediaList { user, before } = &request;
    let before = parts::before(before)?;
    show(&cx, ("Media", "media"), |app| {
        let of = user.as_deref().map(<&UserId>::try_from).transpose();
        let of = of.map_err(|_| ApiError::invalid_param("`user` is the id of a user."))?;
        let most = limits::CONSOLE_ROWS;
        let found = app.engine.state().media.newest(before, most, of);
        let ids = found.iter().map(|(_, id)| id.to_string()).collect();
        let files = describe(&app.context, &MediaOf::Ids(ids))?.media;
        let rows: Vec<_> = files
            .iter()
            .map(|file| {
                let id = file.media_id.as_str();
                let is = match (&file.quarantined_by, file.safe_from_quarantine) {
                    (Some(by), _) => format!("in quarantine, by {by}"),
                    (None, true) => "exempt from quarantine".to_owned(),
                    (None, false) => String::new(),
                };
                let change = if file.quarantined_by.is_some() { "no" } else { "yes" };
                let given = [("of", id), ("media", id), ("quarantined", change)];
                vec![
                    text(id),
                    text(file.upload_name.as_deref().unwrap_or_default()),
                    text(file.media_type.as_deref().unwrap_or_default()),
                    html! { (bytes(file.media_length)) },
                    user_link(file.user_id.as_ref().map(|id| id.as_str()).unwrap_or_default()),
                    html! { (at_second(file.created_ts)) },
                    text(&is),
                    acts(&["quarantine-media", "protect-media", "delete-media"], &given),
                ]
            })
            .collect();
        let left = found.last().filter(|_| found.len() == most).map(|(offset, _)| *offset);
        let columns = ["File", "Name", "Type", "Size", "User", "Uploaded", "Status", "Acts"];
        Ok(html! {
            form.filters method="get" role="search" {
                (field("user", "User", user, "@user:server"))
                button type="submit" { "Search" }
            }
            (table(&columns, &rows, "No file has been uploaded."))
            @if let Some(left) = left {
                p.pages {
                    a href={ "?" (query(&[("user", user)])) "before=" (left) } { "Older files" }
                }
            }
        })
    })
    .await
}
