//! Application services: the users that they act for, queries to them, and third-party networks.

pub(crate) mod services;
pub(crate) mod thirdparty;

use super::server::Server;
use crate::http::{Class, Table, cheap, limited};

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(services::ping, limited(Class::Admin).body_optional())
        .on(thirdparty::protocols, cheap())
        .on(thirdparty::protocol, cheap())
        .on(thirdparty::locations, cheap())
        .on(thirdparty::users, cheap())
}
