//! Listening sockets that a service manager opened for the server: systemd's socket activation
//! (sd_listen_fds(3)).

use std::{
    env,
    net::{SocketAddr, TcpListener},
};

use listenfd::ListenFd;
use parking_lot::Mutex;
use tracing::warn;

use super::{ServerError, open};
use logcabin_base::net;
use logcabin_config::Bind;
use logcabin_edge::http::listen::Listener;

/// The names of sockets, in `FileDescriptorName=` of their units.
pub(super) const CLIENT: &str = "client";
pub(super) const HTTPS: &str = "https";
pub(super) const REDIRECT: &str = "redirect";
pub(super) const FEDERATION: &str = "federation";
const NAMES: [&str; 4] = [CLIENT, HTTPS, REDIRECT, FEDERATION];

/// The sockets that nothing listens on yet, with their names. A process inherits them once.
static WAITING: Mutex<Vec<(String, TcpListener)>> = Mutex::new(Vec::new());

/// Takes over the sockets that this process inherited, so that [`crate::run`] serves on them in
/// place of the configured addresses. Must be called while the process has one thread, because it
/// changes the environment.
///
/// # Errors
/// A socket is not a TCP socket, or its name is unknown.
pub fn inherit_sockets() -> Result<(), ServerError> {
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut passed = ListenFd::from_env();
    for index in 0..passed.len() {
        // Without names, as from tools other than systemd, there is only the one for clients.
        let name = names.next().filter(|name| !name.is_empty()).unwrap_or(CLIENT);
        if !NAMES.contains(&name) {
            return Err(ServerError::Inherited(format!(
                "a socket is named `{name}`; set FileDescriptorName= of its unit to one of {}",
                NAMES.map(|name| format!("`{name}`")).join(", ")
            )));
        }
        let listener = passed.take_tcp_listener(index);
        let listener = listener.map_err(|error| {
            ServerError::Inherited(format!("the socket `{name}` cannot be used: {error}"))
        })?;
        WAITING.lock().extend(listener.map(|listener| (name.to_owned(), listener)));
    }
    Ok(())
}

/// Listens on the inherited sockets of this name or, if there are none, where the setting says.
/// Replaces the addresses by the actual ones.
pub(super) async fn listen(
    name: &str,
    setting: &'static str,
    addresses: &mut Vec<Bind>,
) -> Result<Vec<Listener>, ServerError> {
    let ours: Vec<_> = WAITING.lock().extract_if(.., |(of, _)| of == name).collect();
    if ours.is_empty() {
        return open::listen(setting, addresses).await;
    }
    let unusable = |error| ServerError::Inherited(format!("the socket `{name}`: {error}"));
    let mut listeners = Vec::new();
    addresses.clear();
    for (_, listener) in ours {
        listener.set_nonblocking(true).map_err(unusable)?;
        addresses.push(Bind::Tcp(listener.local_addr().map_err(unusable)?));
        listeners.push(net::from_std(listener).map_err(unusable)?.into());
    }
    Ok(listeners)
}

/// The same of addresses alone.
pub(super) async fn listen_at(
    name: &str,
    setting: &'static str,
    addresses: &mut Vec<SocketAddr>,
) -> Result<Vec<Listener>, ServerError> {
    let mut binds = addresses.iter().copied().map(Bind::Tcp).collect();
    let listeners = listen(name, setting, &mut binds).await?;
    *addresses = binds.iter().filter_map(Bind::address).collect();
    Ok(listeners)
}

/// Closes the sockets that the configuration has no use for, and says so.
pub(super) fn close_unused() {
    for (name, _) in WAITING.lock().drain(..) {
        warn!(name, "a socket of the service manager is not used: what it is for is off");
    }
}
