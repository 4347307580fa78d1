//! The access log: one line for each answered request. It is off by default.
//!
//! Lines hold no token, no query and no body. Of a path they hold the endpoint's template, in which
//! only what names rooms, users, events and files is filled in. Another thread writes them, and
//! what it cannot write in time is dropped.

use std::{
    borrow::Cow,
    fmt::Write as _,
    fs::{File, OpenOptions},
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use http::{
    HeaderMap, HeaderName, Method, StatusCode, Uri, Version,
    header::{REFERER, USER_AGENT},
};
use parking_lot::Mutex;
use serde_json::json;
use thiserror::Error;
use time::OffsetDateTime;
use tracing::warn;

use logcabin_base::{clock::Clock, limits};
use logcabin_config::{AccessFormat, AccessLogTo, Http};

/// How often it is said that lines were dropped or could not be written.
const SAID_EVERY: Duration = Duration::from_secs(60);

/// Parameters of paths that are filled in. None of them is a secret.
const SHOWN: [&str; 12] = [
    "eventId",
    "event_id",
    "event_type",
    "media_id",
    "roomId",
    "room_alias",
    "room_id",
    "room_id_or_alias",
    "server_name",
    "type",
    "userId",
    "user_id",
];

/// Segments that are shown of a path that nobody serves.
const SEGMENTS: usize = 3;

/// The file of the access log cannot be opened.
#[derive(Debug, Error)]
#[error("`http.access_log_to`: {}: {source}", path.display())]
pub struct AccessLogError {
    path: PathBuf,
    source: io::Error,
}

/// Where lines go.
pub struct AccessLog {
    format: AccessFormat,
    clock: Clock,
    lines: SyncSender<Option<String>>,
    dropped: AtomicU64,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What is known of a request when it begins.
pub(super) struct AccessEntry {
    client: IpAddr,
    path: String,
    agent: Option<String>,
    referer: Option<String>,
    version: Version,
}

/// How it was answered.
pub(super) struct Answered<'a> {
    pub(super) method: &'a Method,
    pub(super) status: StatusCode,
    /// The length of the body, if it was known before it was sent.
    pub(super) bytes: Option<u64>,
    pub(super) user: Option<&'a str>,
    /// When the request came.
    pub(super) started: Instant,
}

impl AccessLog {
    /// The access log that the configuration asks for.
    ///
    /// # Errors
    /// When its file cannot be opened.
    pub fn open(config: &Http, clock: Clock) -> Result<Option<Self>, AccessLogError> {
        let Some(format) = config.access_log else { return Ok(None) };
        let mut to: Box<dyn Write + Send> = match &config.access_log_to {
            AccessLogTo::Stderr => Box::new(io::stderr()),
            AccessLogTo::File(path) => {
                let file = appended(path);
                let failed = |source| AccessLogError { path: path.clone(), source };
                Box::new(file.map_err(failed)?)
            }
        };
        let (lines, given) = sync_channel(limits::ACCESS_LINES);
        let write = move || write_all(&given, &mut *to);
        let writer = std::thread::Builder::new().name("access log".to_owned()).spawn(write);
        let path = || PathBuf::from("a thread");
        let writer = writer.map_err(|source| AccessLogError { path: path(), source })?;
        let (dropped, writer) = (AtomicU64::new(0), Mutex::new(Some(writer)));
        Ok(Some(Self { format, clock, lines, dropped, writer }))
    }

    /// Adds a line.
    pub(super) fn log(&self, entry: &AccessEntry, answered: &Answered<'_>) {
        let line = line(self.format, self.clock.now_ms(), entry, answered);
        if self.lines.try_send(Some(line)).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed);
            if dropped.is_power_of_two() || dropped == 0 {
                warn!(dropped = dropped + 1, "lines of the access log are dropped: it is too slow");
            }
        }
    }

    /// Writes what is left. Blocks.
    pub fn end(&self) {
        if let Some(writer) = self.writer.lock().take()
            && self.lines.send(None).is_ok()
        {
            let _ = writer.join();
        }
    }
}

fn appended(path: &PathBuf) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Writes lines until the end, several at once if they come fast.
fn write_all(given: &Receiver<Option<String>>, to: &mut dyn Write) {
    let mut said: Option<Instant> = None;
    while let Ok(Some(mut text)) = given.recv() {
        let mut is_last = false;
        while text.len() < 64 * 1024
            && let Ok(next) = given.try_recv()
        {
            match next {
                Some(line) => text.push_str(&line),
                None => {
                    is_last = true;
                    break;
                }
            }
        }
        if let Err(error) = to.write_all(text.as_bytes())
            && said.is_none_or(|said| said.elapsed() > SAID_EVERY)
        {
            said = Some(Instant::now());
            warn!(%error, "the access log cannot be written");
        }
        if is_last {
            return;
        }
    }
}

impl AccessEntry {
    pub(super) fn begin(client: IpAddr, uri: &Uri, headers: &HeaderMap, version: Version) -> Self {
        let header = |name: HeaderName| headers.get(name).map(|value| value.as_bytes());
        Self {
            client,
            path: unserved(uri.path()),
            agent: header(USER_AGENT).map(safe),
            // Its query may hold a token.
            referer: header(REFERER)
                .and_then(|value| value.split(|byte| b"?#".contains(byte)).next())
                .map(safe),
            version,
        }
    }

    /// Notes the endpoint: its template, and the parts of the path for it.
    pub(super) fn found(&mut self, template: &str, args: &[Cow<'_, str>]) {
        let mut args = args.iter();
        let mut path = String::with_capacity(template.len() + 64);
        for segment in template.split('/').skip(1) {
            path.push('/');
            let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
            let value = name.and_then(|name| Some((name, args.next()?)));
            match value {
                Some((name, value)) if SHOWN.contains(&name) => {
                    path.push_str(&safe(value.as_bytes()));
                }
                _ => path.push_str(segment),
            }
        }
        self.path = path;
    }
}

/// The beginning of a path that may be anything.
fn unserved(path: &str) -> String {
    let mut segments = path.split('/').skip(1);
    let mut shown = String::new();
    for segment in segments.by_ref().take(SEGMENTS) {
        shown.push('/');
        shown.push_str(&safe(segment.as_bytes()));
    }
    if segments.next().is_some() {
        shown.push_str("/...");
    }
    shown
}

/// A text in which everything is escaped that could end a field or a line, or control a terminal.
/// It is bounded.
fn safe(text: &[u8]) -> String {
    let mut shown = String::with_capacity(text.len().min(limits::ACCESS_FIELD_BYTES));
    for byte in text.iter().take(limits::ACCESS_FIELD_BYTES) {
        match byte {
            b'"' | b'\\' | 0..0x20 | 0x7f.. => {
                // Writing to a string cannot fail.
                let _ = write!(shown, "\\x{byte:02x}");
            }
            _ => shown.push(char::from(*byte)),
        }
    }
    shown
}

fn line(format: AccessFormat, now_ms: u64, entry: &AccessEntry, answered: &Answered<'_>) -> String {
    let AccessEntry { client, path, agent, referer, version } = entry;
    let Answered { method, status, bytes, user, started } = answered;
    let (address, path) = (client.to_canonical(), path.replace(' ', "%20"));
    let seconds = started.elapsed().as_secs_f64();
    let nanos = i128::from(now_ms) * 1_000_000;
    let time = OffsetDateTime::from_unix_timestamp_nanos(nanos);
    let time = time.unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let (hour, minute, second) = time.to_hms();
    let day = time.day();
    match format {
        AccessFormat::Combined => {
            const MONTHS: [&str; 12] = [
                "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
            ];
            let month = MONTHS[usize::from(u8::from(time.month()) - 1)];
            let bytes = bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
            let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            format!(
                "{address} - {user} [{day:02}/{month}/{year}:{hour:02}:{minute:02}:{second:02} \
                 +0000] \"{method} {path} {version:?}\" {status} {bytes} \"{referer}\" \
                 \"{agent}\" {seconds:.3}\n",
                user = user.unwrap_or("-"),
                year = time.year(),
                status = status.as_u16(),
                referer = or_none(referer),
                agent = or_none(agent),
            )
        }
        AccessFormat::Json => {
            let time = format!(
                "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z",
                year = time.year(),
                month = u8::from(time.month()),
                milli = time.millisecond(),
            );
            let mut line = json!({
                "time": time,
                "address": address,
                "user": user,
                "method": method.as_str(),
                "path": path,
                "protocol": format!("{version:?}"),
                "status": status.as_u16(),
                "bytes": bytes,
                "seconds": (seconds * 1e6).round() / 1e6,
                "referer": referer,
                "agent": agent,
            })
            .to_string();
            line.push('\n');
            line
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uri: &str, headers: &[(HeaderName, &str)]) -> AccessEntry {
        let uri = uri.parse::<Uri>().unwrap();
        let of_header = |(name, value): &(HeaderName, &str)| (name.clone(), value.parse().unwrap());
        let headers = headers.iter().map(of_header).collect();
        let client = "::ffff:203.0.113.7".parse().unwrap();
        AccessEntry::begin(client, &uri, &headers, Version::HTTP_11)
    }

    fn shown(format: AccessFormat, entry: &AccessEntry, user: Option<&str>) -> String {
        let answered = Answered {
            method: &Method::GET,
            status: StatusCode::OK,
            bytes: Some(12),
            user,
            started: Instant::now(),
        };
        line(format, 1_700_000_000_123, entry, &answered)
    }

    #[test]
    fn a_line_of_the_combined_format_has_what_programs_read() {
        let mut entry = entry(
            "/_matrix/client/v3/rooms/!r:x/send/m.text/t?access_token=secret",
            &[
                (USER_AGENT, "Cl\"ient 1.0"),
                (REFERER, "https://app.example.org/x?loginToken=secret#y"),
            ],
        );
        let args = ["!r:x", "m.text", "secret"].map(Cow::Borrowed);
        entry.found("/_matrix/client/v3/rooms/{room_id}/send/{event_type}/{txn_id}", &args);
        let line = shown(AccessFormat::Combined, &entry, Some("@ann:x"));
        let (head, seconds) = line.rsplit_once(' ').unwrap();
        assert_eq!(
            head,
            "203.0.113.7 - @ann:x [14/Nov/2023:22:13:20 +0000] \
             \"GET /_matrix/client/v3/rooms/!r:x/send/m.text/{txn_id} HTTP/1.1\" 200 12 \
             \"https://app.example.org/x\" \"Cl\\x22ient 1.0\""
        );
        assert!(seconds.trim_end().parse::<f64>().is_ok() && seconds.ends_with('\n'), "{line}");
    }

    #[test]
    fn a_line_of_json_is_an_object() {
        let mut entry = entry("/_synapse/admin/v1/registration_tokens/secret", &[]);
        let args = [Cow::Borrowed("secret")];
        entry.found("/_synapse/admin/v1/registration_tokens/{token}", &args);
        let line = shown(AccessFormat::Json, &entry, None);
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["time"], "2023-11-14T22:13:20.123Z");
        assert_eq!(line["path"], "/_synapse/admin/v1/registration_tokens/{token}");
        assert_eq!((&line["user"], &line["bytes"]), (&json!(null), &json!(12)));
    }

    #[test]
    fn nothing_in_a_request_breaks_a_line_or_fills_the_disk() {
        let hostile = "a\u{9}b".repeat(10_000);
        let mut entry = entry("/wp-admin/x%22y/z/password/more", &[(USER_AGENT, &hostile)]);
        assert_eq!(entry.path, "/wp-admin/x%22y/z/...");
        entry.found("/rooms/{room_id}", &[Cow::Owned("!\"\n\u{1b}[31m\u{202e} x".repeat(1000))]);
        for format in [AccessFormat::Combined, AccessFormat::Json] {
            let line = shown(format, &entry, None);
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert!(line.len() < 4096 && line.is_ascii(), "{line}");
            assert!(line.bytes().all(|byte| byte == b'\n' || byte >= 0x20), "{line}");
        }
    }

    #[test]
    fn lines_reach_their_file_before_the_end() {
        let path = std::env::temp_dir().join(format!("access-{}.log", std::process::id()));
        let config = Http {
            access_log: Some(AccessFormat::Json),
            access_log_to: AccessLogTo::File(path.clone()),
            ..Http::default()
        };
        let log = AccessLog::open(&config, Clock::manual(0)).unwrap().unwrap();
        let answered = || Answered {
            method: &Method::GET,
            status: StatusCode::OK,
            bytes: None,
            user: None,
            started: Instant::now(),
        };
        for _ in 0..100 {
            log.log(&entry("/x", &[]), &answered());
        }
        log.end();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text.lines().count(), 100);
        assert!(AccessLog::open(&Http::default(), Clock::manual(0)).unwrap().is_none());
    }
}
