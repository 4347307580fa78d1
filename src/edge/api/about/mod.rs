//! Information about the server: versions, addresses, capabilities, calls.

pub(crate) mod capabilities;
pub(crate) mod discovery;
pub mod health;
pub(crate) mod voip;

use super::server::Server;
use crate::http::{Class, Table, cheap, limited};

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    health::endpoints(table)
        .on(discovery::versions, cheap().guests())
        .on(discovery::well_known, cheap())
        .on(discovery::delegation, cheap())
        .on(discovery::support, cheap())
        .on(discovery::policy_server, cheap())
        .on(capabilities::get, limited(Class::Other))
        .on(voip::turn_server, limited(Class::Other))
        .on(voip::transports, limited(Class::Other))
}
