//! File descriptors: the limit is raised at the start, and connections get what others leave.

use tracing::{info, warn};

use logcabin_base::descriptors;
use logcabin_config::Config;

/// How many connections the file descriptors allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    /// At the listeners for clients.
    pub(super) clients: usize,
    /// At those for other homeservers.
    pub(super) servers: usize,
}

impl Places {
    /// The settings of listeners for clients that accept as many connections.
    pub(super) fn within(self, config: &Config) -> Config {
        let mut config = config.clone();
        config.http.max_connections = self.clients;
        config
    }
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
            needed = config.needed_descriptors(),
            max_connections = places.clients,
            "the limit on file descriptors is too low for http.max_connections, so fewer \
             connections are accepted: raise it (LimitNOFILE, ulimit -Hn), or lower the setting"
        );
    }
    places
}

fn places(limit: u64, config: &Config) -> Places {
    let wanted = config.http.max_connections;
    let left = limit.saturating_sub(config.own_descriptors() + descriptors::kept(limit));
    let left = usize::try_from(left).unwrap_or(usize::MAX);
    let for_servers = match config.has_federation_listeners() {
        // Clients are many; other homeservers ask again, and have what clients leave.
        true => (left / 4).max(left.saturating_sub(wanted)),
        false => 0,
    };
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
        let needed = config.needed_descriptors();
        assert_eq!(places(needed, &config), Places { clients: wanted, servers: wanted });
    }
}
