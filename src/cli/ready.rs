//! `logcabin status --ready`: asks a running server at its own listener, for health checks of
//! containers, in which there is no other program.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::Duration,
};

use serde::Deserialize;
use thiserror::Error;

use logcabin_config::{Bind, Server};

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
pub(super) fn ask(server: &Server) -> Result<(), NotReady> {
    // An address rather than a socket: that is what clients use.
    let address = server.local_address().map(Bind::Tcp);
    let Some(bind) = address.or_else(|| server.bind.first().cloned()) else {
        let reason = "it listens nowhere".to_owned();
        return Err(NotReady::Silent { at: "server.bind".to_owned(), reason });
    };
    let at = bind.to_string();
    let said = exchange(&bind);
    let silent = |error: io::Error| NotReady::Silent { at: at.clone(), reason: error.to_string() };
    judge(&said.map_err(silent)?, at)
}

fn exchange(bind: &Bind) -> io::Result<Vec<u8>> {
    match bind {
        Bind::Tcp(address) => {
            let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            answer(stream)
        }
        Bind::Unix(path) => {
            let stream = UnixStream::connect(path)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            answer(stream)
        }
    }
}

fn answer(mut stream: impl Read + Write) -> io::Result<Vec<u8>> {
    stream.write_all(REQUEST)?;
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
