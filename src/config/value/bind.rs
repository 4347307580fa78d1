//! Where to listen.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use toml::Value;

use super::{RawSetting, Setting};

/// What names a Unix socket.
const UNIX: &str = "unix:";

/// The longest path that the operating system takes for a Unix socket, in bytes. One more of its
/// 108 ends it, and four are for the name that the socket has before it is there for others.
const PATH_BYTES: usize = 103;

/// Where to listen: an address with a port, or a Unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Bind {
    /// The address; none of a Unix socket.
    pub const fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Whether only programs on this machine can connect, and are its users' own: behind a Unix
    /// socket is a proxy.
    pub fn is_loopback(&self) -> bool {
        self.address().as_ref().map(SocketAddr::ip).is_some_and(|ip: IpAddr| ip.is_loopback())
    }
}

impl From<SocketAddr> for Bind {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Setting for Bind {
    const ALLOWED: &'static str = "a list of addresses with ports, such as \"127.0.0.1:8008\" or \
                                   \"[::]:8008\", and of Unix sockets with their whole path, such \
                                   as \"unix:/run/logcabin/client.sock\"";
    const LISTED: &'static str = "a list, which may be empty, of addresses with ports, such as \
                                  \"0.0.0.0:8448\" or \"[::]:8448\", and of Unix sockets with \
                                  their whole path, such as \
                                  \"unix:/run/logcabin/federation.sock\"";

    fn read(given: &RawSetting<'_>) -> Option<Self> {
        let text = given.text()?;
        let Some(path) = text.strip_prefix(UNIX) else {
            return text.parse().ok().map(Self::Tcp);
        };
        let fine = path.starts_with('/') && !path.ends_with('/') && path.len() <= PATH_BYTES;
        (fine && !path.contains('\0')).then(|| Self::Unix(path.into()))
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<Bind> {
        Bind::read(&RawSetting::Text(text))
    }

    #[test]
    fn an_address_or_a_whole_path_is_listened_on() {
        let long = format!("unix:/{}", "a".repeat(PATH_BYTES));
        for bad in ["", "8008", "localhost:8008", "unix:", "unix:run/a", "unix:/run/", &long] {
            assert_eq!(read(bad), None, "{bad}");
        }
        for (text, is_loopback) in [
            ("127.0.0.1:8008", true),
            ("[::1]:8008", true),
            ("0.0.0.0:8008", false),
            // Whoever speaks there speaks for others.
            ("unix:/run/logcabin/client.sock", false),
        ] {
            let bind = read(text).unwrap();
            assert_eq!((bind.to_string(), bind.is_loopback()), (text.to_owned(), is_loopback));
        }
    }
}
