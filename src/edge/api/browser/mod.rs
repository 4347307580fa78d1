//! Pages for browsers: their frame, and the login page.

pub(crate) mod login_page;
pub(crate) mod page;

use super::Server;
use crate::edge::http::{Table, cheap};

/// The endpoints.
pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table.on(login_page::page, cheap())
}
