//! The ways out of this server, and what holds at all of them.
//!
//! In a rehearsal nothing leaves. These are the exits, and where each is closed:
//!
//! | Exit | Closed in |
//! |---|---|
//! | HTTP: push gateways, application services, text messages, identity servers, captcha, OpenID Connect, previews, certificates by ACME, collectors | [`Outbound`](crate::outbound::Outbound), and below it the `Router` of `connector.rs`, before a name is looked up |
//! | mail, by the library's own connections | `mail/smtp.rs` |
//! | homeservers: transactions, joins, keys, files, names | there is no [`FederationClient`](crate::federation::FederationClient), and nobody is served |
//! | TURN, the server's own name, notaries | `logcabin doctor` asks nobody |
//! | the other nodes of a cluster | a node cannot rehearse |
//!
//! The tasks that deliver are not started either: what they are told is that nothing arrived, and
//! they would note it.
//!
//! A server that has taken over from another one notes when something leaves it for the first time:
//! from then on there is no way back ([`leaves`]). What an authority for certificates or a
//! collector of metrics is told is nothing that the other server would have to know, and is not
//! noted.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use thiserror::Error;

use logcabin_base::clock::Clock;

/// Nothing leaves the server.
#[derive(Clone, Copy, Debug, Error)]
#[error("this is a rehearsal: nothing leaves the server")]
pub struct Rehearsal;

/// Where the first departure is noted; nowhere on a server that has not taken over from another.
static FIRST: OnceLock<FirstDeparture> = OnceLock::new();

struct FirstDeparture {
    path: PathBuf,
    is_noted: AtomicBool,
    /// The others wait until it is durable.
    noting: Mutex<()>,
}

/// Notes the first departure of this process in a file. Only the first call counts.
pub fn note_departure_in(path: PathBuf) {
    let _ = FIRST.set(FirstDeparture::new(path));
}

/// Something is about to be told to others, or was taken from them. The note of that is durable
/// before it happens.
///
/// # Errors
/// When it cannot be noted; then it must not happen.
pub fn leaves(what: &str) -> io::Result<()> {
    FIRST.get().map_or(Ok(()), |first| first.note(what))
}

impl FirstDeparture {
    const fn new(path: PathBuf) -> Self {
        Self { path, is_noted: AtomicBool::new(false), noting: Mutex::new(()) }
    }

    fn note(&self, what: &str) -> io::Result<()> {
        if self.is_noted.load(Ordering::Acquire) {
            return Ok(());
        }
        let _noting = self.noting.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_noted.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o600).open(&self.path) {
            Ok(mut file) => {
                let time_ms = Clock::system().now_ms();
                writeln!(file, "{{\"time_ms\":{time_ms},\"what\":\"{what}\"}}")?;
                file.sync_all()?;
            }
            // By an earlier process, which may have been killed before it was durable. That the
            // file is there counts, not what is in it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                File::open(&self.path)?.sync_all()?;
            }
            Err(error) => return Err(error),
        }
        // Its name is durable, too.
        if let Some(dir) = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            File::open(dir)?.sync_all()?;
        }
        self.is_noted.store(true, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_departure_is_noted_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("left.json");
        let first = FirstDeparture::new(path.clone());
        assert!(!path.exists());
        for what in ["a request", "a mail"] {
            first.note(what).unwrap();
            let noted: serde_json::Value =
                serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
            assert_eq!(noted["what"], "a request");
        }
        FirstDeparture::new(path.clone()).note("after a restart").unwrap();
        assert!(!std::fs::read_to_string(&path).unwrap().contains("restart"));
        // Where it cannot be noted, nothing may leave.
        assert!(FirstDeparture::new(dir.path().join("none/left.json")).note("x").is_err());
    }
}
