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
pub(crate) mod browser;
mod claims;
mod clients;
mod device;
pub(crate) mod discovery;
mod look;
mod message;
pub(super) mod own;
mod parameters;
mod problem;
mod recover;
mod revoke;
pub(crate) mod session;
mod sign_in;
pub(crate) mod sign_up;
mod token;

pub(crate) use addresses::{account_url, issuer};
pub(super) use sign_in::{arrived, choose_way};

use super::server::Server;
use crate::{
    config::Config,
    edge::http::{ApiError, Class, ErrorCode, Table, cheap, limited},
};

/// The endpoints.
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
        .on(sign_in::submit, limited(Class::Login))
        .on(sign_in::by_sso, limited(Class::Other))
        .on(sign_in::go_on, limited(Class::Other))
        .on(sign_in::confirm, limited(Class::Login))
        .on(sign_up::page, limited(Class::Registration))
        .on(sign_up::submit, limited(Class::Registration))
        .on(recover::page, limited(Class::Other))
        .on(recover::submit, limited(Class::Login))
        .on(account::page, limited(Class::Other))
        .on(account::submit, limited(Class::Account))
}

/// Whether clients can use OAuth 2.0: it is not turned off, and the server knows by which address
/// browsers reach it.
pub(crate) fn is_offered(config: &Config) -> bool {
    config.oauth.enabled && config.announced_url().is_some()
}

/// Refuses requests where OAuth 2.0 is not offered.
fn must_be_offered(app: &Server) -> Result<(), ApiError> {
    if is_offered(&app.config) {
        return Ok(());
    }
    let text = "This server does not offer OAuth 2.0.";
    Err(ApiError::new(ErrorCode::Unrecognized, text))
}
