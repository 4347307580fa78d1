//! An HTTP proxy that connects to what it is asked for by CONNECT, and to nothing else.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A proxy that listens, until it is dropped.
pub(crate) struct Tunnel {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Tried>>>,
    serving: JoinHandle<()>,
}

/// What the proxy was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tried {
    /// An address or a name, with a port.
    pub(crate) target: String,
    /// What it answered.
    pub(crate) status: u16,
}

/// The user and the password that a proxy demands.
pub(crate) const LOGIN: (&str, &str) = ("cabin", "a secret of the proxy");

impl Tunnel {
    /// A proxy for everybody.
    pub(crate) async fn start() -> Self {
        Self::start_with(None).await
    }

    /// A proxy for those who know [`LOGIN`].
    pub(crate) async fn start_with_login() -> Self {
        let login = STANDARD.encode(format!("{}:{}", LOGIN.0, LOGIN.1));
        Self::start_with(Some(format!("proxy-authorization: basic {login}"))).await
    }

    async fn start_with(required: Option<String>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it has an address");
        let asked = Arc::<Mutex<Vec<Tried>>>::default();
        let tells = Arc::clone(&asked);
        let serving = tokio::spawn(async move {
            // Aborted with the task.
            let mut connections = JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else { continue };
                connections.spawn(serve(stream, required.clone(), Arc::clone(&tells)));
            }
        });
        Self { address, asked, serving }
    }

    /// The settings of a server that reaches everything through it, this machine too.
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LOGCABIN_OUTBOUND_PROXY", format!("http://{}", self.address)),
            ("LOGCABIN_OUTBOUND_NO_PROXY", "none".to_owned()),
        ]
    }

    /// Everything that it was asked for so far.
    pub(crate) fn asked(&self) -> Vec<Tried> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether it has connected to this port.
    pub(crate) fn has_reached(&self, port: u16) -> bool {
        let end = format!(":{port}");
        self.asked().iter().any(|tried| tried.status == 200 && tried.target.ends_with(&end))
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(mut stream: TcpStream, required: Option<String>, asked: Arc<Mutex<Vec<Tried>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) if head.len() < 8192 => head.push(byte),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    // The secret is compared without a case: it is enough for a test.
    let has_login = required
        .is_none_or(|required| head.lines().any(|line| line.eq_ignore_ascii_case(&required)));
    let (there, status) = match (method, has_login) {
        // No host has such a name, but to find that out can take name servers a long time.
        ("CONNECT", true) if target.contains(".example:") => (None, 502),
        ("CONNECT", true) => match TcpStream::connect(target).await {
            Ok(there) => (Some(there), 200),
            Err(_) => (None, 502),
        },
        ("CONNECT", false) => (None, 407),
        _ => (None, 405),
    };
    let tried = Tried { target: target.to_owned(), status };
    asked.lock().unwrap_or_else(PoisonError::into_inner).push(tried);
    let answer = format!("HTTP/1.1 {status} As said\r\nVia: 1.1 tunnel\r\n\r\n");
    if stream.write_all(answer.as_bytes()).await.is_ok()
        && let Some(mut there) = there
    {
        let _ = copy_bidirectional(&mut stream, &mut there).await;
    }
}
