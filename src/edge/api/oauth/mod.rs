//! OAuth 2.0 (client-server API, "OAuth 2.0 API"): users log in on this server's own pages and
//! allow clients what they ask for; clients get tokens for it.
//!
//! Nothing of a login is in the memory of a process: a request is in the address of the page until
//! the user has answered it, and the answer is in the log. So any node of a cluster can go on, and
//! a server that is killed in between has lost nothing that somebody was told of. The stages of a
//! registration are the exception: see [`uiaa`](super::auth::uiaa).

mod account;
mod addresses;
mod authorize;
mod availability;
pub(super) mod browser;
mod claims;
mod clients;
pub(super) mod console_client;
mod device;
mod discovery;
mod message;
mod page_parts;
mod parameters;
mod problem;
mod recover;
mod revoke;
mod sign_in;
mod sign_up;
mod token;

pub(super) use sign_in::{arrived, choose_way};

use super::server::Server;
use crate::http::{Class, Table, cheap, limited};
use logcabin_config::HookPoint;

pub(super) fn endpoints(table: Table<Server>) -> Table<Server> {
    table
        .on(discovery::auth_metadata, cheap())
        .on(discovery::auth_issuer, cheap())
        .on(discovery::openid_configuration, cheap())
        .on(claims::keys, limited(Class::Other))
        .on(claims::userinfo, limited(Class::Other))
        .on(claims::post_userinfo, limited(Class::Refresh))
        .on(clients::register, limited(Class::Clients))
        .on(authorize::page, limited(Class::Other))
        .on(authorize::answer, limited(Class::Account))
        .on(token::token, limited(Class::Refresh))
        .on(revoke::revoke, limited(Class::Refresh))
        .on(device::request, limited(Class::Clients))
        .on(device::page, limited(Class::Login))
        .on(device::answer, limited(Class::Login))
        .on(sign_in::page, limited(Class::Other))
        .on(sign_in::submit, limited(Class::Login).screened(HookPoint::Login))
        .on(sign_in::by_sso, limited(Class::Other))
        .on(sign_in::go_on, limited(Class::Other))
        .on(sign_in::confirm, limited(Class::Login))
        .on(sign_up::page, limited(Class::Registration))
        .on(sign_up::submit, limited(Class::Registration).screened(HookPoint::Registration))
        .on(recover::page, limited(Class::Other))
        .on(recover::submit, limited(Class::Login))
        .on(account::page, limited(Class::Other))
        .on(account::submit, limited(Class::Account))
}
