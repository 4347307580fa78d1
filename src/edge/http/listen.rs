//! The sockets that connections come from: addresses, with TLS or without, and Unix sockets.

use std::{
    ffi::OsString,
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::net::{UnixListener, UnixStream};
use tracing::debug;

use super::{
    proxy_header::{self, HeaderError},
    tls::Tls,
};
use logcabin_base::descriptors::{self, Purpose};
use logcabin_base::net::{TcpListener, TcpStream};
use logcabin_base::network::{Range, contains};

/// Who may connect to a Unix socket: the user and the group that the server runs as.
const SOCKET_MODE: u32 = 0o660;

/// A socket that takes connections.
pub struct Listener {
    socket: Socket,
    tls: Option<Arc<Tls>>,
    /// The proxies from which connections come, each with a PROXY header; none if they come from
    /// clients, without one.
    proxies: Option<Arc<[Range]>>,
}

enum Socket {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        /// Removed with the listener.
        _file: SocketFile,
    },
}

/// A connection, as it was accepted.
pub(super) enum Accepted {
    Tcp(TcpStream),
    Tls(TcpStream, Arc<Tls>),
    Unix(UnixStream),
}

impl Accepted {
    /// See [`descriptors::is_spare`].
    pub(super) fn is_spare(&self) -> bool {
        match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => {
                descriptors::is_spare(stream, Purpose::Connection)
            }
            Self::Unix(stream) => descriptors::is_spare(stream, Purpose::Connection),
        }
    }

    /// See [`descriptors::has_spare`].
    pub(super) fn leaves_spare(&self) -> bool {
        match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => {
                descriptors::has_spare(stream, Purpose::Connection)
            }
            Self::Unix(stream) => descriptors::has_spare(stream, Purpose::Connection),
        }
    }

    /// Reads the PROXY header. See [`proxy_header::read`].
    pub(super) async fn read_header(&mut self) -> Result<Option<IpAddr>, HeaderError> {
        match self {
            Self::Tcp(stream) | Self::Tls(stream, _) => proxy_header::read(stream).await,
            Self::Unix(stream) => proxy_header::read(stream).await,
        }
    }
}

impl Listener {
    /// Listens on an address; that of the result may have another port, if this one is 0.
    ///
    /// # Errors
    /// When the operating system refuses it.
    pub async fn bind(address: SocketAddr) -> io::Result<(SocketAddr, Self)> {
        let listener = TcpListener::bind(address).await?;
        Ok((listener.local_addr()?, listener.into()))
    }

    /// Listens on a Unix socket. Its file is removed with the listener.
    ///
    /// # Errors
    /// When somebody listens there, or there is another file.
    pub fn bind_unix(path: &Path) -> io::Result<Self> {
        clear(path)?;
        let mut partial = OsString::from(path);
        partial.push(".new");
        let partial = PathBuf::from(partial);
        clear(&partial)?;
        let listener = UnixListener::bind(&partial)?;
        // It gets its name only once others may connect, and nobody else.
        fs::set_permissions(&partial, fs::Permissions::from_mode(SOCKET_MODE))?;
        let file = SocketFile { path: path.to_owned(), inode: fs::metadata(&partial)?.ino() };
        fs::rename(&partial, path)?;
        Ok(Self { socket: Socket::Unix { listener, _file: file }, tls: None, proxies: None })
    }

    /// The same with TLS on every connection.
    #[must_use]
    pub fn with_tls(mut self, tls: &Arc<Tls>) -> Self {
        self.tls = Some(Arc::clone(tls));
        self
    }

    pub const fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The same with a PROXY header before each connection, which these proxies send. At a Unix
    /// socket, all who may connect do.
    #[must_use]
    pub fn behind(mut self, proxies: &[Range]) -> Self {
        self.proxies = Some(proxies.into());
        self
    }

    /// Whether connections begin with a PROXY header.
    pub(super) const fn expects_header(&self) -> bool {
        self.proxies.is_some()
    }

    /// Whether a connection from this address may say in a PROXY header whose it is.
    pub(super) fn believes(&self, address: IpAddr) -> bool {
        let is_unix = matches!(self.socket, Socket::Unix { .. });
        is_unix || self.proxies.as_ref().is_some_and(|proxies| contains(proxies, address))
    }

    /// A connection, and the address that it is from. Those by a Unix socket are from this machine.
    pub(super) async fn accept(&self) -> io::Result<(Accepted, IpAddr)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                let accepted = match &self.tls {
                    Some(tls) => Accepted::Tls(stream, Arc::clone(tls)),
                    None => Accepted::Tcp(stream),
                };
                Ok((accepted, address.ip()))
            }
            Socket::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok((Accepted::Unix(stream), Ipv4Addr::LOCALHOST.into()))
            }
        }
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self { socket: Socket::Tcp(listener), tls: None, proxies: None }
    }
}

/// Makes room for a socket: removes one that nobody listens on.
fn clear(path: &Path) -> io::Result<()> {
    let about = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        about => about?,
    };
    if !about.file_type().is_socket() {
        let text = "there is a file that is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match std::os::unix::net::UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another program listens there")),
        Err(error) => Err(error),
    }
}

/// The file of a Unix socket.
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have replaced it.
        let is_own = fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if is_own && let Err(error) = fs::remove_file(&self.path) {
            debug!(path = %self.path.display(), %error, "a socket could not be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_unix_socket_replaces_one_that_nobody_listens_on_and_goes_with_its_server() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client.sock");
        // A socket that a crash left behind.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = Listener::bind_unix(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        let refused = Listener::bind_unix(&path).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);

        // The look whether somebody listens was a connection, too.
        drop(listener.accept().await.unwrap());

        let mut client = UnixStream::connect(&path).await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let (accepted, address) = listener.accept().await.unwrap();
        assert!(address.is_loopback());
        let Accepted::Unix(mut stream) = accepted else { panic!("not a Unix socket") };
        let mut said = [0; 5];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");

        drop(listener);
        assert!(!path.exists());
        fs::write(&path, "a file").unwrap();
        let refused = Listener::bind_unix(&path).map(drop).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "a file");
    }
}
