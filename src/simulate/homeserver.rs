//! One homeserver of the world: the whole program, on a modelled disk.

use std::{
    cell::RefCell,
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::PrivateKeyDer,
};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::{dice::Dice, http, story::Story};
use logcabin_base::clock::Clock;
use logcabin_config::{Config, Effective};
use logcabin_engine::{OpenError, replay_onto};
use logcabin_log::{
    memory::MemoryLog,
    modelled::{Disk, Latency, ModelledLog},
    verify,
};
use logcabin_server as server;
use logcabin_snapshot::shutdown_digest::ShutdownDigest;
use logcabin_state::State;

pub(crate) type Failure = Box<dyn std::error::Error>;

/// The authority that certifies all homeservers.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    file: PathBuf,
}

impl Authority {
    pub(crate) fn new(dir: &Path) -> Result<Self, Failure> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let file = dir.join("authority.pem");
        fs::write(&file, issuer.pem())?;
        Ok(Self { issuer, file })
    }

    /// A certificate for an address, and its key.
    fn certify(&self, ip: IpAddr) -> Result<(Certificate, KeyPair), Failure> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress(ip)];
        let key = KeyPair::generate()?;
        Ok((params.signed_by(&key, &self.issuer)?, key))
    }

    /// What a server at an address takes connections with.
    pub(crate) fn acceptor(&self, ip: IpAddr) -> Result<TlsAcceptor, Failure> {
        let (certificate, key) = self.certify(ip)?;
        let key = PrivateKeyDer::try_from(key.serialize_der())?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// What a client that trusts this authority makes connections with.
    pub(crate) fn connector(&self) -> Result<TlsConnector, Failure> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(TlsConnector::from(Arc::new(config)))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What outlives the process of a homeserver.
#[derive(Clone)]
pub(crate) struct Homeserver {
    /// The name of its host.
    pub(crate) host: String,
    pub(crate) ip: IpAddr,
    /// Its name in Matrix: an address with the port of federation, so that nobody resolves it.
    pub(crate) name: String,
    pub(crate) disk: Arc<Disk>,
    config: Config,
    /// Asks the process to stop.
    stop: Rc<RefCell<Option<oneshot::Sender<()>>>>,
    latency: Arc<Dice>,
    story: Story,
}

impl Homeserver {
    pub(crate) fn new(
        host: String,
        ip: IpAddr,
        dir: &Path,
        authority: &Authority,
        seed: u64,
        story: &Story,
    ) -> Result<Self, Failure> {
        let data_dir = dir.join(&host);
        fs::create_dir_all(&data_dir)?;
        let (certificate, key) = authority.certify(ip)?;
        let [certificate_file, key_file] =
            ["pem", "key"].map(|end| dir.join(format!("{host}.{end}")));
        fs::write(&certificate_file, certificate.pem())?;
        fs::write(&key_file, key.serialize_pem())?;
        let name = format!("{ip}:8448");
        let text = format!(
            r#"
            [server]
            name = "{name}"
            bind = ["0.0.0.0:{port}"]
            data_dir = {data_dir:?}
            public_url = "http://{ip}:{port}"
            [registration]
            open = true
            [passwords]
            iterations = 1000
            [rate_limits]
            enabled = false
            [log]
            archive_dir = "off"
            min_free_bytes = 0
            [federation]
            enabled = true
            bind = ["0.0.0.0:8448"]
            certificate = {certificate_file:?}
            certificate_key = {key_file:?}
            ca = {ca:?}
            allowed_networks = ["0.0.0.0/0"]
            "#,
            port = http::PORT,
            ca = authority.file,
        );
        let config = Effective::load(Some((PathBuf::from("simulated"), text)), [], &[])?.config;
        Ok(Self {
            latency: Arc::new(Dice::new(seed, &format!("disk of {host}"))),
            host,
            ip,
            name,
            disk: Arc::default(),
            config,
            stop: Rc::default(),
            story: story.clone(),
        })
    }

    /// The process, from its start to its end.
    pub(crate) async fn run(self) -> Result<(), Failure> {
        let (stop, stopped) = oneshot::channel();
        *self.stop.borrow_mut() = Some(stop);
        let dice = Arc::clone(&self.latency);
        let latency: Latency = Box::new(move || match dice.happens(2) {
            true => dice.between_ms(50, 2_000),
            false => dice.between_ms(1, 15),
        });
        let log = ModelledLog::open(Arc::clone(&self.disk), Clock::system(), latency);
        // Held, so that the server does not hear of an end of what it follows.
        let (_reload, reloads) = mpsc::channel(1);
        let stop = Box::pin(async move {
            let _ = stopped.await;
        });
        let (story, host) = (self.story.clone(), self.host.clone());
        let started = Box::new(move |_: server::Started<'_>| story.note(&host, "serves"));
        server::run_on(Arc::new(log), self.config, stop, reloads, started).await?;
        self.story.note(&self.host, "has stopped");
        Ok(())
    }

    /// Verifies the log, and compares what the process knew when it stopped with a replay.
    pub(crate) fn replay(&self) -> Result<(), Failure> {
        let log = MemoryLog::with_records(Clock::system(), self.disk.records());
        let verified = verify(&log, |_| ())?;
        let state = State::default();
        replay_onto(&state, &log, verified.last, |_| Ok::<_, OpenError>(()))?;
        let replayed = ShutdownDigest::of(&state);
        match ShutdownDigest::read(&self.config.server.data_dir)? {
            Some(known) if known == replayed => Ok(()),
            known => Err(format!("{known:?} in memory, {replayed:?} in a replay").into()),
        }
    }

    /// Asks the process to stop, as a service manager does.
    pub(crate) fn stop(&self) {
        if let Some(stop) = self.stop.borrow_mut().take() {
            let _ = stop.send(());
        }
    }
}
