//! TLS to PostgreSQL, with what libpq and drivers like it can be told of it.

use std::{
    io,
    path::PathBuf,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use postgres::{
    Socket,
    tls::{ChannelBinding, MakeTlsConnect, TlsConnect},
};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature_with_raw_key},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};
use rustls_platform_verifier::Verifier as SystemVerifier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsConnector, client::TlsStream};

use logcabin_base::certificates;

/// Whether a connection is encrypted, and what the server must show at least.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Disable,
    /// Only if the server does not let in without.
    Allow,
    /// If the server can.
    #[default]
    Prefer,
    Require,
    /// With a certificate that an authority vouches for.
    VerifyCa,
    /// The same, for the name of the host.
    VerifyFull,
}

impl Mode {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "disable" => Self::Disable,
            "allow" => Self::Allow,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
        })
    }

    /// Which connections are tried, one after the other: whether each is encrypted.
    pub(crate) const fn tries(self) -> &'static [bool] {
        match self {
            Self::Disable => &[false],
            Self::Allow => &[false, true],
            Self::Prefer => &[true, false],
            Self::Require | Self::VerifyCa | Self::VerifyFull => &[true],
        }
    }
}

/// PEM: certificates, or a key.
#[derive(Clone)]
pub(crate) enum Pem {
    File(PathBuf),
    Text(String),
}

impl Pem {
    /// The error is a sentence without its full stop.
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let text = match self {
            Self::File(path) => return certificates::read(path),
            Self::Text(text) => text,
        };
        let found = CertificateDer::pem_slice_iter(text.as_bytes()).collect::<Result<Vec<_>, _>>();
        let found = found.ok().filter(|found| !found.is_empty());
        found
            .ok_or_else(|| "the settings of TLS hold no certificate where one should be".to_owned())
    }

    /// The error is a sentence without its full stop.
    fn key(&self) -> Result<PrivateKeyDer<'static>, String> {
        let (key, place) = match self {
            Self::File(path) => (PrivateKeyDer::from_pem_file(path), path.display().to_string()),
            Self::Text(text) => {
                (PrivateKeyDer::from_pem_slice(text.as_bytes()), "the key for TLS".to_owned())
            }
        };
        key.map_err(|error| format!("{place}: no key can be read without a passphrase: {error}"))
    }
}

/// What the settings say.
#[derive(Clone, Default)]
pub(crate) struct TlsSettings {
    pub(crate) mode: Mode,
    /// The certificates of authorities. Where there are any, an encrypted connection is made only
    /// to a server that they vouch for, whatever the mode.
    pub(crate) root: Option<Pem>,
    /// Whether the authorities of this machine count, too.
    pub(crate) system: bool,
    /// What this side shows, and its key.
    pub(crate) certificate: Option<Pem>,
    pub(crate) key: Option<Pem>,
}

impl TlsSettings {
    /// What makes encrypted connections. The error is a sentence without its full stop.
    pub(crate) fn connector(&self) -> Result<Connector, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let authorities = match &self.root {
            None if !self.system && self.mode < Mode::VerifyCa => None,
            None if !self.system => {
                return Err("`sslmode` wants certificates of authorities: `sslrootcert`".into());
            }
            root => {
                let named = root.as_ref().map(Pem::certificates).transpose()?.unwrap_or_default();
                Some(Authorities::new(named, self.system, &provider)?)
            }
        };
        let by_name = self.mode == Mode::VerifyFull;
        let verifier = Verifier { provider: Arc::clone(&provider), authorities, by_name };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let config = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => builder
                .with_client_auth_cert(certificate.certificates()?, key.key()?)
                .map_err(|error| format!("the certificate and its key are of no use: {error}"))?,
            (Some(_), None) => return Err("there is a certificate for TLS without a key".into()),
            (None, _) => builder.with_no_client_auth(),
        };
        Ok(Connector(TlsConnector::from(Arc::new(config))))
    }
}

/// Who vouches for certificates: authorities, and certificates that are named themselves.
#[derive(Debug)]
struct Authorities {
    named: Vec<CertificateDer<'static>>,
    verifier: Arc<dyn ServerCertVerifier>,
}

impl Authorities {
    fn new(
        named: Vec<CertificateDer<'static>>,
        system: bool,
        provider: &Arc<CryptoProvider>,
    ) -> Result<Self, String> {
        let unusable = |error: &dyn std::fmt::Display| {
            format!("the certificates of authorities are of no use: {error}")
        };
        let provider = Arc::clone(provider);
        let verifier: Arc<dyn ServerCertVerifier> = if system {
            let verifier = SystemVerifier::new_with_extra_roots(named.iter().cloned(), provider);
            Arc::new(verifier.map_err(|error| unusable(&error))?)
        } else {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(named.iter().cloned());
            let roots = Arc::new(roots);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider).build();
            verifier.map_err(|error| unusable(&error))?
        };
        Ok(Self { named, verifier })
    }
}

/// Judges a server's certificate as libpq does.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    /// Without them, any certificate will do.
    authorities: Option<Authorities>,
    by_name: bool,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{Expired, NotValidForName, NotValidForNameContext};
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        // One that is its own authority is no certificate of a server in the sense of RFC 5280, but
        // what many servers of PostgreSQL have.
        if authorities.named.iter().any(|named| named == end_entity) {
            let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
            let holds = certificates::validity(end_entity)
                .is_some_and(|holds| (holds.from_s..=holds.until_s).contains(&now));
            if !holds {
                return Err(Expired.into());
            }
        } else {
            let (verifier, chain) = (&authorities.verifier, intermediates);
            match verifier.verify_server_cert(end_entity, chain, name, ocsp, now) {
                Ok(_) => return Ok(ServerCertVerified::assertion()),
                // The name is looked at last.
                Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                }
                Err(error) => return Err(error),
            }
        }
        if self.by_name {
            is_for(end_entity, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    /// A certificate of the first version of X.509 has a key, too.
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        let key = certificates::public_key(certificate).ok_or(CertificateError::BadEncoding)?;
        verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Whether a certificate is for this host. One that lists no names is for its common name: browsers
/// no longer accept that, but libpq does, and PostgreSQL's manual shows how to make such ones.
fn is_for(certificate: &CertificateDer<'_>, name: &ServerName<'_>) -> Result<(), Error> {
    let listed = ParsedCertificate::try_from(certificate)
        .and_then(|certificate| verify_server_name(&certificate, name));
    let Err(refused) = listed else { return Ok(()) };
    if let Error::InvalidCertificate(CertificateError::NotValidForNameContext { presented, .. }) =
        &refused
        && !presented.is_empty()
    {
        return Err(refused);
    }
    let (common, host) = (certificates::common_name(certificate), name.to_str());
    let is_same = |common: &str| match common.strip_prefix("*.") {
        Some(domain) => {
            host.split_once('.').is_some_and(|(_, after)| after.eq_ignore_ascii_case(domain))
        }
        None => host.eq_ignore_ascii_case(common),
    };
    if common.is_some_and(is_same) { Ok(()) } else { Err(refused) }
}

/// Makes encrypted connections.
#[derive(Clone)]
pub(crate) struct Connector(TlsConnector);

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Encrypted;
    type TlsConnect = ToHost;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> Result<ToHost, io::Error> {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        Ok(ToHost { connector: self.0.clone(), name })
    }
}

/// Makes an encrypted connection to one host.
pub(crate) struct ToHost {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl TlsConnect<Socket> for ToHost {
    type Stream = Encrypted;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Encrypted, io::Error>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self { connector, name } = self;
        Box::pin(async move { connector.connect(name, socket).await.map(Encrypted) })
    }
}

/// An encrypted connection.
pub(crate) struct Encrypted(TlsStream<Socket>);

impl postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        // It would protect from an authority that vouches for a wrong server.
        ChannelBinding::none()
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
