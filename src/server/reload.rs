//! What a running server takes over when it is told to read its configuration again.

use std::sync::Arc;

use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{https::files_of, manager};
use logcabin_base::shutdown::Shutdown;
use logcabin_config::{Config, RateLimits};
use logcabin_edge::{
    api::Server,
    http::{Edge, tls::Certificate},
};

/// A configuration that was read again, or why that was not possible.
pub type Reread = Result<Box<Config>, String>;

/// Whoever has the other end asks for a reload by sending something.
pub type Reloads = mpsc::Receiver<Reread>;

/// All that changes with a reload.
pub(super) struct Reloadable {
    /// The configuration as it is in effect, as it was read.
    pub(super) config: Config,
    pub(super) app: Arc<Server>,
    pub(super) edge: Arc<Edge<Server>>,
    pub(super) for_servers: Option<Arc<Edge<Server>>>,
    /// The certificates of clients' listeners, and of those for other homeservers alone.
    pub(super) clients: Option<Arc<Certificate>>,
    pub(super) servers: Option<Arc<Certificate>>,
}

/// Reloads whenever it is asked for, until the shutdown.
pub(super) async fn follow(mut reloads: Reloads, mut all: Reloadable, shutdown: Shutdown) {
    loop {
        let reread = tokio::select! {
            reread = reloads.recv() => reread,
            () = shutdown.given() => return,
        };
        let Some(reread) = reread else { return };
        manager::reloading();
        all.reload(reread);
        manager::reloaded();
    }
}

impl Reloadable {
    fn reload(&mut self, reread: Reread) {
        let new = reread.and_then(|new| {
            let new = new.settled();
            new.check().map_err(|error| error.to_string())?;
            Ok(new)
        });
        let new = match new {
            Ok(new) => new,
            Err(error) => {
                warn!(error, "the configuration cannot be used; what was in effect stays");
                // Its files may have changed nevertheless.
                self.config.clone()
            }
        };
        self.reload_certificates(&new);
        if let Some(livekit) = &self.app.outside.livekit {
            livekit.reload();
        }
        let changes = self.config.changes(&new);
        let has_files = |name: &str| match name.split_once('.') {
            Some(("tls", _)) => self.clients.is_some() && new.tls.certificate.is_some(),
            Some(("federation", "certificate" | "certificate_key")) => {
                self.servers.is_some() && new.federation.certificate.is_some()
            }
            _ => true,
        };
        let (taken, left): (Vec<_>, Vec<_>) =
            changes.into_iter().partition(|change| change.takes_effect && has_files(&change.name));
        let names = |changes: Vec<logcabin_config::Change>| -> Vec<String> {
            changes.into_iter().map(|change| change.name).collect()
        };
        let (taken, left) = (names(taken), names(left));
        self.take(&new, &taken);
        let list = |names: &[String]| match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        info!(changed = list(&taken), "reloaded the configuration and the certificates");
        if !left.is_empty() {
            warn!(settings = list(&left), "these changed settings need a restart");
        }
    }

    /// Takes over these settings.
    fn take(&mut self, new: &Config, names: &[String]) {
        let now = &mut self.config;
        for name in names {
            match name.split_once('.') {
                Some(("registration", _)) => {
                    now.registration.open = new.registration.open;
                    now.registration.guests = new.registration.guests;
                    now.registration.approval = new.registration.approval;
                    self.app.registration.store(Arc::new(now.registration.clone()));
                }
                Some(("federation", "allow" | "deny")) => {
                    now.federation.allow = new.federation.allow.clone();
                    now.federation.deny = new.federation.deny.clone();
                    self.app.context.federation.store(Arc::new(now.federation.clone()));
                    if let Some(others) = &self.app.outside.federation {
                        others.client.set_lists(&now.federation);
                    }
                }
                Some(("federation", _)) => {
                    now.federation.certificate = new.federation.certificate.clone();
                    now.federation.certificate_key = new.federation.certificate_key.clone();
                }
                Some(("tls", _)) => {
                    now.tls.certificate = new.tls.certificate.clone();
                    now.tls.certificate_key = new.tls.certificate_key.clone();
                }
                // By whoever has the log.
                Some(("server", _)) => now.server.log_filter = new.server.log_filter.clone(),
                _ => {}
            }
        }
        if names.iter().any(|name| name.starts_with("rate_limits.")) {
            let before = &self.config.rate_limits;
            let rates = RateLimits {
                // These are used elsewhere, too.
                enabled: before.enabled,
                users: before.users.clone(),
                processor_percent: before.processor_percent,
                notices: before.notices,
                wrong_passwords_of_address: before.wrong_passwords_of_address,
                wrong_passwords_for_user: before.wrong_passwords_for_user,
                ..new.rate_limits.clone()
            };
            self.edge.set_rates(&rates);
            if let Some(edge) = &self.for_servers {
                edge.set_rates(&rates);
            }
            self.config.rate_limits = rates;
        }
    }

    /// Reads the certificates again, also from other files.
    fn reload_certificates(&self, new: &Config) {
        if let Some(certificate) = &self.clients {
            // Those of an authority stay where they are.
            let files = files_of(&new.tls.certificate, &new.tls.certificate_key);
            let files = files.filter(|_| self.config.tls.certificate.is_some());
            if files.is_some() || self.config.tls.certificate.is_some() {
                // What is wrong is logged.
                let _ = certificate.reload(files);
            }
        }
        if let Some(certificate) = &self.servers {
            let federation = &new.federation;
            let files = files_of(&federation.certificate, &federation.certificate_key);
            let _ = certificate.reload(files);
        }
    }
}
