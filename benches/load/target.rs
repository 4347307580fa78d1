//! The server under load, and a client that measures how long its answers take and what they cost.

use std::{
    borrow::Cow,
    collections::HashMap,
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderValue, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use crate::{
    Failure,
    process::{Processes, Usage},
};

/// Requests under way at once, where throughput is measured.
pub(crate) const AT_ONCE: usize = 32;

/// How many register or log in at once: Logcabin puts off more when it has no time to hash.
const HASHES: usize = 4;

const PASSWORD: &str = "long enough, isn't it";

/// A server under load.
pub(crate) struct Target {
    pub(crate) label: String,
    /// A measurement ends after this time, or when all of it is done.
    pub(crate) at_most: Duration,
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
    processes: Processes,
    /// Makes names and transactions different from those of other runs against the same server.
    run: String,
    counter: AtomicU64,
    message: Bytes,
    /// The server, if it was started here.
    _own: Option<Own>,
}

/// A Logcabin with a data directory of its own; both are removed when this is dropped.
struct Own {
    child: Child,
    directory: PathBuf,
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[derive(Clone)]
pub(crate) struct User {
    name: String,
    authorization: HeaderValue,
}

/// How an operation is measured: how often, how many at once, after how many that do not count.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) operations: usize,
    pub(crate) at_once: usize,
    pub(crate) warm: usize,
}

/// The parts of a sync answer that a client needs to wait for messages; the rest is skipped.
#[derive(Deserialize)]
pub(crate) struct News<'a> {
    #[serde(borrow)]
    next_batch: Cow<'a, str>,
    #[serde(borrow, default)]
    rooms: Rooms<'a>,
}

#[derive(Deserialize, Default)]
struct Rooms<'a> {
    #[serde(borrow, default)]
    join: HashMap<Cow<'a, str>, Joined>,
}

#[derive(Deserialize)]
struct Joined {
    #[serde(default)]
    timeline: Timeline,
}

#[derive(Deserialize, Default)]
struct Timeline {
    #[serde(default)]
    events: Vec<IgnoredAny>,
}

impl<'a> News<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Result<Self, Failure> {
        Ok(serde_json::from_slice(bytes)?)
    }

    pub(crate) fn since(&self) -> String {
        format!("&since={}", self.next_batch)
    }

    /// The number of rooms in the answer.
    pub(crate) fn rooms(&self) -> usize {
        self.rooms.join.len()
    }

    /// How many events there are in a room's timeline.
    pub(crate) fn events(&self, room: &str) -> usize {
        self.rooms.join.get(room).map_or(0, |joined| joined.timeline.events.len())
    }
}

impl Target {
    /// A server that runs already, with its processes.
    pub(crate) async fn running(
        label: &str,
        base: &str,
        processes: Vec<u32>,
        at_most: Duration,
    ) -> Result<Self, Failure> {
        let mut target = Self::new(label, base, processes, at_most)?;
        target.answers().await?;
        Ok(target)
    }

    /// A Logcabin of this program, on a free port with a temporary directory.
    pub(crate) async fn start(
        label: &str,
        program: &Path,
        at_most: Duration,
    ) -> Result<Self, Failure> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let directory =
            env::temp_dir().join(format!("logcabin-load-{}-{number}", std::process::id()));
        let mut command = Command::new(program);
        // The server refuses variables that look like its settings and are not.
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("LOGCABIN_") {
                command.env_remove(name);
            }
        }
        let child = command
            .args(["serve", "--no-rate-limits", "--bind", &address.to_string(), "--data-dir"])
            .arg(&directory)
            // Making the users is not what is measured.
            .env("LOGCABIN_PASSWORDS_ITERATIONS", "1000")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let id = child.id();
        let own = Own { child, directory };
        let mut target = Self::new(label, &format!("http://{address}"), vec![id], at_most)?;
        target._own = Some(own);
        target.answers().await?;
        Ok(target)
    }

    fn new(
        label: &str,
        base: &str,
        processes: Vec<u32>,
        at_most: Duration,
    ) -> Result<Self, Failure> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let words = "The fire is lit, the kettle is on, and somebody has brought cake. ".repeat(2);
        let run = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
        Ok(Self {
            label: label.to_owned(),
            at_most,
            base: format!("{}/_matrix/client", base.trim_end_matches('/')),
            client: Client::builder(TokioExecutor::new()).build(connector),
            processes: Processes::Server(processes),
            run: format!("{run:x}"),
            counter: AtomicU64::new(0),
            message: json!({ "msgtype": "m.text", "body": words }).to_string().into(),
            _own: None,
        })
    }

    /// Waits until the server answers.
    async fn answers(&mut self) -> Result<(), Failure> {
        let begun = Instant::now();
        while let Err(error) = self.get(None, "/versions").await {
            let ended = match &mut self._own {
                Some(own) => own.child.try_wait()?.is_some(),
                None => false,
            };
            if ended || begun.elapsed() > Duration::from_secs(120) {
                return Err(format!("{} does not answer: {error}", self.label).into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// A request to a path below `/_matrix/client` with any answer, read to its end.
    pub(crate) async fn exchange(
        &self,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let answer = self.client.request(request.body(Full::new(body))?).await?;
        let status = answer.status();
        Ok((status, answer.into_body().collect().await?.to_bytes()))
    }

    pub(crate) fn request(
        &self,
        method: &str,
        path: &str,
        user: Option<&User>,
    ) -> http::request::Builder {
        let request = http::Request::builder().method(method).uri(format!("{}{path}", self.base));
        match user {
            Some(user) => request.header(header::AUTHORIZATION, user.authorization.clone()),
            None => request,
        }
    }

    /// A request that must succeed.
    async fn call(
        &self,
        method: &str,
        path: &str,
        user: Option<&User>,
        body: Bytes,
    ) -> Result<Bytes, Failure> {
        let (status, bytes) = self.exchange(self.request(method, path, user), body).await?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&bytes);
            return Err(format!("{method} {path}: {status} {said}").into());
        }
        Ok(bytes)
    }

    pub(crate) async fn get(&self, user: Option<&User>, path: &str) -> Result<Bytes, Failure> {
        self.call("GET", path, user, Bytes::new()).await
    }

    async fn post(&self, user: Option<&User>, path: &str, body: &Value) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(&self.call("POST", path, user, body.to_string().into()).await?)?)
    }

    pub(crate) fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) async fn users(&self, count: usize) -> Result<Vec<User>, Failure> {
        let register = |_| async {
            let name = format!("u{}-{}", self.run, self.next());
            let body = json!({ "username": name, "password": PASSWORD,
                "auth": { "type": "m.login.dummy" } });
            user(name, &self.post(None, "/v3/register", &body).await?)
        };
        all(HASHES, (0..count).map(register)).await
    }

    /// These users once more, each on a device of its own.
    pub(crate) async fn devices(
        &self,
        users: impl Iterator<Item = &User>,
    ) -> Result<Vec<User>, Failure> {
        let login = |known: &User| {
            let name = known.name.clone();
            async {
                let body = json!({ "type": "m.login.password", "password": PASSWORD,
                    "identifier": { "type": "m.id.user", "user": name } });
                user(name, &self.post(None, "/v3/login", &body).await?)
            }
        };
        all(HASHES, users.map(login)).await
    }

    /// A public room with these members, the first of whom makes it.
    pub(crate) async fn room(&self, members: &[User]) -> Result<String, Failure> {
        let (first, others) = members.split_first().ok_or("a room has members")?;
        let body = json!({ "preset": "public_chat", "name": "Load", "room_version": "11" });
        let room = text(&self.post(Some(first), "/v3/createRoom", &body).await?, "room_id")?;
        // A room's joins are decided one after the other, however many are under way.
        all(4, others.iter().map(|user| self.join(user, &room))).await?;
        Ok(room)
    }

    pub(crate) async fn join(&self, user: &User, room: &str) -> Result<Bytes, Failure> {
        self.call("POST", &format!("/v3/join/{room}"), Some(user), Bytes::from_static(b"{}")).await
    }

    pub(crate) async fn send(&self, user: &User, room: &str) -> Result<Bytes, Failure> {
        self.send_as(user, room, self.next()).await
    }

    /// Sends under this transaction.
    pub(crate) async fn send_as(
        &self,
        user: &User,
        room: &str,
        transaction: u64,
    ) -> Result<Bytes, Failure> {
        let path = format!("/v3/rooms/{room}/send/m.room.message/t{}-{transaction}", self.run);
        self.call("PUT", &path, Some(user), self.message.clone()).await
    }

    /// The body of a message.
    pub(crate) fn message(&self) -> Bytes {
        self.message.clone()
    }

    pub(crate) async fn sync(
        &self,
        user: &User,
        since: &str,
        timeout_ms: u64,
    ) -> Result<Bytes, Failure> {
        let path = format!("/v3/sync?set_presence=offline&timeout={timeout_ms}{since}");
        self.get(Some(user), &path).await
    }

    /// The current position of each. They get no rooms, which would cost the most.
    pub(crate) async fn tokens(&self, users: &[User]) -> Result<Vec<String>, Failure> {
        const NO_ROOMS: &str = "&filter=%7B%22room%22%3A%7B%22rooms%22%3A%5B%5D%7D%7D";
        let token = |user| async move {
            let answer = self.sync(user, NO_ROOMS, 0).await?;
            let since = News::of(&answer)?.since();
            // Synapse answers the first from its cache, with an old position.
            let answer = self.sync(user, &format!("{NO_ROOMS}{since}"), 0).await?;
            Ok(News::of(&answer)?.since())
        };
        all(4, users.iter().map(token)).await
    }

    pub(crate) fn clock(&self) -> Clock<'_> {
        Clock {
            target: self,
            server: self.processes.usage(),
            client: Processes::This.usage(),
            begun: Instant::now(),
        }
    }

    /// The memory that the server takes, in bytes.
    pub(crate) fn memory(&self) -> f64 {
        self.processes.memory()
    }
}

/// Runs from its creation.
pub(crate) struct Clock<'a> {
    target: &'a Target,
    server: Usage,
    client: Usage,
    pub(crate) begun: Instant,
}

/// What was spent while a clock ran; of several, their sum.
#[derive(Clone, Copy, Default)]
pub(crate) struct Spent {
    pub(crate) seconds: f64,
    /// CPU time of the server, in milliseconds.
    pub(crate) cpu_ms: f64,
    /// CPU time of this process, in milliseconds.
    pub(crate) client_cpu_ms: f64,
}

impl Clock<'_> {
    /// How long it has run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    pub(crate) fn stop(&self) -> Spent {
        let seconds = self.begun.elapsed().as_secs_f64();
        Spent {
            seconds,
            cpu_ms: self.target.processes.usage().cpu_ms_since(&self.server),
            client_cpu_ms: Processes::This.usage().cpu_ms_since(&self.client),
        }
    }
}

impl std::ops::AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.cpu_ms += other.cpu_ms;
        self.client_cpu_ms += other.client_cpu_ms;
    }
}

pub(crate) fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// The results of all of these, `at_once` at a time.
pub(crate) async fn all<T, F: Future<Output = Result<T, Failure>>>(
    at_once: usize,
    futures: impl Iterator<Item = F>,
) -> Result<Vec<T>, Failure> {
    let done: Vec<_> = stream::iter(futures).buffered(at_once).collect().await;
    done.into_iter().collect()
}

fn user(name: String, answer: &Value) -> Result<User, Failure> {
    let authorization = format!("Bearer {}", text(answer, "access_token")?).parse()?;
    Ok(User { name, authorization })
}

fn text(value: &Value, key: &str) -> Result<String, Failure> {
    Ok(value[key].as_str().ok_or_else(|| format!("no {key} in {value}"))?.to_owned())
}
