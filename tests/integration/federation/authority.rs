//! An authority for certificates of this machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
use tempfile::TempDir;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// Makes certificates, in a directory that goes with it.
pub(crate) struct Authority(TempDir);

impl Authority {
    pub(crate) fn new() -> Result<Self, String> {
        let authority = Self(TempDir::new().expect("a temporary directory"));
        let made = openssl(&["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=authority"])
            .args(["-addext", "basicConstraints=critical,CA:TRUE"])
            .args(["-addext", "keyUsage=critical,keyCertSign"])
            .arg("-keyout")
            .arg(authority.path("ca.key"))
            .arg("-out")
            .arg(authority.certificate())
            .output();
        let made = made.is_ok_and(|made| made.status.success());
        made.then_some(authority).ok_or_else(|| "openssl is absent".to_owned())
    }

    /// Its own certificate.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.path("ca")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A key and a certificate for this machine.
    pub(crate) fn certify(&self, name: &str) -> (PathBuf, PathBuf) {
        let (key, certificate) = (self.path(&format!("{name}.key")), self.path(name));
        let made = openssl(&["req", "-x509", "-nodes", "-days", "30", "-subj", "/CN=localhost"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"])
            .arg("-CA")
            .arg(self.certificate())
            .arg("-CAkey")
            .arg(self.path("ca.key"))
            .arg("-keyout")
            .arg(&key)
            .arg("-out")
            .arg(&certificate)
            .output()
            .expect("openssl runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        (key, certificate)
    }

    /// What a server with a certificate of its own takes connections with.
    pub(crate) fn acceptor(&self, name: &str) -> TlsAcceptor {
        let (key, certificate) = self.certify(name);
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_no_client_auth()
            .with_single_cert(
                vec![read(&certificate)],
                PrivateKeyDer::from_pem_file(&key).expect("a key"),
            )
            .expect("a certificate");
        TlsAcceptor::from(Arc::new(config))
    }

    /// What a client that trusts this authority makes connections with.
    pub(crate) fn connector(&self) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(read(&self.certificate())).expect("a certificate of an authority");
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("versions of TLS")
            .with_root_certificates(roots)
            .with_no_client_auth();
        TlsConnector::from(Arc::new(config))
    }
}

fn openssl(arguments: &[&str]) -> Command {
    let mut openssl = Command::new("openssl");
    openssl.args(arguments);
    openssl.args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    openssl
}

pub(crate) fn read(path: &Path) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(path).expect("a certificate")
}

fn provider() -> Arc<crypto::CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}
