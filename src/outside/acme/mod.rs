//! Certificates from an authority by ACME (RFC 8555): an account, orders, and their renewal.
//!
//! All of it is in `acme` in the data directory, for the owner's eyes only: an account for each
//! authority, and one file with the certificate and its key, which is replaced as a whole. Whoever
//! serves it reads that file. A failure is logged and counted, and tried again after a pause.
//!
//! In a cluster one node at a time orders, and all have the same account, certificate and answers
//! to challenges: see [`nodes`].

mod challenges;
mod client;
mod nodes;
mod order;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use instant_acme::{ExternalAccountKey, Problem};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use thiserror::Error;
use tokio::sync::Notify;
use tracing::{info, warn};

pub use self::challenges::{ACME_TLS, Challenges};
use crate::outbound::{Outbound, OutboundError};
use logcabin_base::{
    bodies::BodyBudget,
    certificates::{self, Validity},
    clock::{Clock, random_bytes},
    disk, limits,
    metrics::{Tried, metrics},
    shutdown::Shutdown,
};
use logcabin_cluster::Cluster;
use logcabin_config::{self as config, AcmeChallenge, Config};

/// The directory in the data directory.
const DIRECTORY: &str = "acme";

/// The file with the certificate, those of the authorities above it, and the key (PEM). Its first
/// line says whose it is, and for what.
const CERTIFICATE: &str = "certificate.pem";

/// The longest sleep before the clock is looked at again: it may be set, and a machine may sleep.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// How often an order is begun again at once because the authority refused a nonce, which says
/// nothing of the order.
const NONCES: u32 = 8;

/// Why there is no certificate.
#[derive(Debug, Error)]
pub enum AcmeError {
    #[error("the authority cannot be asked: {0}")]
    Client(#[from] OutboundError),
    /// The authority refuses, or does not answer.
    #[error("{0}")]
    Authority(#[from] instant_acme::Error),
    /// It could not convince itself that the names are this server's.
    #[error("the authority could not validate {0}")]
    Invalid(String),
    #[error("the authority offers no {challenge} for {name}; set `acme.challenge` to another")]
    NotOffered { challenge: AcmeChallenge, name: String },
    /// What it gave is no certificate.
    #[error("the authority gave no usable certificate")]
    Unusable,
    #[error("a certificate for a challenge could not be made: {0}")]
    Making(String),
    /// It serves its customers only; the text is what it says.
    #[error(
        "{0}; get a key for your account there, and set `acme.eab_key_id` and `acme.eab_key_file`"
    )]
    NeedsKey(String),
    #[error("`acme.eab_key_file` cannot be used: {0}")]
    Key(String),
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    /// What the nodes of the cluster share cannot be read or written.
    #[error("the nodes of the cluster cannot share it: {0}")]
    Shared(String),
    #[error("the authority took more than {} s", .0.as_secs())]
    Late(Duration),
}

impl AcmeError {
    /// The problem that the authority named, such as `badNonce`.
    fn is_problem(&self, kind: &str) -> bool {
        let Self::Authority(instant_acme::Error::Api(Problem { r#type, .. })) = self else {
            return false;
        };
        r#type.as_deref().is_some_and(|found| found.rsplit(':').next() == Some(kind))
    }
}

/// The key by which an authority knows its customer (RFC 8555, section 7.3.4).
struct Customer {
    id: String,
    key: Vec<u8>,
}

impl Customer {
    fn load(acme: &config::Acme) -> Result<Option<Self>, AcmeError> {
        let (Some(id), Some(file)) = (&acme.eab_key_id, &acme.eab_key_file) else {
            return Ok(None);
        };
        let text = file.read().map_err(|error| AcmeError::Key(error.to_string()))?;
        // Not what is wrong with it: it is a secret.
        let key = URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
        let key = key.ok().filter(|key| !key.is_empty());
        let wrong = "it does not contain a key in base64url, and nothing else";
        let key = key.ok_or_else(|| AcmeError::Key(wrong.to_owned()))?;
        Ok(Some(Self { id: id.clone(), key }))
    }

    fn key(&self) -> ExternalAccountKey {
        ExternalAccountKey::new(self.id.clone(), &self.key)
    }
}

impl fmt::Debug for Customer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Customer").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Gets certificates, and keeps them fresh.
#[derive(Debug)]
pub struct Acme {
    client: Outbound,
    /// The URL of the authority.
    authority: String,
    domains: Vec<String>,
    /// URIs.
    contact: Vec<String>,
    challenge: AcmeChallenge,
    customer: Option<Customer>,
    directory: PathBuf,
    challenges: Arc<Challenges>,
    clock: Clock,
    cluster: OnceLock<Arc<dyn Cluster>>,
    /// Told by another node that there is a new certificate.
    told: Notify,
}

impl Acme {
    /// # Errors
    /// When a file with certificates of authorities, or with a key, is not usable.
    pub fn new(config: &Config) -> Result<Self, AcmeError> {
        let mut trusted = config.outbound.clone();
        trusted.certificates.0.extend(config.acme.ca.clone());
        let uri = |address: &String| match address.contains(':') {
            true => address.clone(),
            false => format!("mailto:{address}"),
        };
        Ok(Self {
            client: Outbound::new(&trusted, &BodyBudget::new(config.body_shares()))?.technical(),
            authority: config.acme.directory.to_string(),
            domains: config.acme_domains(),
            contact: config.acme.contact.iter().map(uri).collect(),
            challenge: config.acme.challenge,
            customer: Customer::load(&config.acme)?,
            directory: config.server.data_dir.join(DIRECTORY),
            challenges: Arc::default(),
            clock: Clock::system(),
            cluster: OnceLock::new(),
            told: Notify::new(),
        })
    }

    /// The file of the certificate and its key in this data directory.
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join(DIRECTORY).join(CERTIFICATE)
    }

    /// What the authority asks for while an order is open.
    pub fn challenges(&self) -> Arc<Challenges> {
        Arc::clone(&self.challenges)
    }

    /// Gets a certificate when there is none, or a third of its time is left, until the shutdown.
    /// Calls `renewed` after each. Of the nodes of a cluster, one does this at a time.
    pub async fn keep(self: Arc<Self>, renewed: Arc<dyn Fn() + Send + Sync>, shutdown: Shutdown) {
        let mut failures = 0;
        let jitter = random_part();
        loop {
            let agreed = self.agree().await;
            if matches!(agreed, Ok(true)) {
                renewed();
            }
            let wait = self.due_in(jitter);
            if !wait.is_zero() {
                tokio::select! {
                    () = tokio::time::sleep(wait.min(LONGEST_SLEEP)) => continue,
                    () = shutdown.given() => return,
                }
            }
            let ordered = async {
                // The nodes may have one that this node does not know.
                agreed?;
                self.order_patiently().await
            };
            let ordered = tokio::select! {
                ordered = ordered => ordered,
                () = shutdown.given() => return,
            };
            let pause = match ordered {
                Ok(()) => {
                    failures = 0;
                    metrics().acme_orders.of_value(Tried::Done).inc();
                    info!(domains = ?self.domains, "the authority gave a certificate");
                    renewed();
                    self.tell_of_certificate().await;
                    // In case that it is due again at once: its time may be over by our clock.
                    limits::ACME_PAUSES[0]
                }
                Err(error) => {
                    metrics().acme_orders.of_value(Tried::Failed).inc();
                    let pause = pause(failures, random_part());
                    failures += 1;
                    let again_in_s = pause.as_secs();
                    warn!(domains = ?self.domains, %error, again_in_s, "there is no new certificate");
                    pause
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = shutdown.given() => return,
            }
        }
    }

    /// Orders a certificate; again if the authority refuses a nonce.
    async fn order_patiently(&self) -> Result<(), AcmeError> {
        let mut nonces = 0;
        loop {
            match self.order().await {
                Err(error) if error.is_problem("badNonce") && nonces < NONCES => nonces += 1,
                Err(error) => {
                    if error.is_problem("accountDoesNotExist") {
                        self.forget_account().await;
                    }
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// When the next order is due.
    fn due_in(&self, jitter: f64) -> Duration {
        let Some(validity) = self.stored() else { return Duration::ZERO };
        let now_s = i64::try_from(self.clock.now_ms() / 1000).unwrap_or(i64::MAX);
        let left_s = renewal_s(validity, jitter).saturating_sub(now_s);
        Duration::from_secs(u64::try_from(left_s).unwrap_or_default())
    }

    /// How long the certificate in the file holds, if it is of this authority and for these names.
    fn stored(&self) -> Option<Validity> {
        self.stored_pem().map(|(validity, _)| validity)
    }

    /// The same with the text of the file.
    fn stored_pem(&self) -> Option<(Validity, String)> {
        let pem = std::fs::read_to_string(self.directory.join(CERTIFICATE)).ok()?;
        Some((self.own_validity(&pem)?, pem))
    }

    /// How long the certificate in this text holds, if it is of this authority and for these names.
    fn own_validity(&self, pem: &str) -> Option<Validity> {
        let is_ours = pem.lines().next() == Some(&self.title());
        validity(pem).filter(|_| is_ours)
    }

    /// The first line of the file, which is no part of the certificate.
    fn title(&self) -> String {
        format!("{} for {}", self.authority, self.domains.join(" "))
    }

    fn store(&self, key: &str, chain: &str) -> Result<(), AcmeError> {
        let pem = format!("{}\n{}\n{}\n", self.title(), chain.trim(), key.trim());
        validity(&pem).ok_or(AcmeError::Unusable)?;
        self.write(CERTIFICATE, pem.as_bytes())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), AcmeError> {
        let path = self.directory.join(name);
        let written =
            disk::make_private_dir(&self.directory).and_then(|()| disk::write_whole(&path, bytes));
        written.map_err(|source| AcmeError::File { path, source })
    }
}

/// How long the first certificate in this text holds.
fn validity(pem: &str) -> Option<Validity> {
    let first = CertificateDer::pem_slice_iter(pem.as_bytes()).next()?.ok()?;
    certificates::validity(&first)
}

/// When a certificate is renewed, in seconds since the Unix epoch: when a third of its time is
/// left, and up to a fiftieth earlier, so that not all servers come at once.
fn renewal_s(Validity { from_s, until_s }: Validity, jitter: f64) -> i64 {
    let lifetime = until_s.saturating_sub(from_s).max(0);
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "seconds")]
    let earlier = (jitter * (lifetime / 50) as f64) as i64;
    until_s - lifetime / 3 - earlier
}

/// The pause after a failure that came after so many others: twice as long each time, and up to a
/// quarter longer.
fn pause(failures: u32, jitter: f64) -> Duration {
    let [first, longest] = limits::ACME_PAUSES;
    first.saturating_mul(1 << failures.min(16)).min(longest).mul_f64(1.0 + jitter / 4.0)
}

/// From 0 to 1.
fn random_part() -> f64 {
    f64::from(u32::from_be_bytes(random_bytes())) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_renewed_when_a_third_of_its_time_is_left() {
        const DAY: i64 = 86_400;
        let validity = Validity { from_s: 0, until_s: 90 * DAY };
        assert_eq!(renewal_s(validity, 0.0), 60 * DAY);
        let earliest = renewal_s(validity, 1.0);
        assert!((58 * DAY..60 * DAY).contains(&earliest), "{earliest}");
        // One whose times are senseless is renewed by its end.
        assert_eq!(renewal_s(Validity { from_s: 10, until_s: 5 }, 0.5), 5);
    }

    #[test]
    fn the_key_of_a_customer_is_read_and_never_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("eab.key");
        let line = format!("\"{}\"", file.display());
        let text = format!("[acme]\neab_key_id = \"kid-1\"\neab_key_file = {line}\n");
        let load = |key: &str| {
            std::fs::write(&file, key).unwrap();
            let given = Some(("logcabin.toml".into(), text.clone()));
            let config = config::Effective::load(given, [], &[]).unwrap().config;
            Customer::load(&config.acme)
        };
        for key in ["c2VjcmV0LWtleQ", "c2VjcmV0LWtleQ==", " c2VjcmV0LWtleQ\n"] {
            let customer = load(key).unwrap().unwrap();
            assert_eq!((&*customer.id, &*customer.key), ("kid-1", &b"secret-key"[..]));
            assert!(!format!("{customer:?}").contains("115"), "{customer:?}");
        }
        for wrong in ["", "=", "not base64!", "c2VjcmV0LWtleQ c2VjcmV0LWtleQ"] {
            let error = load(wrong).unwrap_err().to_string();
            assert!(error.contains("acme.eab_key_file"), "{error}");
            assert!(wrong.len() < 2 || !error.contains(wrong), "{error}");
        }
        std::fs::remove_file(&file).unwrap();
        let config = config::Effective::load(Some(("x".into(), text)), [], &[]).unwrap().config;
        assert!(matches!(Customer::load(&config.acme), Err(AcmeError::Key(_))));
    }

    #[test]
    fn pauses_grow_up_to_a_bound() {
        let [first, longest] = limits::ACME_PAUSES;
        assert_eq!(pause(0, 0.0), first);
        assert_eq!(pause(1, 0.0), 2 * first);
        assert_eq!(pause(1000, 0.0), longest);
        assert!(pause(1000, 1.0) <= longest * 5 / 4);
    }

    #[test]
    fn a_certificate_of_another_authority_or_for_other_names_is_not_kept() {
        let directory = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.server.data_dir = directory.path().to_owned();
        config.server.name = "example.org".try_into().unwrap();
        let acme = Acme::new(&config).unwrap();
        assert_eq!(acme.due_in(0.0), Duration::ZERO);
        let key = rcgen::KeyPair::generate().unwrap();
        let made = rcgen::CertificateParams::new(acme.domains.clone()).unwrap();
        let made = made.self_signed(&key).unwrap();
        acme.store(&key.serialize_pem(), &made.pem()).unwrap();
        assert!(acme.due_in(0.0) > Duration::ZERO);
        assert!(matches!(acme.store("", "nothing"), Err(AcmeError::Unusable)));
        use std::os::unix::fs::PermissionsExt as _;
        let file = std::fs::metadata(Acme::file(directory.path())).unwrap();
        assert_eq!(file.permissions().mode() & 0o777, 0o600);

        config.server.name = "other.example.org".try_into().unwrap();
        assert_eq!(Acme::new(&config).unwrap().due_in(0.0), Duration::ZERO);
    }
}
