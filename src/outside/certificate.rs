//! The certificate that clients find at a listener of this server, looked at as they do.

use std::{
    io,
    net::{IpAddr, SocketAddr},
};

use rustls::{CertificateError, pki_types::ServerName};
use thiserror::Error;
use tokio::{io::AsyncWriteExt as _, net::TcpStream};

use crate::federation::connect::{expires_ms, tls};
use logcabin_base::{
    network::{Range, contains},
    proxy_protocol::own_header,
};
use logcabin_config::FilePath;

/// Why clients do not come to HTTPS.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HttpsFault {
    #[error("it has expired")]
    Expired,
    #[error("it is not valid yet")]
    NotYet,
    #[error("it is for other names")]
    Name,
    #[error("no authority that this machine knows has signed it, or one between is missing")]
    Issuer,
    /// It is refused for another reason.
    #[error("{0}")]
    Refused(String),
    /// Nothing that speaks TLS answers.
    #[error("{0}")]
    Connection(String),
    /// The listener believes only proxies, and this machine is none of them.
    #[error("this machine connects from {0}, which is not in http.proxy_protocol_from")]
    NoProxy(IpAddr),
}

/// Connects to a listener under a name. Returns when its certificate expires, in milliseconds since
/// the Unix epoch, if that can be read. The authorities in `extra` are trusted, too. `proxies` are
/// those whose PROXY headers the listener believes, if it expects one. The caller limits the time.
///
/// # Errors
/// When a client would break off the connection, or nothing can be seen from this machine.
pub async fn look(
    address: SocketAddr,
    name: &str,
    extra: &[FilePath],
    proxies: Option<&[Range]>,
) -> Result<Option<u64>, HttpsFault> {
    let unnamed = |_| HttpsFault::Connection(format!("{name} is no name of a host"));
    let server = ServerName::try_from(name.to_owned()).map_err(unnamed)?;
    let connector = tls(extra).map_err(HttpsFault::Connection)?;
    let failed = |error: io::Error| HttpsFault::Connection(error.to_string());
    let mut stream = TcpStream::connect(address).await.map_err(failed)?;
    if let Some(proxies) = proxies {
        let own = stream.local_addr().map_err(failed)?.ip();
        if !contains(proxies, own) {
            return Err(HttpsFault::NoProxy(own));
        }
        stream.write_all(&own_header()).await.map_err(failed)?;
    }
    let stream = connector.connect(server, stream).await.map_err(|error| fault(&error))?;
    Ok(expires_ms(&stream))
}

fn fault(error: &io::Error) -> HttpsFault {
    use CertificateError as Refused;
    let of_tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(refused)) = of_tls else {
        return HttpsFault::Connection(error.to_string());
    };
    match refused {
        Refused::Expired | Refused::ExpiredContext { .. } => HttpsFault::Expired,
        Refused::NotValidYet | Refused::NotValidYetContext { .. } => HttpsFault::NotYet,
        Refused::NotValidForName | Refused::NotValidForNameContext { .. } => HttpsFault::Name,
        Refused::UnknownIssuer => HttpsFault::Issuer,
        other => HttpsFault::Refused(other.to_string()),
    }
}
