//! Whom long work and requests to other homeservers are counted against.

use std::net::IpAddr;

use ruma::OwnedUserId;

use crate::outside::federation::Site;

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Requester {
    User(OwnedUserId),
    Address(IpAddr),
    Site(Site),
}
