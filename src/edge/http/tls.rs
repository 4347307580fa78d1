//! TLS of a listener, with a certificate that is read again when its files change.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Instant, SystemTime},
};

use parking_lot::Mutex;
use rustls::{
    ServerConfig,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{info, warn};

use logcabin_base::{background::at_length, certificates, limits};

pub struct Tls(TlsAcceptor);

impl Tls {
    pub fn new(certificate: PathBuf, key: PathBuf) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let kept = WatchedCertificate::read(Files { certificate, key })?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(kept));
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
        self.0.accept(stream).await
    }
}

#[derive(Debug)]
struct Files {
    certificate: PathBuf,
    key: PathBuf,
}

impl Files {
    /// When each was last changed, and its length.
    fn look(&self) -> [Option<(SystemTime, u64)>; 2] {
        [&self.certificate, &self.key].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }

    fn read(&self) -> Result<CertifiedKey, String> {
        let Self { certificate, key } = self;
        let unusable = |error: &dyn std::fmt::Display| format!("{}: {error}", key.display());
        let chain = certificates::read(certificate)?;
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(&error))?;
        let private = rustls::crypto::ring::sign::any_supported_type(&private)
            .map_err(|error| unusable(&error))?;
        let certified = CertifiedKey::new(chain, private);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
                Ok(certified)
            }
            Err(_) => Err(unusable(&"it is not the key of the certificate")),
        }
    }
}

/// A certificate with its key, and the files that it is from.
#[derive(Debug)]
struct WatchedCertificate {
    files: Files,
    now: Mutex<LoadedCertificate>,
}

#[derive(Debug)]
struct LoadedCertificate {
    certified: Arc<CertifiedKey>,
    /// The files as they were when they were last read.
    read: [Option<(SystemTime, u64)>; 2],
    looked: Instant,
}

impl WatchedCertificate {
    fn read(files: Files) -> Result<Self, String> {
        let read = files.look();
        let certified = Arc::new(files.read()?);
        Ok(Self {
            files,
            now: Mutex::new(LoadedCertificate { certified, read, looked: Instant::now() }),
        })
    }

    /// The certificate, read again if its files have changed. An unusable one does not replace the
    /// one before.
    fn current(&self) -> Arc<CertifiedKey> {
        let mut now = self.now.lock();
        if now.looked.elapsed() < limits::CERTIFICATE_LOOK {
            return Arc::clone(&now.certified);
        }
        now.looked = Instant::now();
        let found = at_length(|| self.files.look());
        if found != now.read {
            now.read = found;
            match at_length(|| self.files.read()) {
                Ok(certified) => {
                    info!("read the certificate for other homeservers again");
                    now.certified = Arc::new(certified);
                }
                Err(error) => warn!(error, "the changed certificate cannot be used"),
            }
        }
        Arc::clone(&now.certified)
    }
}

impl ResolvesServerCert for WatchedCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current())
    }
}
