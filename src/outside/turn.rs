//! Whether a TURN or STUN server answers: a binding request (RFC 8489), which needs no login.

use std::{io, net::SocketAddr, time::Duration};

use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket, lookup_host},
    time::timeout,
};

use crate::federation::connect::tls;
use logcabin_base::clock::random_bytes;
use logcabin_config::TurnUri;

/// The pauses after which a request by UDP is sent again. Each packet may get lost.
const AGAIN: [Duration; 4] = [
    Duration::from_millis(500),
    Duration::from_millis(1000),
    Duration::from_millis(2000),
    Duration::from_millis(3000),
];

const MAGIC: [u8; 4] = 0x2112_a442_u32.to_be_bytes();
const BINDING: [u8; 2] = [0, 1];
const BOUND: [u8; 2] = [1, 1];

/// Why a server does not count as answering.
#[derive(Debug, Error)]
pub enum TurnError {
    /// Nothing can be said about it.
    #[error("this server cannot try {0}")]
    Untried(&'static str),
    #[error("its address has no host")]
    Address,
    #[error("it has no address")]
    Nowhere,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("TLS: {0}")]
    Tls(String),
    #[error("it does not answer")]
    Silent,
    #[error("what answers is no TURN or STUN server")]
    Unexpected,
}

/// Where a server listens, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    host: String,
    port: u16,
    is_tls: bool,
    is_tcp: bool,
}

impl Place {
    fn of(uri: &str) -> Option<Self> {
        let (scheme, rest) = uri.split_once(':')?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let is_tls = scheme.ends_with('s');
        let is_tcp = match query.strip_prefix("transport=") {
            Some(transport) => transport.eq_ignore_ascii_case("tcp"),
            None => is_tls,
        };
        let usual = if is_tls { 5349 } else { 3478 };
        let (host, port) = match address.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']')?;
                (host, after.strip_prefix(':'))
            }
            None => match address.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (address, None),
            },
        };
        let port = port.map_or(Some(usual), |port| port.parse().ok())?;
        (!host.is_empty()).then(|| Self { host: host.to_owned(), port, is_tls, is_tcp })
    }
}

/// Asks the server at this address for a binding. The caller limits the time.
///
/// # Errors
/// When it gives none.
pub async fn bind(uri: &TurnUri) -> Result<(), TurnError> {
    let place = Place::of(&uri.to_string()).ok_or(TurnError::Address)?;
    if place.is_tls && !place.is_tcp {
        return Err(TurnError::Untried("DTLS"));
    }
    let mut last = TurnError::Nowhere;
    for address in lookup_host((place.host.as_str(), place.port)).await? {
        let bound = match place.is_tcp {
            true => by_tcp(&place, address).await,
            false => by_udp(address).await,
        };
        match bound {
            Ok(()) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn by_udp(address: SocketAddr) -> Result<(), TurnError> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    // Connected, so that only this server can answer, and its refusal is told.
    socket.connect(address).await?;
    let (request, id) = request();
    let mut answer = [0; 1024];
    for pause in AGAIN {
        socket.send(&request).await?;
        match timeout(pause, socket.recv(&mut answer)).await {
            Ok(length) => return judge(answer.get(..length?).unwrap_or_default(), &id),
            Err(_) => continue,
        }
    }
    Err(TurnError::Silent)
}

async fn by_tcp(place: &Place, address: SocketAddr) -> Result<(), TurnError> {
    let stream = TcpStream::connect(address).await?;
    if !place.is_tls {
        return over(stream).await;
    }
    let name = ServerName::try_from(place.host.clone()).map_err(|_| TurnError::Address)?;
    let connector = tls(None).map_err(TurnError::Tls)?;
    let stream = connector.connect(name, stream).await;
    over(stream.map_err(|error| TurnError::Tls(error.to_string()))?).await
}

async fn over(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<(), TurnError> {
    let (request, id) = request();
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut head = [0; 20];
    stream.read_exact(&mut head).await?;
    judge(&head, &id)
}

/// A binding request without attributes, and its transaction id.
fn request() -> ([u8; 20], [u8; 12]) {
    let id = random_bytes::<12>();
    let mut request = [0; 20];
    for (to, from) in request.iter_mut().zip(BINDING.iter().chain(&[0, 0]).chain(&MAGIC).chain(&id))
    {
        *to = *from;
    }
    (request, id)
}

/// Whether this is the answer to the request with this id, by its head.
fn judge(answer: &[u8], id: &[u8; 12]) -> Result<(), TurnError> {
    let is_answer = answer.get(..2) == Some(&BOUND[..])
        && answer.get(4..8) == Some(&MAGIC[..])
        && answer.get(8..20) == Some(&id[..]);
    if is_answer { Ok(()) } else { Err(TurnError::Unexpected) }
}

#[cfg(test)]
mod tests {
    use logcabin_config::Effective;

    use super::*;

    #[test]
    fn addresses_are_read_with_their_usual_ports() {
        let place = |host: &str, port, is_tls, is_tcp| {
            Some(Place { host: host.to_owned(), port, is_tls, is_tcp })
        };
        for (uri, expected) in [
            ("turn:t.example", place("t.example", 3478, false, false)),
            ("turn:t.example:99?transport=tcp", place("t.example", 99, false, true)),
            ("turns:t.example?transport=TCP", place("t.example", 5349, true, true)),
            ("turns:t.example", place("t.example", 5349, true, true)),
            ("turns:t.example?transport=udp", place("t.example", 5349, true, false)),
            ("stun:[2001:db8::1]:7", place("2001:db8::1", 7, false, false)),
            ("turn:[2001:db8::1]", place("2001:db8::1", 3478, false, false)),
            ("turn::99", None),
            ("turn:t.example:x", None),
        ] {
            assert_eq!(Place::of(uri), expected, "{uri}");
        }
    }

    #[tokio::test]
    async fn a_server_counts_only_if_it_answers_the_request() {
        for is_right in [true, false] {
            let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let uri = format!("turn:127.0.0.1:{}", server.local_addr().unwrap().port());
            let set = [("LOGCABIN_TURN_URIS".to_owned(), uri)];
            let uri = Effective::load(None, set, &[]).unwrap().config.turn.uris[0].clone();
            let answering = async {
                let mut asked = [0; 100];
                let (length, from) = server.recv_from(&mut asked).await.unwrap();
                assert_eq!(length, 20);
                assert_eq!((&asked[..2], &asked[4..8]), (&BINDING[..], &MAGIC[..]));
                asked[0] = 1;
                asked[19] ^= u8::from(!is_right);
                server.send_to(&asked[..20], from).await.unwrap();
            };
            let (bound, ()) = tokio::join!(bind(&uri), answering);
            assert_eq!(bound.is_ok(), is_right, "{bound:?}");
        }
    }
}
