//! The whole server under load: `cargo bench --bench load`.
//!
//! Starts the program on a free port with a temporary directory, and from this process does what clients do,
//! over HTTP: they send, wait for news, synchronise, read history, join. Prints a table, and writes it with
//! plots to `target/load/` (`load.md`, `load.svg`). What counts on a busy machine is the server's CPU time
//! for each operation; times are those of a client beside it on the same machine.
//!
//! `LOGCABIN_LOAD_SCALE` multiplies how much is done, `LOGCABIN_LOAD_IDLE` says how many wait idly.

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use bytes::Bytes;
use futures_util::{StreamExt as _, future::join_all, stream};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How many register at once: the server puts off those for whom it has no time to hash.
const HASHES: usize = 4;

/// Requests under way at once, where it is about how many there can be.
const AT_ONCE: usize = 32;

fn main() -> Result<(), Failure> {
    // `cargo test` runs benches to see that they do; this one takes its time.
    if !env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let number = |name: &str, default: usize| {
        env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (scale, idle) = (number("LOGCABIN_LOAD_SCALE", 1), number("LOGCABIN_LOAD_IDLE", 1000));
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(2).enable_all().build()?.block_on(run(scale, idle))
}

async fn run(scale: usize, idle: usize) -> Result<(), Failure> {
    let server = Server::start().await?;
    let rows = vec![
        nothing(&server, 5000 * scale).await?,
        sends(&server, 3000 * scale).await?,
        one_room(&server, 3000 * scale).await?,
        fan_out(&server, 50, 100 * scale).await?,
        initial_syncs(&server, 50, 10, 60 * scale).await?,
        incremental_syncs(&server, 50, 1000 * scale).await?,
        pages(&server, 1000 * scale).await?,
        joins(&server, 300 * scale).await?,
        waiting(&server, idle).await?,
    ];
    let table = table(&rows);
    print!("{table}");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/load");
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("load.md"), table)?;
    fs::write(directory.join("load.svg"), plot(&rows))?;
    println!("\nwritten to {}", directory.display());
    Ok(())
}

/// What is measured of one kind of operation.
struct Row {
    name: String,
    operations: usize,
    seconds: f64,
    /// In milliseconds, ascending.
    times: Vec<f64>,
    /// The server's CPU time, in milliseconds.
    cpu_ms: f64,
    note: String,
}

impl Row {
    fn quantile(&self, of: f64) -> f64 {
        let last = self.times.len().saturating_sub(1) as f64;
        self.times.get((last * of).round() as usize).copied().unwrap_or_default()
    }

    fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    fn cpu_per_operation(&self) -> f64 {
        self.cpu_ms / self.operations.max(1) as f64
    }
}

/// The program, and a client of it.
struct Server {
    child: Child,
    directory: PathBuf,
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
    counter: AtomicU64,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[derive(Clone)]
struct User {
    token: String,
}

impl Server {
    async fn start() -> Result<Self, Failure> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let directory = env::temp_dir().join(format!("logcabin-load-{}", std::process::id()));
        let child = Command::new(env!("CARGO_BIN_EXE_logcabin"))
            .args(["serve", "--no-rate-limits", "--bind", &address.to_string(), "--data-dir"])
            .arg(&directory)
            // The server knows its own settings alone, and refuses others that look like them.
            .env_remove("LOGCABIN_LOAD_SCALE")
            .env_remove("LOGCABIN_LOAD_IDLE")
            // Making the users is not what is measured.
            .env("LOGCABIN_PASSWORDS_ITERATIONS", "1000")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        let (base, counter) = (format!("http://{address}"), AtomicU64::new(0));
        let mut server = Self { child, directory, base, client, counter };
        let begun = Instant::now();
        while let Err(error) = server.call("GET", "/versions", None, None).await {
            let ended = server.child.try_wait()?.is_some();
            if ended || begun.elapsed() > Duration::from_secs(120) {
                return Err(format!("the server does not answer: {error}").into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(server)
    }

    /// A request to a path below `/_matrix/client`, which is to go well.
    async fn call(
        &self,
        method: &str,
        path: &str,
        user: Option<&User>,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("{}/_matrix/client{path}", self.base));
        if let Some(user) = user {
            request = request.header("authorization", format!("Bearer {}", user.token));
        }
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let answer = self.client.request(request.body(Full::new(body))?).await?;
        let status = answer.status();
        let bytes = answer.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(
                format!("{method} {path}: {status} {}", String::from_utf8_lossy(&bytes)).into()
            );
        }
        Ok(serde_json::from_slice(&bytes)?)
    }

    fn next(&self) -> u64 {
        self.counter.fetch_add(1, Ordering::Relaxed)
    }

    async fn user(&self) -> Result<User, Failure> {
        let body = json!({ "username": format!("user{}", self.next()), "password": "long enough, isn't it",
            "auth": { "type": "m.login.dummy" } });
        let made = self.call("POST", "/v3/register", None, Some(&body)).await?;
        Ok(User { token: text(&made, "access_token")? })
    }

    async fn users(&self, count: usize) -> Result<Vec<User>, Failure> {
        all(HASHES, (0..count).map(|_| self.user())).await
    }

    /// A public room with these members, the first of whom makes it.
    async fn room(&self, members: &[User]) -> Result<String, Failure> {
        let (first, others) = members.split_first().ok_or("a room has members")?;
        let body = json!({ "preset": "public_chat", "name": "Load" });
        let room =
            text(&self.call("POST", "/v3/createRoom", Some(first), Some(&body)).await?, "room_id")?;
        for user in others {
            self.call("POST", &format!("/v3/join/{room}"), Some(user), Some(&json!({}))).await?;
        }
        Ok(room)
    }

    async fn send(&self, user: &User, room: &str) -> Result<Value, Failure> {
        let path = format!("/v3/rooms/{room}/send/m.room.message/t{}", self.next());
        let words = "The fire is lit, the kettle is on, and somebody has brought cake. ".repeat(2);
        let body = json!({ "msgtype": "m.text", "body": words });
        self.call("PUT", &path, Some(user), Some(&body)).await
    }

    async fn sync(&self, user: &User, since: &str, timeout_ms: u64) -> Result<Value, Failure> {
        let path = format!("/v3/sync?set_presence=offline&timeout={timeout_ms}{since}");
        self.call("GET", &path, Some(user), None).await
    }

    async fn token(&self, user: &User) -> Result<String, Failure> {
        Ok(format!("&since={}", text(&self.sync(user, "", 0).await?, "next_batch")?))
    }

    /// The CPU time that the server has used, in milliseconds.
    fn cpu_ms(&self) -> f64 {
        // Counted in hundredths of a second on Linux, wherever it matters.
        let stat =
            fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() * 10.0
    }

    /// The memory that the server takes, in bytes.
    fn memory(&self) -> f64 {
        let status =
            fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        line.split_whitespace().next().and_then(|kib| kib.parse::<f64>().ok()).unwrap_or_default()
            * 1024.0
    }

    /// Does something so often, so many at once.
    async fn measure<F: Future<Output = Result<Value, Failure>>>(
        &self,
        name: &str,
        operations: usize,
        at_once: usize,
        each: impl Fn(usize) -> F,
    ) -> Result<Row, Failure> {
        let (cpu, begun) = (self.cpu_ms(), Instant::now());
        let timed = stream::iter(0..operations).map(|index| {
            let future = each(index);
            async {
                let begun = Instant::now();
                future.await.map(|_| begun.elapsed().as_secs_f64() * 1000.0)
            }
        });
        let done: Vec<_> = timed.buffer_unordered(at_once).collect().await;
        let (seconds, cpu_ms) = (begun.elapsed().as_secs_f64(), self.cpu_ms() - cpu);
        let times = done.into_iter().collect::<Result<Vec<_>, _>>()?;
        let note = format!("{at_once} at once");
        Ok(row(name, seconds, times, cpu_ms, note))
    }
}

/// What all of these come to, so many at once.
async fn all<T, F: Future<Output = Result<T, Failure>>>(
    at_once: usize,
    futures: impl Iterator<Item = F>,
) -> Result<Vec<T>, Failure> {
    let done: Vec<_> = stream::iter(futures).buffered(at_once).collect().await;
    done.into_iter().collect()
}

fn row(name: &str, seconds: f64, mut times: Vec<f64>, cpu_ms: f64, note: String) -> Row {
    times.sort_by(f64::total_cmp);
    Row { name: name.to_owned(), operations: times.len(), seconds, times, cpu_ms, note }
}

fn text(value: &Value, key: &str) -> Result<String, Failure> {
    Ok(value[key].as_str().ok_or_else(|| format!("no {key} in {value}"))?.to_owned())
}

/// What a request costs at least: one that asks nothing of the server.
async fn nothing(server: &Server, operations: usize) -> Result<Row, Failure> {
    let each = |_| server.call("GET", "/versions", None, None);
    server.measure("a request for nothing", operations, AT_ONCE, each).await
}

async fn sends(server: &Server, operations: usize) -> Result<Row, Failure> {
    let users = server.users(AT_ONCE).await?;
    let rooms = users.iter().map(|user| server.room(std::slice::from_ref(user)));
    let rooms = all(AT_ONCE, rooms).await?;
    let each = |index: usize| server.send(&users[index % AT_ONCE], &rooms[index % AT_ONCE]);
    server.measure("send, many rooms", operations, AT_ONCE, each).await
}

async fn one_room(server: &Server, operations: usize) -> Result<Row, Failure> {
    let users = server.users(AT_ONCE).await?;
    let room = server.room(&users).await?;
    let each = |index: usize| server.send(&users[index % AT_ONCE], &room);
    server.measure("send, one room", operations, AT_ONCE, each).await
}

/// From the sending of a message to the answer that tells a waiting member of it.
async fn fan_out(server: &Server, members: usize, messages: usize) -> Result<Row, Failure> {
    const PAUSE: Duration = Duration::from_millis(50);
    let users = server.users(members + 1).await?;
    let room = server.room(&users).await?;
    let (sender, readers) = users.split_first().ok_or("nobody")?;
    let tokens = all(AT_ONCE, readers.iter().map(|user| server.token(user))).await?;
    // When each message was sent, by its id.
    let sent = dashmap::DashMap::new();
    let (cpu, begun) = (server.cpu_ms(), Instant::now());
    let reading = readers.iter().zip(tokens).map(|(user, mut since)| {
        let (room, sent) = (&room, &sent);
        async move {
            let mut heard = Vec::new();
            while heard.len() < messages {
                let answer = server.sync(user, &since, 30_000).await?;
                let now = Instant::now();
                since = format!("&since={}", text(&answer, "next_batch")?);
                let events = &answer["rooms"]["join"][room]["timeline"]["events"];
                for event in events.as_array().into_iter().flatten() {
                    heard.push((event["event_id"].to_string(), now));
                }
            }
            let time = |(id, now): (String, Instant)| {
                let sent: Option<Instant> = sent.get(&id).map(|sent| *sent);
                Some((now - sent?).as_secs_f64() * 1000.0)
            };
            Ok::<_, Failure>(heard.into_iter().filter_map(time).collect::<Vec<_>>())
        }
    });
    let sending = async {
        for _ in 0..messages {
            let now = Instant::now();
            let answer = server.send(sender, &room).await?;
            sent.insert(answer["event_id"].to_string(), now);
            tokio::time::sleep(PAUSE).await;
        }
        Ok::<_, Failure>(())
    };
    let (heard, sent_all) = tokio::join!(join_all(reading), sending);
    sent_all?;
    let (seconds, cpu_ms) = (begun.elapsed().as_secs_f64(), server.cpu_ms() - cpu);
    let mut times = Vec::new();
    for heard in heard {
        times.extend(heard?);
    }
    let note = format!("{members} members wait, 20 messages/s at most");
    Ok(row("deliver to a waiting member", seconds, times, cpu_ms, note))
}

async fn initial_syncs(
    server: &Server,
    rooms: usize,
    members: usize,
    operations: usize,
) -> Result<Row, Failure> {
    let users = server.users(members).await?;
    for _ in 0..rooms {
        let room = server.room(&users).await?;
        for user in &users {
            server.send(user, &room).await?;
        }
    }
    let each = |index: usize| server.sync(&users[index % members], "", 0);
    let name = "initial sync";
    let row = server.measure(name, operations, 4, each).await?;
    Ok(Row { note: format!("{rooms} rooms with {members} members, {}", row.note), ..row })
}

async fn incremental_syncs(
    server: &Server,
    rooms: usize,
    operations: usize,
) -> Result<Row, Failure> {
    let users = server.users(2).await?;
    let mut last = String::new();
    for _ in 0..rooms {
        last = server.room(&users).await?;
    }
    let since = server.token(&users[1]).await?;
    server.send(&users[0], &last).await?;
    let each = |_| server.sync(&users[1], &since, 0);
    let row = server.measure("incremental sync", operations, AT_ONCE, each).await?;
    Ok(Row { note: format!("one of {rooms} rooms has a message, {}", row.note), ..row })
}

async fn pages(server: &Server, operations: usize) -> Result<Row, Failure> {
    let users = server.users(1).await?;
    let room = server.room(&users).await?;
    for _ in 0..200 {
        server.send(&users[0], &room).await?;
    }
    let path = format!("/v3/rooms/{room}/messages?dir=b&limit=100");
    let each = |_| server.call("GET", &path, Some(&users[0]), None);
    server.measure("a page of 100 messages", operations, AT_ONCE, each).await
}

async fn joins(server: &Server, operations: usize) -> Result<Row, Failure> {
    let users = server.users(operations + 1).await?;
    let room = server.room(&users[..1]).await?;
    let (path, nothing) = (format!("/v3/join/{room}"), json!({}));
    let each = |index: usize| server.call("POST", &path, Some(&users[index + 1]), Some(&nothing));
    server.measure("join a public room", operations, AT_ONCE, each).await
}

/// Many who wait for news that do not come, and then all get some.
async fn waiting(server: &Server, count: usize) -> Result<Row, Failure> {
    const WAIT: Duration = Duration::from_secs(10);
    let users = server.users(count).await?;
    let rooms = users.iter().map(|user| server.room(std::slice::from_ref(user)));
    let rooms = all(AT_ONCE, rooms).await?;
    let tokens = all(AT_ONCE, users.iter().map(|user| server.token(user))).await?;
    let memory = server.memory();
    let polls = users.iter().zip(&tokens).map(|(user, since)| async move {
        server.sync(user, since, 120_000).await.map(|_| Instant::now())
    });
    let measured = async {
        // Until all have arrived.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let taken = (server.memory() - memory).max(0.0) / count as f64;
        let cpu = server.cpu_ms();
        tokio::time::sleep(WAIT).await;
        let idle = (server.cpu_ms() - cpu) / WAIT.as_secs_f64() / 10.0;
        let (begun, cpu) = (Instant::now(), server.cpu_ms());
        let sends = users.iter().zip(&rooms).map(|(user, room)| server.send(user, room));
        all(AT_ONCE, sends).await?;
        Ok::<_, Failure>((taken, idle, begun, cpu))
    };
    let (woken, measured) = tokio::join!(join_all(polls), measured);
    let (taken, idle, begun, cpu) = measured?;
    let (seconds, cpu_ms) = (begun.elapsed().as_secs_f64(), server.cpu_ms() - cpu);
    let woken = woken.into_iter().collect::<Result<Vec<_>, _>>()?;
    let times = woken.into_iter().map(|at| (at - begun).as_secs_f64() * 1000.0).collect();
    let note = format!(
        "{count} wait: {idle:.2} % of a core, {:.1} KiB each, with the connection; then each gets a message",
        taken / 1024.0
    );
    Ok(row("wake one who waits, with the send", seconds, times, cpu_ms, note))
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "| operation | operations/s | p50 ms | p99 ms | server CPU ms/operation | how |\n|---|---|---|---|---|---|\n",
    );
    for row in rows {
        text += &format!(
            "| {} | {:.0} | {:.2} | {:.2} | {:.3} | {} |\n",
            row.name,
            row.rate(),
            row.quantile(0.5),
            row.quantile(0.99),
            row.cpu_per_operation(),
            row.note
        );
    }
    text
}

/// What a bar stands for: its name, its colour, and its value in milliseconds.
type Series = (&'static str, &'static str, fn(&Row) -> f64);

/// Bars on a logarithmic scale: the times of clients, and the CPU time of the server.
fn plot(rows: &[Row]) -> String {
    const LEFT: f64 = 240.0;
    const WIDE: f64 = 420.0;
    const BAR: f64 = 12.0;
    let decades = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0];
    let x = |ms: f64| LEFT + WIDE * ((ms.max(0.001).log10() + 3.0) / 6.0).clamp(0.0, 1.0);
    let series: [Series; 3] = [
        ("server CPU per operation", "#4c78a8", Row::cpu_per_operation),
        ("p50", "#72b7b2", |row| row.quantile(0.5)),
        ("p99", "#e45756", |row| row.quantile(0.99)),
    ];
    let step = BAR * series.len() as f64 + 14.0;
    let bottom = 40.0 + step * rows.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 720 {:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\"><title>Logcabin under load</title><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
        bottom + 30.0
    );
    for (index, (name, colour, _)) in series.iter().enumerate() {
        let at = LEFT + 160.0 * index as f64;
        svg += &format!(
            "<rect x=\"{at:.0}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"20\">{name}</text>\n",
            at + 17.0
        );
    }
    for ms in decades {
        let at = x(ms);
        svg += &format!(
            "<path d=\"M{at:.1} 32V{bottom:.0}\" stroke=\"#ddd\"/>\
             <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\" fill=\"#555\">{ms} ms</text>\n",
            bottom + 18.0
        );
    }
    for (index, row) in rows.iter().enumerate() {
        let top = 40.0 + step * index as f64;
        svg += &format!(
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
            LEFT - 8.0,
            top + step / 2.0,
            row.name
        );
        for (bar, (_, colour, value)) in series.iter().enumerate() {
            let ms = value(row);
            svg += &format!(
                "<rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.0}\" fill=\"{colour}\">\
                 <title>{ms:.3} ms</title></rect>\n",
                top + BAR * bar as f64,
                x(ms) - LEFT,
                BAR - 2.0
            );
        }
    }
    svg + "</svg>\n"
}
