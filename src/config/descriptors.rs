//! How many file descriptors a configuration needs.

use super::Config;
use logcabin_base::limits;

impl Config {
    /// Whether other homeservers have listeners, and so connections, of their own.
    pub fn has_federation_listeners(&self) -> bool {
        self.federation.enabled && !self.federation.bind.is_empty()
    }

    /// The descriptors that the server needs besides connections and what is kept for their
    /// requests.
    pub fn own_descriptors(&self) -> u64 {
        let mut listeners = self.server.bind.len() + usize::from(self.metrics.bind.is_some());
        if self.federation.enabled {
            listeners += self.federation.bind.len();
        }
        if self.has_tls() {
            listeners += self.tls.bind.len() + self.tls.redirect_bind.len();
        }
        limits::DESCRIPTORS_OWN + listeners as u64
    }

    /// The descriptors that the server needs with as many connections as it accepts.
    pub fn needed_descriptors(&self) -> u64 {
        let shares = if self.has_federation_listeners() { 2 } else { 1 };
        let connections = (self.http.max_connections as u64).saturating_mul(shares);
        connections.saturating_add(self.own_descriptors() + limits::DESCRIPTORS_KEPT.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::List;

    #[test]
    fn every_listener_and_its_connections_count() {
        let mut config = Config::default();
        config.federation.enabled = false;
        config.http.max_connections = 1000;
        let base = config.needed_descriptors();
        assert_eq!(base, 1000 + limits::DESCRIPTORS_OWN + 1 + limits::DESCRIPTORS_KEPT.1);
        config.acme.enabled = true;
        let redirect = "0.0.0.0:80".parse().unwrap();
        config.tls.redirect_bind.0.push(redirect);
        assert_eq!(config.needed_descriptors(), base + 2);
        config.federation.enabled = true;
        config.federation.bind = List::default();
        assert_eq!(config.needed_descriptors(), base + 2, "at the addresses for clients");
        config.federation.bind = Config::default().federation.bind;
        let bound = config.federation.bind.len() as u64;
        assert_eq!(config.needed_descriptors(), base + 2 + 1000 + bound);
    }
}
