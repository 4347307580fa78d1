//! TLS of listeners, with certificates that are read again when their files change.

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
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tracing::{info, warn};

use logcabin_base::{
    background::at_length,
    certificates::{self, Validity},
    limits,
    metrics::metrics,
    net::TcpStream,
};
use logcabin_outside::acme::{ACME_TLS, Challenges};

/// The versions of HTTP that clients may choose from (RFC 7301), the best first.
const HTTP2: &[u8] = b"h2";
const HTTP1: &[u8] = b"http/1.1";

pub struct Tls(TlsAcceptor);

/// What a connection with TLS is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spoken {
    Http1,
    Http2,
    /// The authority has seen the certificate that it asked for. Nothing is said.
    Challenge,
}

impl Tls {
    /// TLS with this certificate, and those by which an authority's challenges are answered, if
    /// they are answered so.
    ///
    /// # Errors
    /// Never, unless the library is built without any version of TLS.
    pub fn new(
        certificate: Arc<Certificate>,
        challenges: Option<Arc<Challenges>>,
    ) -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
        if challenges.is_some() {
            protocols.push(ACME_TLS.to_vec());
        }
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Resolver { certificate, challenges }));
        config.alpn_protocols = protocols;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> std::io::Result<(Spoken, TlsStream<TcpStream>)> {
        let stream = self.0.accept(stream).await?;
        let spoken = match stream.get_ref().1.alpn_protocol() {
            Some(HTTP2) => Spoken::Http2,
            Some(ACME_TLS) => Spoken::Challenge,
            _ => Spoken::Http1,
        };
        Ok((spoken, stream))
    }
}

/// Chooses the certificate of a connection.
#[derive(Debug)]
struct Resolver {
    certificate: Arc<Certificate>,
    challenges: Option<Arc<Challenges>>,
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        if let Some(challenges) = &self.challenges
            && hello.alpn().is_some_and(|mut offered| offered.any(|name| name == ACME_TLS))
        {
            return challenges.certificate(hello.server_name()?);
        }
        self.certificate.current()
    }
}

/// Where a certificate and its key are. Both may be in one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// When each file was last changed, and its length.
type Looks = [Option<(SystemTime, u64)>; 2];

impl CertificateFiles {
    fn look(&self) -> Looks {
        [&self.certificate, &self.key].map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
    }

    fn read(&self) -> Result<Loaded, String> {
        let Self { certificate, key } = self;
        let unusable = |error: &dyn std::fmt::Display| format!("{}: {error}", key.display());
        let chain = certificates::read(certificate)?;
        let validity = chain.first().and_then(certificates::validity);
        let private = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(&error))?;
        let private = rustls::crypto::ring::sign::any_supported_type(&private)
            .map_err(|error| unusable(&error))?;
        let certified = CertifiedKey::new(chain, private);
        match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {
                Ok(Loaded { certified: Arc::new(certified), validity })
            }
            Err(_) => Err(unusable(&"it is not the key of the certificate")),
        }
    }
}

/// A certificate with its key, and the files that it is from.
#[derive(Debug)]
pub struct Certificate {
    /// The listeners that have it, in messages and metrics.
    listener: &'static str,
    now: Mutex<State>,
}

#[derive(Clone, Debug)]
struct Loaded {
    certified: Arc<CertifiedKey>,
    validity: Option<Validity>,
}

#[derive(Debug)]
struct State {
    files: CertificateFiles,
    /// `None` as long as there never was one.
    loaded: Option<Loaded>,
    /// The files as they were when they were last read.
    read: Looks,
    looked: Instant,
}

impl Certificate {
    /// # Errors
    /// When the files are not usable; the text names them.
    pub fn read(listener: &'static str, files: CertificateFiles) -> Result<Arc<Self>, String> {
        let read = files.look();
        let loaded = files.read()?;
        Ok(Self::new(listener, files, read, Some(loaded)))
    }

    /// One whose files need not be there yet: until they are, no connection comes to TLS.
    pub fn awaited(listener: &'static str, files: CertificateFiles) -> Arc<Self> {
        let read = files.look();
        let loaded = match files.read() {
            Ok(loaded) => Some(loaded),
            // Nothing is wrong with a file that is to come.
            Err(_) if read.contains(&None) => None,
            Err(error) => {
                warn!(listener, error, "the certificate cannot be used");
                None
            }
        };
        Self::new(listener, files, read, loaded)
    }

    fn new(
        listener: &'static str,
        files: CertificateFiles,
        read: Looks,
        loaded: Option<Loaded>,
    ) -> Arc<Self> {
        let now = State { files, loaded, read, looked: Instant::now() };
        let this = Self { listener, now: Mutex::new(now) };
        this.measure(&this.now.lock());
        Arc::new(this)
    }

    /// The certificate, read again if its files have changed. An unusable one does not replace the
    /// one before.
    fn current(&self) -> Option<Arc<CertifiedKey>> {
        let mut now = self.now.lock();
        if now.looked.elapsed() >= limits::CERTIFICATE_LOOK {
            now.looked = Instant::now();
            let found = at_length(|| now.files.look());
            if found != now.read {
                now.read = found;
                match at_length(|| now.files.read()) {
                    Ok(loaded) => self.take(&mut now, loaded),
                    Err(error) => self.complain(&error),
                }
            }
        }
        now.loaded.as_ref().map(|loaded| Arc::clone(&loaded.certified))
    }

    /// Reads the certificate again, from these files if some are given. If they are not usable, the
    /// one before stays, and so do its files.
    ///
    /// # Errors
    /// The reason, which names the file; it is logged already.
    pub fn reload(&self, files: Option<CertificateFiles>) -> Result<(), String> {
        let mut now = self.now.lock();
        let files = files.unwrap_or_else(|| now.files.clone());
        let read = files.look();
        match at_length(|| files.read()) {
            Ok(loaded) => {
                (now.files, now.read) = (files, read);
                self.take(&mut now, loaded);
                Ok(())
            }
            Err(error) => {
                self.complain(&error);
                Err(error)
            }
        }
    }

    /// How long it holds, read again if its files have changed; `None` if there is none.
    pub fn validity(&self) -> Option<Validity> {
        self.current();
        self.now.lock().loaded.as_ref()?.validity
    }

    pub const fn listener(&self) -> &'static str {
        self.listener
    }

    fn take(&self, now: &mut State, loaded: Loaded) {
        info!(listener = self.listener, "read the certificate again");
        now.loaded = Some(loaded);
        self.measure(now);
    }

    fn complain(&self, error: &str) {
        warn!(listener = self.listener, error, "the changed certificate cannot be used");
    }

    fn measure(&self, now: &State) {
        let validity = now.loaded.as_ref().and_then(|loaded| loaded.validity);
        let until_s = validity.map_or(0, |validity| validity.until_s);
        metrics().certificate_expiry.with_label_values(&[self.listener]).set(until_s);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    fn in_directory(directory: &Path) -> CertificateFiles {
        CertificateFiles { certificate: directory.join("cert.pem"), key: directory.join("key.pem") }
    }

    /// Writes a new certificate and its key.
    fn write(files: &CertificateFiles) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let made = params.self_signed(&key).unwrap();
        fs::write(&files.certificate, made.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
    }

    fn shown(certificate: &Certificate) -> Option<Vec<u8>> {
        certificate.current().map(|certified| certified.cert[0].to_vec())
    }

    #[test]
    fn an_unusable_certificate_does_not_replace_one_that_works() {
        let directory = tempfile::tempdir().unwrap();
        let files = in_directory(directory.path());
        let missing = Certificate::read("test", files.clone()).map(drop).unwrap_err();
        assert!(missing.contains("cert.pem"), "{missing}");
        write(&files);
        let certificate = Certificate::read("test", files.clone()).unwrap();
        let first = shown(&certificate).unwrap();
        assert!(certificate.validity().is_some());

        let key = fs::read(&files.key).unwrap();
        write(&files);
        let second_key = fs::read(&files.key).unwrap();
        fs::write(&files.key, key).unwrap();
        let error = certificate.reload(None).unwrap_err();
        assert!(error.contains("it is not the key of the certificate"), "{error}");
        assert_eq!(shown(&certificate).unwrap(), first);
        fs::write(&files.key, second_key).unwrap();
        certificate.reload(None).unwrap();
        assert_ne!(shown(&certificate).unwrap(), first);

        // Files at another place that are not there leave the ones before in use.
        let nowhere = in_directory(&directory.path().join("nowhere"));
        assert!(certificate.reload(Some(nowhere)).is_err());
        certificate.reload(None).unwrap();
    }

    #[test]
    fn a_certificate_may_be_awaited() {
        let directory = tempfile::tempdir().unwrap();
        let files = in_directory(directory.path());
        let certificate = Certificate::awaited("test", files.clone());
        assert_eq!((shown(&certificate), certificate.validity()), (None, None));
        write(&files);
        certificate.reload(None).unwrap();
        assert!(shown(&certificate).is_some());
    }
}
