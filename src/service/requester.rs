//! Whom long work and requests to other homeservers are counted against.

use std::net::IpAddr;

use ruma::{OwnedServerName, OwnedUserId};

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    User(OwnedUserId),
    Address(IpAddr),
    Server(OwnedServerName),
}
