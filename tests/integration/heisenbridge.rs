//! heisenbridge, a bridge to IRC that nobody here wrote: it invites its owner before the owner has
//! an account, and relays what is said in an IRC channel.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{PATIENCE, TestServer, User, encode, free_address, skip, tools, until};

/// The bridge as a process.
struct Bridge(Child);

impl Bridge {
    fn start(python: &Path, registration: &Path, server: &str) -> Self {
        let child = Command::new(python)
            .args(["-m", "heisenbridge", "--owner", "@owner:e2e.test", "--config"])
            .arg(registration)
            .arg(server)
            .stdin(Stdio::null())
            .spawn();
        Self(child.expect("the bridge can be started"))
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An IRC server with one user besides whoever connects, in every channel.
struct Irc {
    port: u16,
    /// What is said in channels, and what is to be said.
    heard: Receiver<String>,
    says: Sender<String>,
}

impl Irc {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (hears, heard) = channel();
        let (says, to_say) = channel::<String>();
        thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            let mut writer = stream.try_clone().expect("a stream");
            thread::spawn(move || {
                for line in to_say {
                    let _ = write!(writer, ":carl!c@irc PRIVMSG #club :{line}\r\n");
                }
            });
            let _ = Self::serve(stream, &hears);
        });
        Self { port, heard, says }
    }

    fn serve(mut stream: TcpStream, hears: &Sender<String>) -> std::io::Result<()> {
        let mut nick = String::new();
        for line in BufReader::new(stream.try_clone()?).lines() {
            let line = line?;
            let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match command {
                "CAP" if rest == "LS" => write!(stream, ":irc CAP * LS :\r\n")?,
                "NICK" => rest.trim_start_matches(':').clone_into(&mut nick),
                "USER" => {
                    write!(stream, ":irc 001 {nick} :Welcome\r\n:irc 376 {nick} :End\r\n")?;
                }
                "PING" => write!(stream, ":irc PONG irc {rest}\r\n")?,
                "JOIN" => {
                    let channel = rest.split(' ').next().unwrap_or_default();
                    write!(
                        stream,
                        ":{nick}!n@irc JOIN {channel}\r\n:irc 353 {nick} = {channel} :{nick} \
                         carl\r\n:irc 366 {nick} {channel} :End\r\n"
                    )?;
                }
                "PRIVMSG" => {
                    let _ = hears.send(rest.to_owned());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// What others have said in a room, the newest first.
async fn said(owner: &User, room_id: &str) -> Vec<String> {
    let path = format!("/rooms/{}/messages?dir=b&limit=20", encode(room_id));
    let page = owner.request("GET", &path, None).await.ok();
    let others = page["chunk"].as_array().expect("events").iter();
    let others = others.filter(|event| event["sender"] != owner.user_id.as_str());
    others.filter_map(|event| event["content"]["body"].as_str().map(str::to_owned)).collect()
}

/// Says something to the bridge, and waits until it answers with `answer`.
async fn tell(owner: &User, room_id: &str, text: &str, answer: &str) {
    owner.send_text(room_id, &encode(text), text).await;
    until(answer, async || said(owner, room_id).await.iter().any(|said| said.contains(answer)))
        .await;
}

/// The room to which the owner is invited and whose name begins with `name`, or that has none.
async fn invited(owner: &User, name: Option<&str>) -> String {
    let mut room_id = None;
    until("the bridge invites", async || {
        let sync = owner.request("GET", "/sync", None).await.ok();
        let rooms = sync["rooms"]["invite"].as_object().cloned().unwrap_or_default();
        let named = |room: &Value| {
            let mut state = room["invite_state"]["events"].as_array().into_iter().flatten();
            let of_name = state.find(|event| event["type"] == "m.room.name");
            of_name.and_then(|event| event["content"]["name"].as_str().map(str::to_owned))
        };
        let fits = |found: Option<String>| match (found, name) {
            (Some(found), Some(name)) => found.starts_with(name),
            (found, name) => found.is_none() && name.is_none(),
        };
        let mut found = rooms.iter().filter(|(_, room)| fits(named(room)));
        room_id = found.next().map(|(room_id, _)| room_id.clone());
        room_id.is_some()
    })
    .await;
    let room_id = room_id.expect("an invite");
    owner.join(&room_id).await.ok();
    room_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heisenbridge_invites_an_owner_who_registers_later_and_relays_a_channel() {
    let python = match tools::python_of_programs("heisenbridge") {
        Ok(python) => python,
        Err(missing) => return skip("heisenbridge", &missing),
    };
    let directory = TempDir::new().expect("a temporary directory");
    let registration = directory.path().join("registration.yaml");
    let port = free_address().port().to_string();
    let generated = Command::new(&python)
        .args(["-m", "heisenbridge", "--generate", "--listen-port", &port, "--config"])
        .arg(&registration)
        .status();
    assert!(generated.expect("heisenbridge runs").success());
    let file = registration.display().to_string();
    let server = TestServer::start_with(&[("LOGCABIN_APPSERVICES_FILES", &file)]).await;
    let _bridge = Bridge::start(&python, &registration, &server.base());
    let watcher = server.register("watcher").await;
    let profile = format!("/profile/{}", encode("@heisenbridge:e2e.test"));
    until("the bridge has begun", async || {
        watcher.request("GET", &profile, None).await.status == 200
    })
    .await;

    let irc = Irc::start();
    let owner = server.register("owner").await;
    let control = invited(&owner, None).await;
    tell(&owner, &control, "help", "OPEN").await;
    tell(&owner, &control, "addnetwork test", "Network added").await;
    let address = format!("addserver test 127.0.0.1 {}", irc.port);
    tell(&owner, &control, &address, "Server added").await;
    owner.send_text(&control, "open", "open test").await;
    let network = invited(&owner, Some("test")).await;
    // The bridge refuses to join until it is connected.
    tell(&owner, &network, "connect", "Welcome").await;
    owner.send_text(&network, "join", "join #club").await;
    let club = invited(&owner, Some("#club")).await;
    owner.send_text(&club, "1", "hello from Matrix").await;
    let heard = irc.heard.recv_timeout(PATIENCE).expect("the channel hears it");
    assert_eq!(heard, "#club :hello from Matrix");
    irc.says.send("hello from IRC".to_owned()).expect("the bridge is connected");
    until("the room hears it", async || {
        said(&owner, &club).await.iter().any(|said| said.contains("hello from IRC"))
    })
    .await;
}
