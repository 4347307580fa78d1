//! File descriptors: the limit is raised at the start, and connections get what others leave.

use tracing::{info, warn};

use logcabin_base::{descriptors, limits};
use logcabin_config::Config;

/// How many connections the file descriptors allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// At the listeners for clients.
    pub(super) clients: usize,
    /// At those for other homeservers.
    pub(super) servers: usize,
}

/// Raises the limit of the process, and shares it out. Warns if it is lower than the settings need.
pub(super) fn share(config: &Config) -> Places {
    let (limit, raised) = descriptors::raise();
    if let Err(error) = raised {
        info!(%error, limit, "the limit on file descriptors cannot be raised");
    }
    let places = places(limit, config);
    let wanted = config.http.max_connections;
    if places.clients < wanted {
        warn!(
            limit,
            needed = needed(config),
            max_connections = places.clients,
            "the limit on file descriptors is too low for http.max_connections, so fewer \
             connections are accepted: raise it (LimitNOFILE, ulimit -Hn), or lower the setting"
        );
    }
    places
}

/// What the server needs besides connections and what is kept for their requests.
fn own(config: &Config) -> u64 {
    let listeners = config.server.bind.len() + config.federation.bind.len();
    limits::DESCRIPTORS_OWN + listeners as u64 + u64::from(config.metrics.bind.is_some())
}

/// What the settings need in all.
fn needed(config: &Config) -> u64 {
    let listeners = if has_second(config) { 2 } else { 1 };
    config.http.max_connections as u64 * listeners + own(config) + limits::DESCRIPTORS_KEPT.1
}

/// Whether other homeservers have listeners, and connections, of their own.
fn has_second(config: &Config) -> bool {
    config.federation.enabled && !config.federation.bind.is_empty()
}

fn places(limit: u64, config: &Config) -> Places {
    let wanted = config.http.max_connections;
    let left = limit.saturating_sub(own(config) + descriptors::kept(limit));
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    // Clients are many; other homeservers ask again.
    let for_servers = if has_second(config) { left / 4 } else { 0 };
    let clients = left.saturating_sub(wanted.min(for_servers));
    Places { clients: wanted.min(clients).max(1), servers: wanted.min(for_servers).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_get_what_the_limit_leaves() {
        let mut config = Config::default();
        config.federation.enabled = false;
        let wanted = config.http.max_connections;
        assert_eq!(places(1 << 20, &config).clients, wanted);
        let few = places(256, &config).clients;
        assert!((100..=160).contains(&few), "{few}");
        assert_eq!(places(16, &config).clients, 1, "there is always one");
        config.federation.enabled = true;
        config.federation.bind = Config::default().federation.bind;
        let Places { clients, servers } = places(1024, &config);
        assert!(servers * 2 < clients && clients + servers < 1024 - 256, "{clients}, {servers}");
        assert_eq!(places(1 << 20, &config), Places { clients: wanted, servers: wanted });
        assert!(needed(&config) > 2 * wanted as u64);
    }
}
