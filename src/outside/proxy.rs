//! The HTTP proxy through which connections leave, if one is configured. It is asked for each by
//! CONNECT (RFC 9110, section 9.3.6), also for those without TLS: what is said on them is the same
//! with a proxy and without.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::StatusCode;
use thiserror::Error;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

use logcabin_base::{limits, net::TcpStream};
use logcabin_config::{self as config, Hidden, NoProxy, ProxyUrl};

/// The proxy, and what is reached without it.
pub(crate) struct Proxy {
    at: ProxyUrl,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
    exceptions: Box<[NoProxy]>,
    resolves_names: bool,
}

/// Why the proxy gave no connection. The messages do not say where it is: some of them reach users.
#[derive(Clone, Debug, Error)]
pub(crate) enum ProxyError {
    #[error("the proxy (`outbound.proxy`) cannot be reached: {0}")]
    Unreachable(String),
    #[error("the proxy gave no connection to {0} in time")]
    Late(Destination),
    #[error("the proxy refused {0}: {1}{hint}", hint = hint(*.1))]
    Refused(Destination, StatusCode),
    #[error("the proxy broke off the request for {0}: {1}")]
    Io(Destination, String),
    #[error("what `outbound.proxy` names did not answer as an HTTP proxy")]
    Unexpected,
}

/// What to do about a refusal.
fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            " (see `outbound.proxy_user` and `outbound.proxy_password_file`)"
        }
        StatusCode::FORBIDDEN | StatusCode::METHOD_NOT_ALLOWED => {
            " (it must permit CONNECT to this port)"
        }
        _ => "",
    }
}

/// What the proxy is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    Address(SocketAddr),
    /// The proxy resolves the name.
    Name(Box<str>, u16),
}

impl Destination {
    /// A name for the proxy to resolve; `None` if something in it could be more than a name there.
    pub(crate) fn name(name: &str, port: u16) -> Option<Self> {
        let name = name.trim_end_matches('.');
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = !name.is_empty() && name.len() <= 253 && name.bytes().all(fine);
        is_name.then(|| Self::Name(name.into(), port))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("at", &self.at).finish_non_exhaustive()
    }
}

impl Proxy {
    /// The configured proxy, if there is one.
    ///
    /// # Errors
    /// When the file with the password cannot be read; the text names the setting.
    pub(crate) fn new(config: &config::Outbound) -> Result<Option<Arc<Self>>, String> {
        let Some(at) = config.proxy.clone() else { return Ok(None) };
        let authorization = match &config.proxy_user {
            None => None,
            Some(user) => {
                let password = match &config.proxy_password_file {
                    None => config.proxy_password.as_ref().map_or("", Hidden::expose).to_owned(),
                    Some(file) => file
                        .read()
                        .map_err(|error| format!("`outbound.proxy_password_file`: {error}"))?,
                };
                Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}"))))
            }
        };
        Ok(Some(Arc::new(Self {
            at,
            authorization,
            exceptions: config.no_proxy.iter().cloned().collect(),
            resolves_names: config.proxy_resolves_names,
        })))
    }

    /// Whether a host, by its name or as an address without brackets, is reached without the proxy.
    pub(crate) fn spares(&self, host: &str) -> bool {
        self.exceptions.iter().any(|one| one.covers(host))
    }

    fn spares_address(&self, address: IpAddr) -> bool {
        self.exceptions.iter().any(|one| one.covers_address(address))
    }

    /// Whether it resolves names.
    pub(crate) const fn resolves_names(&self) -> bool {
        self.resolves_names
    }

    /// Whether it resolves the name of a host that is reached through it.
    pub(crate) fn resolves(&self, host: &str) -> bool {
        self.resolves_names && host.parse::<IpAddr>().is_err() && !self.spares(host)
    }

    /// A connection through the proxy.
    ///
    /// # Errors
    /// When it gives none in time.
    pub(crate) async fn connect(&self, to: &Destination) -> Result<TcpStream, ProxyError> {
        let unreachable = |reason: &dyn fmt::Display| ProxyError::Unreachable(reason.to_string());
        let connecting = TcpStream::connect((&*self.at.host, self.at.port));
        let mut stream = match timeout(limits::OUTBOUND_CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(unreachable(&error)),
            Err(_) => return Err(unreachable(&"no answer in time")),
        };
        // Without it, requests are only slower.
        let _ = stream.set_nodelay(true);
        let asked = timeout(limits::PROXY_CONNECT_TIME, self.ask(&mut stream, to)).await;
        let status = match asked {
            Ok(Ok(status)) => status.ok_or(ProxyError::Unexpected)?,
            Ok(Err(error)) => return Err(ProxyError::Io(to.clone(), error.to_string())),
            Err(_) => return Err(ProxyError::Late(to.clone())),
        };
        if status.is_success() { Ok(stream) } else { Err(ProxyError::Refused(to.clone(), status)) }
    }

    /// Asks for a connection, and reads the head of the answer; `None` if it is not one of HTTP.
    async fn ask(
        &self,
        stream: &mut TcpStream,
        to: &Destination,
    ) -> io::Result<Option<StatusCode>> {
        let authorization = match &self.authorization {
            Some(value) => format!("Proxy-Authorization: {value}\r\n"),
            None => String::new(),
        };
        let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{authorization}\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        // Byte by byte: what follows is for somebody else, and a mail server speaks first.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == limits::PROXY_ANSWER_BYTES {
                return Ok(None);
            }
            head.push(stream.read_u8().await?);
        }
        Ok(status(&head))
    }
}

/// The status in the head of an answer.
fn status(head: &[u8]) -> Option<StatusCode> {
    let rest = head.strip_prefix(b"HTTP/1.")?;
    let (version, rest) = rest.split_first()?;
    let code = rest.strip_prefix(b" ")?.get(..3)?;
    version.is_ascii_digit().then(|| StatusCode::from_bytes(code).ok()).flatten()
}

/// One way to a service.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Direct(SocketAddr),
    ByProxy(Arc<Proxy>, Destination),
}

/// Why a way led nowhere.
#[derive(Debug, Error)]
pub(crate) enum WayError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no answer in time")]
    Late,
    #[error(transparent)]
    Proxy(#[from] ProxyError),
}

impl Way {
    /// The way to an address of a host, which the proxy of the host is asked for if there is one.
    pub(crate) fn to(address: SocketAddr, proxy: Option<&Arc<Proxy>>) -> Self {
        match proxy {
            Some(proxy) if !proxy.spares_address(address.ip()) => {
                Self::ByProxy(Arc::clone(proxy), Destination::Address(address))
            }
            _ => Self::Direct(address),
        }
    }

    /// A connection on this way.
    ///
    /// # Errors
    /// When there is none in time.
    pub(crate) async fn connect(&self) -> Result<TcpStream, WayError> {
        match self {
            Self::Direct(address) => {
                let connecting = TcpStream::connect(address);
                let connected = timeout(limits::OUTBOUND_CONNECT_TIMEOUT, connecting).await;
                Ok(connected.map_err(|_| WayError::Late)??)
            }
            Self::ByProxy(proxy, to) => Ok(proxy.connect(to).await?),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(address) => address.fmt(f),
            Self::ByProxy(_, to) => to.fmt(f),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use logcabin_config::Effective;

    /// A configuration with these settings of `[outbound]`, in capitals.
    pub(crate) fn config_with(settings: &[(&str, &str)]) -> config::Outbound {
        let set = settings
            .iter()
            .map(|(name, value)| (format!("LOGCABIN_OUTBOUND_{name}"), (*value).to_owned()));
        Effective::load(None, set, &[]).unwrap().config.outbound
    }

    /// A proxy that answers every request with `answer`; where it listens, and what it was asked.
    pub(crate) async fn answering(
        answer: &'static [u8],
    ) -> (String, tokio::sync::mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let (told, asked) = tokio::sync::mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    head.push(byte);
                }
                let _ = told.send(String::from_utf8(head).unwrap());
                let _ = stream.write_all(answer).await;
            }
        });
        (at, asked)
    }

    fn to_address() -> Destination {
        Destination::Address("203.0.113.5:8448".parse().unwrap())
    }

    #[tokio::test]
    async fn the_proxy_is_asked_with_user_and_password_and_what_follows_is_left() {
        let (at, mut asked) = answering(b"HTTP/1.1 200 OK\r\nX: y\r\n\r\n220 mail.example").await;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "pass word\n").unwrap();
        let file = file.path().to_str().unwrap();
        let settings = [("PROXY", &*at), ("PROXY_USER", "ann"), ("PROXY_PASSWORD_FILE", file)];
        let proxy = Proxy::new(&config_with(&settings)).unwrap().unwrap();
        let mut stream = proxy.connect(&to_address()).await.unwrap();
        assert_eq!(
            asked.recv().await.unwrap(),
            "CONNECT 203.0.113.5:8448 HTTP/1.1\r\nHost: 203.0.113.5:8448\r\n\
             Proxy-Authorization: Basic YW5uOnBhc3Mgd29yZA==\r\n\r\n"
        );
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "220 mail.example");
        // Nothing of that is shown.
        assert!(!format!("{proxy:?}").contains("YW5u"), "{proxy:?}");

        let to = Destination::name("example.org.", 443).unwrap();
        drop(proxy.connect(&to).await.unwrap());
        assert!(asked.recv().await.unwrap().starts_with("CONNECT example.org:443 HTTP/1.1\r\n"));
    }

    #[tokio::test]
    async fn a_refusal_says_what_the_proxy_says() {
        const CASES: [(&[u8], &str); 4] = [
            (
                b"HTTP/1.1 407 Who are you\r\nContent-Length: 1\r\n\r\nx",
                "the proxy refused 203.0.113.5:8448: 407 Proxy Authentication Required (see \
                 `outbound.proxy_user` and `outbound.proxy_password_file`)",
            ),
            (
                b"HTTP/1.0 403 No\r\n\r\n",
                "the proxy refused 203.0.113.5:8448: 403 Forbidden (it must permit CONNECT to this \
                 port)",
            ),
            (b"HTTP/1.1 502 Bad\r\n\r\n", "the proxy refused 203.0.113.5:8448: 502 Bad Gateway"),
            (b"SSH-2.0-x\r\n\r\n", "what `outbound.proxy` names did not answer as an HTTP proxy"),
        ];
        for (answer, expected) in CASES {
            let (at, _asked) = answering(answer).await;
            let proxy = Proxy::new(&config_with(&[("PROXY", &at)])).unwrap().unwrap();
            let error = proxy.connect(&to_address()).await.unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn what_is_reached_without_the_proxy_is_known_by_name_and_by_address() {
        let proxy = Proxy::new(&config_with(&[
            ("PROXY", "http://proxy.example:3128"),
            ("NO_PROXY", "example.org, .inner.example, 10.0.0.0/8, 192.0.2.7"),
        ]));
        let proxy = proxy.unwrap().unwrap();
        for (host, is_spared) in [
            ("example.org", true),
            ("a.example.org", true),
            ("a.inner.example", true),
            ("inner.example", false),
            ("10.1.2.3", true),
            ("192.0.2.7", true),
            ("192.0.2.8", false),
        ] {
            assert_eq!(proxy.spares(host), is_spared, "{host}");
            assert!(!proxy.resolves(host));
        }
        let way = |address: &str| Way::to(address.parse().unwrap(), Some(&proxy));
        assert!(matches!(way("10.1.2.3:80"), Way::Direct(_)));
        assert!(matches!(way("203.0.113.5:80"), Way::ByProxy(..)));
        // By default, this machine is reached without it.
        let usual = config_with(&[("PROXY", "http://proxy.example:3128")]);
        let usual = Proxy::new(&usual).unwrap().unwrap();
        assert!(usual.spares("127.0.0.1") && usual.spares("::1") && !usual.spares("10.0.0.1"));
        assert!(Proxy::new(&config_with(&[])).unwrap().is_none());
    }

    #[test]
    fn a_name_cannot_be_more_than_one() {
        for bad in ["", ".", "a b", "a\r\nX: y", "a:80", "a/b", "é.example", &"a".repeat(254)] {
            assert_eq!(Destination::name(bad, 80), None, "{bad}");
        }
    }

    #[test]
    fn only_names_are_resolved_by_the_proxy() {
        let settings = [
            ("PROXY", "http://proxy.example:3128"),
            ("NO_PROXY", "inner.example"),
            ("PROXY_RESOLVES_NAMES", "true"),
        ];
        let proxy = Proxy::new(&config_with(&settings)).unwrap().unwrap();
        for (host, is_resolved) in [
            ("example.org", true),
            ("a.inner.example", false),
            ("203.0.113.5", false),
            ("::1", false),
        ] {
            assert_eq!(proxy.resolves(host), is_resolved, "{host}");
        }
    }
}
