//! Single sign-on.

mod login;

use super::server::Server;
use crate::http::{Class, Table, cheap, limited};

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(login::redirect, limited(Class::Other))
        .on(login::come_back, limited(Class::Other))
        .on(login::choose_account, limited(Class::Login))
        .on(login::fallback, cheap())
        .on(login::link, limited(Class::Login).suspended())
}
