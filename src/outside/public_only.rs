//! What the users of this server may have it connect to: the public internet, never this machine or
//! its network.

use std::{net::IpAddr, sync::Arc};

use thiserror::Error;

use crate::proxy::{Destination, Proxy};
use logcabin_base::network::{Range, contains, is_private_name, is_public};

/// The address belongs to this machine or to a private network.
#[derive(Clone, Copy, Debug, Error)]
#[error("the address is not one of the public internet")]
pub struct NotPublic;

/// Which addresses may be connected to: those of the public internet.
#[derive(Clone, Debug)]
pub(crate) struct PublicOnly {
    /// Ranges that are allowed in addition.
    pub(crate) allowed: Arc<[Range]>,
}

impl PublicOnly {
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        is_public(address) || contains(&self.allowed, address)
    }

    /// Checks a host, given without brackets, if it is an address. The addresses of a name are
    /// checked when it is resolved.
    ///
    /// # Errors
    /// When the address may not be connected to.
    pub(crate) fn check(&self, host: &str) -> Result<(), NotPublic> {
        match host.parse() {
            Ok(address) if !self.allows(address) => Err(NotPublic),
            _ => Ok(()),
        }
    }
}

/// Why a proxy is not asked for a host.
#[derive(Debug, Error)]
pub(crate) enum NameError {
    #[error("the name is not one of the public internet")]
    NotPublic(#[source] NotPublic),
    #[error("`{0}` is not the name of a host")]
    NoName(Box<str>),
}

/// What a proxy that resolves names is asked for to reach a host, given without brackets; `None` if
/// this server resolves it. With `public`, names that only a private network has are refused, as
/// nobody can check the address that the proxy finds.
///
/// # Errors
/// When the proxy must not be asked.
pub(crate) fn left_to_proxy(
    proxy: &Proxy,
    host: &str,
    port: u16,
    public: Option<&PublicOnly>,
) -> Result<Option<Destination>, NameError> {
    if !proxy.resolves(host) {
        return Ok(None);
    }
    if public.is_some() && is_private_name(host) {
        return Err(NameError::NotPublic(NotPublic));
    }
    let to = Destination::name(host, port);
    to.map(Some).ok_or_else(|| NameError::NoName(host.into()))
}
