//! Other homeservers: Synapse, and ones that do what they must not.

mod addresses;
mod authority;
mod devices;
mod elsewhere;
mod encryption;
mod ephemeral;
mod flood;
mod full_disk;
mod gap_places;
mod hostile;
mod hostile_past;
mod media;
mod operators;
mod outages;
mod partition;
mod past;
mod peer;
mod policy;
mod past_rules;
mod requests;
mod rooms;
mod rules;
mod synapse;
mod to_device;
mod view;
mod with_synapse;

use std::net::SocketAddr;

use self::authority::Authority;
use crate::harness::{TestServer, free_address};

/// A server that federates on this machine, by TLS.
struct Federated {
    server: TestServer,
    /// Its name.
    name: String,
    /// Where other homeservers reach it.
    address: SocketAddr,
}

impl Federated {
    async fn start(authority: &Authority) -> Self {
        Self::start_with(authority, &[]).await
    }

    async fn start_with(authority: &Authority, settings: &[(&str, &str)]) -> Self {
        let address = free_address();
        let name = format!("localhost:{}", address.port());
        let (key, certificate) = authority.certify(&format!("cabin{}", address.port()));
        let path = |path: std::path::PathBuf| path.display().to_string();
        let (key, certificate, ca) = (path(key), path(certificate), path(authority.certificate()));
        let bind = address.to_string();
        let mut all = vec![
            ("LOGCABIN_SERVER_NAME", &*name),
            ("LOGCABIN_FEDERATION_ENABLED", "true"),
            ("LOGCABIN_FEDERATION_BIND", &bind),
            ("LOGCABIN_FEDERATION_CERTIFICATE", &certificate),
            ("LOGCABIN_FEDERATION_CERTIFICATE_KEY", &key),
            ("LOGCABIN_FEDERATION_CA", &ca),
            ("LOGCABIN_FEDERATION_ALLOWED_NETWORKS", "127.0.0.0/8,::1"),
        ];
        // The last one counts.
        all.extend(settings);
        let server = TestServer::start_with(&all).await;
        Self { server, name, address }
    }
}

/// An authority, or what is missing.
fn authority(test: &str) -> Option<Authority> {
    Authority::new().map_err(|missing| crate::harness::skip(test, &missing)).ok()
}
