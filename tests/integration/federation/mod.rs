//! Other homeservers: Synapse, and ones that do what they must not.

mod addresses;
pub(crate) mod authority;
mod branches;
mod bursts;
mod calls;
mod chosen_ids;
mod console_tasks;
mod devices;
mod doctor;
mod elsewhere;
mod encryption;
mod endurance;
mod ephemeral;
mod flood;
mod full_disk;
mod gap_places;
mod hostile;
mod hostile_past;
mod imported;
mod media;
mod memory;
mod nodes;
mod odd_items;
mod operators;
mod outages;
mod partition;
mod past;
mod past_rules;
mod peer;
mod poison;
mod policy;
mod policy_lists;
mod postgresql;
mod proxied;
mod refusals;
mod requests;
mod rooms;
mod rules;
mod several;
mod shares;
mod specified;
mod synapse;
mod to_device;
mod unverified;
mod versions;
mod view;
mod wild;
mod with_synapse;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use self::authority::Authority;
use crate::harness::nodes::FEDERATION_BIND;
use crate::harness::{TestServer, free_address};

/// A server that federates on this machine, by TLS.
struct Federated {
    server: TestServer,
    name: String,
    /// Where other homeservers reach it.
    address: SocketAddr,
}

impl Federated {
    async fn start(authority: &Authority) -> Self {
        Self::start_with(authority, &[]).await
    }

    async fn start_with(authority: &Authority, settings: &[(&str, &str)]) -> Self {
        Self::launch(authority, settings, None).await
    }

    /// As [`Self::start_with`], on a data directory that the caller owns, if one is given.
    async fn launch(
        authority: &Authority,
        settings: &[(&str, &str)],
        data_dir: Option<&Path>,
    ) -> Self {
        let address = free_address();
        let own = federating(authority, address);
        let mut all: Vec<_> = own.iter().map(|(name, value)| (*name, &**value)).collect();
        let bind = address.to_string();
        all.push((FEDERATION_BIND, &bind));
        // The last one counts.
        all.extend(settings);
        let server = match data_dir {
            None => TestServer::start_with(&all).await,
            Some(data_dir) => TestServer::start_on_with(data_dir, &all).await,
        };
        Self { server, name: name_at(address), address }
    }
}

/// The name of a server that others reach at this address.
fn name_at(address: SocketAddr) -> String {
    format!("localhost:{}", address.port())
}

/// The settings of a server that others reach at this address, except for where it listens.
fn federating(authority: &Authority, address: SocketAddr) -> Vec<(&'static str, String)> {
    let (key, certificate) = authority.certify(&format!("cabin{}", address.port()));
    let path = |path: PathBuf| path.display().to_string();
    vec![
        ("LOGCABIN_SERVER_NAME", name_at(address)),
        ("LOGCABIN_FEDERATION_ENABLED", "true".to_owned()),
        ("LOGCABIN_FEDERATION_CERTIFICATE", path(certificate)),
        ("LOGCABIN_FEDERATION_CERTIFICATE_KEY", path(key)),
        ("LOGCABIN_FEDERATION_CA", path(authority.certificate())),
        ("LOGCABIN_FEDERATION_ALLOWED_NETWORKS", "127.0.0.0/8,::1".to_owned()),
    ]
}

/// An authority, or what is missing.
fn authority(test: &str) -> Option<Authority> {
    Authority::new().map_err(|missing| crate::harness::skip(test, &missing)).ok()
}
