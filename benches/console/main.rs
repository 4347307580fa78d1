//! How long the server takes for each page of the console, on a log of a million records:
//! `cargo bench --bench console`.
//!
//! Makes a data directory as a server has it after a year ([`make`]), unless `--dir` has one from
//! an earlier run. Starts the program on it with the console, logs in, and asks for every page:
//! searches of the log, stretches of its time line, moments and their differences, lists in each
//! order, plots. Prints how long each took: the first time, and then the median and the longest of
//! some more. Fails if one took longer than `--at-most-ms`.
//!
//! Times are those of a client on the same machine, from the request to the last byte of the
//! answer; the machine should have nothing else to do.
//!
//!     cargo bench --bench console                              # 1,000,000 records, 100,000 users
//!     cargo bench --bench console -- --dir /var/tmp/console    # keeps the directory there
//!     cargo bench --bench console -- --records 50000 --users 5000 --rooms 500

#[path = "../common/mod.rs"]
mod common;
mod make;

use std::{
    env, fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bytes::Bytes;
use clap::Parser;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use crate::{
    common::{room_id, user_id},
    make::{Made, Sizes, make},
};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const CONSOLE: &str = "/_logcabin/console";

/// Times the pages of the console.
#[derive(Parser)]
#[command(name = "console", bin_name = "cargo bench --bench console --")]
struct Options {
    /// Records of the log.
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,

    /// Accounts.
    #[arg(long, default_value_t = 100_000)]
    users: u64,

    /// Rooms.
    #[arg(long, default_value_t = 50_000)]
    rooms: u64,

    /// Where the data directory is made, or was by an earlier run; it stays there. Otherwise, it is
    /// made in the current directory and removed afterwards.
    #[arg(long)]
    dir: Option<PathBuf>,

    /// The Logcabin to start, rather than the one that was just built.
    #[arg(long, value_name = "PROGRAM", default_value = env!("CARGO_BIN_EXE_logcabin"))]
    server: PathBuf,

    /// How often each page is asked for after the first time.
    #[arg(long, default_value_t = 9)]
    times: usize,

    /// The longest that a page may take.
    #[arg(long, default_value_t = 300)]
    at_most_ms: u64,

    /// Passed by cargo to all benchmarks.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    // `cargo test --benches` runs this, too.
    let mut options = Options::parse();
    if !options.bench {
        (options.records, options.users, options.rooms) = (2_000, 50, 20);
        (options.times, options.at_most_ms) = (1, 60_000);
    }
    let temporary = tempfile::tempdir_in(".")?;
    let directory = options.dir.clone().unwrap_or_else(|| temporary.path().to_owned());
    let note = directory.join("made.json");
    let made: Made = match fs::read(&note) {
        Ok(made) => serde_json::from_slice(&made)?,
        Err(_) => {
            let Options { records, users, rooms, .. } = options;
            let made = make(&directory, Sizes { records, users, rooms }).await;
            fs::write(&note, serde_json::to_vec(&made)?)?;
            made
        }
    };
    let begun = Instant::now();
    let server = Server::start(&options.server, &directory).await?;
    eprintln!("the server answered after {:.1} s", begun.elapsed().as_secs_f64());
    let client = server.enter().await?;
    let counting = Instant::now();
    while client.get("/disk").await?.1.contains("Counted so far") {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    eprintln!("all records were counted {:.1} s later", counting.elapsed().as_secs_f64());

    println!("{} records, {} users, {} rooms\n", made.records, made.users, made.rooms);
    println!("| page | first | median | longest | size |");
    println!("|---|--:|--:|--:|--:|");
    let mut too_long = Vec::new();
    for (name, path) in pages(&made) {
        let mut taken = Vec::new();
        let mut size = 0;
        for _ in 0..=options.times {
            let began = Instant::now();
            let (status, page) = client.get(&path).await?;
            taken.push(began.elapsed());
            if status != StatusCode::OK {
                return Err(format!("{path}: {status}: {page}").into());
            }
            size = page.len();
        }
        let first = taken.remove(0);
        taken.sort_unstable();
        let longest = taken.last().copied().unwrap_or(first);
        let median = taken.get(taken.len() / 2).copied().unwrap_or(first);
        let ms = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1e3);
        println!(
            "| {name} | {} | {} | {} | {} kB |",
            ms(first),
            ms(median),
            ms(longest),
            size.div_ceil(1000)
        );
        if first.max(longest) > Duration::from_millis(options.at_most_ms) {
            too_long.push(name);
        }
    }
    match too_long.is_empty() {
        true => Ok(()),
        false => Err(format!("over {} ms: {}", options.at_most_ms, too_long.join("; ")).into()),
    }
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Every page: its name, and its path with the query.
fn pages(made: &Made) -> Vec<(String, String)> {
    let part = |percent: u64| (made.records * percent / 100).max(1);
    let busy = encoded(room_id(0).as_str());
    let quiet = encoded(room_id(made.rooms + made.rooms / 4).as_str());
    let user = encoded(user_id(made.users / 2).as_str());
    let member = encoded(user_id(1).as_str());
    let day = 86_400_000;
    let now = logcabin::clock::Clock::system().now_ms();
    let mut pages = vec![
        ("now".to_owned(), String::new()),
        ("now, the plots".to_owned(), "/plots".to_owned()),
        ("log".to_owned(), "/log".to_owned()),
        ("log, a frequent kind".to_owned(), "/log?kind=room.event".to_owned()),
        ("log, a kind long ago".to_owned(), "/log?kind=user.register".to_owned()),
        ("log, a busy room".to_owned(), format!("/log?room={busy}")),
        ("log, a quiet room".to_owned(), format!("/log?room={quiet}")),
        ("log, a user who writes".to_owned(), format!("/log?user={member}")),
        ("log, a silent user".to_owned(), format!("/log?user={user}")),
        ("log, as of a time".to_owned(), "/log?at=-100d".to_owned()),
        ("log, a kind as of a time".to_owned(), "/log?at=-100d&kind=room.event".to_owned()),
        ("a record".to_owned(), format!("/log/{}", part(40))),
        ("relations, of a popular event".to_owned(), format!("/relations?event={}", made.popular)),
        ("time line, everything".to_owned(), "/timeline".to_owned()),
        (
            "time line, a month".to_owned(),
            format!("/timeline?from={}&to={}", now - 100 * day, now - 70 * day),
        ),
        (
            "time line, an hour".to_owned(),
            format!("/timeline?from={}&to={}", now - 100 * day, now - 100 * day + 3_600_000),
        ),
        ("disk".to_owned(), "/disk".to_owned()),
        ("activity".to_owned(), "/activity".to_owned()),
        ("a user".to_owned(), format!("/users/{member}")),
        ("a busy room".to_owned(), format!("/rooms/{busy}")),
        ("media".to_owned(), "/media".to_owned()),
        ("media, of a user".to_owned(), format!("/media?user={member}")),
        ("reports".to_owned(), "/reports".to_owned()),
        ("tokens".to_owned(), "/tokens".to_owned()),
        ("work".to_owned(), "/work".to_owned()),
        ("an act".to_owned(), format!("/act/set-status?user={member}")),
    ];
    for percent in [25, 60, 100] {
        let at = part(percent);
        for (name, of) in [
            ("the server", String::new()),
            ("a busy room", format!("room={busy}&")),
            ("a quiet room", format!("room={quiet}&")),
            ("a user", format!("user={member}&")),
        ] {
            pages.push((format!("{name}, {percent} % of the log"), format!("/past?{of}at={at}")));
        }
    }
    let between = format!("from={}&at={}", part(30), part(90));
    let of = |words: &[&str]| encoded(&words.join("\n"));
    let (room, writer) = (room_id(0), user_id(1));
    pages.extend([
        ("difference, the server".to_owned(), format!("/past?{between}")),
        ("difference, a busy room".to_owned(), format!("/past?room={busy}&{between}")),
        ("difference, a user".to_owned(), format!("/past?user={member}&{between}")),
        ("why, a name".to_owned(), format!("/why?of={}", of(&["room", room.as_str(), "name"]))),
        (
            "why, a membership".to_owned(),
            format!("/why?of={}", of(&["room", room.as_str(), "member", writer.as_str()])),
        ),
        (
            "why, an account".to_owned(),
            format!("/why?of={}", of(&["user", writer.as_str(), "account"])),
        ),
    ]);
    for order in ["", "displayname", "new", "seen"] {
        let name = if order.is_empty() { "name" } else { order };
        pages.push((format!("users by {name}"), format!("/users?order={order}")));
    }
    for order in ["", "name", "state"] {
        let name = if order.is_empty() { "members" } else { order };
        pages.push((format!("rooms by {name}"), format!("/rooms?order={order}")));
    }
    let end = |all: u64| all.saturating_sub(50);
    pages.extend([
        ("users, a search".to_owned(), "/users?name=user77".to_owned()),
        ("users, only administrators".to_owned(), "/users?only=admins".to_owned()),
        ("users, the last page".to_owned(), format!("/users?from={}", end(made.users))),
        ("rooms, a search".to_owned(), "/rooms?name=room77".to_owned()),
        ("rooms, the last page by name".to_owned(), {
            format!("/rooms?order=name&from={}", end(made.rooms))
        }),
    ]);
    pages
}

/// A running server, ended when dropped.
struct Server {
    child: Child,
    program: PathBuf,
    directory: PathBuf,
    base: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program, without any other settings.
fn program(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("LOGCABIN_") {
            command.env_remove(name);
        }
    }
    command
}

impl Server {
    async fn start(path: &Path, directory: &Path) -> Result<Self, Failure> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let child = program(path)
            .args(["serve", "--no-rate-limits", "--server-name", "test"])
            .args(["--bind", &address.to_string(), "--data-dir"])
            .arg(directory)
            .env("LOGCABIN_CONSOLE_ENABLED", "true")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let (program, directory) = (path.to_owned(), directory.to_owned());
        let mut server = Self { child, program, directory, base: format!("http://{address}") };
        let client = Visitor::of(&server.base, String::new());
        while client.get("/login").await.map_or(true, |(status, _)| status != StatusCode::OK) {
            if let Some(status) = server.child.try_wait()? {
                return Err(format!("the server ended: {status}").into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(server)
    }

    fn act(&self, arguments: &[&str]) -> Result<String, Failure> {
        let mut command = program(&self.program);
        let output = command.args(arguments).arg("--data-dir").arg(&self.directory).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout)?),
            false => Err(String::from_utf8_lossy(&output.stderr).into()),
        }
    }

    /// Logs an administrator in.
    async fn enter(&self) -> Result<Visitor, Failure> {
        let admin = user_id(0);
        self.act(&["user", "set-admin", admin.as_str()])?;
        let printed: Value = serde_json::from_str(&self.act(&["console", "--json"])?)?;
        let url = printed["url"].as_str().unwrap_or_default();
        let link = url.split_once("link=").ok_or("no link")?.1;
        let body = Bytes::from(format!("link={}", encoded(link)));
        let request = Request::post(format!("{}{CONSOLE}/login", self.base))
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let visitor = Visitor::of(&self.base, String::new());
        let answer = visitor.client.request(request.body(Full::new(body))?).await?;
        let cookie = answer.headers().get(header::SET_COOKIE).ok_or("nobody was logged in")?;
        let cookie = cookie.to_str()?.split(';').next().unwrap_or_default().to_owned();
        Ok(Visitor { cookie, ..visitor })
    }
}

/// A user of a browser.
struct Visitor {
    client: Client<HttpConnector, Full<Bytes>>,
    base: String,
    cookie: String,
}

impl Visitor {
    fn of(base: &str, cookie: String) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Self { client, base: base.to_owned(), cookie }
    }

    async fn get(&self, path: &str) -> Result<(StatusCode, String), Failure> {
        let request = Request::get(format!("{}{CONSOLE}{path}", self.base))
            .header(header::COOKIE, &self.cookie)
            .body(Full::new(Bytes::new()))?;
        let answer = self.client.request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8(body.to_vec())?))
    }
}
