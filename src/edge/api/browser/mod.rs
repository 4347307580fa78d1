//! Pages for browsers: their frame, and the login page.

mod login_page;
pub(crate) mod page;

use http::{HeaderMap, HeaderName, header::COOKIE};

use super::server::Server;
use crate::http::{Table, cheap};

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table.on(login_page::page, cheap())
}

/// Whether a page of another site made a request, as the browser says (Fetch Metadata); `None` if
/// it does not say.
pub(crate) fn is_from_elsewhere(headers: &HeaderMap) -> Option<bool> {
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    headers.get(SITE).map(|site| site != "same-origin" && site != "none")
}

/// The cookies with this name.
pub(super) fn cookies<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(';')).filter_map(move |pair| {
        let (key, value) = pair.trim().split_once('=')?;
        (key == name).then_some(value)
    })
}
