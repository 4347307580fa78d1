//! `logcabin status --ready`: asks a running server at its own listener, for health checks of
//! containers, in which there is no other program.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, TcpStream},
    os::unix::net::UnixStream,
    time::Duration,
};

use serde::Deserialize;
use thiserror::Error;

use logcabin_base::{
    network::{Range, contains},
    proxy_protocol::{FIXED_BYTES, own_header},
};
use logcabin_config::{Bind, Config};

/// How long connecting may take, and each piece of the answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The most that is read of an answer, in bytes.
const ANSWER_BYTES: u64 = 64 * 1024;

const REQUEST: &[u8] =
    b"GET /health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Why a server counts as not ready.
#[derive(Debug, Error, PartialEq, Eq)]
pub(super) enum NotReady {
    #[error("the server does not answer at {at}: {reason}")]
    Silent { at: String, reason: String },
    #[error(
        "whether the server is ready is not known: this machine connects to {at} from {own}, which \
         is not in `http.proxy_protocol_from`: add it"
    )]
    NoProxy { at: String, own: IpAddr },
    #[error("what answers at {0} is no Logcabin server")]
    Other(String),
    #[error("the server is not ready: {0}")]
    Unready(String),
}

/// The part of the answer that says why.
#[derive(Debug, Deserialize)]
struct Answer {
    status: String,
    #[serde(default)]
    reasons: Vec<Reason>,
}

#[derive(Debug, Deserialize)]
struct Reason {
    reason: String,
}

/// Whether the server that runs with these settings can do its work.
pub(super) fn ask(config: &Config) -> Result<(), NotReady> {
    let server = &config.server;
    // An address rather than a socket: that is what clients use.
    let address = server.local_address().map(Bind::Tcp);
    let Some(bind) = address.or_else(|| server.bind.first().cloned()) else {
        let reason = "it listens nowhere".to_owned();
        return Err(NotReady::Silent { at: "server.bind".to_owned(), reason });
    };
    let proxies = server.proxy_protocol.then(|| &config.http.proxy_protocol_from[..]);
    judge(&exchange(&bind, proxies)?, bind.to_string())
}

/// Asks the listener, which believes the PROXY headers of these proxies if it expects one.
fn exchange(bind: &Bind, proxies: Option<&[Range]>) -> Result<Vec<u8>, NotReady> {
    let at = || bind.to_string();
    let silent = |error: io::Error| NotReady::Silent { at: at(), reason: error.to_string() };
    let header = proxies.map(|_| own_header());
    match bind {
        Bind::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, TIMEOUT).map_err(silent)?;
            stream.set_read_timeout(Some(TIMEOUT)).map_err(silent)?;
            let own = stream.local_addr().map_err(silent)?.ip();
            if proxies.is_some_and(|proxies| !contains(proxies, own)) {
                return Err(NotReady::NoProxy { at: at(), own });
            }
            answer(stream, header).map_err(silent)
        }
        // Whoever may connect there is believed.
        Bind::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(silent)?;
            stream.set_read_timeout(Some(TIMEOUT)).map_err(silent)?;
            answer(stream, header).map_err(silent)
        }
    }
}

fn answer(mut stream: impl Read + Write, header: Option<[u8; FIXED_BYTES]>) -> io::Result<Vec<u8>> {
    let header = header.as_ref().map_or(&[][..], |header| &header[..]);
    stream.write_all(&[header, REQUEST].concat())?;
    let mut said = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut said)?;
    Ok(said)
}

fn judge(said: &[u8], at: String) -> Result<(), NotReady> {
    let end = said.windows(4).position(|end| end == b"\r\n\r\n");
    let body = end.and_then(|end| said.get(end + 4..)).unwrap_or_default();
    match serde_json::from_slice::<Answer>(body) {
        Ok(answer) if answer.status == "ready" => Ok(()),
        Ok(Answer { reasons, .. }) => {
            let reasons: Vec<_> = reasons.into_iter().map(|Reason { reason }| reason).collect();
            Err(NotReady::Unready(reasons.join(" ")))
        }
        Err(_) => Err(NotReady::Other(at)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(said: &str) -> Result<(), NotReady> {
        judge(said.as_bytes(), "here".to_owned())
    }

    #[test]
    fn only_a_server_that_says_so_is_ready() {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
        assert_eq!(judged(&format!("{head}{{\"status\":\"ready\",\"warnings\":[]}}")), Ok(()));
        let full = r#"{"status":"unready","reasons":[{"check":"log","reason":"It is full."}]}"#;
        let unready = Err(NotReady::Unready("It is full.".to_owned()));
        assert_eq!(judged(&format!("{head}{full}")), unready);
        for other in ["", head, "{\"status\":\"ready\"}", "HTTP/1.1 200 OK\r\n\r\nhello"] {
            assert_eq!(judged(other), Err(NotReady::Other("here".to_owned())), "{other}");
        }
    }
}
