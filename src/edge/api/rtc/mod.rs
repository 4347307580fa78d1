//! Calls by way of a LiveKit server: who is let in. MSC4195 has a user's own homeserver asked
//! ([`tokens`]); clients of today ask the server whose LiveKit it is, and show it an OpenID token
//! ([`openid_tokens`]).
//!
//! Nothing is kept of what is given out: any node answers, also after a restart.

mod entry;
mod openid_tokens;
pub(in crate::api) mod tokens;

use super::server::Server;
use crate::http::{Class, Table, cheap, limited};

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    const HERE: &str = "its parts are names that are compared and hashed";
    table
        .on(tokens::get, limited(Class::Calls).guests())
        .on(openid_tokens::get, limited(Class::Calls).stays(HERE))
        .on(openid_tokens::get_of_device, limited(Class::Calls).stays(HERE))
        .on(openid_tokens::health, cheap())
}
