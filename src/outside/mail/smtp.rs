//! E-mail, by SMTP.

use std::{
    fmt::Debug,
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use lettre::{
    Address, AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor,
    message::{
        Mailbox, MultiPart,
        header::{HeaderName, HeaderValue},
    },
    transport::smtp::{
        Error, PoolConfig,
        authentication::{Credentials, DEFAULT_MECHANISMS},
        client::{AsyncSmtpConnection, AsyncTokioStream, Certificate, Tls, TlsParameters},
        commands::{Mail as MailFrom, Rcpt},
        extension::ClientId,
    },
};
use ruma::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use super::{SendError, SetupError};
use crate::{
    connector::Router,
    exits,
    federation::connect::{self, unbracketed},
};
use logcabin_base::{clock::random_token, limits};
use logcabin_config::{Email, FilePath, Hidden, MailSecurity};

/// A mail server, with the credentials for it.
pub(super) struct Mailer {
    transport: AsyncSmtpTransport<Tokio1Executor>,
    from: Mailbox,
    way: MailServer,
}

/// How to connect to the mail server.
struct MailServer {
    address: (String, u16),
    tls: Tls,
    hello: ClientId,
    credentials: Option<Credentials>,
    timeout: Duration,
    /// If it is reached through a proxy.
    proxied: Option<Proxied>,
    /// Says whether anything may leave.
    router: Arc<Router>,
}

/// How to connect to the mail server through a proxy.
struct Proxied {
    router: Arc<Router>,
    /// For servers that speak TLS from the start.
    tls: TlsConnector,
}

/// A rendered mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mail {
    /// The subject line.
    pub(crate) subject: String,
    /// The plain text.
    pub(crate) plain: String,
    pub html: String,
    /// The address for one-click unsubscribing (RFC 8058).
    pub(crate) unsubscribe: Option<String>,
}

impl Debug for Mailer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailer").field("from", &self.from).finish_non_exhaustive()
    }
}

fn bad(setting: &'static str, reason: impl std::fmt::Display) -> SetupError {
    SetupError::Setting { setting, reason: reason.to_string() }
}

/// Whether a host is this machine: `localhost` or a name below it (RFC 6761, section 6.3), or a
/// loopback address.
fn is_here(host: &str) -> bool {
    let host = host.trim_end_matches('.').to_ascii_lowercase();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    let is_loopback = |address: IpAddr| address.to_canonical().is_loopback();
    host == "localhost" || host.ends_with(".localhost") || address.parse().is_ok_and(is_loopback)
}

impl Mailer {
    /// The configured mail server. Does not connect yet.
    ///
    /// # Errors
    /// When a setting is not usable, or a file cannot be read.
    pub(super) fn new(
        config: &Email,
        host: &str,
        server: &ServerName,
        router: &Arc<Router>,
    ) -> Result<Self, SetupError> {
        let from = match &config.from {
            None => format!("{} <noreply@{}>", "Logcabin", server.host()),
            Some(from) => from.clone(),
        };
        let from: Mailbox = from.parse().map_err(|error| {
            bad("email.from", format!("`{from}` is not a sender ({error}); set it"))
        })?;
        let tls = || -> Result<TlsParameters, SetupError> {
            let mut tls = TlsParameters::builder(host.to_owned());
            if let Some(FilePath(path)) = &config.certificates {
                let wrong = |error: &dyn std::fmt::Display| bad("email.certificates", error);
                let pem = std::fs::read(path).map_err(|error| wrong(&error))?;
                let certificate = Certificate::from_pem(&pem).map_err(|error| wrong(&error))?;
                tls = tls.add_root_certificate(certificate);
            }
            tls.build().map_err(|error| bad("email.security", error))
        };
        let (tls, usual_port) = match config.security {
            MailSecurity::None if !is_here(host) => {
                let why = format!(
                    "\"none\" is only allowed for a mail server on this machine, but `email.host` is \
                     `{host}`: use \"starttls\" or \"tls\""
                );
                return Err(bad("email.security", why));
            }
            MailSecurity::None => (Tls::None, 25),
            MailSecurity::Starttls => (Tls::Required(tls()?), 587),
            MailSecurity::Tls => (Tls::Wrapper(tls()?), 465),
        };
        let port = u16::try_from(config.port).ok().filter(|port| *port != 0).unwrap_or(usual_port);
        let idle = u32::try_from(config.concurrent).unwrap_or(u32::MAX);
        let mut way = MailServer {
            address: (host.to_owned(), port),
            tls,
            hello: ClientId::Domain(server.host().to_owned()),
            credentials: None,
            timeout: Duration::from_secs(config.timeout_seconds),
            proxied: None,
            router: Arc::clone(router),
        };
        if router.is_proxied(unbracketed(host)) {
            let tls = connect::tls(config.certificates.as_ref());
            let tls = tls.map_err(|error| bad("email.certificates", error))?;
            way.proxied = Some(Proxied { router: Arc::clone(router), tls });
        }
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(host)
            .port(port)
            .tls(way.tls.clone())
            .hello_name(way.hello.clone())
            .timeout(Some(way.timeout))
            .pool_config(PoolConfig::new().max_size(idle));
        if let Some(user) = &config.user {
            let password = match &config.password_file {
                None => config.password.as_ref().map_or("", Hidden::expose).to_owned(),
                Some(file) => file.read().map_err(|error| bad("email.password_file", error))?,
            };
            let credentials = Credentials::new(user.clone(), password);
            builder = builder.credentials(credentials.clone());
            way.credentials = Some(credentials);
        }
        Ok(Self { transport: builder.build(), from, way })
    }

    /// Logs in to the mail server and leaves again.
    pub(super) async fn log_in(&self) -> Result<(), SendError> {
        let mut connection = self.way.connect().await?;
        connection.quit().await?;
        Ok(())
    }

    /// Hands a mail over to the mail server.
    pub(super) async fn send(&self, to: &str, mail: &Mail) -> Result<(), SendError> {
        self.way.may_leave()?;
        exits::leaves("a mail").map_err(|error| SendError::Unreachable(error.to_string()))?;
        let wrong = |error: &dyn std::fmt::Display| SendError::Letter(error.to_string());
        let to: Address = to.parse().map_err(|error| wrong(&error))?;
        // Keeps mail programs from answering with vacation notices.
        let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
        let domain = self.from.email.domain();
        let mut message = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to.clone()))
            .subject(&mail.subject)
            .message_id(Some(format!("<{}@{domain}>", random_token())))
            .date_now()
            .raw_header(HeaderValue::new(automatic, "auto-generated".to_owned()));
        if let Some(url) = &mail.unsubscribe {
            for (name, value) in [
                ("List-Unsubscribe", format!("<{url}>")),
                ("List-Unsubscribe-Post", "List-Unsubscribe=One-Click".to_owned()),
            ] {
                let name = HeaderName::new_from_ascii_str(name);
                message = message.raw_header(HeaderValue::new(name, value));
            }
        }
        let parts = MultiPart::alternative_plain_html(mail.plain.clone(), mail.html.clone());
        let message = message.multipart(parts).map_err(|error| wrong(&error))?;
        let sent = match &self.way.proxied {
            None => self.transport.send(message).await.map(drop),
            Some(_) => Box::pin(self.way.send(&message)).await?,
        };
        match sent {
            Ok(()) => Ok(()),
            Err(error) if error.is_permanent() && self.way.refuses(&self.from.email, to).await => {
                Err(SendError::Recipient(error))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl MailServer {
    /// Hands a mail over on a connection of its own: the transport, which keeps connections, opens
    /// them itself.
    async fn send(&self, message: &Message) -> Result<Result<(), Error>, SendError> {
        let mut connection = self.connect().await?;
        let sent = connection.send(message.envelope(), &message.formatted()).await;
        // It was handed over, or refused: that it does not part well changes nothing.
        let _ = timeout(limits::OUTBOUND_CONNECT_TIMEOUT, connection.quit()).await;
        Ok(sent.map(drop))
    }

    /// Whether the mail server rejects `recipient`, although it accepts mail from `sender`. The
    /// error of a transport does not say whether it rejected the sender, the recipient or the
    /// login.
    async fn refuses(&self, sender: &Address, recipient: Address) -> bool {
        let asked = async {
            let mut connection = self.connect().await?;
            connection.command(MailFrom::new(Some(sender.clone()), Vec::new())).await?;
            let answer = connection.command(Rcpt::new(recipient, Vec::new())).await;
            connection.abort().await;
            Ok::<_, SendError>(answer)
        };
        matches!(asked.await, Ok(Err(error)) if error.is_permanent())
    }

    /// The library connects by itself, past the router.
    fn may_leave(&self) -> Result<(), SendError> {
        let open = self.router.must_be_open();
        open.map_err(|rehearsal| SendError::Unreachable(rehearsal.to_string()))
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, SendError> {
        self.may_leave()?;
        let (host, port) = &self.address;
        let mut connection = match &self.proxied {
            Some(proxied) => {
                let is_secure = matches!(self.tls, Tls::Wrapper(_));
                let stream = Box::pin(proxied.connect(host, *port, is_secure)).await?;
                AsyncSmtpConnection::connect_with_transport(stream, &self.hello).await?
            }
            None => {
                let wrapper = match &self.tls {
                    Tls::Wrapper(tls) => Some(tls.clone()),
                    _ => None,
                };
                let server = (host.as_str(), *port);
                let timeout = Some(self.timeout);
                AsyncSmtpConnection::connect_tokio1(server, timeout, &self.hello, wrapper, None)
                    .await?
            }
        };
        if let Tls::Required(tls) = &self.tls {
            connection.starttls(tls.clone(), &self.hello).await?;
        }
        if let Some(credentials) = &self.credentials {
            connection.auth(DEFAULT_MECHANISMS, credentials).await?;
        }
        Ok(connection)
    }
}

impl Proxied {
    /// A connection to the mail server, with TLS if it is to be `secure`.
    async fn connect(
        &self,
        host: &str,
        port: u16,
        secure: bool,
    ) -> Result<Box<dyn AsyncTokioStream>, SendError> {
        let unreachable = |error: &dyn std::fmt::Display| SendError::Unreachable(error.to_string());
        let host = unbracketed(host);
        let stream = self.router.connect(host, port).await.map_err(|error| unreachable(&error))?;
        let peer = stream.peer_addr().map_err(|error| unreachable(&error))?;
        if !secure {
            return Ok(Box::new(MailLine { stream, peer }));
        }
        let name = rustls::pki_types::ServerName::try_from(host.to_owned());
        let name = name.map_err(|error| unreachable(&error))?;
        let shaking = timeout(limits::TLS_HANDSHAKE, self.tls.connect(name, stream)).await;
        let stream = shaking.map_err(|_| SendError::Late)?.map_err(|error| unreachable(&error))?;
        Ok(Box::new(MailLine { stream, peer }))
    }
}

/// A connection, for lettre.
#[derive(Debug)]
struct MailLine<S> {
    stream: S,
    peer: SocketAddr,
}

impl<S: AsyncRead + AsyncWrite + Debug + Send + Sync + Unpin> AsyncTokioStream for MailLine<S> {
    fn peer_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.peer)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for MailLine<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for MailLine<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use ruma::server_name;

    use super::*;

    #[tokio::test]
    async fn unencrypted_mail_is_only_sent_to_this_machine() {
        let mailer = |host: &str, security| {
            let config = Email { security, ..Email::default() };
            let router = Arc::new(Router::new(None, None));
            Mailer::new(&config, host, server_name!("example.org"), &router)
                .map_err(|e| e.to_string())
        };
        for (host, is_here) in [
            ("localhost", true),
            ("LocalHost.", true),
            ("mail.localhost", true),
            ("127.0.0.1", true),
            ("127.8.8.8", true),
            ("::1", true),
            ("[::1]", true),
            ("::ffff:127.0.0.1", true),
            ("mail.example.org", false),
            ("localhost.example.org", false),
            ("notlocalhost", false),
            ("10.0.0.1", false),
            ("0.0.0.0", false),
            ("fd00::1", false),
        ] {
            match mailer(host, MailSecurity::None) {
                Ok(_) => assert!(is_here, "{host} is taken"),
                Err(error) => {
                    assert!(!is_here, "{host}: {error}");
                    assert!(error.contains("`email.security`") && error.contains(host), "{error}");
                }
            }
            assert!(mailer(host, MailSecurity::Starttls).is_ok(), "{host}");
        }
    }
}
